from __future__ import annotations

from services.binder.window import Window


def test_good_answers_widen_it_by_one_per_round_up_to_the_cap():
    window = Window(cap=12, start=10)
    for _ in range(11):
        window.answered(0.01, enough=False, now=0.0)
    assert window.size == 11
    for _ in range(1000):
        window.answered(0.01, enough=False, now=0.0)
    assert window.size == 12


def test_a_throttled_answer_halves_it_once_per_rest_and_never_below_the_floor():
    window = Window(cap=64, start=64, floor=2, rest_s=0.5)
    for _ in range(20):
        window.answered(0.01, enough=True, now=1.0)
    assert window.size == 32
    for second in range(2, 20):
        window.answered(0.01, enough=True, now=float(second))
    assert window.size == 2


def test_slow_answers_count_as_a_sign_too():
    window = Window(start=32, slow_s=1.0)
    window.answered(1.5, enough=False, now=5.0)
    assert (window.size, window.retreats) == (16, 1)
