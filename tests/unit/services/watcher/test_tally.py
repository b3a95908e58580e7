"""What queues used over time: integrated, faded, and kept over changes of leaders."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.domain.queues import Eviction, Queue, QueueHistory, Served, Spending
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


def test_an_eviction_costs_what_was_not_saved_as_the_pod_said_itself(time: Time) -> None:
    costs = []
    for saved in (0.0, time.now + 60):
        tally = begun(time)
        tally.held("a", "q", ONE, time.now)
        time.now += 1860
        tally.evicted("a", "q", "w", time.now, checkpoint_s=1800, saved=saved)
        costs.append(tally.history("q").spending.lost_milli_s)
        time.now -= 1860
    assert costs == [60_000, 0], "it was restarting for a minute"


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


class TestWhatIsKnownOfJobsThatWereEvicted:
    def test_what_they_had_and_what_it_cost_outlives_the_pod_and_the_leader(self, time: Time) -> None:
        tally = begun(time)
        tally.came("q", "pod/a/x", "Job/a/x", time.now)
        tally.held("x-1", "q", ONE, time.now)
        time.now += 2000
        tally.evicted("x-1", "q", "Job/a/x", time.now, None, 1800)
        tally.left("x-1")
        tally.came("q", "pod/a/x-again", "Job/a/x", time.now)  # made again: the same job
        kept = tally.history("q")
        assert kept.served == {"Job/a/x": Served(2_000_000, 2000, int(time.now))}
        assert kept.spending.jobs == pytest.approx(1, abs=0.01)
        assert (kept.spending.evictions, kept.spending.lost_milli_s) == (1.0, 200_000)
        time.now += 10
        other = begun(time, {"q": kept})
        other.held("x-2", "q", ONE, time.now)
        time.now += 500
        other.evicted("x-2", "q", "Job/a/x", time.now)
        assert other.history("q").served == {"Job/a/x": Served(2_500_000, 2500, int(time.now))}
        assert other.history("q").spending.evictions == pytest.approx(2, abs=0.01)

    def test_a_gang_is_one_job_and_one_eviction_and_ran_as_long_as_each_of_its_pods(self, time: Time) -> None:
        tally = begun(time)
        for n in range(4):
            tally.came("q", "gang/a/g", "gang/a/g", time.now)
            tally.held(f"g-{n}", "q", ONE, time.now)
        time.now += 600
        for n in range(4):
            tally.evicted(f"g-{n}", "q", "gang/a/g", time.now + n, gang=True)
        history = tally.history("q")
        assert history.served["gang/a/g"].gpu_milli_s == pytest.approx(4 * 600_000, abs=6_000)
        assert history.served["gang/a/g"].run_s == 600
        assert history.spending.jobs == pytest.approx(1, abs=0.01)
        assert history.spending.evictions == 1

    def test_jobs_that_the_leader_before_has_counted_do_not_count_again(self, time: Time) -> None:
        kept = QueueHistory("q", time.now, HALF, spending=Spending(5.0))
        tally = Tally(time, HALF)
        tally.came("q", "pod/a/there", "pod/a/there", time.now - 50)
        tally.came("q", "pod/a/since", "pod/a/since", time.now + 5)
        tally.begin({"q": kept})
        tally.came("q", "pod/a/there", "pod/a/there", time.now - 50)
        assert tally.history("q").spending.jobs == pytest.approx(6, abs=0.01)

    def test_only_the_workloads_evicted_last_are_remembered_and_move_with_their_queue(self, time: Time) -> None:
        tally = begun(time)
        for n in range(MOST_WORKLOADS + 5):
            time.now += 1
            tally.evicted(f"u{n}", "q", f"w{n:04d}", time.now)
        tally.tell({"q": Queue("q")})
        assert len(tally.history("q").served) == MOST_WORKLOADS
        assert min(tally.history("q").served) == "w0005"
        tally.renamed("q", "org/q")
        assert not tally.history("q").served
        assert len(tally.history("org/q").served) == MOST_WORKLOADS
        assert tally.history("org/q").spending.evictions > MOST_WORKLOADS
