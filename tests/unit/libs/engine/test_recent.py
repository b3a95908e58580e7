"""A bounded memory over very many keys."""

from __future__ import annotations

from libs.engine.recent import Recent


def test_of_a_million_pods_the_last_ones_are_remembered_and_the_first_not():
    recent = Recent(1000)
    for n in range(1_000_000):
        recent.add((f"uid-{n}",))
    assert len(recent) <= 1250
    assert all(f"uid-{n}" in recent for n in range(999_000, 1_000_000))
    assert "uid-998700" not in recent


def test_what_comes_again_is_among_the_newest():
    recent = Recent(100)
    for n in range(1000):
        recent.add((f"uid-{n}", "again"))
    assert "again" in recent


def test_what_is_forgotten_is_known_nowhere():
    recent = Recent(2)
    recent.add(("a", "b"))  # among the older ones from now on
    recent.add(("a",))
    recent.forget("a")
    assert "a" not in recent
    assert "b" in recent
    assert len(recent) == 1
