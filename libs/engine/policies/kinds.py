"""What typical tasks ask for, resolved against a cluster: which models, which CPU threshold, which part of a device.

Tables of values by (model, CPU left, idle amount) need few thresholds. CPU thresholds are the amounts that tasks ask
for; where there are too many different ones they are rounded up to fewer significant bits.

Of a node's idle GPU, a task can use by the published measure (FGD) every device that is idle enough, if there are as
many as it asks for and the CPU is enough for one. Counted by **places**, a task of whole GPUs can use what that many
tasks like it could take side by side: the idle devices and the CPU, whichever ends first. For tasks with one GPU a
twentieth of the CPU is left over in that: a node whose CPU just suffices for eight tasks alike rarely gets eight that
are alike, and no task without GPUs beside them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from libs.domain.resources import WHOLE
from libs.engine.columns import Columns, Ints
from libs.engine.mix import Shape, Share
from libs.engine.snapshot import Snapshot

#: Amounts of one device: 0..1000 milli.
AMOUNTS: Final = WHOLE + 1
#: The most CPU thresholds told apart for parts of devices, and for whole ones.
LEVELS: Final = 128
WHOLE_LEVELS: Final = 512
#: CPU that is left over where tasks with one GPU are counted side by side: one in so many parts of what they ask for.
SPARE_PARTS: Final = 20

#: The highest CPU threshold, milli: four thousand cores.
TOP: Final = 2**22


class Part(NamedTuple):
    """Devices idle by at least `amount` milli, on nodes of that level of CPU or a higher one, are usable."""

    code: int
    level: int
    amount: int


class Step(NamedTuple):
    """On nodes of at least that level of CPU and that many idle devices, so many more of them are usable."""

    code: int
    level: int
    devices: int
    gain: int


class Kinds:
    def __init__(self, snapshot: Snapshot, shapes: Iterable[Shape], places: bool = False) -> None:
        columns = snapshot.columns()
        names = snapshot.model_names()
        self.snapshot = snapshot
        #: Codes of models are less than this; this one means any.
        self.models = len(names)
        self.width = columns.milli.shape[1]
        self._places = places
        self._codes = {name: code for code, name in enumerate(names)}
        #: The largest device of each model, MiB.
        self.sizes: Ints = np.zeros(self.models, np.int64)
        there = np.flatnonzero(snapshot.alive)
        one_of_each = np.zeros(snapshot.kind_count, np.int64)
        one_of_each[columns.kind[there]] = there
        np.maximum.at(self.sizes, columns.model[one_of_each], columns.dev_mib[one_of_each])
        self._sizes: list[int] = self.sizes.tolist()
        kept = [shape for shape in shapes if 0 < shape.gpus <= self.width]
        wholes = [shape for shape in kept if self._is_whole(shape)]
        # What no node has is no threshold; nor is what only an absurd one has: `reached` is as long as the highest.
        top = min(int(columns.cap_cpu.max(initial=0)), TOP)
        self._for_parts = _levels({s.cpu for s in kept if s.cpu <= top and not self._is_whole(s)}, LEVELS)
        cpus = {cpu for shape in wholes for cpu in self._thresholds(shape) if cpu <= top}
        for_wholes = _levels(cpus, WHOLE_LEVELS)
        #: Thresholds of CPU; a node's level is how many of them it reaches.
        self.levels = sorted({*self._for_parts, *for_wholes})
        self.depth = len(self.levels) + 1
        #: By milli CPU and one, up to the highest threshold, the level: looked up, since searching takes longer.
        ends = [-1, *self.levels, (self.levels or [0])[-1] + 1]
        self.reached: Ints = np.repeat(np.arange(self.depth, dtype=np.int64), np.diff(ends))
        #: Of every level, how many thresholds of tasks that take parts of devices it reaches.
        self.part_level: Ints = np.searchsorted(self._for_parts, [-1, *self.levels], side="right")
        self.part_depth = len(self._for_parts) + 1
        self._order = {shape: at for at, shape in enumerate(dict.fromkeys(kept))}
        #: Of all shapes, one after the other: the shape's place in `weights`, and the fields of a `Part` or a `Step`.
        self.parts = _flat(
            ((at, *p) for shape, at in self._order.items() if not self._is_whole(shape) for p in self._parts(shape)), 4
        )
        self.steps = _flat(
            ((at, *s) for shape, at in self._order.items() if self._is_whole(shape) for s in self._steps(shape)), 5
        )
        self.amounts: list[int] = np.unique(self.parts[3]).tolist()
        #: For every amount, how many of `amounts` are at most that.
        self.step: Ints = np.searchsorted(np.asarray(self.amounts, np.int64), np.arange(AMOUNTS), side="right")

    def level_of(self, cpu: Ints) -> Ints:
        """How many thresholds are reached."""
        return self.reached.take(cpu + 1, mode="clip")

    def codes_of(self, models: Iterable[str]) -> list[int]:
        return [self._codes[name] for name in models if name in self._codes]

    def _is_whole(self, shape: Shape) -> bool:
        """Whether it is looked up by how many devices are idle, not device by device."""
        if shape.milli:
            return False
        return shape.gpus > 1 or (self._places and not shape.mib)

    def _thresholds(self, shape: Shape) -> list[int]:
        """CPU for so many tasks side by side, from one on."""
        if not self._places:
            return [shape.cpu]
        cpu = shape.cpu + shape.cpu // SPARE_PARTS if shape.gpus == 1 else shape.cpu
        return [cpu * tasks for tasks in range(1, self.width // shape.gpus + 1)]

    def _within(self, shape: Shape) -> Iterable[int]:
        """Codes of the models that will do."""
        if shape.models:
            return self.codes_of(shape.models)
        return range(self.models) if shape.mib else (self.models,)

    def _parts(self, shape: Shape) -> Iterable[Part]:
        level = bisect_left(self._for_parts, shape.cpu) + 1  # a node of that level or a higher one has the CPU
        if level >= self.part_depth:
            return  # no node has
        for code in self._within(shape):
            amount = self._amount(shape, code)
            if amount <= WHOLE:
                yield Part(code, level, amount)

    def _steps(self, shape: Shape) -> Iterable[Step]:
        gpus = shape.gpus
        levels = [bisect_left(self.levels, cpu) + 1 for cpu in self._thresholds(shape)]
        levels = [level for level in levels if level < self.depth]
        for code in self._within(shape):
            if shape.mib and self._amount(shape, code) > WHOLE:
                continue
            for tasks, level in enumerate(levels, 1):
                yield Step(code, level, tasks * gpus, gpus)
            if not self._places and levels:
                for devices in range(gpus + 1, self.width + 1):
                    yield Step(code, levels[0], devices, 1)

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
        level = self.level_of(nodes.cpu)
        cells, steps, places = self.models * self.part_depth, len(self.amounts) + 1, self.width + 1
        on = held > 0
        cell = (nodes.model * self.part_depth + self.part_level[level][:, None])[on] * steps
        amounts = held[on]
        # Whole numbers below 2**53: the sums are exact.
        device = np.bincount(cell + self.step[amounts], amounts, cells * steps).astype(np.int64)
        idle = np.where(nodes.shut, 0, nodes.idle)
        several = np.bincount(
            (nodes.main * self.depth + level) * places + idle, minlength=self.models * self.depth * places
        )
        by_device = _from_above(device.reshape(self.models, self.part_depth, steps))
        by_node = _from_above(several.reshape(self.models, self.depth, places))
        reach = np.zeros(len(self._order) + 1, np.int64)  # the last one: shapes that fit nowhere
        of, code, at, amount = self.parts
        np.add.at(reach, of, by_device[code, at, self.step[amount]])
        of, code, at, devices, gain = self.steps
        np.add.at(reach, of, WHOLE * gain * by_node[code, at, devices])
        return int(held.sum()), reach[[self._order.get(shape, -1) for shape, _ in shares]].tolist()

    def weights(self, shares: list[Share]) -> Ints:
        """The sum of the weights of each shape, in the order of `parts` and `steps`."""
        found = np.zeros(len(self._order) + 1, np.int64)
        np.add.at(found, [self._order.get(shape, -1) for shape, _ in shares], [weight for _, weight in shares])
        return found


def _flat(rows: Iterable[tuple[int, ...]], width: int) -> Ints:
    """As columns."""
    return np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, width).T


def _levels(amounts: set[int], most: int) -> list[int]:
    bits = 30
    found = amounts
    while len(found) > most:
        bits -= 1
        found = {_rounded_up(amount, bits) for amount in amounts}
    return sorted(found)


def _rounded_up(amount: int, bits: int) -> int:
    """The next number of at most that many significant bits."""
    spare = max(0, amount.bit_length() - bits)
    return -(-amount >> spare) << spare


def _from_above(table: Ints) -> Ints:
    """Sums over all higher levels and amounts, own ones included; after all models, their sum."""
    flipped = table[:, ::-1, ::-1]
    summed = np.cumsum(np.cumsum(flipped, axis=1), axis=2)[:, ::-1, ::-1]
    return np.concatenate([summed, summed.sum(axis=0, keepdims=True)])
