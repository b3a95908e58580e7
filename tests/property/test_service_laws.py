"""Laws of evictions for little service, in every history tried: they are paid for, few for each job, never soon after a
start, and everybody ends."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from libs.engine.fair import LittleService
from libs.engine.order import Services
from libs.sim.queue.cluster import Cluster
from libs.sim.queue.facts import MOVES_AFTER_S
from libs.sim.queue.loop import Costs
from libs.sim.queue.services import ServicesLoop
from libs.sim.queue.trace import TraceJob

HOUR = 3600.0
DAY = 24 * HOUR
CHECKPOINT = 1800.0
#: Levels are near, so that short histories have all of them; nobody is overdue.
RULES = LittleService(base=2 * HOUR, overdue_s=1e9)

jobs = st.lists(
    st.tuples(
        st.floats(0, 3 * HOUR),
        st.sampled_from([60.0, 600.0, 5 * HOUR, 40 * HOUR]),
        st.sampled_from([1, 1, 2, 4, 8, 16]),
        st.sampled_from(["a", "b"]),
    ),
    min_size=4,
    max_size=16,
)


def trace(made: list[tuple[float, float, int, str]]) -> list[TraceJob]:
    found, at = [], 0.0
    for n, (pause, duration, gpus, tenant) in enumerate(made):
        at += pause
        found.append(TraceJob(f"j{n}", tenant, at, duration, gpus * 1000, 0))
    return found


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=jobs)
def test_evictions_are_paid_for_by_jobs_and_work_and_few_for_each_job(
    made: list[tuple[float, float, int, str]],
) -> None:
    came = trace(made)
    history = ServicesLoop(Cluster(2, 8), Services(RULES, moves=False), Costs(60, CHECKPOINT), came, {}).run()
    evictions = sorted(at for outcome in history.outcomes for at in outcome.evicted)
    for number, at in enumerate(evictions, 1):
        assert number <= RULES.evictions_per_job * sum(job.submit <= at for job in came) + 1e-9
    for outcome in history.outcomes:
        assert outcome.most_in(DAY) <= 3
        assert outcome.end >= outcome.job.submit + outcome.job.duration
        times = [outcome.first, *outcome.evicted]
        assert all(after - before >= CHECKPOINT for before, after in pairwise(times))
    held = sum(outcome.held * outcome.job.milli for outcome in history.outcomes)
    lost = [outcome.lost * outcome.job.milli for outcome in history.outcomes]
    assert sum(lost) <= RULES.lost * held + 16_000 * (CHECKPOINT + 60)  # the last one may cost more than was left


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=jobs)
@example([(0.0, 600.0, 4, "a"), (0.0, 18000.0, 1, "a"), (0.0, 18000.0, 4, "a"), (1.0, 60.0, 8, "a")])
def test_where_jobs_move_too_nobody_goes_before_it_has_run_for_ten_minutes_and_everybody_ends(
    made: list[tuple[float, float, int, str]],
) -> None:
    """Moves are not paid from the budget, and need not wait for a checkpoint."""
    history = ServicesLoop(Cluster(2, 8), Services(RULES), Costs(60, CHECKPOINT), trace(made), {}).run()
    for outcome in history.outcomes:
        assert outcome.end >= outcome.job.submit + outcome.job.duration
        times = [outcome.first, *outcome.evicted]
        assert all(after - before >= MOVES_AFTER_S for before, after in pairwise(times))


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=jobs)
def test_the_same_jobs_have_the_same_history(made: list[tuple[float, float, int, str]]) -> None:
    def play() -> list[tuple[float, tuple[float, ...]]]:
        loop = ServicesLoop(Cluster(2, 8), Services(RULES), Costs(60, CHECKPOINT), trace(made), {"a": 8.0})
        return [(outcome.end, tuple(outcome.evicted)) for outcome in loop.run().outcomes]

    assert play() == play()
