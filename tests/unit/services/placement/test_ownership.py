"""Where replicas begin among the devices of a node, known to each from its own partitions alone."""

import pytest

from services.placement.ownership import begins_at

ALL = frozenset(range(12))


@pytest.mark.parametrize("owners", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("in_turn", [False, True], ids=["in blocks", "dealt in turn"])
def test_owners_of_equal_parts_begin_evenly_apart(owners: int, in_turn: bool) -> None:
    size = 12 // owners
    parts = [range(n, 12, owners) if in_turn else range(n * size, (n + 1) * size) for n in range(owners)]
    assert [begins_at(frozenset(part), 12) for part in parts] == [n / owners for n in range(owners)]


def test_four_that_came_one_after_another_begin_apart() -> None:
    """As Kafka's sticky assignment divides them."""
    parts = ({0, 1, 2}, {6, 7, 8}, {4, 5, 10}, {3, 9, 11})
    assert sorted(begins_at(frozenset(part), 12) for part in parts) == [0.0, 0.25, 0.5, 0.75]


def test_who_is_told_its_seat_begins_there_whatever_it_owns() -> None:
    """Three came together, one after them: three of the four look alike by what they own."""
    parts = ({5, 8, 11}, {4, 7, 10}, {0, 1, 2}, {3, 6, 9})
    assert len({begins_at(frozenset(part), 12) for part in parts}) == 2
    assert {begins_at(frozenset(part), 12, (n, 4)) for n, part in enumerate(parts)} == {0.0, 0.25, 0.5, 0.75}
    assert begins_at(frozenset(), 12, (3, 4)) == 0.0


def test_whoever_owns_all_or_nothing_begins_with_the_first() -> None:
    assert begins_at(ALL, 12) == 0.0
    assert begins_at(frozenset(), 12) == 0.0


@pytest.mark.parametrize("owned", [{11}, {0, 11}, ALL - {5}, {3, 9}])
def test_any_part_begins_somewhere(owned: frozenset[int]) -> None:
    assert 0.0 <= begins_at(frozenset(owned), 12) < 1.0
