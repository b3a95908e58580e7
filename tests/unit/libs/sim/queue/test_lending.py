"""Kept room that is lent in the simulator: jobs that can be followed by hand, and a published trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from libs.engine.order import Services
from libs.sim.queue.cluster import Cluster
from libs.sim.queue.figures import Result, figures
from libs.sim.queue.lending import LendingLoop
from libs.sim.queue.loop import Costs, History
from libs.sim.queue.services import ServicesLoop
from libs.sim.queue.trace import TraceJob, read_jobs

TRACE = Path(__file__).with_name("philly_2869ce.csv.gz")


def job(name: str, submit: float, duration: float, gpus: int) -> TraceJob:
    return TraceJob(name, "t", submit, duration, gpus * 1000)


def play(jobs: Sequence[TraceJob], *, lends: bool) -> History:
    loop = LendingLoop if lends else ServicesLoop
    return loop(Cluster(1, 8), Services(None, lends=lends), Costs(60, 100), jobs, {}).run()


def weeks(trace: Sequence[TraceJob], *, lends: bool) -> History:
    loop = LendingLoop if lends else ServicesLoop
    return loop(Cluster(8, 8), Services(None, lends=lends, moves=False), Costs(), trace, {}).run()


#: Two GPUs stand idle from the first minute on, kept for the large one, until the first has ended.
JOBS = [job("runs", 0, 500, 6), job("large", 1, 50, 8), job("late", 100, 5000, 2)]


def test_a_job_is_on_room_that_is_kept_and_leaves_when_the_head_lacks_no_other() -> None:
    without, with_ = ({o.job.id: o for o in play(JOBS, lends=lends).outcomes} for lends in (False, True))
    assert without["late"].first == 550
    assert with_["late"].first == 100
    assert with_["large"].first == without["large"].first == 500
    assert with_["late"].evictions == 1
    assert with_["late"].lost == 60, "it saved its work every 100 s: only its restart is lost"
    assert with_["late"].end < without["late"].end


def test_who_would_have_ended_before_is_not_evicted_and_nobody_else_is() -> None:
    jobs = [*JOBS[:2], job("late", 100, 300, 2)]
    outcomes = {o.job.id: o for o in play(jobs, lends=True).outcomes}
    assert (outcomes["late"].first, outcomes["late"].evictions) == (100, 0)
    assert outcomes["large"].first == 500


def test_on_a_published_trace_less_stands_empty_and_nobody_waits_longer_than_the_longest_did() -> None:
    trace = read_jobs(TRACE)[:300]
    without, with_ = (figures(Result.of("", [weeks(trace, lends=lends)], 0.0)) for lends in (False, True))
    assert with_["mean_wait_s"] < 0.9 * without["mean_wait_s"]
    assert with_["max_wait_s"] < without["max_wait_s"]
    assert with_["most_evictions_of_a_job_in_a_day"] <= 3
