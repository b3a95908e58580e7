"""What holds of gangs that are to be near each other, on any small cluster: a search through all domains agrees."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.domain.jobs import JobHead, Task
from libs.domain.resources import Charge, GpuGrant
from libs.domain.topology import Near, Topology
from libs.domain.usage import NodeUse
from libs.domain.verdicts import Kind, Reason
from libs.engine.api import PendingJob
from libs.engine.ask import Ask, ask_key
from libs.engine.core import PlacementEngine
from libs.engine.devices import NodeState
from libs.testkit.builders import ClusterBuilder, cluster, gang, node, task

laws = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

ZONE, RACK = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack"
LABELS = {"zone": ZONE, "rack": RACK}
LEVELS = sorted(LABELS)


@st.composite
def clusters(draw: st.DrawFn, most: int = 6) -> ClusterBuilder:
    facts = cluster()
    for i in range(draw(st.integers(1, most))):
        labels = {}
        if draw(st.integers(0, 5)):
            labels[ZONE] = draw(st.sampled_from("ab"))
        if draw(st.integers(0, 5)):
            labels[RACK] = draw(st.sampled_from(["r1", "r2", "r3"]))
        name = f"n{i}"
        facts.node(name, gpus=draw(st.sampled_from([1, 2, 4])), cpu=draw(st.sampled_from([4000, 16000])), labels=labels)
        free = len(facts.nodes[name].gpus)
        if draw(st.booleans()):
            facts.running(f"run{i}", gpus=draw(st.integers(0, free)), on=name, priority=draw(st.sampled_from([-1, 5])))
    return facts


def domain(facts: ClusterBuilder, node: str, level: str) -> tuple[str, ...] | None:
    """The node's domain: a rack is one within its zone."""
    labels = facts.nodes[node].labels
    if level == "zone":
        return (labels[ZONE],) if ZONE in labels else None
    return (labels.get(ZONE, ""), labels[RACK]) if RACK in labels else None


def only(facts: ClusterBuilder, names: set[str]) -> ClusterBuilder:
    """The same cluster with some of its nodes."""
    part = ClusterBuilder()
    part.nodes = {name: node for name, node in facts.nodes.items() if name in names}
    part.uses = {name: use for name, use in facts.uses.items() if name in names}
    part.pods = [pod for pod in facts.pods if pod.node in names]
    return part


def engine_of(facts: ClusterBuilder) -> PlacementEngine:
    return facts.into(PlacementEngine())


def domains(facts: ClusterBuilder, level: str) -> dict[tuple[str, ...], set[str]]:
    found: dict[tuple[str, ...], set[str]] = {}
    for name in facts.nodes:
        at = domain(facts, name, level)
        if at is not None:
            found.setdefault(at, set()).add(name)
    return found


shapes = st.fixed_dictionaries({"gpus": st.sampled_from([0, 1, 1, 2, 4]), "cpu": st.sampled_from([500, 2000, 4000])})
priorities = st.sampled_from([-5, 0])


@laws
@given(clusters(), shapes, st.integers(1, 6), st.data(), st.sampled_from(LEVELS), priorities)
def test_alike_tasks_lie_in_one_domain_and_are_placed_exactly_when_one_takes_the_minimum(
    facts: ClusterBuilder, shape: dict[str, Any], tasks: int, data: st.DataObject, level: str, priority: int
) -> None:
    minimum = data.draw(st.integers(1, tasks))
    wish = Topology(role=Near(level))
    job = gang("g", tasks, minimum=minimum, priority=priority, topology=wish, **shape)
    plain = gang("g", tasks, minimum=1, priority=-9, **shape)
    (decision,) = engine_of(facts).decide([job])
    assert len({domain(facts, p.node, level) for p in decision.placements}) <= 1
    assert all(domain(facts, p.node, level) for p in decision.placements)
    room = [
        len(engine_of(only(facts, names)).decide([plain])[0].placements) for names in domains(facts, level).values()
    ]
    most = max(room, default=0)
    if not decision.victims:
        assert len(decision.placements) == (most if most >= minimum else 0)
    if decision.verdict.reason is Reason.DOMAIN_ROOM and minimum > 1:
        assert f"room for {most} of {minimum} tasks" in decision.verdict.message or decision.verdict.kind is Kind.NEVER
    if decision.verdict.kind is Kind.NEVER:
        bare = ClusterBuilder()
        bare.nodes = facts.nodes
        for names in domains(facts, level).values():
            assert len(engine_of(only(bare, names)).decide([plain])[0].placements) < minimum


