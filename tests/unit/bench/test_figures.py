"""Figures of long and of broken runs."""

import pytest

from bench.failover import SCENARIOS, Row
from bench.rebuild import figures
from bench.rolling import event, waits
from bench.steady import Recovery, Seen
from bench.usage import slope_per_min
from libs.contracts.strict import Rejected
from libs.contracts.submission import parse_submit
from libs.contracts.tenants import TenantPolicy
from tools.load import BoundCount


def test_growth_is_what_follows_the_first_third():
    """Caches fill for five minutes, then nothing grows: the slope is nought although the last is above the first."""
    filling = [(float(t), 100.0 + min(t, 300) / 10) for t in range(0, 1200, 5)]
    assert slope_per_min(filling) == pytest.approx(0.0, abs=1e-9)
    leaking = [(t, v + 0.5 * t / 60) for t, v in filling]
    assert slope_per_min(leaking) == pytest.approx(0.5)


def test_a_run_too_short_has_no_slope():
    assert slope_per_min([]) == 0.0
    assert slope_per_min([(0.0, 1.0), (5.0, 9.0)]) == 0.0


def test_a_burst_that_goes_on_after_redis_was_emptied():
    count = BoundCount()
    # The binder's last writes land after the loss; they do not say that binding goes on.
    count.bound_at = {"a": 9.0, "b": 10.0, "c": 10.4, "d": 16.5, "e": 17.0}
    found = figures(count, emptied=10.1, whole=16.0)
    assert found == {"whole_s": 5.9, "binding_again_s": 6.4, "gap_s": 6.1, "all_bound_s": 6.9}


def test_a_burst_that_never_goes_on():
    count = BoundCount()
    count.bound_at = {"a": 9.0}
    assert figures(count, emptied=10.0, whole=15.0)["binding_again_s"] == float("inf")


def test_a_limit_counts_from_the_return_of_a_part_that_must_return():
    late = Recovery(first_s=9.0, healed_s=17.0, gap_s=9.0, wait_s=17.0, lost=0)
    scenario = SCENARIOS["Redis killed and restarted"]
    assert Row([late], back=[3.0]).summary(scenario)["within"]
    assert not Row([late]).summary(scenario)["within"]
    assert Row([late], back=[3.0]).summary(scenario)["healed_after_back_s"] == {"median": 14.0, "worst": 14.0}


def test_the_worst_repetition_decides():
    scenario = SCENARIOS["watcher, leader killed"]
    good, bad = Recovery(1.0, 5.0, 1.0, 5.0, 0), Recovery(1.0, scenario.limit_s + 1, 1.0, 9.0, 0)
    assert Row([good, good]).summary(scenario)["within"]
    assert not Row([good, bad, good]).summary(scenario)["within"]


def test_waits_are_those_of_what_was_accepted_meanwhile():
    seen = [Seen(1.0, 1.1), Seen(5.0, 5.3), Seen(6.0, 0.0), Seen(9.0, 9.9)]
    assert waits(seen, 4.0, 8.0)["max"] == pytest.approx(300.0)
    assert waits(seen, 20.0, 30.0) == {}


def test_the_jobs_of_the_load_are_jobs_that_intake_takes():
    submission = parse_submit(event("job-1", 2), TenantPolicy(namespaces=("default",)))
    assert not isinstance(submission, Rejected), submission
    assert [(role["name"], role["replicas"]) for role in submission.spec["roles"]] == [("worker", 2)]
