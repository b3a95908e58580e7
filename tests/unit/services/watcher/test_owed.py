"""What evictions for little service may cost, as the leader keeps it: what is over fades, what is owed does not."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.domain.queues import Left, QueueHistory, Spending
from libs.domain.resources import Charge, GpuGrant
from libs.engine.fair import LittleService
from libs.engine.fair.book import ServiceBook
from libs.engine.queues import QueueBook
from libs.engine.running import RunningBook
from libs.kube.objects import queue_decoder
from services.watcher.decide import Picture
from services.watcher.settings import WatcherSettings
from services.watcher.standing import kept, statuses
from services.watcher.tally import Tally
from tests.unit.services.watcher.test_half_life import queue_object
from tests.unit.services.watcher.test_tally import Time

DAY = 86_400
#: So much work that only the number of evictions is short.
BIG = Charge(cpu=2000, mem=64, gpus=tuple(GpuGrant(n, 1000, 80_000) for n in range(1000)))


def begun(time: Time, records: dict[str, QueueHistory] | None = None) -> Tally:
    tally = Tally(time, DAY)
    tally.begin(records or {})
    return tally


def left(tally: Tally, time: Time, *paths: str) -> int:
    """As placement reckons."""
    queues = QueueBook()
    for path in paths or ("q",):
        queues.history_seen(tally.history(path))
    return ServiceBook(LittleService(), 1e9, RunningBook(), queues, lambda: 0.0).evictions_left(time.now)


def test_what_urgent_jobs_took_beyond_the_budget_is_still_owed_after_a_month() -> None:
    time = Time()
    tally = begun(time)
    tally.held("work", "q", BIG, time.now)
    for n in range(60):
        tally.evicted(f"u{n}", "q", f"w{n}", time.now)
    time.now += 28 * DAY
    for n in range(100):
        tally.came("q", f"j{n}", f"j{n}", time.now)
    assert tally.history("q").left.evictions == pytest.approx(30 - 60)  # type: ignore[union-attr]
    assert left(tally, time) == 0
    for n in range(200, 310):
        tally.came("q", f"j{n}", f"j{n}", time.now)
    assert left(tally, time) == 3


def test_the_work_that_evictions_cost_beyond_the_budget_is_still_owed_after_a_month() -> None:
    time = Time()
    tally = begun(time)
    for n in range(100):
        tally.came("q", f"j{n}", f"j{n}", time.now)
    tally.held("dear", "q", BIG, time.now)
    time.now += 2 * DAY
    tally.evicted("dear", "q", "w", time.now)  # 2,000 GPU days are lost, of which 40 were paid for
    tally.left("dear")
    assert left(tally, time) == 0
    time.now += 28 * DAY
    for n in range(200, 300):
        tally.came("q", f"j{n}", f"j{n}", time.now)
    assert left(tally, time) == 0
    found = tally.history("q").left
    assert found is not None and found.gpu_milli_s == pytest.approx(-1960 * DAY * 1000, rel=1e-6)


def test_what_is_left_over_is_no_licence_for_a_burst_and_one_queues_jobs_pay_for_anothers_evictions() -> None:
    time = Time()
    tally = begun(time)
    tally.held("work", "b", BIG, time.now)
    for n in range(1000):
        tally.came("a", f"j{n}", f"j{n}", time.now)
    time.now += 70 * DAY
    assert left(tally, time, "a", "b") == 0
    for n in range(2000, 2100):
        tally.came("a", f"j{n}", f"j{n}", time.now)
    for n in range(20):
        tally.evicted(f"u{n}", "b", f"w{n}", time.now)
    assert left(tally, time, "a", "b") == left(tally, time, "b") == 10


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 60, DAY, 20 * DAY]),
            st.sampled_from(["came", "came", "asks", "forced", "leader"]),
            st.sampled_from("ab"),
        ),
        max_size=40,
    )
)
def test_in_every_history_evictions_are_paid_for_by_jobs_that_came(steps: list[tuple[int, str, str]]) -> None:
    time = Time()
    tally = begun(time)
    tally.held("work", "c", BIG, time.now)
    came = evicted = 0
    for number, (pause, what, path) in enumerate(steps):
        time.now += pause
        if what == "came":
            for n in range(4):
                tally.came(path, f"j{number}-{n}", f"j{number}-{n}", time.now)
            came += 4
        elif what == "leader":
            records = {one: tally.history(one) for one in "abc"}
            time.now += 5
            tally = Tally(time, DAY)
            tally.held("work", "c", BIG, time.now - 5)
            tally.begin(records)
        elif what == "forced" or left(tally, time, "a", "b", "c"):
            time.now += 5
            tally.evicted(f"u{number}", path, f"w{number}", time.now)
            evicted += 1
            assert what == "forced" or evicted <= 0.3 * came + 1e-5


def test_the_status_keeps_it_for_the_next_leader_and_an_older_release_leaves_nothing_behind() -> None:
    time = Time()
    picture = Picture(1, {}, now=time, budget=WatcherSettings(placement_service_evictions=0.5).budget)
    picture.queue_event("ADDED", queue_object("team"))
    picture.tally.begin({})
    picture.tally.came("team", "j", "j", time.now)
    for n in range(3):
        picture.tally.evicted(f"u{n}", "team", f"w{n}", time.now)
    name, found = kept(queue_object("team"))
    status = statuses(picture, {name: found}, picture.tally.history, time.now)[name]
    assert status["history"]["left"] == {"at": time.now, "evictions": -2.5, "gpuMilliSeconds": 0}
    raw = json.dumps({"metadata": {"name": "team", "uid": "team"}, "status": status}).encode()
    assert queue_decoder.decode(raw).metadata.name == "team"
    again = kept(raw)[1].history
    assert again is not None and again.left == Left(time.now, -2.5, 0)
    status["history"]["at"] += 3600  # written by a release that does not know of it
    raw = json.dumps({"metadata": {"name": "team", "uid": "team"}, "status": status}).encode()
    older = kept(raw)[1].history
    assert older is not None and older.left is None
    time.now += 3600
    assert begun(time, {"team": older}).history("team").left.evictions == pytest.approx(0.3 - 3, abs=0.05)  # type: ignore[union-attr]


def test_of_records_of_the_release_before_what_each_says_is_taken_together() -> None:
    time = Time()
    record = QueueHistory("q", time.now, DAY, 10**12, spending=Spending(100.0, 20.0, 0, DAY, 10**12))
    queues = QueueBook()
    queues.history_seen(record)
    queues.history_seen(msgspec.structs.replace(record, path="other"))
    book = ServiceBook(LittleService(), 1e9, RunningBook(), queues, lambda: 0.0)
    assert book.evictions_left(time.now) == 20
    assert begun(time, {"q": record}).history("q").left.evictions == pytest.approx(10)  # type: ignore[union-attr]
