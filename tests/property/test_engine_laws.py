"""The engine's laws, for clusters, queues and jobs of any shape.

A plain model re-adds everything from the decisions and the facts alone; it shares no arithmetic with the engine.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.domain.queues import ancestors
from libs.domain.resources import WHOLE, Charge
from libs.domain.verdicts import Kind
from libs.engine.api import Decision, EngineConfig, PendingJob
from libs.engine.ask import Ask, ask_key
from libs.engine.core import PlacementEngine
from libs.engine.feasible import Feasibility
from libs.engine.filters import CODES, empty_slots
from libs.engine.mix import TypicalMix
from libs.engine.policies import POLICIES, chosen
from libs.engine.policies.base import Surroundings
from libs.engine.snapshot import Snapshot
from libs.testkit.builders import ClusterBuilder, cluster, gang, pod
from libs.testkit.scored import alone

laws = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

QUEUES = ("a", "a/x", "a/y", "b")


@st.composite
def clusters(draw: st.DrawFn) -> ClusterBuilder:
    facts = cluster()
    for i in range(draw(st.integers(0, 5))):
        facts.node(
            f"n{i}",
            gpus=draw(st.sampled_from([0, 1, 2, 4, 8])),
            mib=draw(st.sampled_from([0, 1000, 16384])),
            model=draw(st.sampled_from(["A", "B"])),
            cpu=draw(st.sampled_from([2000, 8000, 32000])),
            mem=draw(st.sampled_from([2048, 65536])),
            pods=draw(st.sampled_from([2, 110])),
            labels={"zone": draw(st.sampled_from(["1", "2"]))},
            taints=draw(st.sampled_from([(), (), ("own=yes:NoSchedule",), ("spot=yes:PreferNoSchedule",)])),
            cordoned=draw(st.integers(0, 9)) == 0,
        )
    for path in QUEUES:
        if draw(st.booleans()):
            gpus, cpu = draw(st.sampled_from([None, 1, 4, 8])), draw(st.sampled_from([None, 6000]))
            facts.queue(path, gpus=gpus, cpu=cpu, mem=draw(st.sampled_from([None, None, 2048, 5000])))
    for n in range(draw(st.integers(0, 6)) if facts.nodes else 0):
        name = draw(st.sampled_from(sorted(facts.nodes)))
        free = sum(1 for milli, mib in facts._use(name).gpus if not milli and not mib)
        facts.running(
            f"run{n}",
            gpus=draw(st.integers(0, free)),
            count=draw(st.integers(1, 2)) if not free else 1,
            on=name,
            priority=draw(st.integers(-1, 2)),
            queue=draw(st.sampled_from(QUEUES)),
            ours=draw(st.integers(0, 4)) > 0,
            guarded=draw(st.booleans()),
            started=float(draw(st.integers(0, 9))),
        )
    if facts.nodes and draw(st.integers(0, 3)) == 0:
        size = draw(st.integers(2, 3))
        nodes = sorted(name for name in facts.nodes)
        for i in range(size):
            facts.running("team", on=draw(st.sampled_from(nodes)), gang_min=2, priority=0, queue="b")
            facts.pods[-1] = msgspec.structs.replace(facts.pods[-1], uid=f"uid-team-{i}", name=f"team-{i}")
    if facts.nodes and draw(st.integers(0, 5)) == 0:
        facts.foreign(draw(st.sampled_from(sorted(facts.nodes))), gpus=1)
    return facts


asks: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"gpus": st.sampled_from([0, 1, 1, 2, 4, 8]), "cpu": st.sampled_from([0, 500, 4000])}),
    st.fixed_dictionaries({"share": st.sampled_from([1, 250, 333, 500, 999]), "gpus": st.sampled_from([1, 2])}),
    st.fixed_dictionaries({"mib": st.sampled_from([1, 300, 999, 1000, 8000]), "cpu": st.just(100)}),
    st.fixed_dictionaries({"gpus": st.just(1), "models": st.sampled_from([["A"], ["B"], ["A", "C"]])}),
    st.fixed_dictionaries({"gpus": st.just(1), "selector": st.just({"zone": "1"})}),
    st.fixed_dictionaries({"gpus": st.just(1), "tolerations": st.just(["own:NoSchedule"])}),
)


@st.composite
def job_lists(draw: st.DrawFn) -> list[PendingJob]:
    jobs: list[PendingJob] = []
    for n in range(draw(st.integers(1, 7))):
        common = {
            **draw(asks),
            "queue": draw(st.sampled_from(QUEUES)),
            "priority": draw(st.integers(0, 3)),
            "created": float(draw(st.integers(0, 3))),
        }
        if draw(st.booleans()):
            jobs.append(pod(f"p{n}", **common))
        else:
            tasks = draw(st.integers(1, 6))
            jobs.append(gang(f"g{n}", tasks, minimum=draw(st.integers(1, tasks)), **common))
    return jobs


def engine_of(facts: ClusterBuilder, **config: Any) -> PlacementEngine:
    return facts.into(PlacementEngine(EngineConfig(**config)))


def room_left(facts: ClusterBuilder, extra: list[tuple[str, Charge]], without: set[str]) -> dict[str, Any]:
    """The model: what each node has left after the facts, less victims, plus placements."""
    left: dict[str, Any] = {}
    for name, node in facts.nodes.items():
        use = facts.uses.get(name)
        gpus = {g.index: [WHOLE, g.mib] for g in node.gpus}
        left[name] = [node.cpu, node.mem, node.pods, gpus]
        if use is not None:
            left[name][0] -= use.cpu
            left[name][1] -= use.mem
            left[name][2] -= use.pods
            for i, (milli, mib) in enumerate(use.gpus):
                gpus[i][0] -= milli
                gpus[i][1] -= mib
    moves = [(p.node, p.charge, 1) for p in facts.pods if p.uid in without]
    for name, charge, sign in [*moves, *((n, c, -1) for n, c in extra)]:
        entry = left[name]
        entry[0] += sign * charge.cpu
        entry[1] += sign * charge.mem
        entry[2] += sign
        for g in charge.gpus:
            entry[3][g.index][0] += sign * g.milli
            entry[3][g.index][1] += sign * g.mib
    return left


def assert_no_worse(facts: ClusterBuilder, placed: list[tuple[str, Charge]], without: set[str]) -> None:
    before = room_left(facts, [], without)
    after = room_left(facts, placed, without)
    for name, (cpu, mem, pods, gpus) in after.items():
        if any(n == name for n, _ in placed):
            assert cpu >= min(0, before[name][0]), name
            assert mem >= min(0, before[name][1]), name
            assert pods >= 0, name
        for index, (milli, mib) in gpus.items():
            assert milli >= 0, (name, index)
            assert mib >= 0, (name, index)


def everything_placed(decisions: list[Decision]) -> list[tuple[str, Charge]]:
    return [(p.node, p.charge) for d in decisions for p in d.placements]


@laws
@given(clusters(), job_lists(), st.sampled_from(sorted(POLICIES)), st.sampled_from([1, 3]))
def test_no_capacity_is_exceeded_and_no_filter_is_passed_over(
    facts: ClusterBuilder, jobs: list[PendingJob], policy: str, candidates: int
) -> None:
    decisions = engine_of(facts, weights={policy: 1}, candidates=candidates).decide(jobs)
    victims = {v.uid for d in decisions for v in d.victims}
    assert_no_worse(facts, everything_placed(decisions), victims)
    for decision in decisions:
        for placement in decision.placements:
            node, task = facts.nodes[placement.node], placement.task
            assert node.open
            assert placement.node_spec == node.spec
            assert all(node.labels.get(k) == v for k, v in task.node_selector.items())
            for taint in node.taints:
                assert taint.effect == "PreferNoSchedule" or any(t.tolerates(taint) for t in task.tolerations)
            grants = placement.charge.gpus
            assert len({g.index for g in grants}) == len(grants) == task.request.gpu.count
            assert not (grants and facts.uses.get(node.name) and facts.uses[node.name].blind)
            for grant in grants:
                device = node.gpus[grant.index]
                assert (grant.milli, grant.mib) == task.request.gpu.grant(device.mib)
                assert not task.request.gpu.models or device.model in task.request.gpu.models


@laws
@given(clusters(), job_lists())
def test_whole_devices_are_shared_with_nobody(facts: ClusterBuilder, jobs: list[PendingJob]) -> None:
    decisions = engine_of(facts).decide(jobs)
    if any(d.victims for d in decisions):
        return
    holders: Counter[tuple[str, int]] = Counter()
    for name, use in facts.uses.items():
        holders.update((name, i) for i, (milli, mib) in enumerate(use.gpus) if milli or mib)
    whole: set[tuple[str, int]] = set()
    for decision in decisions:
        for p in decision.placements:
            for grant in p.charge.gpus:
                holders[p.node, grant.index] += 1
                if p.task.request.gpu.whole:
                    whole.add((p.node, grant.index))
    assert all(holders[device] == 1 for device in whole)


@laws
@given(clusters(), job_lists())
def test_a_gang_gets_its_minimum_or_nothing(facts: ClusterBuilder, jobs: list[PendingJob]) -> None:
    for job, decision in zip(jobs, engine_of(facts).decide(jobs), strict=True):
        assert decision.job == job.head.key
        placed = [p.task.id for p in decision.placements]
        assert len(set(placed)) == len(placed)
        assert not placed or len(placed) >= job.head.gang_min
        if not decision.victims:
            assert (decision.verdict.kind is Kind.FITS) == bool(placed)
            assert bool(decision.leftover) == (0 < len(placed) < len(job.tasks))
        if decision.verdict.kind is not Kind.FITS:
            assert decision.verdict.reason is not None
            assert decision.verdict.message
            assert decision.verdict.wakes_on


@laws
@given(clusters(), job_lists())
def test_no_queue_exceeds_its_limit_nor_any_above_it(facts: ClusterBuilder, jobs: list[PendingJob]) -> None:
    decisions = engine_of(facts).decide(jobs)
    gone = {v.uid for d in decisions for v in d.victims}
    added: dict[str, list[int]] = {}
    for job, decision in zip(jobs, decisions, strict=True):
        for p in decision.placements:
            for path in ancestors(job.head.queue):
                sums = added.setdefault(path, [0, 0, 0])
                sums[0] += p.charge.gpu_milli
                sums[1] += p.charge.cpu
                sums[2] += p.charge.mem
    for path, (milli, cpu, mem) in added.items():
        queue, use = facts.queues.get(path), facts.queue_uses.get(path)
        if queue is None:
            continue
        leaving = [p.charge for p in facts.pods if p.uid in gone and path in ancestors(p.queue)]
        if queue.gpu_milli is not None and milli:
            used = (use.gpu_milli if use else 0) - sum(c.gpu_milli for c in leaving)
            assert used + milli <= queue.gpu_milli
        if queue.cpu is not None and cpu:
            assert (use.cpu if use else 0) - sum(c.cpu for c in leaving) + cpu <= queue.cpu
        if queue.mem is not None and mem:
            assert (use.mem if use else 0) - sum(c.mem for c in leaving) + mem <= queue.mem


@laws
@given(clusters(), job_lists(), st.randoms(use_true_random=False), st.sampled_from([1, 4]))
def test_the_order_in_which_facts_came_changes_no_decision(
    facts: ClusterBuilder, jobs: list[PendingJob], rng: random.Random, candidates: int
) -> None:
    one = engine_of(facts, candidates=candidates, seed=5).decide(jobs)
    other = ClusterBuilder()
    for mine, theirs in (
        (other.nodes, facts.nodes),
        (other.uses, facts.uses),
        (other.queues, facts.queues),
        (other.queue_uses, facts.queue_uses),
    ):
        items: list[Any] = list(theirs.items())
        rng.shuffle(items)
        mine.update(items)  # type: ignore[attr-defined]
    other.pods = list(facts.pods)
    rng.shuffle(other.pods)
    mixed = list(jobs)
    rng.shuffle(mixed)
    two = {d.job: d for d in engine_of(other, candidates=candidates, seed=5).decide(mixed)}
    assert [two[d.job] for d in one] == one


@laws
@given(clusters(), job_lists())
def test_victims_are_of_lower_priority_ours_sufficient_and_none_superfluous(
    facts: ClusterBuilder, jobs: list[PendingJob]
) -> None:
    by_uid = {p.uid: p for p in facts.pods}
    for job in jobs:
        (decision,) = engine_of(facts).decide([job])
        if not decision.victims:
            continue
        uids = [v.uid for v in decision.victims]
        assert len(set(uids)) == len(uids)
        for victim in decision.victims:
            known = by_uid[victim.uid]
            assert known.ours
            assert known.priority == victim.priority < job.head.priority
        placed = [(p.node, p.charge) for p in decision.placements]
        assert_no_worse(facts, placed, set(uids))
        team = {u for u, p in by_uid.items() if p.gang_min > 1}
        if team & set(uids):
            remaining = len(team - set(uids))
            assert remaining == 0 or remaining >= 2
        singles = [u for u in uids if by_uid[u].gang_min <= 1]
        for spared in singles:
            if job.head.queue and any(path in facts.queues for path in ancestors(job.head.queue)):
                continue  # may be needed for the quota alone
            with pytest.raises(AssertionError):
                assert_no_worse(facts, placed, set(uids) - {spared})


@laws
@given(clusters(), st.data())
def test_a_task_that_some_node_can_take_is_placed_when_it_is_alone(facts: ClusterBuilder, data: st.DataObject) -> None:
    facts.queues.clear()
    ask = data.draw(asks)
    (decision,) = engine_of(facts).decide([pod("p", priority=-9, **ask)])
    if decision.placements:
        return
    task = pod("p", **ask).tasks[0]
    left = room_left(facts, [], set())
    for name, node in facts.nodes.items():
        cpu, mem, pods, gpus = left[name]
        gpu = task.request.gpu
        takes = node.open and pods >= 1
        takes &= all(node.labels.get(k) == v for k, v in task.node_selector.items())
        takes &= all(
            t.effect == "PreferNoSchedule" or any(o.tolerates(t) for o in task.tolerations) for t in node.taints
        )
        takes &= not task.request.cpu or task.request.cpu <= cpu
        takes &= not task.request.mem or task.request.mem <= mem
        if gpu.count:
            fitting = 0
            for device in node.gpus:
                milli, mib = gpu.grant(device.mib)
                free = gpus[device.index]
                fine = (free == [WHOLE, device.mib]) if gpu.whole else (free[0] >= milli and free[1] >= mib)
                fitting += fine and (not gpu.models or device.model in gpu.models)
            takes &= fitting >= gpu.count and not (name in facts.uses and facts.uses[name].blind)
        assert not takes, name


@laws
@given(clusters(), job_lists(), job_lists())
def test_settle_returns_to_the_ledgers_truth(
    facts: ClusterBuilder, jobs: list[PendingJob], more: list[PendingJob]
) -> None:
    """What was learned of the mix stays, so the policy here is one that learns nothing."""
    config = {"weights": {"weighted-best-fit": 1}}
    engine, fresh = engine_of(facts, **config), engine_of(facts, **config)
    engine.decide(jobs)
    engine.settle()
    assert engine.free_room() == fresh.free_room()
    assert engine.queue_room() == fresh.queue_room()
    assert engine.decide(more) == fresh.decide(more)


@laws
@given(clusters(), job_lists(), st.sampled_from(sorted(POLICIES)))
def test_a_node_scored_alone_gets_the_score_of_all_nodes_scored_together(
    facts: ClusterBuilder, jobs: list[PendingJob], policy: str
) -> None:
    snapshot = Snapshot()
    for node in facts.nodes.values():
        snapshot.node_seen(node)
    for use in facts.uses.values():
        snapshot.use_seen(use)
    mix = TypicalMix()
    policies = chosen({policy: 3}, Surroundings(snapshot, mix))
    for job in jobs:
        mix.learn(job)
        view = Feasibility(snapshot, Ask(ask_key(job.tasks[0])), policies)
        view.refresh()
        together = view.keys[: len(snapshot.states)].tolist()
        assert alone(view) == together


@laws
@given(clusters(), asks)
def test_the_bound_on_an_empty_node_is_never_below_what_it_takes(facts: ClusterBuilder, ask: dict[str, Any]) -> None:
    """Never must not be said of a gang that an empty cluster could hold."""
    snapshot = Snapshot()
    for node in facts.nodes.values():
        snapshot.node_seen(node)
    compiled = Ask(ask_key(pod("p", **ask).tasks[0]))
    view = Feasibility(snapshot, compiled, chosen({"first-fit": 1}))
    view.refresh()
    slots = empty_slots(snapshot, compiled, view.codes)
    for row, state in enumerate(snapshot.states):
        if state is None or (view.codes[row] > 0 and CODES[int(view.codes[row])] is not None):
            continue
        taken = 0
        while taken < 200 and (charge := state.charge(compiled)) is not None:
            state.take(charge)
            taken += 1
        assert taken <= int(np.minimum(slots[row], 200))
