"""Conflicts are read off what placement says of itself."""

from collections import Counter

from bench.conflicts import Count, values

METRICS = """\
# HELP drystone_placement_commit_refusals_total Plans refused by the ledger, by reason.
# TYPE drystone_placement_commit_refusals_total counter
drystone_placement_commit_refusals_total{reason="capacity"} 12.0
drystone_placement_commit_refusals_total{reason="held"} 3.0
drystone_placement_commit_refusals_created{reason="held"} 1.7e+09
drystone_placement_planned_tasks_total 1500.0
"""


def test_counters_are_read_by_their_label() -> None:
    assert values(METRICS, "drystone_placement_commit_refusals_total") == {"capacity": 12, "held": 3}
    assert values(METRICS, "drystone_placement_planned_tasks_total") == {"": 1500}
    assert values(METRICS, "drystone_placement_pending_jobs") == {}


def test_the_rate_is_of_plans_taken_and_refused_since_the_start() -> None:
    before = Count(100, Counter(capacity=5))
    after = Count(190, Counter(capacity=11, held=4))
    assert after.since(before) == {"plans": 100, "refused": {"capacity": 6, "held": 4}, "conflict_rate": 0.1}


def test_nothing_planned_is_no_conflict() -> None:
    same = Count(7, Counter(capacity=1))
    assert same.since(same) == {"plans": 0, "refused": {}, "conflict_rate": 0.0}
