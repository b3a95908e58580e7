"""Laws of the order between jobs and queues, for any of them: what is decided does not depend on who was named first,
nobody waits who fits, nobody within its share waits behind one above it."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.engine.api import EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.testkit.builders import ClusterBuilder, cluster, pod

DAY = 86_400.0
NOW = 1.8e9
DESERVES = {"a": 2, "b": 3, "lab": 3, "lab/x": 2, "lab/y": 1}
LEAVES = ("a", "b", "lab/x", "lab/y", "lab")


class Row(NamedTuple):
    queue: str
    gpus: int
    priority: int
    age_days: float


rows = st.lists(
    st.builds(
        Row,
        st.sampled_from(LEAVES),
        st.sampled_from([1, 1, 1, 2, 4]),
        st.sampled_from([0, 0, 5]),
        st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0]),
    ),
    min_size=1,
    max_size=14,
)
used = st.fixed_dictionaries({queue: st.integers(0, 2) for queue in ("a", "b", "lab/x", "lab/y")})


def facts_of(running: dict[str, int]) -> ClusterBuilder:
    facts = cluster().node("n1", gpus=6).node("n2", gpus=4)
    for path, gpus in DESERVES.items():
        facts.queue(path, deserves=gpus)
    for queue, count in running.items():
        for n in range(count):
            facts.running(f"run-{queue.replace('/', '-')}-{n}", gpus=1, queue=queue)
    return facts


def jobs_of(made: list[Row]) -> list[PendingJob]:
    return [
        pod(f"p{n}", gpus=row.gpus, queue=row.queue, priority=row.priority, created=NOW - row.age_days * DAY,
            may_evict=False)
        for n, row in enumerate(made)
    ]  # fmt: skip


def engine_of(running: dict[str, int]) -> PlacementEngine:
    return facts_of(running).into(PlacementEngine(EngineConfig(weights={"first-fit": 1})))


@settings(max_examples=40, deadline=None)
@given(made=rows, running=used, seed=st.integers(0, 999))
def test_decisions_do_not_depend_on_the_order_in_which_jobs_are_named(
    made: list[Row], running: dict[str, int], seed: int
) -> None:
    jobs = jobs_of(made)
    first = {d.job: [(p.node, p.charge) for p in d.placements] for d in engine_of(running).decide(jobs, NOW)}
    other = list(jobs)
    Random(seed).shuffle(other)
    again = {d.job: [(p.node, p.charge) for p in d.placements] for d in engine_of(running).decide(other, NOW)}
    assert again == first


@settings(max_examples=40, deadline=None)
@given(made=rows, running=used)
def test_nobody_waits_who_fits(made: list[Row], running: dict[str, int]) -> None:
    jobs = jobs_of(made)
    engine = engine_of(running)
    decisions = engine.decide(jobs, NOW)
    for job, decision in zip(jobs, decisions, strict=True):
        if not decision.placements:
            assert not engine.takers(job.tasks[0]), f"{job.head.key} fits and waits"


@settings(max_examples=60, deadline=None)
@given(made=rows, running=used)
def test_nobody_within_its_share_waits_while_one_above_takes_as_much(made: list[Row], running: dict[str, int]) -> None:
    jobs = jobs_of(made)
    decisions = engine_of(running).decide(jobs, NOW)
    gained = {queue: running.get(queue, 0) for queue in DESERVES}
    gained["lab"] = gained["lab/x"] + gained["lab/y"]

    def levels(queue: str) -> list[str]:
        return [queue] if "/" not in queue else [queue.split("/")[0], queue]

    sizes: dict[str, set[int]] = {}
    for job, decision in zip(jobs, decisions, strict=True):
        if decision.placements:
            sizes.setdefault(levels(job.head.queue)[0], set()).add(job.tasks[0].request.gpu.count)
            for level in levels(job.head.queue):
                gained[level] += job.tasks[0].request.gpu.count
    for job, decision in zip(jobs, decisions, strict=True):
        size = job.tasks[0].request.gpu.count
        top = levels(job.head.queue)[0]
        if decision.placements or gained[top] + size > DESERVES[top]:
            continue
        # At the end its branch still deserves this: nothing as large may have gone to a branch that stood above.
        for other, theirs in zip(jobs, decisions, strict=True):
            their_top = levels(other.head.queue)[0]
            # Where all of its branch are of one size it is known how that stood when the last of them went.
            same = sizes.get(their_top) == {size}
            if theirs.placements and their_top != top and same:
                assert gained[their_top] - size < DESERVES[their_top], f"{other.head.key} went before {job.head.key}"


@settings(max_examples=40, deadline=None)
@given(made=rows)
def test_within_a_queue_nobody_passes_who_has_waited_past_the_limit(made: list[Row]) -> None:
    jobs = jobs_of([row._replace(queue="a") for row in made])
    decisions = engine_of({}).decide(jobs, NOW)
    late = [(j, d) for j, d in zip(jobs, decisions, strict=True) if NOW - j.head.created >= 1.5 * DAY]
    for job, decision in late:
        if decision.placements:
            continue
        for other, theirs in zip(jobs, decisions, strict=True):
            if theirs.placements and other.tasks[0].request == job.tasks[0].request:
                overdue = NOW - other.head.created >= 1.5 * DAY
                assert overdue and (other.head.created, other.head.key) < (job.head.created, job.head.key)
