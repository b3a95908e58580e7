"""First fit over nodes in the order of a hash of their names: first fit without the luck of how a pool was named."""

from __future__ import annotations

import zlib

import numpy as np

from libs.domain.resources import GpuGrant
from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.policies.base import Base, Surroundings, first_devices


class FirstFitHash(Base):
    name = "first-fit-hash"
    ceiling = (1 << 20) - 1
    by_look = False

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._hashes: Ints = np.zeros(0, np.int64)
        self._shape = -1

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:  # noqa: ARG002
        return _hash(node.name)

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints:  # noqa: ARG002
        snapshot = self.around.snapshot
        if self._shape != snapshot.shape or len(self._hashes) != snapshot.capacity:
            self._shape = snapshot.shape
            self._hashes = np.zeros(snapshot.capacity, np.int64)
            for name, row in snapshot.rows.items():
                self._hashes[row] = _hash(name)
        return self._hashes[nodes.row]

    def choose(self, node: NodeState, ask: Ask) -> tuple[GpuGrant, ...] | None:
        return first_devices(node, ask)


def _hash(name: str) -> int:
    return zlib.crc32(name.encode()) >> 12