@laws
@given(clusters(), st.lists(shapes, min_size=2, max_size=4), st.sampled_from(LEVELS))
def test_different_tasks_are_placed_whenever_some_domain_takes_all_of_them_alone(
    facts: ClusterBuilder, asked: list[dict[str, Any]], level: str
) -> None:
    def job(topology: Topology | None) -> PendingJob:
        head = JobHead("gang/team/g", "team", "team", gang_min=len(asked), declared=len(asked), priority=-9)
        return PendingJob(head, tuple(task(f"g-{n}", topology=topology, **a) for n, a in enumerate(asked)))

    (decision,) = engine_of(facts).decide([job(Topology(role=Near(level)))])
    assert len({domain(facts, p.node, level) for p in decision.placements}) <= 1
    takes = any(
        engine_of(only(facts, names)).decide([job(None)])[0].placements for names in domains(facts, level).values()
    )
    assert bool(decision.placements) == takes


@laws
@given(clusters(most=5), st.lists(st.integers(1, 3), min_size=2, max_size=3), st.sampled_from([0, 1, 2]))
def test_groups_each_get_a_rack_whenever_some_choice_of_racks_takes_all_of_them(
    facts: ClusterBuilder, sizes: list[int], gpus: int
) -> None:
    """Alike tasks: a rack takes groups exactly when it takes the sum of their tasks."""
    tasks: list[Task] = []
    for number, size in enumerate(sizes):
        wish = Topology(group=Near("rack"), number=number)
        tasks += [task(f"g{number}-{i}", role="w", gpus=gpus, cpu=2000, topology=wish) for i in range(size)]
    head = JobHead("gang/team/g", "team", "team", gang_min=len(tasks), declared=len(tasks), priority=-9)
    (decision,) = engine_of(facts).decide([PendingJob(head, tuple(tasks))])
    racks = list(domains(facts, "rack").values())
    many = gang("p", 20, minimum=1, gpus=gpus, cpu=2000, priority=-9)
    room = [len(engine_of(only(facts, names)).decide([many])[0].placements) for names in racks]
    fits = any(
        all(sum(s for s, r in zip(sizes, choice, strict=True) if r == rack) <= room[rack] for rack in range(len(racks)))
        for choice in product(range(len(racks)), repeat=len(sizes))
    )
    assert bool(decision.placements) == fits
    for number in range(len(sizes)):
        mine = [p.node for p in decision.placements if p.task.topology is not None and p.task.topology.number == number]
        assert len({domain(facts, node, "rack") for node in mine}) <= 1


@laws
@given(clusters(), shapes, st.integers(1, 6), st.data(), st.sampled_from(LEVELS))
def test_a_preference_never_costs_a_place(
    facts: ClusterBuilder, shape: dict[str, Any], tasks: int, data: st.DataObject, level: str
) -> None:
    minimum = data.draw(st.integers(1, tasks))
    job = gang("g", tasks, minimum=minimum, priority=-9, topology=Topology(role=Near(preferred=level)), **shape)
    plain = gang("g", tasks, minimum=minimum, priority=-9, **shape)
    (near,), (anywhere,) = engine_of(facts).decide([job]), engine_of(facts).decide([plain])
    assert len(near.placements) == len(anywhere.placements)
    assert near.verdict.kind is anywhere.verdict.kind
    assert near.verdict.reason is anywhere.verdict.reason
    rooms = [
        len(engine_of(only(facts, names)).decide([plain])[0].placements) for names in domains(facts, level).values()
    ]
    if max(rooms, default=0) == tasks:
        assert len({domain(facts, p.node, level) for p in near.placements}) == 1


