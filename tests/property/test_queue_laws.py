"""Laws of the queue simulator and of the orders, for any jobs: accounts that balance, budgets that hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.engine.order import ORDERS, Parameters, Scene
from libs.sim.queue.cluster import Cluster
from libs.sim.queue.loop import Costs, History, QueueLoop
from libs.sim.queue.trace import TraceJob

COSTS = Costs(60, 1800)
jobs_of_any_kind = st.lists(
    st.tuples(
        st.floats(0, 200_000),
        st.sampled_from([0.0, 30.0, 1700.0, 20_000.0, 90_000.0]),
        st.sampled_from([250, 500, 1000, 2000, 4000, 8000, 12000, 16000]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=14,
)


def played(policy: str, rows: list[tuple[float, float, int, str, int]], deserved: dict[str, float]) -> History:
    jobs = [TraceJob(str(n), t, s, d, m, p) for n, (s, d, m, t, p) in enumerate(sorted(rows))]
    return QueueLoop(Cluster(2, 8), ORDERS[policy](Scene(16.0, 1800.0, deserved)), COSTS, jobs).run()


@pytest.mark.parametrize("policy", sorted(ORDERS))
@settings(max_examples=12, deadline=None)
@given(rows=jobs_of_any_kind, shares=st.booleans())
def test_the_accounts_of_every_job_balance(
    policy: str, rows: list[tuple[float, float, int, str, int]], shares: bool
) -> None:
    history = played(policy, rows, {"a": 12.0, "b": 4.0} if shares else {})
    for o in history.outcomes:
        assert o.job.submit <= o.first <= o.end
        assert o.held == pytest.approx(o.job.duration + o.lost, abs=1e-3)
        restarts = min(o.lost, o.evictions * COSTS.restart)
        assert o.wait - restarts + o.held == pytest.approx(o.end - o.job.submit, abs=1e-3)
    assert all(0 <= busy <= history.gpus for _, busy, _ in history.steps)
    assert history.steps[-1][1:] == (0, 0)


#: Everybody is overdue before long, and has had much before long.
HURRIED = Parameters(base=3600.0, overdue=4 * 3600.0, together=1200.0, patience=60.0)
long_jobs = st.lists(
    st.tuples(
        st.floats(0, 40_000),
        st.sampled_from([600.0, 7200.0, 40_000.0, 90_000.0]),
        st.sampled_from([1000, 2000, 4000, 8000, 16000]),
        st.sampled_from(["a"]),
        st.integers(0, 1),
    ),
    min_size=4,
    max_size=24,
)


@settings(max_examples=40, deadline=None)
@given(rows=long_jobs)
def test_without_shares_evictions_never_exceed_what_the_jobs_that_came_have_paid_for(
    rows: list[tuple[float, float, int, str, int]],
) -> None:
    jobs = [TraceJob(str(n), t, s, d, m, p) for n, (s, d, m, t, p) in enumerate(sorted(rows))]
    order = ORDERS["drystone"](Scene(16.0, 1800.0, {}, HURRIED))
    history = QueueLoop(Cluster(2, 8), order, COSTS, jobs).run()
    evictions = sorted(at for o in history.outcomes for at in o.evicted)
    for number, at in enumerate(evictions, 1):
        assert number <= 0.3 * sum(job.submit <= at for job in jobs) + 1e-9


@settings(max_examples=20, deadline=None)
@given(rows=jobs_of_any_kind)
def test_a_job_shorter_than_a_checkpoint_is_never_evicted(
    rows: list[tuple[float, float, int, str, int]],
) -> None:
    flat = [(s, min(d, 1700.0), m, t, p) for s, d, m, t, p in rows]
    assert all(o.evictions == 0 for o in played("drystone", flat, {}).outcomes)
