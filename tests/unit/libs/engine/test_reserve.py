"""Where a job that fits nowhere can start soonest, with nobody evicted."""

from __future__ import annotations

from libs.domain.resources import Charge, GpuGrant
from libs.domain.topology import Near, Topology
from libs.engine.api import Decision, EngineConfig, PendingJob, Reserved
from libs.engine.core import PlacementEngine
from libs.testkit.builders import ClusterBuilder, cluster, gang, pod

NOW = 1.8e9


def asked(facts: ClusterBuilder, job: PendingJob) -> tuple[Decision, Reserved | None]:
    engine = facts.into(PlacementEngine(EngineConfig(weights={"first-fit": 1})))
    before = engine.free_room()
    (decision,) = engine.decide([job], NOW)
    reserved = engine.reserve(job, NOW)
    assert engine.free_room() == before, "looking takes nothing"
    return decision, reserved


def test_the_node_whose_tasks_end_first_by_their_own_word_is_chosen() -> None:
    facts = cluster().node("n1", gpus=2).node("n2", gpus=2)
    facts.running("long", gpus=1, on="n1", started=NOW - 10, expected_s=1000)
    facts.running("short", gpus=1, on="n2", started=NOW - 10, expected_s=100)
    decision, reserved = asked(facts, pod("large", gpus=2))
    assert not decision.placements and reserved is not None
    assert [p.node for p in reserved.placements] == ["n2"]
    assert (reserved.start.at, reserved.start.basis) == (NOW + 90, "declared run times")


def test_a_node_of_known_ends_comes_before_one_where_nobody_knows() -> None:
    facts = cluster().node("n1", gpus=2).node("n2", gpus=2)
    facts.running("silent", gpus=1, on="n1", started=NOW - 10)
    facts.running("declared", gpus=1, on="n2", started=NOW - 10, expected_s=5000)
    _, reserved = asked(facts, pod("large", gpus=2))
    assert reserved is not None and [p.node for p in reserved.placements] == ["n2"]


def test_where_nobody_knows_the_least_that_has_to_leave_is_chosen_and_no_time_is_said() -> None:
    facts = cluster().node("n1", gpus=4).node("n2", gpus=4)
    for n in range(3):
        facts.running(f"a{n}", gpus=1, on="n1")
    facts.running("b", gpus=1, on="n2")
    _, reserved = asked(facts, pod("large", gpus=4))
    assert reserved is not None and [p.node for p in reserved.placements] == ["n2"]
    assert reserved.start.at == 0 and reserved.start.basis == "unknown run times"


def test_a_gang_takes_what_is_there_and_waits_for_the_rest() -> None:
    facts = cluster().node("n1", gpus=2).node("n2", gpus=2)
    facts.running("x", gpus=1, on="n2", started=NOW, expected_s=60)
    _, reserved = asked(facts, gang("train", 2, gpus=2))
    assert reserved is not None and sorted(p.node for p in reserved.placements) == ["n1", "n2"]
    assert reserved.start.at == NOW + 60


def test_nodes_where_room_gathers_for_another_and_nodes_too_small_are_left_alone() -> None:
    facts = cluster().node("n1", gpus=2).node("n2", gpus=1)
    facts.running("x", gpus=1, on="n1")
    facts.earmarked("n1", "pod/team/heir", Charge(0, 0, (GpuGrant(1, 1000, 81920),)))
    _, reserved = asked(facts, pod("large", gpus=2))
    assert reserved is None


def test_a_gang_that_demands_one_rack_gathers_within_one() -> None:
    label = "topology.kubernetes.io/rack"
    facts = cluster().rack("r1", nodes=1, gpus=2, labels={label: "r1"})
    facts.rack("r2", nodes=2, gpus=2, labels={label: "r2"})
    for node in ("r1-0", "r2-0", "r2-1"):
        facts.running(f"on-{node}", gpus=1, on=node, queue="other", started=NOW, expected_s=60)
    near = Topology(job=Near(required="rack"))
    _, reserved = asked(facts.queue("other"), gang("train", 2, gpus=2, topology=near))
    assert reserved is not None and sorted(p.node for p in reserved.placements) == ["r2-0", "r2-1"]
    assert reserved.start.at == NOW + 60