@laws
@given(clusters(), shapes, st.integers(2, 5), st.sampled_from(LEVELS), st.data())
def test_missing_members_join_those_that_run_or_wait(
    facts: ClusterBuilder, shape: dict[str, Any], tasks: int, level: str, data: st.DataObject
) -> None:
    wish = Topology(role=Near(level))
    home = data.draw(st.sampled_from(sorted(facts.nodes)))
    facts.running("g", on=home, gang_min=tasks, cpu=1)
    facts.pods[-1] = msgspec.structs.replace(facts.pods[-1], topology=wish)
    job = gang("g", tasks - 1, held=1, minimum=tasks, priority=-9, topology=wish, **shape)
    (decision,) = engine_of(facts).decide([job])
    at = domain(facts, home, level)
    if at is not None:
        assert {domain(facts, p.node, level) for p in decision.placements} <= {at}
    else:
        assert len({domain(facts, p.node, level) for p in decision.placements}) <= 1


@laws
@given(clusters(), st.lists(st.tuples(shapes, st.integers(1, 4)), min_size=1, max_size=3), st.data())
def test_the_order_in_which_nodes_came_changes_no_choice(
    facts: ClusterBuilder, asked: list[tuple[dict[str, Any], int]], data: st.DataObject
) -> None:
    wishes = st.builds(Near, st.sampled_from(["", *LEVELS]), st.sampled_from(["", *LEVELS]))
    jobs = [
        gang(f"g{n}", tasks, created=float(n), topology=Topology(data.draw(wishes), data.draw(wishes)) or None, **shape)
        for n, (shape, tasks) in enumerate(asked)
    ]
    one = engine_of(facts).decide(jobs)
    rng = random.Random(data.draw(st.integers(0, 99)))
    other = ClusterBuilder()
    for mine, theirs in ((other.nodes, facts.nodes), (other.uses, facts.uses)):
        items: list[Any] = list(theirs.items())
        rng.shuffle(items)
        mine.update(items)  # type: ignore[attr-defined]
    other.pods = list(facts.pods)
    rng.shuffle(other.pods)
    assert engine_of(other).decide(jobs) == one
    for decision in one:
        assert decision.placements or decision.verdict.kind is not Kind.FITS
        assert decision.verdict.kind is Kind.FITS or (decision.verdict.message and decision.verdict.wakes_on)


@laws
@given(clusters(), shapes, st.integers(1, 5), st.sampled_from(LEVELS))
def test_what_was_tried_in_vain_leaves_nothing_behind(
    facts: ClusterBuilder, shape: dict[str, Any], tasks: int, level: str
) -> None:
    engine, fresh = engine_of(facts), engine_of(facts)
    wish = Topology(Near(preferred="zone"), Near(level))
    (decision,) = engine.decide([gang("g", tasks, priority=9, topology=wish, **shape)])
    if not decision.placements:
        assert engine.free_room() == fresh.free_room()
    engine.settle()
    assert engine.free_room() == fresh.free_room()


@laws
@given(
    st.integers(1, 8),
    st.lists(st.sampled_from([0, 0, 300, 700, 1000]), min_size=8, max_size=8),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
    st.integers(1, 4),
    st.sampled_from([{}, {"share": 300}, {"mib": 200}]),
)
def test_groups_of_nvlink_bar_nothing_and_are_kept_together_where_one_is_enough(
    gpus: int, used: list[int], group_of: list[int], count: int, share: dict[str, int]
) -> None:
    groups = tuple(
        tuple(i for i in range(gpus) if group_of[i] == g)
        for g in range(4)
        if any(group_of[i] == g for i in range(gpus))
    )
    use = NodeUse("n", 1, gpus=tuple((milli, milli) for milli in used[:gpus]))
    plain = NodeState(0, node("n", gpus=gpus, mib=1000), use)
    linked = NodeState(0, node("n", gpus=gpus, mib=1000, nvlink=groups), use)
    ask = Ask(ask_key(task("t", cpu=0, mem=0, gpus=count, **share)))
    before, after = plain.charge(ask), linked.charge(ask)
    assert (before is None) == (after is None)
    if after is None:
        return
    chosen = [grant.index for grant in after.gpus]
    assert len(set(chosen)) == count
    assert linked.holds(after)
    fitting = [i for i in range(gpus) if NodeState.holds(plain, Charge(gpus=(GpuGrant(i, *ask.grant(1000)),)))]
    if any(sum(i in group for i in fitting) >= count for group in groups):
        assert len({group_of[i] for i in chosen}) == 1
