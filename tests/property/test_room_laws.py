"""Laws of making room, over time, for queues and workloads of any shape: nobody loses what its queue deserves, nobody
is evicted in vain or too often, and who asks for a share has it soon and for good."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.domain.queues import Queue, Quota, ancestors
from libs.domain.resources import WHOLE
from libs.engine.api import Decision
from tests.property.room_play import START, Play, Workload

laws = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
GPUS = 12
STEP = 20.0


def deserves(path: str, gpus: int | None, **more: object) -> Queue:
    return Queue(path, deserved=Quota() if gpus is None else Quota(gpu_milli=gpus * WHOLE), **more)  # type: ignore[arg-type]


@st.composite
def plays(draw: st.DrawFn) -> Play:
    """A full cluster, some of it in queues above what they deserve, and demand of all of them."""
    limits = {
        "evictions": draw(st.integers(1, 3)),
        "evictions_window_s": draw(st.sampled_from([200, 10_000])),
        "min_run_s": draw(st.sampled_from([0, 0, 50])),
    }
    paths = ["a", "b", "lab", "lab/x", "lab/y", "guests"]
    queues = [deserves(path, draw(st.sampled_from([None, 0, 1, 3, 4])), **limits) for path in paths]
    play = Play({"n1": GPUS // 2, "n2": GPUS // 2}, queues, grace_s=draw(st.sampled_from([0.0, 30.0])),
                history=draw(st.booleans()))  # fmt: skip
    leaves = ["a", "b", "lab/x", "lab/y", "guests"]
    free = [(name, index) for name in play.nodes for index in range(GPUS // 2)]
    number = 0
    while free:
        number += 1
        where = free[0][0]
        size = min(draw(st.integers(1, 4)), sum(name == where for name, _ in free))
        indices, free = tuple(index for _, index in free[:size]), free[size:]
        workload = Workload(f"run{number}", draw(st.sampled_from(leaves)), size, priority=draw(st.integers(0, 2)))
        play.runs(workload, START - draw(st.sampled_from([5.0, 100.0, 5000.0])), [(where, indices)])
    for n in range(draw(st.integers(1, 6))):
        tasks = draw(st.sampled_from([1, 1, 2, 3]))
        least = draw(st.integers(1, tasks)) if tasks > 1 else 0
        play.submit(
            Workload(f"wait{n}", draw(st.sampled_from(leaves)), draw(st.integers(1, 3)), tasks, least,
                     priority=draw(st.integers(0, 2)))
        )  # fmt: skip
    return play


def seldom(play: Play, spec: Queue) -> None:
    """No gang was evicted on more occasions than its queue allows, and of others no more pods than that for each."""
    loose = {"Job/team/" + w.name: w.tasks for w in play.workloads.values() if w.head(0).gang_min <= 1}
    for workload, every in play.occasions.items():
        most = spec.evictions * loose.get(workload, 1)
        for at in every:
            within = sum(1 for one in every if at - spec.evictions_window_s < one <= at)
            assert within <= most, (workload, every)


def lowered(play: Play, decisions: dict[str, Decision]) -> None:
    """Whoever was reclaimed from holds what it deserves, but for one unit that does not fit into it beside the rest."""
    queues = {queue.path: queue for queue in play.queues}
    largest: dict[str, int] = {}
    among_themselves: set[str] = set()
    for key, decision in decisions.items():
        theirs = ancestors(play.workloads[key].queue)
        for victim in decision.victims:
            task = play.running[victim.uid]
            among_themselves.update(set(theirs) & set(ancestors(task.queue)))
            if task.queue != theirs[0]:
                for path in (path for path in ancestors(task.queue) if path not in theirs):
                    largest[path] = max(largest.get(path, 0), task.charge.gpu_milli)
    for path, unit in largest.items():
        share = queues[path].deserved.gpu_milli
        if share is not None and path not in among_themselves:
            assert play.used(path) + play.promised(path) + unit > share, (path, share, unit)


@laws
@given(plays(), st.lists(st.sampled_from([0.0, 20.0, 60.0]), min_size=6, max_size=12))
def test_in_every_history_nobody_loses_its_share_nor_is_evicted_too_often_or_for_nobody(
    play: Play, pauses: list[float]
) -> None:
    for pause in pauses:
        waiting = set(play.awaited)
        decisions = play.step(pause)
        lowered(play, decisions)
        for key in waiting - play.awaited.keys():
            assert any(task.job == key for task in play.running.values()), "whom others made room for runs"
    spec = play.queues[0]
    seldom(play, spec)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    size=st.sampled_from([2, 31, 32, 40]),
    most=st.integers(1, 3),
    window_s=st.sampled_from([200, 10_000]),
    grace_s=st.sampled_from([0.0, 5.0]),
    history=st.booleans(),
    urgent=st.lists(
        st.tuples(st.sampled_from([5.0, 20.0, 50.0, 150.0, 500.0]), st.sampled_from([3.0, 15.0])),
        min_size=5,
        max_size=9,
    ),
)
def test_a_gang_of_any_size_that_starts_again_at_once_is_evicted_no_more_often_than_a_single_pod(
    size: int, most: int, window_s: int, grace_s: float, history: bool, urgent: list[tuple[float, float]]
) -> None:
    spec = Queue("q", evictions=most, evictions_window_s=window_s)
    play = Play({"n1": size}, [spec], grace_s=grace_s, history=history)
    play.runs(Workload("gang", "q", tasks=size), START - 1000, [("n1", (index,)) for index in range(size)])
    for n, (pause, runs_s) in enumerate(urgent):
        play.submit(Workload(f"urgent{n}", "q", gpus=1 + n % 2, priority=5, runs_s=runs_s))
        for wait in (1.0, 6.0, pause):
            play.step(wait)
    seldom(play, spec)
    assert play.occasions, "the first of them is let in"


@laws
@given(
    shares=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    demands=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    min_run_s=st.sampled_from([0, 90]),
    grace_s=st.sampled_from([0.0, 30.0]),
    ages=st.lists(st.sampled_from([1.0, 50.0, 5000.0]), min_size=GPUS, max_size=GPUS),
    together=st.booleans(),
)
def test_who_asks_for_its_share_has_it_after_grace_least_run_time_and_two_passes_and_then_all_is_quiet(
    shares: list[int], demands: list[int], min_run_s: int, grace_s: float, ages: list[float], together: bool
) -> None:
    while sum(shares) > GPUS:
        shares.pop()
    queues = [deserves(f"q{n}", share) for n, share in enumerate(shares)]
    play = Play({"n1": GPUS // 2, "n2": GPUS // 2}, [*queues, deserves("guests", None, min_run_s=min_run_s)], grace_s)
    places = [(name, (index,)) for name in play.nodes for index in range(GPUS // 2)]
    for n, (place, age) in enumerate(zip(places, ages, strict=True)):
        play.runs(Workload(f"guest{n}", "guests", priority=9), START - age, [place])
    wanted: dict[str, int] = {}
    for n, share in enumerate(shares):
        demand = demands[n]
        wanted[f"q{n}"] = min(demand, share)
        if together and 1 < demand <= share:
            play.submit(Workload(f"w{n}", f"q{n}", tasks=demand))
        else:
            for i in range(demand):
                play.submit(Workload(f"w{n}x{i}", f"q{n}"))
    deadline = START + min_run_s + grace_s + 2 * STEP
    while play.now + STEP <= deadline + STEP - 1e-9:
        play.step(STEP)
    for path, gpus in wanted.items():
        assert play.used(path) >= gpus * WHOLE, (path, play.used(path), gpus)
    count = len(play.evictions)
    assert count == sum(wanted.values()), "no more than was asked for"
    for _ in range(5):
        play.step(STEP)
    assert len(play.evictions) == count, "who was evicted waits, and takes nothing back"
