"""The half-life of what queues used, as their owners say it: inherited, changed while jobs run, without a jump."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.domain.queues import Queue, QueueHistory, Spending
from libs.domain.resources import Charge, GpuGrant
from libs.engine.fair import Shares
from services.watcher.decide import Picture
from services.watcher.standing import kept, statuses
from services.watcher.tally import Tally

HOUR = 3600
DAY = 24 * HOUR
ONE = Charge(cpu=2000, mem=64, gpus=(GpuGrant(0, 1000, 80000),))
H100 = {0: "H100"}


class Time:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def mean(history: QueueHistory) -> float:
    """GPUs used of late, in the mean."""
    return history.gpu_milli_s * math.log(2) / history.half_life_s / 1000


def begun(time: Time, kept: dict[str, QueueHistory] | None = None) -> Tally:
    tally = Tally(time, DAY)
    tally.begin(kept or {})
    return tally


def queue_object(name: str, **spec: Any) -> bytes:
    return json.dumps({"metadata": {"name": name, "uid": name, "resourceVersion": "5"}, "spec": spec}).encode()


def test_what_is_said_at_the_top_counts_below_and_what_a_queue_says_itself_comes_first() -> None:
    time = Time()
    tally = begun(time)
    tally.queues_are({"org": Queue("org", half_life_s=HOUR), "org/night": Queue("org/night", half_life_s=2 * HOUR)})
    for path in ("org/day", "org/night", "other"):
        tally.held(path, path, ONE, time.now)
    time.now += HOUR
    said = {path: tally.history(path).half_life_s for path in ("org", "org/day", "org/night", "other")}
    assert said == {"org": HOUR, "org/day": HOUR, "org/night": 2 * HOUR, "other": DAY}
    assert mean(tally.history("org/day")) == pytest.approx(0.5, abs=1e-3)
    assert mean(tally.history("org/night")) == pytest.approx(1 - 0.5**0.5, abs=1e-3)
    assert mean(tally.history("org")) == pytest.approx(1.0, abs=1e-3), "two GPUs for its own half-life"


def test_a_change_leaves_the_mean_as_it_is_and_from_then_on_it_is_forgotten_at_the_new_rate() -> None:
    time = Time()
    tally = begun(time)
    tally.held("a", "org/team", ONE, time.now, H100)
    time.now += DAY
    tally.left("a")
    before = mean(tally.history("org/team"))
    queues = {path: Queue(path) for path in ("org", "org/team")}
    tally.tell(queues)
    tally.queues_are(queues | {"org": Queue("org", half_life_s=HOUR)})
    after = tally.history("org/team")
    assert mean(after) == pytest.approx(before, rel=1e-6)
    assert after.models["H100"] == after.gpu_milli_s
    assert {fact.history.path for fact in tally.tell(queues)[0]} == {"org", "org/team"}, "placement hears of it"
    time.now += HOUR
    assert mean(tally.history("org/team")) == pytest.approx(before / 2, rel=1e-6)
    tally.queues_are({})
    time.now += DAY
    assert mean(tally.history("org/team")) == pytest.approx(before / 4, rel=1e-6)


@given(st.lists(st.tuples(st.integers(60, 90 * DAY), st.integers(0, 3 * DAY), st.booleans()), max_size=12))
def test_however_often_it_is_changed_nobody_stands_elsewhere_by_the_change_alone(
    steps: list[tuple[int, int, bool]],
) -> None:
    time = Time()
    tally = begun(time)
    shares = Shares(lambda _: (0, 0, 0), history=100)
    tally.held("a", "q", ONE, time.now, H100)
    for half_life_s, wait, holds in steps:
        time.now += wait
        (tally.held if holds else tally.left)(*(("a", "q", ONE, time.now, H100) if holds else ("a",)))
        shares.now = time.now
        shares.history_seen(tally.history("q"))
        before = shares.felt("q", (0, 0, 0))
        tally.queues_are({"q": Queue("q", half_life_s=half_life_s)})
        history = tally.history("q")
        shares.history_seen(history)
        assert history.half_life_s == half_life_s
        assert shares.felt("q", (0, 0, 0)) == pytest.approx(before, rel=1e-6, abs=0.02)
        assert sum(history.models.values()) == pytest.approx(history.gpu_milli_s, abs=1)


def test_the_next_leader_takes_over_the_mean_though_the_half_life_was_changed_while_nobody_led() -> None:
    time = Time()
    first = begun(time)
    first.held("a", "q", ONE, time.now, H100)
    time.now += DAY
    first.left("a")
    was = first.history("q")
    second = Tally(time, DAY)
    second.queues_are({"q": Queue("q", half_life_s=2 * HOUR)})
    second.begin({"q": was})
    assert second.history("q").half_life_s == 2 * HOUR
    assert mean(second.history("q")) == pytest.approx(mean(was), rel=1e-6)
    other = Tally(time, 7 * DAY)  # and where the service's own is another
    other.begin({"q": was})
    assert mean(other.history("q")) == pytest.approx(mean(was), rel=1e-6)
    assert other.history("q").spending.worked_milli_s == pytest.approx(7 * was.spending.worked_milli_s, rel=1e-6)


def test_a_queue_that_moves_below_another_half_life_takes_its_mean_along() -> None:
    time = Time()
    tally = begun(time)
    tally.held("a", "q", ONE, time.now)
    time.now += DAY
    tally.left("a")
    before = mean(tally.history("q"))
    tally.renamed("q", "org/q")
    tally.queues_are({"org": Queue("org", half_life_s=HOUR), "org/q": Queue("org/q")})
    assert tally.history("org/q").half_life_s == HOUR
    assert mean(tally.history("org/q")) == pytest.approx(before, rel=1e-6)


def test_what_evictions_may_cost_is_measured_by_the_clusters_half_life_whatever_a_queue_says() -> None:
    time = Time()
    plain, short = begun(time), begun(time)
    short.queues_are({"q": Queue("q", half_life_s=60)})
    for tally in (plain, short):
        tally.held("a", "q", ONE, time.now)
    time.now += HOUR
    for tally in (plain, short):
        tally.evicted("a", "q", "w", time.now, None, 1800)
    time.now += HOUR
    assert short.history("q").spending == plain.history("q").spending
    assert short.history("q").spending.half_life_s == DAY
    assert plain.history("q").spending.worked_milli_s == plain.history("q").gpu_milli_s


def test_a_record_of_the_release_before_is_read_as_kept_by_the_service() -> None:
    time = Time()
    tally = begun(time, {"q": QueueHistory("q", time.now, DAY, 5_000_000, spending=Spending(3.0, 1.0, 2000))})
    history = tally.history("q")
    assert (history.gpu_milli_s, history.spending.worked_milli_s) == (5_000_000, 5_000_000)
    assert (history.spending.lost_milli_s, history.models) == (2000, {})


def test_the_owner_changes_it_live_and_the_status_and_the_topic_say_so() -> None:
    time = Time()
    picture = Picture(1, {}, now=time)
    for name, spec in (("org", {}), ("team", {"parent": "org"})):
        picture.queue_event("ADDED", queue_object(name, **spec))
    picture.tally.begin({})
    picture.tally.held("a", "org/team", ONE, time.now, H100)
    time.now += DAY
    picture.tell_history()
    was = mean(picture.tally.told["org/team"].history)
    picture.take()
    changed = json.loads(queue_object("org", usageHalfLifeSeconds=HOUR))
    changed["metadata"]["resourceVersion"] = "6"
    picture.queue_event("MODIFIED", json.dumps(changed).encode())
    picture.tell_history()
    facts = picture.take().facts
    assert {"history/org", "history/org/team", "queue/org"} <= facts.keys()
    history = picture.tally.told["org/team"].history
    assert history.half_life_s == HOUR
    assert mean(history) == pytest.approx(was, rel=1e-6)
    name, found = kept(queue_object("team"))
    status = statuses(picture, {name: found}, picture.tally.history, time.now)[name]
    assert status["history"]["halfLifeSeconds"] == HOUR
    assert status["history"]["gpuMilliSecondsByModel"] == {"H100": history.gpu_milli_s}
    raw = json.dumps({"metadata": {"name": "team", "uid": "team"}, "status": status}).encode()
    again = kept(raw)[1].history
    assert again is not None
    assert (again.models, again.half_life_s, again.spending) == (history.models, HOUR, history.spending)
