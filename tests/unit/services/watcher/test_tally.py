"""What queues used over time: integrated, faded, and kept over changes of leaders."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.domain.queues import Eviction, Queue, QueueHistory
from libs.domain.resources import Charge, GpuGrant
from services.watcher.tally import MOST_REASONS, MOST_WORKLOADS, Tally

HALF = 3600
ONE = Charge(cpu=2000, mem=64, gpus=(GpuGrant(0, 1000, 80000),))
#: What one GPU held for ever comes to, milli GPU seconds.
FULL = 1000 * HALF / math.log(2)


class Time:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def begun(time: Time, kept: dict[str, QueueHistory] | None = None) -> Tally:
    tally = Tally(time, HALF)
    tally.begin(kept or {})
    return tally


def gpu(tally: Tally, path: str) -> float:
    return tally.history(path).gpu_milli_s


def test_one_gpu_for_a_half_life_is_half_of_what_it_comes_to_for_ever(time: Time) -> None:
    tally = begun(time)
    tally.held("a", "org/team", ONE, time.now)
    time.now += HALF
    for path in ("org/team", "org"):
        assert gpu(tally, path) == pytest.approx(FULL / 2, abs=1)
    assert tally.history("org").cpu_milli_s == pytest.approx(FULL, abs=2)
    assert tally.history("org").mem_mib_s == pytest.approx(FULL * 0.064 / 2, abs=1)
    tally.left("a")
    time.now += HALF
    assert gpu(tally, "org/team") == pytest.approx(FULL / 4, abs=1)


@given(st.lists(st.tuples(st.integers(1, 5000), st.sampled_from("abc"), st.booleans()), max_size=20))
def test_it_does_not_matter_when_it_is_looked_at(steps: list[tuple[int, str, bool]]) -> None:
    looked, alone = Time(), Time()
    often, once = begun(looked), begun(alone)
    for wait, uid, holds in steps:
        for time, tally in ((looked, often), (alone, once)):
            time.now += wait
            if holds:
                tally.held(uid, "q", ONE, 0)
            else:
                tally.left(uid)
        often.history("q")
        often.tell({"q": Queue("q")})
    assert gpu(often, "q") == pytest.approx(gpu(once, "q"), abs=len(steps) + 1)


def test_a_clock_that_is_set_back_counts_no_time_twice(time: Time) -> None:
    tally = begun(time)
    tally.held("a", "q", ONE, time.now)
    time.now += 100
    before = gpu(tally, "q")
    time.now -= 60
    assert gpu(tally, "q") == before
    time.now += 60
    assert gpu(tally, "q") == before


class TestLeadersChange:
    def test_the_next_goes_on_where_the_last_one_stopped_what_ran_meanwhile_included(self, time: Time) -> None:
        first, other = begun(time), begun(time)
        for tally in (first, other):
            tally.held("a", "q", ONE, time.now)
        time.now += 500
        kept = {"q": first.history("q")}
        time.now += 40
        second = Tally(time, HALF)
        second.held("a", "q", ONE, time.now - 540)
        second.begin(kept)
        time.now += 60
        assert gpu(second, "q") == pytest.approx(gpu(other, "q"), abs=2)

    def test_without_anything_kept_what_runs_counts_from_its_start(self, time: Time) -> None:
        tally = Tally(time, HALF)
        tally.held("a", "q", ONE, time.now - HALF)
        tally.begin({})
        assert gpu(tally, "q") == pytest.approx(FULL / 2, abs=1)

    def test_an_eviction_counts_once_whoever_leads(self, time: Time) -> None:
        first = begun(time)
        assert first.evicted("a", "q", "Job/ns/1", time.now - 2)
        assert not first.evicted("a", "q", "Job/ns/1", time.now - 2)
        kept = {"q": first.history("q")}
        assert kept["q"].evictions == {"Job/ns/1": (int(time.now - 2),)}
        second = Tally(time, HALF)
        assert not second.evicted("a", "q", "Job/ns/1", time.now - 2)
        assert not second.evicted("c", "q", "Job/ns/2", time.now - 1)
        second.begin(kept)
        assert second.history("q").evictions == {
            "Job/ns/1": (int(time.now - 2),),
            "Job/ns/2": (int(time.now - 1),),
        }, "whom the first one had not written down is counted, nobody twice"
        assert not second.evicted("a", "q", "Job/ns/1", time.now - 2)
        time.now += 5
        assert second.evicted("b", "q", "Job/ns/1", time.now)
        assert len(second.history("q").evictions["Job/ns/1"]) == 2

    def test_evictions_are_told_by_uid_for_a_while_so_that_who_decided_them_counts_them_no_longer(
        self, time: Time
    ) -> None:
        tally = begun(time)
        tally.evicted("a", "q", "Job/ns/1", time.now)
        time.now += 40
        tally.evicted("b", "q", "Job/ns/1", time.now)
        assert tally.history("q").recent == ("a", "b")
        time.now += 40
        assert tally.history("q").recent == ("b",)
        tally.renamed("q", "above/q")
        assert (tally.history("q").recent, tally.history("above/q").recent) == ((), ("b",))


class TestTelling:
    def test_only_what_changed_is_told_and_fading_is_no_change(self, time: Time) -> None:
        queues = {path: Queue(path) for path in ("busy", "idle")}
        tally = begun(time, {path: QueueHistory(path, time.now, HALF, 5000) for path in queues})
        assert [f.history.path for f in tally.tell(queues)[0]] == ["busy", "idle"]
        tally.held("a", "busy", ONE, time.now)
        for _ in range(2):
            time.now += 10
            assert [f.history.path for f in tally.tell(queues)[0]] == ["busy"]
        tally.left("a")
        assert [f.history.path for f in tally.tell(queues)[0]] == ["busy"]
        time.now += 10
        assert tally.tell(queues) == ([], [])

    def test_evictions_are_forgotten_with_the_queues_window_and_the_oldest_workloads_first(self, time: Time) -> None:
        queues = {"q": Queue("q", evictions_window_s=600)}
        tally = begun(time)
        for n in range(MOST_WORKLOADS + 10):
            time.now += 1
            tally.evicted(f"u{n}", "q", f"w{n}", time.now)
        tally.tell(queues)
        told = tally.history("q").evictions
        assert len(told) == MOST_WORKLOADS and "w9" not in told and "w10" in told
        time.now += 601
        (fact,), _ = tally.tell(queues)
        assert fact.history.evictions == {}

    def test_a_queue_that_is_gone_with_nothing_left_of_it_is_taken_back(self, time: Time) -> None:
        tally = begun(time)
        tally.held("a", "loose", Charge(cpu=1000), time.now)
        tally.tell({})
        tally.left("a")
        facts, gone = tally.tell({})
        assert (facts, gone) == ([], ["loose"])
        assert not tally.told


def test_a_queue_that_moves_takes_along_what_it_used(time: Time) -> None:
    tally = begun(time)
    tally.held("a", "old/q", ONE, time.now)
    tally.evicted("b", "old/q", "w", time.now)
    time.now += 100
    tally.left("a")
    used = gpu(tally, "old/q")
    tally.renamed("old/q", "new/q")
    assert gpu(tally, "new/q") == used
    assert gpu(tally, "old/q") == 0
    assert list(tally.history("new/q").evictions) == ["w"]


class TestForWhom:
    def test_pods_of_a_gang_that_went_for_the_same_are_one_entry_and_only_the_last_few_are_kept(
        self, time: Time
    ) -> None:
        tally = begun(time)
        for n in range(3):
            reason = Eviction("gang/ns/g", "pod/ns/urgent", "priority", int(time.now) + n)
            assert tally.evicted(f"u{n}", "q", "gang/ns/g", time.now + n, reason)
            assert not tally.evicted(f"u{n}", "q", "gang/ns/g", time.now + n, reason)
        (told,) = tally.history("q").reasons["gang/ns/g"]
        assert (told.pods, told.at) == (3, int(time.now) + 2)
        for n in range(9):
            time.now += 100
            tally.evicted(
                f"v{n}", "q", "gang/ns/g", time.now, Eviction("gang/ns/g", f"pod/ns/{n}", "reclaim", int(time.now))
            )
        kept = tally.history("q").reasons["gang/ns/g"]
        assert [one.beneficiary for one in kept] == [f"pod/ns/{n}" for n in range(9 - MOST_REASONS, 9)]

    def test_it_is_forgotten_with_the_window_and_moves_with_its_queue(self, time: Time) -> None:
        tally = begun(time)
        tally.evicted("a", "q", "w", time.now, Eviction("w", "pod/ns/x", "shrink", int(time.now)))
        tally.renamed("q", "org/q")
        assert tally.history("q").reasons == {}
        assert [one.rule for one in tally.history("org/q").reasons["w"]] == ["shrink"]
        time.now += 100
        tally.tell({"org/q": Queue("org/q", evictions_window_s=60)})
        assert tally.history("org/q").reasons == {}
