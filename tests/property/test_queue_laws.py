"""Laws of the queue simulator and of the orders, for any jobs: accounts that balance, budgets that hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.engine.order import ORDERS, Scene
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


@settings(max_examples=20, deadline=None)
@given(rows=jobs_of_any_kind)
def test_without_shares_and_overdue_jobs_evictions_stay_within_the_budget(
    rows: list[tuple[float, float, int, str, int]],
) -> None:
    history = played("drystone", rows, {})
    if all(o.wait < 1.5 * 86_400 for o in history.outcomes):
        assert sum(o.evictions for o in history.outcomes) <= 0.3 * len(rows) + 1e-9


@settings(max_examples=20, deadline=None)
@given(rows=jobs_of_any_kind)
def test_a_job_shorter_than_a_checkpoint_is_never_evicted(
    rows: list[tuple[float, float, int, str, int]],
) -> None:
    flat = [(s, min(d, 1700.0), m, t, p) for s, d, m, t, p in rows]
    assert all(o.evictions == 0 for o in played("drystone", flat, {}).outcomes)
