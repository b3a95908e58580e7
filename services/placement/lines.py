"""Who waits elsewhere: a job's place in its queue counts those in other replicas' partitions too.

Each replica tells, for each of its partitions, who waits there: of every queue how many, what they ask for in all, and
who stands where, the first HEADS one by one and further back ever more rarely. So a record has some dozens of entries
however many wait; places among the first are exact, those further back are right to a quarter and said as "about". What
is told is some seconds old, as places are anyway. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from libs.contracts.events import QueueLine, Stander
from libs.domain.queues import ancestors
from libs.engine.fair import NOTHING, Amounts, Place, plus

#: The least that a job takes, and the models that will do for it.
Ask = tuple[Amounts, tuple[str, ...]]
#: Of every queue, so many are told one by one.
HEADS: Final = 16
#: Queues of one partition that are told, those in which most wait.
QUEUES: Final = 64


def ranks(count: int) -> list[int]:
    """Who of so many is told, counted from 1: the first HEADS, then at steps that grow by half, and the last."""
    found = list(range(1, min(count, HEADS) + 1))
    rank = HEADS
    while (rank := rank * 3 // 2) < count:
        found.append(rank)
    if count > HEADS:
        found.append(count)
    return found


def told_of(queue: str, places: Sequence[Place], ask_of: Callable[[Place], Ask], demand: Amounts) -> QueueLine:
    """`places`: where those who wait in the queue stand, in order; `ask_of`: what such a one asks for at least. All
    together they ask for `demand`."""
    standing = []
    for rank in ranks(len(places)):
        aged, by_priority, created, job = place = places[rank - 1]
        standing.append(Stander(job, aged, by_priority, created, rank, *ask_of(place)))
    return QueueLine(queue, len(places), demand, tuple(standing))


@dataclass(slots=True)
class _Part:
    """One partition's line of one queue."""

    places: list[Place]
    ranks: list[int]


@dataclass(slots=True)
class Elsewhere:
    """All that others have told, added up."""

    parts: dict[str, list[_Part]] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    #: By queue, what is below it included.
    demand: dict[str, Amounts] = field(default_factory=dict)
    #: The first of each queue, with what each asks for.
    heads: dict[str, list[tuple[Place, Ask]]] = field(default_factory=dict)

    def before(self, queue: str, place: Place) -> int:
        """How many stand before that place; between two that are told, the middle."""
        count = 0
        for part in self.parts.get(queue, ()):
            at = bisect_left(part.places, place)
            low = part.ranks[at - 1] if at else 0
            high = part.ranks[at] - 1 if at < len(part.ranks) else low
            count += (low + high) // 2
        return count

    def just_before(self, queue: str, place: Place, most: int) -> list[Place]:
        """The last that are known to stand before that place."""
        known: list[Place] = []
        for part in self.parts.get(queue, ()):
            at = bisect_left(part.places, place)
            known += part.places[max(0, at - most) : at]
        return sorted(known)[-most:]


class Heard:
    """What was told last of each partition."""

    def __init__(self) -> None:
        self._lines: dict[int, tuple[QueueLine, ...]] = {}

    def take(self, partition: int, lines: tuple[QueueLine, ...]) -> None:
        self._lines[partition] = lines

    def elsewhere(self, ours: Collection[int]) -> Elsewhere:
        """Of all partitions but ours."""
        found = Elsewhere()
        for partition, lines in self._lines.items():
            if partition in ours:
                continue
            for line in lines:
                queue = line.queue
                standing = [((s.aged, s.by_priority, s.created, s.job), (s.ask, s.models)) for s in line.standing]
                found.parts.setdefault(queue, []).append(
                    _Part([place for place, _ in standing], [s.rank for s in line.standing])
                )
                found.heads.setdefault(queue, []).extend(standing[:HEADS])
                found.waiting[queue] = found.waiting.get(queue, 0) + line.waiting
                for one in ancestors(queue):
                    found.demand[one] = plus(found.demand.get(one, NOTHING), line.demand)
        return found
