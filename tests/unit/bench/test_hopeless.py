"""What is told of a run beside hopeless pods."""

from __future__ import annotations

from bench.hopeless import _every, longest_by_half_s


def test_a_stall_shows_as_one_half_second_and_load_as_all_of_them() -> None:
    stall = [(0.1, 20.0), (0.4, 35.4), (0.6, 380.0), (0.9, 90.0), (2.2, 30.0)]
    assert longest_by_half_s(stall) == [35, 380, 0, 0, 30]
    assert longest_by_half_s([]) == []


def test_a_counter_is_read_with_whatever_labels() -> None:
    text = (
        "# TYPE drystone_x_total counter\n"
        'drystone_x_total{answer="done",kind="pod"} 7.0\n'
        'drystone_x_total{answer="refused",kind="job"} 2.0\n'
        'drystone_xy_total{answer="done"} 100.0\n'
        'drystone_x_created{answer="done",kind="pod"} 1.7e+09\n'
    )
    assert _every(text, "drystone_x_total") == [7.0, 2.0]
