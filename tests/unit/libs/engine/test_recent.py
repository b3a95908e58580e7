"""A bounded memory over very many keys."""

from __future__ import annotations

from libs.engine.recent import Recent


def test_of_a_million_pods_the_last_ones_are_remembered_and_the_first_not():
    recent = Recent(1000)
    for n in range(1_000_000):
        recent.add((f"uid-{n}",))
    assert len(recent) <= 2000
    assert all(f"uid-{n}" in recent for n in range(999_000, 1_000_000))
    assert "uid-997000" not in recent


def test_what_comes_again_is_among_the_newest():
    recent = Recent(100)
    for n in range(1000):
        recent.add((f"uid-{n}", "again"))
    assert "again" in recent


def test_what_is_forgotten_is_not_known_in_either_half():
    recent = Recent(2)
    recent.add(("a", "b"))  # the older half from now on
    recent.add(("a",))
    recent.forget("a")
    assert "a" not in recent
    assert "b" in recent
    assert len(recent) == 1
