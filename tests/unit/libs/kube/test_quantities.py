"""Quantities are read exactly: requests up, capacities down."""

import pytest

from libs.kube.quantities import mib, milli, units


@pytest.mark.parametrize(
    ("text", "up", "down"),
    [
        ("2", 2000, 2000),
        (2, 2000, 2000),
        (0.5, 500, 500),
        ("250m", 250, 250),
        ("1.5", 1500, 1500),
        ("100u", 1, 0),
        ("1n", 1, 0),
        ("2e3", 2_000_000, 2_000_000),
        ("0.1005", 101, 100),
    ],
)
def test_cpu_in_milli(text: str | int | float, up: int, down: int) -> None:
    assert (milli(text, True), milli(text, False)) == (up, down)


@pytest.mark.parametrize(
    ("text", "up", "down"),
    [
        ("16Gi", 16384, 16384),
        ("100M", 96, 95),
        ("1", 1, 0),
        ("1Ti", 2**20, 2**20),
        ("128974848", 123, 123),
        ("0", 0, 0),
    ],
)
def test_memory_in_mib(text: str, up: int, down: int) -> None:
    assert (mib(units(text, True), True), mib(units(text, False), False)) == (up, down)


def test_large_numbers_stay_exact() -> None:
    assert units("9007199254740993", True) == 9007199254740993


@pytest.mark.parametrize("text", ["", "abc", "1 Gi", "Gi", "1ki", "NaN", "Infinity", "1_000", " 1", "1E+-3"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        units(text, True)
