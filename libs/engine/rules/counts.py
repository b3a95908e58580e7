"""How many pods of a kind each node has, and which topology domain each node is in: vectors over the snapshot's rows.

Counts are kept by node name and follow every pod that comes or goes, so they outlive nodes that register anew. Vectors
are made when somebody asks and patched where single nodes changed.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

from libs.engine.columns import Ints
from libs.engine.snapshot import Snapshot

#: Changes whenever rows may stand for other nodes or nodes have other facts.
Stamp = tuple[int, int]


def stamp(snapshot: Snapshot) -> Stamp:
    return snapshot.shape, len(snapshot.spec_changes)


_SERIAL: Final = itertools.count()


class Counts:
    """`version` changes with every change of a count, and is never that of another one."""

    __slots__ = ("_stale", "_stamp", "_vector", "by_node", "total", "version")

    def __init__(self) -> None:
        self.by_node: dict[str, int] = {}
        self.total = 0
        self.version = next(_SERIAL) << 40
        self._vector = np.zeros(0, np.int64)
        self._stale: set[str] = set()
        self._stamp: Stamp = (-1, -1)

    def shift(self, node: str, by: int) -> None:
        count = self.by_node.get(node, 0) + by
        if count:
            self.by_node[node] = count
        else:
            del self.by_node[node]
        self.total += by
        self.version += 1
        self._stale.add(node)

    def vector(self, snapshot: Snapshot) -> Ints:
        now = stamp(snapshot)
        if now != self._stamp or len(self._vector) != snapshot.capacity:
            self._vector = np.zeros(snapshot.capacity, np.int64)
            self._stale = set(self.by_node)
            self._stamp = now
        for name in self._stale:
            row = snapshot.rows.get(name)
            if row is not None:
                self._vector[row] = self.by_node.get(name, 0)
        self._stale = set()
        return self._vector


class Topology:
    """Domains by topology key: `codes(key)` has a small integer per row, -1 where the node lacks the label."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._keys: dict[str, tuple[dict[str, int], Ints]] = {}
        self._read: dict[str, Stamp] = {}

    def codes(self, key: str) -> Ints:
        snapshot = self._snapshot
        now = stamp(snapshot)
        values, codes = self._keys.get(key, ({}, np.zeros(0, np.int64)))
        before = self._read.get(key)
        if before == now and len(codes) == snapshot.capacity:
            return codes
        rows: range | set[int]
        if before is None or before[0] != now[0] or len(codes) != snapshot.capacity:
            codes = np.full(snapshot.capacity, -1, np.int64)
            rows = range(len(snapshot.states))
        else:
            rows = set(snapshot.spec_changes[before[1] :])
            codes = codes.copy()
        for row in rows:
            state = snapshot.states[row]
            value = state.node.labels.get(key) if state is not None else None
            codes[row] = -1 if value is None else values.setdefault(value, len(values))
        self._keys[key], self._read[key] = (values, codes), now
        return codes

    def values(self, key: str) -> list[str]:
        """The label's values, by code."""
        return list(self._keys[key][0]) if key in self._keys else []

    def size(self, key: str) -> int:
        """One more than the greatest code that was given out."""
        return len(self._keys[key][0]) if key in self._keys else 0
