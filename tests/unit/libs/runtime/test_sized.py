"""What is kept of texts from outside, by their bytes."""

from __future__ import annotations

import pytest

from libs.runtime.sized import kept_by_bytes


def counted(most: int) -> tuple[object, list[bytes]]:
    made: list[bytes] = []

    @kept_by_bytes(most)
    def shape(text: bytes, owner: str = "") -> int:
        made.append(text)
        return len(text)

    return shape, made


def test_a_result_is_worked_out_once_for_a_text_and_what_goes_with_it() -> None:
    shape, made = counted(100_000)
    assert [shape(b"a", "x"), shape(b"a", "x"), shape(b"a", "y")] == [1, 1, 1]  # type: ignore[operator]
    assert made == [b"a", b"a"]


def test_many_of_the_largest_texts_do_not_fill_the_memory_and_the_latest_used_stay() -> None:
    shape, made = counted(5 * 1024 * 1024)
    for n in range(100):
        shape(b"%d" % n + b"x" * 500_000)  # type: ignore[operator]
        shape(b"ours")  # type: ignore[operator]
    assert shape.size <= 5 * 1024 * 1024  # type: ignore[attr-defined]
    assert len(shape) < 15  # type: ignore[arg-type]
    assert made.count(b"ours") == 1


def test_a_text_larger_than_all_may_be_is_not_kept_and_what_fails_is_tried_again() -> None:
    shape, made = counted(10_000)
    shape(b"x" * 20_000)  # type: ignore[operator]
    assert len(shape) == 0  # type: ignore[arg-type]

    @kept_by_bytes(10_000)
    def broken(text: bytes) -> int:
        made.append(text)
        raise ValueError(text)

    for _ in range(2):
        with pytest.raises(ValueError, match="b"):
            broken(b"b")
    assert made.count(b"b") == 2
