"""Words about jobs: whose go next, and how many a second, whatever one tenant has to be told."""

from __future__ import annotations

from dataclasses import dataclass

from services.placement.outbox import BURST, Haste, Outbox, Rates


@dataclass(frozen=True)
class Word:
    haste: Haste
    queue: str
    text: str = ""


def outbox(limit: int = 1000) -> Outbox[Word]:
    return Outbox(limit, lambda _old, new: new)


def order(box: Outbox[Word]) -> list[str]:
    found = []
    while (haste := box.first()) is not None:
        found.append(box.pop(haste)[0])
    return found


def test_one_pod_of_a_tenant_does_not_stand_behind_anothers_five_hundred() -> None:
    box = outbox()
    for number in range(500):
        box.put(f"a{number}", Word(Haste.FIRST, "a"))
    box.put("b0", Word(Haste.FIRST, "b"))
    box.put("b1", Word(Haste.FIRST, "b"))
    assert order(box)[:5] == ["a0", "b0", "a1", "b1", "a2"]


def test_what_started_goes_before_a_never_and_other_figures_go_last() -> None:
    box = outbox()
    for haste in reversed(Haste):
        box.put(haste.name, Word(haste, "a"))
    assert order(box) == ["STARTED", "NEVER", "FIRST", "FIGURES"]


def test_two_writes_to_one_object_are_never_under_way_and_the_newer_words_stand() -> None:
    box = outbox()
    box.put("p", Word(Haste.FIGURES, "a", "old"))
    box.put("p", Word(Haste.FIRST, "a", "newer"))
    assert box.pop(Haste.FIRST) == ("p", Word(Haste.FIRST, "a", "newer"))
    box.put("p", Word(Haste.FIRST, "a", "newest"))
    assert box.first() is None and len(box) == 2
    box.done("p")
    assert box.pop(Haste.FIRST)[1].text == "newest"
    box.done("p")
    assert len(box) == 0


def test_words_about_an_object_that_is_gone_are_forgotten_and_too_many_are_not_kept() -> None:
    box = outbox(limit=2)
    for name in ("p", "q", "r"):
        box.put(name, Word(Haste.FIRST, "a"))
    box.discard("p")
    box.discard("unknown")
    assert order(box) == ["q"]


def seconds_for(count: int, haste: Haste, *, busy: bool) -> float:
    pace, now = Rates(per_s=200.0, busy_per_s=25.0, figures_per_s=20.0), 0.0
    for _ in range(count):
        now += pace.wait(haste, now, busy)
        assert pace.wait(haste, now, busy) == 0.0
        pace.take(haste, now)
    return now


def test_words_about_who_waits_are_few_while_others_are_placed_and_many_otherwise() -> None:
    assert 4.9 < seconds_for(1000, Haste.FIRST, busy=False) < 5.0
    assert 37.0 < seconds_for(1000, Haste.FIRST, busy=True) < 39.0
    assert seconds_for(int(BURST), Haste.NEVER, busy=True) < 0.25, "a few are told at once"


def test_where_thousands_are_being_told_it_slows_down_with_the_first_that_is_placed() -> None:
    pace, now = Rates(per_s=200.0, busy_per_s=25.0, figures_per_s=20.0), 0.0
    for _ in range(200):
        now += pace.wait(Haste.FIRST, now, False)
        pace.take(Haste.FIRST, now)
    for _ in range(25):
        now += pace.wait(Haste.FIRST, now, True)
        pace.take(Haste.FIRST, now)
    assert now > 1.5, "and the next fifty do not go at once"


def test_what_started_is_told_at_full_pace_whatever_waits_and_figures_are_always_few() -> None:
    assert 4.9 < seconds_for(1000, Haste.STARTED, busy=True) < 5.0
    assert 4.9 < seconds_for(100, Haste.FIGURES, busy=False) < 5.0
