"""How much of a node's idle GPU the typical tasks could use: the fragment measure of FGD, turned round, as look-ups.

For a typical task asking c CPU and q GPUs of r milli each, the usable part of a node is the sum of those idle amounts
that are at least r, if at least q of them are and the CPU suffices and the model is right; else nothing. A node's value
is the mean of that over the typical tasks, by weight. (FGD's F is idle GPU less this value.)

The mean is a sum over devices of a function of (model, CPU left, idle amount), plus, for tasks with several GPUs, a
function of (model, CPU left, wholly idle devices). Both are tables here, made anew when the weights change; to value a
node is then a handful of look-ups, in plain integers or for all nodes at once, with the same result.

No device is taken for more than a whole one, however much of it looks free: a victim that has left in the ledger and is
still there in the facts gives its room back twice.

Integers throughout: values are milli GPU times `mix.ONE`. On a node with several models the look-up for several GPUs
goes by the model of its first device.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np

from libs.domain.resources import WHOLE
from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.matrix import row_maxima, row_sums
from libs.engine.mix import Share
from libs.engine.policies.kinds import AMOUNTS, Kinds

_NONE: Final = -(1 << 60)
_IDLE: Final[Ints] = np.arange(AMOUNTS, dtype=np.int64)


class Usable:
    def __init__(self, kinds: Kinds, shares: list[Share]) -> None:
        self._kinds = kinds
        self._levels = kinds.levels
        self._depth = kinds.depth
        self._part_levels = kinds.part_level
        self._part_level: list[int] = kinds.part_level.tolist()
        self._part_depth = kinds.part_depth
        self._places = places = kinds.width + 1
        amounts = kinds.amounts
        device = np.zeros((kinds.models + 1, self._part_depth, len(amounts) + 1), np.int64)
        several = np.zeros((kinds.models + 1, self._depth, places), np.int64)
        step = kinds.step
        for shape, weight in shares:
            for code, level, amount in kinds.parts.get(shape, ()):
                device[code, level, step[amount]] += weight
            for code, level, devices, gain in kinds.steps.get(shape, ()):
                several[code, level, devices] += weight * gain
        device, several = (_summed(table) for table in (device, several))
        several *= WHOLE
        expanded = np.repeat(device, np.bincount(kinds.step, minlength=len(amounts) + 1), axis=2)
        expanded *= _IDLE
        self._device: Ints = expanded.reshape(-1)
        self._several: Ints = several.reshape(-1)
        # A view gives plain integers, several times faster than numpy scalars.
        self._device_view: Sequence[int] = memoryview(self._device)  # type: ignore[arg-type]
        self._several_view: Sequence[int] = memoryview(self._several)  # type: ignore[arg-type]

    def asked(self, ask: Ask, code: int) -> int:
        """Milli GPU that the task takes on devices of that model."""
        return ask.gpu_milli if not ask.charge_depends else ask.count * int(self._by_memory(ask)[code])

    def asked_many(self, ask: Ask, codes: Ints) -> Ints | int:
        return ask.gpu_milli if not ask.charge_depends else ask.count * self._by_memory(ask)[codes]

    def _by_memory(self, ask: Ask) -> Ints:
        sizes = self._kinds.sizes
        return np.where(sizes > 0, ask.mib * WHOLE // np.maximum(sizes, 1), WHOLE)

    # -- one node ---------------------------------------------------------------------------------------------------
    def of(self, node: NodeState) -> int:
        """The value of a node as it is."""
        if node.shut:
            return 0
        device = self._device_view
        level = bisect_right(self._levels, node.cpu)
        part, depth, codes = self._part_level[level], self._part_depth, node.codes
        total: int = self._several_view[(_main(node) * self._depth + level) * self._places + node.idle]
        for i in node.index:
            milli = node.milli[i]
            if milli > 0 and node.usable[i]:
                total += device[(codes[i] * depth + part) * AMOUNTS + (milli if milli < WHOLE else WHOLE)]
        return total

    def after(self, node: NodeState, ask: Ask) -> int:
        """The value after the task was placed on the devices that leave most. The task fits."""
        if node.shut:
            return 0
        device = self._device_view
        level = bisect_right(self._levels, node.cpu - ask.cpu)
        part, depth = self._part_level[level], self._part_depth
        codes, milli, usable, idle = node.codes, node.milli, node.usable, node.idle
        first = codes[node.index[0]] if node.index else 0
        base = (first * self._depth + level) * self._places + idle
        several = self._several_view
        total: int = several[base]
        if ask.share:
            moves = self._moves(node, ask, part, total - several[base - 1] if idle else 0)
            if ask.count == 1:
                total -= min(moves)[0]
            else:
                moves.sort()
                total -= sum(change for change, _ in moves[: ask.count])
        elif ask.count:
            total = several[base - ask.count] - ask.count * device[(first * depth + part) * AMOUNTS + WHOLE]
        for i in node.index:
            held = milli[i]
            if held > 0 and usable[i]:
                total += device[(codes[i] * depth + part) * AMOUNTS + (held if held < WHOLE else WHOLE)]
        return total

    def devices(self, node: NodeState, ask: Ask) -> list[int]:
        """The devices that `after` places a task with shares on: best first, lower index first on ties."""
        level = bisect_right(self._levels, node.cpu - ask.cpu)
        base = (_main(node) * self._depth + level) * self._places + node.idle
        broken = self._several_view[base] - self._several_view[base - 1] if node.idle else 0
        return [i for _, i in sorted(self._moves(node, ask, self._part_level[level], broken))[: ask.count]]

    def _moves(self, node: NodeState, ask: Ask, part: int, broken: int) -> list[tuple[int, int]]:
        """(value lost, device) for every device that one share of the task fits on."""
        device, depth, codes, milli, mib = self._device_view, self._part_depth, node.codes, node.milli, node.mib
        wanted, models, usable, sizes = ask.milli, ask.models, node.usable, node.dev_mib
        moves: list[tuple[int, int]] = []
        for i in node.index:
            held = milli[i]
            if held < wanted or not usable[i] or (models and node.models[i] not in models):
                continue
            if held > WHOLE:
                held = WHOLE
            if wanted:
                taken, asked_mib = wanted, wanted * sizes[i] // WHOLE
            else:
                taken, asked_mib = ask.grant(sizes[i])
                if held < taken:
                    continue
            if mib[i] < asked_mib:
                continue
            at = (codes[i] * depth + part) * AMOUNTS + held
            lost = device[at] - device[at - taken]
            if held == WHOLE and broken and milli[i] == WHOLE and mib[i] == sizes[i]:
                lost += broken
            moves.append((lost, i))
        return moves

    # -- many nodes -------------------------------------------------------------------------------------------------
    def of_many(self, nodes: Columns) -> Ints:
        level = self._kinds.level_of(nodes.cpu)
        at = self._rows(nodes, self._part_levels.take(level))
        at += held_on(nodes)
        main = (nodes.main * self._depth + level) * self._places
        value = row_sums(self._device.take(at)) + self._several.take(main + nodes.idle)
        return np.where(nodes.shut, 0, value)

    def _rows(self, nodes: Columns, part: Ints) -> Ints:
        """Where the look-ups of each device begin."""
        at = nodes.model * (self._part_depth * AMOUNTS)
        at += (part * AMOUNTS)[:, None]
        return at

    def after_many(self, nodes: Columns, ask: Ask) -> Ints:
        """`after` for every node; what stands for nodes where the task does not fit means nothing."""
        level = self._kinds.level_of(nodes.cpu - ask.cpu)
        held = held_on(nodes)
        part = self._part_levels.take(level)
        at = self._rows(nodes, part)
        values = self._device.take(at + held)
        base = (nodes.main * self._depth + level) * self._places
        idle = self._several.take(base + nodes.idle)
        total: Ints = row_sums(values) + idle
        if not ask.count:
            return np.where(nodes.shut, 0, total)
        if not ask.share:
            whole = self._device[(nodes.main * self._part_depth + part) * AMOUNTS + WHOLE]
            total += self._several[base + np.maximum(nodes.idle - ask.count, 0)] - idle - ask.count * whole
            return total
        if ask.milli:
            left = held - ask.milli
            fits = (left >= 0) & (nodes.mib * WHOLE + (WHOLE - 1) >= ask.milli * nodes.dev_mib)
        else:
            size = nodes.dev_mib
            left = held - np.where(size > 0, ask.mib * WHOLE // np.maximum(size, 1), WHOLE)
            fits = (left >= 0) & nodes.usable & (nodes.mib >= ask.mib)
        if ask.models:
            fits &= self._kinds.accepted(ask.models).take(nodes.model)
        change = self._device.take(at + np.maximum(left, 0)) - values
        broken = self._several[base + np.maximum(nodes.idle - 1, 0)] - idle
        whole_device = (held == WHOLE) & (nodes.mib == nodes.dev_mib)
        change += whole_device * broken[:, None]
        np.putmask(change, ~fits, _NONE)
        if ask.count == 1:
            return total + row_maxima(change)
        ordered = np.sort(change, axis=1)[:, ::-1][:, : ask.count]
        total += np.where(ordered > _NONE, ordered, 0).sum(axis=1)
        return total


def held_on(nodes: Columns) -> Ints:
    """Idle milli per device, 0 where it is not to be used."""
    held = np.maximum(nodes.milli, 0)  # np.clip looks its bounds up, which costs more than it does
    np.minimum(held, WHOLE, out=held)
    held *= nodes.usable
    return held


def _main(node: NodeState) -> int:
    return node.codes[node.index[0]] if node.index else 0


def _summed(table: Ints) -> Ints:
    """What stands for any model counts for each; then sums over all lower levels and amounts, own ones included."""
    each: Ints = table[:-1] + table[-1]
    np.cumsum(each, axis=1, out=each)
    np.cumsum(each, axis=2, out=each)
    return each
