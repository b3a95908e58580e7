"""Rounds of a busy loop: little work at once, much work in fewer rounds."""

from libs.runtime.pace import Pace


def rounds(pace: Pace, count: int, *, took: float, now: float = 0.0) -> tuple[list[float], float]:
    """The pauses before so many rounds, work being there always; and when the last one ended."""
    pauses = []
    for _ in range(count):
        pauses.append(pace.pause(now))
        now += pauses[-1]
        pace.began(now)
        now += took
        pace.ended(now)
    return pauses, now


def test_the_first_rounds_of_a_burst_go_at_once_and_later_ones_are_apart_by_what_they_take() -> None:
    pauses, _ = rounds(Pace(times=4, most_s=0.1), 7, took=0.01)
    assert pauses[:4] == [0, 0, 0, 0]
    assert [round(pause, 6) for pause in pauses[4:]] == [0.04] * 3


def test_on_a_slow_machine_rounds_are_apart_by_no_more_than_the_limit() -> None:
    pauses, _ = rounds(Pace(times=4, most_s=0.1), 6, took=0.5)
    assert [round(pause, 6) for pause in pauses[4:]] == [0.1] * 2


def test_what_passed_since_the_last_round_counts_and_after_a_lull_the_first_go_at_once_again() -> None:
    pace = Pace(times=4, most_s=0.1)
    _, now = rounds(pace, 5, took=0.01)
    assert round(pace.pause(now + 0.03), 6) == 0.01
    assert pace.pause(now + 0.06) == 0
    again, _ = rounds(pace, 5, took=0.01, now=now + 0.06)
    assert again[:4] == [0, 0, 0, 0]
    assert again[4] > 0


def test_one_round_that_took_long_keeps_nobody_waiting() -> None:
    """A list of thousands took 30 ms in the middle of a trickle, and all that came after it waited for 100 ms."""
    pace = Pace(times=4, most_s=0.1)
    _, now = rounds(pace, 6, took=0.004)
    _, now = rounds(pace, 1, took=0.03, now=now)
    assert round(pace.pause(now), 6) == 0.016
    _, now = rounds(pace, 3, took=0.03, now=now)
    assert round(pace.pause(now), 6) == 0.1, "three are a burst"
