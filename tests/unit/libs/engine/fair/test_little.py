"""Levels of service, moments, the budget of evictions, and who is overdue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.domain.jobs import JobHead
from libs.engine.fair import level_of, place_of
from libs.engine.fair.budget import Budget
from libs.engine.fair.little import LEVELS, STEPS, LittleService
from libs.engine.fair.overdue import Overdue
from libs.engine.fair.together import CLEANED_S, Together

HOUR = 3600.0
DAY = 86_400.0


def test_a_level_begins_where_the_last_one_has_had_four_times_as_much() -> None:
    rules = LittleService()
    assert [rules.level(hours * HOUR) for hours in (0, 15.9, 16, 63, 64, 256)] == [0, 0, 1, 1, 2, 3]
    assert rules.level(1e15) == STEPS < LEVELS
    assert rules.reaches(2) == 64 * HOUR
    assert rules.yields(2, 0)
    assert not rules.yields(1, 0)
    with pytest.raises(ValueError, match="factor"):
        LittleService(factor=1)


def test_a_moment_is_good_just_after_a_checkpoint_and_never_for_one_that_saves_nothing() -> None:
    rules = LittleService()
    assert [rules.fresh(run, 1800) for run in (100, 1799, 1800, 1920, 1921, 3700)] == [
        False, False, True, True, False, True,
    ]  # fmt: skip
    assert not rules.fresh(1e6, 0)
    assert rules.saves(2000, 1800) == 1600


def test_priority_stands_before_service_and_service_before_age() -> None:
    def place(priority: int, level: int, created: float) -> tuple[int, int, float, str]:
        return place_of(JobHead("pod/a/x", "a", "a", priority=priority, created=created), False, level)

    line = [place(5, STEPS, 9), place(0, 0, 8), place(0, 1, 1), place(0, 1, 2), place(-1, 0, 0)]
    assert line == sorted(line)
    assert [level_of(one) for one in line] == [STEPS, 0, 1, 1, 0]
    assert place_of(JobHead("pod/a/x", "a", "a", created=3), True, 9) < line[0]


@given(
    st.lists(
        st.tuples(st.floats(0, 30 * DAY), st.sampled_from(["came", "asks", "asks", "several", "worked"])), max_size=60
    )
)  # fmt: skip
def test_in_every_history_evictions_stay_within_what_jobs_and_work_have_paid_for(
    steps: list[tuple[float, str]],
) -> None:
    budget, now = Budget(), 0.0
    came = evicted = 0
    worked = lost = 0.0
    for pause, what in steps:
        now += pause
        if what == "came":
            budget.came(now, 4)
            came += 4
        elif what == "worked":
            budget.worked(100 * HOUR, now)
            worked += 100 * HOUR
        else:
            for _ in range(min(budget.left(now), 1 if what == "asks" else 4)):
                budget.evicted(HOUR, now)
                evicted, lost = evicted + 1, lost + HOUR
        assert evicted <= 0.3 * came
        assert lost <= 0.02 * worked + 4 * HOUR  # the last ones may cost more than was left


@given(
    st.lists(st.tuples(st.floats(0, 30 * DAY), st.sampled_from(["came", "asks", "forced"])), max_size=60)
)  # fmt: skip
def test_what_evictions_for_other_reasons_took_is_paid_back_in_full_however_long_that_takes(
    steps: list[tuple[float, str]],
) -> None:
    budget, now = Budget(), 0.0
    budget.worked(1e12, 0)
    came = evicted = 0
    for pause, what in steps:
        now += pause
        budget.worked(1e12, now)
        if what == "came":
            budget.came(now)
            came += 1
        elif what == "forced":
            budget.evicted(0, now)
            evicted += 1
        elif budget.open(now):
            budget.evicted(0, now)
            evicted += 1
            assert evicted <= 0.3 * came + 1e-9


def test_a_quiet_year_is_no_licence_for_a_burst() -> None:
    budget = Budget()
    budget.came(0, 1_000)
    assert not budget.open(365 * DAY)


class TestTogether:
    def test_many_who_came_just_now_have_waited_as_long_together_as_one_for_long(self) -> None:
        waiting = Together()
        waiting.waits("old", 8, 0, 0.0)
        assert waiting.reach(8, 0, 7200) == 7200
        for n in range(3):
            waiting.waits(f"new{n}", 8, 0, 4000.0)
        assert waiting.reach(8, 0, 7200) == 4800  # 4800 and three times 800
        assert waiting.reach(4, 0, 7200) == float("inf")
        rules = LittleService()
        assert rules.claims(0.0, waiting.reach(8, 0, 7200)) == 4800
        assert rules.claims(4500.0, waiting.reach(8, 0, 7200)) == 5100  # each waits for ten minutes all the same

    def test_those_that_stand_lower_do_not_count_and_who_moves_counts_once(self) -> None:
        waiting = Together()
        waiting.waits("new", 1, 0, 100.0)
        waiting.waits("had much", 1, 3, 0.0)
        assert waiting.reach(1, 0, 50) == 150
        assert waiting.reach(1, 3, 50) == 75
        waiting.waits("had much", 1, 0, 0.0)
        assert waiting.reach(1, 0, 50) == 75
        waiting.left("had much")
        waiting.left("had much")
        assert waiting.reach(1, 0, 50) == 150
        assert len(waiting) == 1

    def test_who_has_left_without_a_word_is_found_missing_before_long(self) -> None:
        waiting = Together()
        waiting.waits("gone", 1, 0, 0.0)
        waiting.waits("there", 1, 0, 100.0)
        waiting.keep({"gone", "there"}.__contains__, 0.0)
        waiting.keep({"there"}.__contains__, CLEANED_S / 2)
        assert waiting.reach(1, 0, 0) == 50
        waiting.keep({"there"}.__contains__, CLEANED_S)
        assert waiting.reach(1, 0, 0) == 100


class TestOverdue:
    def test_the_oldest_are_chosen_as_far_as_the_room_goes(self) -> None:
        late = Overdue()
        for n, gpus in enumerate([4, 8, 2, 2]):
            late.late(f"j{n}", float(n), gpus)
        assert late.review(8, lambda _: 0.0) == {"j0", "j2", "j3"}

    def test_who_was_chosen_stays_when_an_older_one_comes_and_who_has_had_most_goes_when_room_shrinks(self) -> None:
        late, had = Overdue(), {"a": 5.0, "b": 1.0, "old": 0.0}
        late.late("a", 2, 4)
        late.late("b", 3, 4)
        late.review(8, had.__getitem__)
        late.late("old", 1, 4)
        assert not late.review(8, had.__getitem__)
        assert late.review(4, had.__getitem__) == {"a"}
        assert "b" in late
        late.keep(lambda key: key != "b")
        assert late.review(4, had.__getitem__) == {"old"}

    def test_a_gang_larger_than_the_room_keeps_nobody_else_waiting(self) -> None:
        late = Overdue()
        late.late("gang", 0, 64)
        late.late("small", 1, 1)
        assert late.review(8, lambda _: 0.0) == {"small"}
