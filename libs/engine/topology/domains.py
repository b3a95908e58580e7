"""Which topology domain every node is in, level by level, and regions: rows that a task is confined to.

Domains are numbered in the order of their names, so that what is chosen by number is the same in every process,
whatever order the nodes came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from libs.domain.topology import Level, level_of
from libs.engine.columns import Bools, Ints
from libs.engine.rules.counts import Stamp, Topology, stamp
from libs.engine.snapshot import Snapshot


class Region:
    """Rows of the snapshot, ascending, and the same as a mask. `name` is for people, empty for the whole cluster."""

    __slots__ = ("mask", "name", "rows")

    def __init__(self, mask: Bools, name: str = "") -> None:
        self.mask = mask
        self.rows: Ints = np.flatnonzero(mask)
        self.name = name


class Partition:
    """The domains of one level. `codes` has the domain of each row, -1 where its node is in none; `names` stand in the
    order of the codes."""

    __slots__ = ("codes", "level", "names")

    def __init__(self, level: Level, codes: Ints, names: Sequence[str]) -> None:
        self.level = level
        self.codes = codes
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def region(self, code: int, within: Region) -> Region:
        return Region((self.codes == code) & within.mask, self.names[code])

    def sums(self, values: Ints, within: Region) -> Ints:
        """Values per row summed up per domain, within a region."""
        rows = within.rows[self.codes[within.rows] >= 0]
        # Whole numbers below 2**53: the sums are exact.
        return np.bincount(self.codes[rows], values[rows], len(self.names)).astype(np.int64)

    def present(self, within: Region) -> Bools:
        """Which domains have a node in the region."""
        found = np.zeros(len(self.names) + 1, np.bool_)
        found[self.codes[within.rows]] = True
        return np.asarray(found[:-1], np.bool_)


class Domains:
    def __init__(self, snapshot: Snapshot, labels: Topology, levels: Sequence[Level]) -> None:
        self._snapshot = snapshot
        self._labels = labels
        self.levels = tuple(levels)
        self._made: dict[Level, tuple[Stamp, Partition]] = {}

    def everywhere(self) -> Region:
        self._snapshot.columns()  # facts that came since are taken in
        return Region(self._snapshot.alive.copy())

    def wished(self, wish: str) -> Partition:
        """The domains of the level that a wish means, up to date."""
        return self.of(level_of(self.levels, wish))

    def of(self, level: Level) -> Partition:
        snapshot = self._snapshot
        snapshot.columns()  # new rows are ranked, which may change the shape
        now = stamp(snapshot)
        made = self._made.get(level)
        if made is None or made[0] != now or len(made[1].codes) != snapshot.capacity:
            made = self._made[level] = (now, self._divide(level))
        return made[1]

    def outward(self, level: Level) -> list[Level]:
        """The level and those wider than it, the narrowest first."""
        if level not in self.levels:
            return [level]
        return list(reversed(self.levels[: self.levels.index(level) + 1]))

    def inward(self, outer: Level | None, inner: Level) -> list[Level]:
        """Levels narrower than `outer` (None: than everything) down to `inner`, the widest first."""
        if inner not in self.levels:
            return [inner]
        first = self.levels.index(outer) + 1 if outer in self.levels else 0
        return list(self.levels[first : self.levels.index(inner) + 1])

    def _divide(self, level: Level) -> Partition:
        own = self._labels.codes(level.label)
        values = self._labels.values(level.label)
        parent = self._parent(level)
        rows = np.flatnonzero(own >= 0)
        above = parent.codes[rows] if parent is not None else np.full(len(rows), -1, np.int64)
        pairs, inverse = np.unique(np.stack([own[rows], above]), axis=1, return_inverse=True)
        found = [
            (values[value], "" if parent is None or at < 0 else parent.names[at])
            for value, at in zip(*pairs.tolist(), strict=True)
        ]
        order = sorted((value, outer, at) for at, (value, outer) in enumerate(found) if value)
        place = np.full(len(found), -1, np.int64)
        for code, (_, _, at) in enumerate(order):
            place[at] = code
        codes = np.full(self._snapshot.capacity, -1, np.int64)
        if len(rows):
            codes[rows] = place[inverse.reshape(-1)]
        several = {value for (value, _, _), (other, _, _) in pairwise(order) if value == other}
        names = [
            f"{_words(level, value)} of {outer}" if value in several and outer else _words(level, value)
            for value, outer, _ in order
        ]
        return Partition(level, codes, names)

    def _parent(self, level: Level) -> Partition | None:
        if level.unique or level not in self.levels:
            return None
        at = self.levels.index(level)
        return self.of(self.levels[at - 1]) if at else None


def _words(level: Level, value: str) -> str:
    return f"{level.label}={value}" if level.name == level.label else f"{level.name} {value}"
