"""A virtual cluster of the Philly trace on 64 GPUs: figures that an independent simulator found on the same file."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.sim.queue.figures import figures
from libs.sim.queue.loop import Costs
from libs.sim.queue.study import Setup, simulate, simulate_all
from libs.sim.queue.trace import TraceJob, read_jobs

TRACE = Path(__file__).with_name("philly_2869ce.csv.gz")


@pytest.fixture(scope="module")
def trace() -> list[TraceJob]:
    return read_jobs(TRACE)


@pytest.mark.parametrize(
    ("policy", "mean_wait", "longest"),
    [("fifo", 944_350, 1.51e6), ("fifo-backfill", 434_048, 4.10e6), ("sjf", 194_243, 6.74e6)],
)
def test_waits_are_those_that_were_measured_elsewhere(
    trace: list[TraceJob], policy: str, mean_wait: float, longest: float
) -> None:
    table = figures(simulate(Setup(8, 8, policy), trace))
    assert table["mean_wait_s"] == pytest.approx(mean_wait, abs=1)
    assert table["max_wait_s"] == pytest.approx(longest, rel=0.005)
    assert table["evictions"] == 0


def test_free_evictions_and_known_run_times_come_near_the_ideal(trace: list[TraceJob]) -> None:
    table = figures(simulate(Setup(8, 8, "srtf", Costs(0, 0)), trace))
    assert table["mean_jct_s"] == pytest.approx(180_116, rel=0.1)


def test_a_fence_round_the_only_tenant_is_no_fence(trace: list[TraceJob]) -> None:
    pooled, fenced = simulate_all(
        [Setup(8, 8, "fifo"), Setup(8, 8, "fifo", fenced=True, fence=(("2869ce", 8),))], trace, processes=1
    )
    assert pooled.outcomes == fenced.outcomes
