"""What typical tasks ask for, resolved against a cluster: which models, which CPU threshold, which part of a device.

Tables of values by (model, CPU left, idle amount) need few thresholds. CPU thresholds are the amounts that tasks ask
for; where there are more than LEVELS different ones they are rounded up to fewer significant bits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable
from typing import Final

import numpy as np

from libs.domain.resources import WHOLE
from libs.engine.columns import Bools, Columns, Ints
from libs.engine.mix import Shape, Share
from libs.engine.snapshot import Snapshot

#: Amounts of one device: 0..1000 milli.
AMOUNTS: Final = WHOLE + 1
#: The most CPU thresholds told apart.
LEVELS: Final = 128

#: (model code, least level of CPU, milli of each device, 0 or the number of whole devices if several)
Want = tuple[int, int, int, int]


class Kinds:
    def __init__(self, snapshot: Snapshot, shapes: Iterable[Shape]) -> None:
        columns = snapshot.columns()
        names = snapshot.model_names()
        self.models = len(names)
        self.width = columns.milli.shape[1]
        self._codes = {name: code for code, name in enumerate(names)}
        #: The largest device of each model, MiB.
        self.sizes: Ints = np.zeros(self.models, np.int64)
        for code in range(self.models):
            self.sizes[code] = int((columns.dev_mib * (columns.model == code)).max(initial=0))
        self._sizes: list[int] = self.sizes.tolist()
        kept = [shape for shape in shapes if 0 < shape.gpus <= self.width]
        self.levels = _levels({shape.cpu for shape in kept})
        self.level_array: Ints = np.asarray(self.levels, np.int64)
        self.depth = len(self.levels) + 1
        self._wants = {shape: self._resolve(shape) for shape in kept}
        self.amounts = sorted({amount for wants in self._wants.values() for _, _, amount, count in wants if not count})
        #: For every amount, how many of `amounts` are at most that.
        self.step: Ints = np.searchsorted(np.asarray(self.amounts, np.int64), np.arange(AMOUNTS), side="right")

    def wants(self, shape: Shape) -> list[Want]:
        return self._wants.get(shape, [])

    def codes_of(self, models: Iterable[str]) -> list[int]:
        return [self._codes[name] for name in models if name in self._codes]

    def accepted(self, models: Container[str]) -> Bools:
        """By code, whether a model is among these."""
        found = np.zeros(self.models, np.bool_)
        found[[code for name, code in self._codes.items() if name in models]] = True
        return found

    def _resolve(self, shape: Shape) -> list[Want]:
        codes = self.codes_of(shape.models) if shape.models else range(self.models)
        level = bisect_left(self.levels, shape.cpu) + 1  # a node of that level or a higher one has the CPU
        found: list[Want] = []
        for code in codes:
            amount = self._amount(shape, code)
            if amount > WHOLE:
                continue
            found.append((code, level, amount, shape.gpus if shape.gpus > 1 and amount == WHOLE else 0))
        return found

    def _amount(self, shape: Shape, code: int) -> int:
        """Milli of one device of that model; above WHOLE where it cannot serve the task."""
        if shape.milli:
            return shape.milli
        if shape.mib:
            size = self._sizes[code]
            return -(-shape.mib * WHOLE // size) if 0 < shape.mib <= size else WHOLE + 1
        return WHOLE

    def reach(self, nodes: Columns, shares: list[Share]) -> tuple[int, list[int]]:
        """All idle GPU of the nodes, and the part of it that each shape could use, milli."""
        held = np.clip(nodes.milli, 0, WHOLE) * (nodes.usable & ~nodes.shut[:, None])
        level = np.searchsorted(self.level_array, nodes.cpu, side="right")
        cells, steps, places = self.models * self.depth, len(self.amounts) + 1, self.width + 1
        on = held > 0
        cell = (nodes.model * self.depth + level[:, None])[on] * steps
        amounts = held[on]
        # Whole numbers below 2**53: the sums are exact.
        device = np.bincount(cell + self.step[amounts], amounts, cells * steps).astype(np.int64)
        idle = np.where(nodes.shut, 0, nodes.idle)
        several = np.bincount((nodes.main * self.depth + level) * places + idle, WHOLE * idle, cells * places)
        by_device = _from_above(device.reshape(self.models, self.depth, steps))
        by_node = _from_above(several.astype(np.int64).reshape(self.models, self.depth, places))
        found = [
            sum(
                int(by_node[code, at, count] if count else by_device[code, at, self.step[amount]])
                for code, at, amount, count in self.wants(shape)
            )
            for shape, _ in shares
        ]
        return int(held.sum()), found


def _levels(amounts: set[int]) -> list[int]:
    bits = 30
    found = amounts
    while len(found) > LEVELS:
        bits -= 1
        found = {_rounded_up(amount, bits) for amount in amounts}
    return sorted(found)


def _rounded_up(amount: int, bits: int) -> int:
    """The next number of at most that many significant bits."""
    spare = max(0, amount.bit_length() - bits)
    return -(-amount >> spare) << spare


def _from_above(table: Ints) -> Ints:
    """Sums over all higher levels and amounts, own ones included."""
    flipped = table[:, ::-1, ::-1]
    return np.cumsum(np.cumsum(flipped, axis=1), axis=2)[:, ::-1, ::-1]
