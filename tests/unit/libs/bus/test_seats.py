"""Members of a group learn which of how many they are, however they came together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from libs.bus.seats import SeatedAssignor

TOPIC = "tasks"


class Cluster:
    """A topic of so many partitions, as the group's leader knows it."""

    def __init__(self, partitions: int) -> None:
        self._partitions = set(range(partitions))

    def topics(self) -> set[str]:
        return {TOPIC}

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return self._partitions


def together(count: int) -> Iterator[list[int]]:
    """In every order in which so many can join: how many come at a time."""
    if not count:
        yield []
    for first in range(1, count + 1):
        for rest in together(count - first):
            yield [first, *rest]


def divided(joins: Iterable[int], base: type = SeatedAssignor, partitions: int = 12) -> list[Any]:
    """The members' assignors, after one rebalance for each of `joins`."""
    members: dict[str, Any] = {}
    for generation, number in enumerate(joins):
        for _ in range(number):
            members[f"m{len(members)}"] = type("Mine", (base,), {})
        metadata = {name: member.metadata({TOPIC}) for name, member in members.items()}
        found = members["m0"].assign(Cluster(partitions), metadata)
        for name, member in members.items():
            member.on_assignment(found[name])
            member.on_generation_assignment(generation)
    return list(members.values())


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_every_member_has_a_seat_of_its_own_in_whatever_order_they_came(count: int) -> None:
    for joins in together(count):
        assert sorted(m.seat for m in divided(joins)) == [(n, count) for n in range(count)], joins


def test_what_they_own_alone_does_not_tell_them_apart() -> None:
    owned = [{p.partition for p in m.member_assignment} for m in divided([3, 1])]
    assert len({frozenset(b - a for a, b in zip(sorted(o), sorted(o)[1:], strict=False)) for o in owned}) < 4
    assert sorted(m.seat for m in divided([3, 1])) == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_whoever_owns_nothing_has_no_seat() -> None:
    assert sorted(str(m.seat) for m in divided([3], partitions=2)) == ["(0, 2)", "(1, 2)", "None"]


def test_partitions_are_divided_as_without_seats() -> None:
    for joins in together(4):
        ours, plain = divided(joins), divided(joins, StickyPartitionAssignor)
        assert [m.member_assignment for m in ours] == [m.member_assignment for m in plain]


def test_under_a_leader_that_knows_no_seats_nobody_has_one() -> None:
    member: Any = type("Mine", (SeatedAssignor,), {})
    metadata = {"m0": member.metadata({TOPIC})}
    member.on_assignment(SeatedAssignor.assign(Cluster(12), metadata)["m0"])
    assert member.seat == (0, 1)
    member.on_assignment(StickyPartitionAssignor.assign(Cluster(12), metadata)["m0"])
    assert member.seat is None
    assert member.member_assignment
