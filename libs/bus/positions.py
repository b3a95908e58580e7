"""Which offsets may be committed: per partition, the lowest contiguous run of finished records.

Records of one partition finish out of order, because their effects run concurrently. Committing the highest finished
offset would lose those below it that are still in hand when the process dies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from libs.bus.port import Incoming


class InHand:
    """One record that was read. It is finished when `open` parts of it are."""

    __slots__ = ("offset", "open", "place")

    def __init__(self, place: tuple[str, int], offset: int) -> None:
        self.place = place
        self.offset = offset
        self.open = 1

    def part_done(self) -> None:
        self.open -= 1


class Positions:
    """Not finished records by partition, in the order they were read."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int], deque[InHand]] = {}

    def read(self, record: Incoming, parts: int = 1) -> InHand:
        """Note a record with `parts` independent parts; a record without any is finished at once."""
        place = (record.topic, record.partition)
        held = InHand(place, record.offset)
        held.open = parts
        self._lines.setdefault(place, deque()).append(held)
        return held

    def forget(self, places: Iterable[tuple[str, int]]) -> None:
        """The partitions went to another owner, who starts from what was committed. What is still in hand here may
        finish; its record counts for nothing, even if the partition comes back."""
        for place in places:
            self._lines.pop(place, None)

    def due(self) -> dict[tuple[str, int], int]:
        """Next offsets to read, by partition, where something new has finished. Each is returned once."""
        found: dict[tuple[str, int], int] = {}
        for place, line in self._lines.items():
            while line and line[0].open <= 0:
                found[place] = line.popleft().offset + 1
        return found

    @property
    def in_hand(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def by_topic(self) -> dict[str, int]:
        """The same of each topic."""
        found: dict[str, int] = {}
        for (topic, _), line in self._lines.items():
            found[topic] = found.get(topic, 0) + len(line)
        return found
