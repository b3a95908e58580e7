"""How often a workload was evicted, as the leader keeps it: gangs by occasion, whatever their size; never too few."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from libs.domain.occasions import MOST, TOGETHER_S
from libs.domain.queues import Queue, QueueHistory
from libs.domain.resources import Charge, GpuGrant
from libs.engine.running import RunningBook
from libs.testkit.builders import cluster
from services.watcher.decide import Picture
from services.watcher.occasions import Evicted
from services.watcher.standing import kept, statuses
from services.watcher.tally import Tally
from tests.unit.services.watcher.test_half_life import queue_object
from tests.unit.services.watcher.test_tally import Time, begun

ONE = Charge(cpu=2000, mem=64, gpus=(GpuGrant(0, 1000, 80000),))
GANG = "gang/ns/g"


def evict(tally: Tally, time: Time, size: int, attempt: int, runs_s: float) -> None:
    """The gang runs for so long and is told to go, all of it within some seconds."""
    for n in range(size):
        tally.held(f"{attempt}-{n}", "q", ONE, time.now)
    time.now += runs_s
    for n in range(size):
        assert tally.evicted(f"{attempt}-{n}", "q", GANG, time.now + n % 7, gang=True)
        tally.left(f"{attempt}-{n}")
    time.now += 8


def counted(history: QueueHistory, size: int, now: float) -> int:
    """As placement counts it against the bound."""
    facts = cluster().node("n1", gpus=size).running("g", count=size, gang_min=size)
    book = RunningBook()
    for pod in facts.pods:
        book.seen(pod)
    book.pass_begins(now)
    one = facts.pods[0]
    key = one.workload or one.job
    said = QueueHistory(
        "q",
        history.at,
        evictions={key: history.evictions[GANG]},
        pods={key: p} if (p := history.pods.get(GANG)) else {},
    )
    return len(book.evictions(one, said, 86_400))


def test_a_gang_of_forty_that_was_evicted_three_times_within_minutes_counts_three_times() -> None:
    time = Time()
    tally = begun(time)
    for attempt in range(3):
        evict(tally, time, 40, attempt, 20)
    history = tally.history("q")
    assert history.pods == {GANG: (40, 40, 40)}
    assert counted(history, 40, time.now) == 3
    assert history.spending.evictions == 3 or abs(history.spending.evictions - 3) < 0.01
    assert history.left is not None and history.left.evictions == -3


def test_the_next_leader_goes_on_and_counts_no_occasion_twice() -> None:
    time = Time()
    first = begun(time)
    evict(first, time, 40, 0, 100)
    picture = Picture(1, {}, now=time)
    picture.queue_event("ADDED", queue_object("q"))
    picture.tally.begin({"q": first.history("q")})
    status = statuses(picture, {"q": kept(queue_object("q"))[1]}, picture.tally.history, time.now)["q"]
    assert status["evictions"] == [{"workload": GANG, "times": [int(time.now) - 8], "pods": [40]}]
    raw = json.dumps({"metadata": {"name": "q", "uid": "q"}, "status": status}).encode()
    again = kept(raw)[1].history
    assert again is not None
    second = Tally(time, 3600)
    for n in range(40):  # the first lists still show them
        second.evicted(f"0-{n}", "q", GANG, time.now - 8 + n % 7, gang=True, created=time.now - 200)
    second.begin({"q": again})
    assert second.history("q").pods == {GANG: (40,)}
    evict(second, time, 40, 1, 5)
    assert second.history("q").pods == {GANG: (40, 40)}


def test_times_of_single_pods_that_the_release_before_kept_become_occasions() -> None:
    time = Time()
    times = tuple(int(time.now) - 500 + n for n in range(5)) + tuple(int(time.now) - 100 + n for n in range(5))
    tally = begun(time, {"q": QueueHistory("q", time.now, 3600, evictions={GANG: times})})
    assert counted(tally.history("q"), 5, time.now) == 2
    time.now += 10
    evict(tally, time, 5, 1, 60)
    assert tally.history("q").pods == {GANG: (5, 5, 5)}
    assert tally.history("q").evictions[GANG][:2] == (times[0], times[5])


def test_a_new_pod_under_the_same_name_is_evicted_again_though_it_had_just_started() -> None:
    time = Time()
    tally = begun(time)
    for attempt in range(3):
        tally.held(f"u{attempt}", "q", ONE, time.now)
        time.now += 10
        tally.evicted(f"u{attempt}", "q", "StatefulSet/ns/s", time.now)
        tally.left(f"u{attempt}")
    assert tally.history("q").left.evictions == -3  # type: ignore[union-attr]
    assert len(tally.history("q").evictions["StatefulSet/ns/s"]) == 3
    assert not tally.history("q").pods


@given(st.lists(st.integers(0, 300), min_size=1, max_size=300), st.integers(0, 2000))
def test_of_many_single_pods_none_is_forgotten_before_the_window_ends(pauses: list[int], window_s: int) -> None:
    evicted, at, times = Evicted([], []), 1000, []
    for pause in pauses:
        at += pause
        times.append(at)
        evicted.add(at, 0, gang=False)
    assert len(evicted.times) <= MOST
    assert sum(evicted.pods) == len(times)
    evicted.forget(at - window_s)
    assert sum(evicted.pods) >= sum(one >= at - window_s for one in times)


@given(st.lists(st.tuples(st.floats(1, 1000), st.floats(0, 20)), min_size=1, max_size=20), st.integers(2, 80))
def test_every_restart_opens_an_occasion_and_pods_that_are_told_in_any_order_join_it(
    attempts: list[tuple[float, float]], size: int
) -> None:
    evicted, now = Evicted([], []), 1e9
    for number, (runs_s, within) in enumerate(attempts, 1):
        started, now = now, now + runs_s
        news = [evicted.add(now + within * ((7 * n) % size) / size, started, gang=True) for n in range(size)]
        assert (sum(news), len(evicted.times)) == (1, number)
        now += within + 1
    assert within < TOGETHER_S


def test_a_queue_that_moves_takes_its_occasions_along() -> None:
    time = Time()
    tally = begun(time)
    evict(tally, time, 3, 0, 100)
    tally.renamed("q", "org/q")
    assert tally.history("org/q").pods == {GANG: (3,)}
    time.now += 700
    tally.tell({"org/q": Queue("org/q", evictions_window_s=600)})
    assert not tally.history("org/q").evictions
