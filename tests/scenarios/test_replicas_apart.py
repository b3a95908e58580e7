"""Two placement replicas that decide at the same moment, each unaware of the other: do their plans meet?"""

from __future__ import annotations

from libs.engine.core import PlacementEngine
from libs.testkit.builders import node, pod

NODES = [node(f"n{n}", gpus=8) for n in range(20)]


def decided(begins_at: float, name: str, gpus: int, count: int) -> list[tuple[str, int]]:
    """(node, device) of all that one replica gives out in one pass, on a cluster that it takes for empty."""
    engine = PlacementEngine()
    for each in NODES:
        engine.node_seen(each)
    engine.begin_at(begins_at)
    jobs = [pod(f"{name}-{n}", gpus=gpus) for n in range(count)]
    placed = [p for decision in engine.decide(jobs) for p in decision.placements]
    assert len(placed) == count
    return [(p.node, grant.index) for p in placed for grant in p.charge.gpus]


def test_replicas_that_begin_apart_hardly_meet_although_they_prefer_the_same_nodes() -> None:
    one, other = decided(0.0, "a", 1, 60), decided(0.5, "b", 1, 60)
    assert {name for name, _ in one} == {name for name, _ in other}
    assert len(set(one) & set(other)) <= 6, "nine of ten plans of whoever comes second hold"


def test_replicas_that_begin_at_the_same_device_meet_everywhere() -> None:
    one, other = decided(0.0, "a", 1, 60), decided(0.0, "b", 1, 60)
    assert set(one) == set(other)


def test_where_one_begins_changes_devices_and_not_nodes() -> None:
    for gpus in (1, 2, 4, 8):
        one, other = decided(0.0, "a", gpus, 16), decided(0.5, "a", gpus, 16)
        assert [name for name, _ in one] == [name for name, _ in other]
