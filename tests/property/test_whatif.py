"""Whatever is named as a remedy is one, and in the smallest amount, on any small cluster."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.domain.jobs import Wishes
from libs.domain.resources import WHOLE
from libs.engine.api import EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.engine.whatif import WhatIf, said
from libs.testkit.builders import ClusterBuilder, cluster, gang, node, pod, request, tolerate

SIZES = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4)
RUNNING = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([1, 1, 2, 4]), st.sampled_from([500, 4000]), st.booleans()), max_size=7
)


def facts_of(sizes: list[int], running: list[tuple[int, int, int, bool]]) -> ClusterBuilder:
    facts = cluster()
    for i, gpus in enumerate(sizes):
        facts.node(f"n{i}", gpus=gpus, mib=1000, cpu=8000, mem=50_000, taints=["own=yes:NoSchedule"] if i == 3 else ())
    for at, (where, gpus, cpu, movable) in enumerate(running):
        name = f"n{where % len(sizes)}"
        use, fact = facts._use(name), facts.nodes[name]
        if sum(milli == 0 for milli, _ in use.gpus) >= gpus and fact.cpu - use.cpu >= cpu:
            wishes = Wishes(request(gpus, cpu=cpu, mem=100)) if movable else None
            facts.running(f"r{at}", gpus, on=name, cpu=cpu, mem=100, wishes=wishes)
    return facts


def fits(facts: ClusterBuilder, job: PendingJob, *extra: Any) -> bool:
    engine = facts.into(PlacementEngine(EngineConfig()))
    for fact in extra:
        engine.node_seen(fact)
    return bool(engine.decide([job])[0].placements)


def sized(job: PendingJob, side: str, amount: int) -> PendingJob:
    if side == "tasks":
        head = msgspec.structs.replace(job.head, gang_min=amount)
        return msgspec.structs.replace(job, head=head, tasks=job.tasks[:amount])

    def changed(asked: Any) -> Any:
        if side in ("cpu", "mem"):
            return msgspec.structs.replace(asked, **{side: amount})
        what = {"gpus": "count", "gpu-milli": "milli", "gpu-mib": "mib"}[side]
        return msgspec.structs.replace(asked, gpu=msgspec.structs.replace(asked.gpu, **{what: amount}))

    tasks = tuple(msgspec.structs.replace(task, request=changed(task.request)) for task in job.tasks)
    return msgspec.structs.replace(job, tasks=tasks)


def holds(facts: ClusterBuilder, job: PendingJob, answer: WhatIf) -> None:
    assert answer.fits == fits(facts, job)
    if answer.fits:
        return
    for more in answer.nodes:
        like = facts.nodes[more.like]
        new = [node(f"new{i}", more.gpus, mib=1000, cpu=8000, mem=50_000) for i in range(more.count)]
        new = [msgspec.structs.replace(n, taints=like.taints) for n in new]
        assert fits(facts, job, *new)
        assert not fits(facts, job, *new[1:])
    for smaller in answer.request:
        assert 0 < smaller.amount < smaller.asked
        assert fits(facts, sized(job, smaller.side, smaller.amount)), smaller
        step = max(1, 10 ** (len(str(smaller.asked)) - 3))
        assert smaller.amount + step >= smaller.asked or not fits(
            facts, sized(job, smaller.side, smaller.amount + step)
        ), f"{smaller} is not the most"
    for wish in answer.wishes:
        assert wish.wish in ("selector", "toleration")
        change = (
            {"node_selector": {}} if wish.wish == "selector" else {"tolerations": (tolerate("own=yes:NoSchedule"),)}
        )
        tasks = tuple(msgspec.structs.replace(task, **change) for task in job.tasks)
        assert fits(facts, msgspec.structs.replace(job, tasks=tasks))
    if answer.moves is not None:
        left = cluster()
        left.nodes = dict(facts.nodes)
        gone = {move.pod.uid for move in answer.moves.moves}
        for task in facts.pods:
            if task.uid not in gone:
                left.used(task.node, task.charge)
        assert fits(left, job)
        for move in answer.moves.moves:
            left.used(move.target, move.charge)
        for placement in answer.moves.placements:
            left.used(placement.node, placement.charge)
        assert all(milli <= WHOLE for use in left.uses.values() for milli, _ in use.gpus)
    remedies = [answer.moves is not None, bool(answer.nodes), *answer.request, *answer.wishes]
    assert len(said(answer)) == sum(map(bool, remedies))


@settings(max_examples=60, deadline=None)
@given(SIZES, RUNNING, st.sampled_from([1, 2, 4, 8]), st.sampled_from([500, 4000, 8000]), st.booleans())
def test_remedies_for_one_task(sizes, running, gpus, cpu, tied):
    facts = facts_of(sizes, running)
    job = pod("p", gpus=gpus, cpu=cpu, mem=100, selector={"kubernetes.io/hostname": "n0"} if tied else {})
    answer = facts.into(PlacementEngine(EngineConfig())).what_if(job, 0.0)
    assert not (tied and answer.nodes), "a new node has another name"
    holds(facts, job, answer)


@settings(max_examples=40, deadline=None)
@given(SIZES, RUNNING, st.integers(2, 6), st.sampled_from([1, 2, 4]))
def test_remedies_for_a_gang(sizes, running, members, gpus):
    facts = facts_of(sizes, running)
    job = gang("g", members, gpus=gpus, cpu=500, mem=100)
    holds(facts, job, facts.into(PlacementEngine(EngineConfig())).what_if(job, 0.0))
