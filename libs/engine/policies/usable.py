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
from libs.engine.filters import share_fit
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
        weights = kinds.weights(shares)
        of, code, level, amount = kinds.parts
        np.add.at(device, (code, level, kinds.step[amount]), weights[of])
        of, code, level, devices, gain = kinds.steps
        np.add.at(several, (code, level, devices), weights[of] * gain)
        device, several = (_summed(table) for table in (device, several))
        several *= WHOLE
        #: By level of CPU, model and idle amount.
        expanded = np.repeat(device.transpose(1, 0, 2), np.bincount(kinds.step, minlength=len(amounts) + 1), axis=2)
        expanded *= _IDLE
        self._device: Ints = expanded.reshape(-1)
        self._models = kinds.models
        self._stride = kinds.models * AMOUNTS
        #: By level of CPU and model, what one whole device is worth.
        self._whole: Ints = expanded[:, :, WHOLE].reshape(-1)
        self._several: Ints = several.reshape(-1)
        # A view gives plain integers, several times faster than numpy scalars.
        self._device_view: Sequence[int] = memoryview(self._device)  # type: ignore[arg-type]
        self._several_view: Sequence[int] = memoryview(self._several)  # type: ignore[arg-type]
        self._whole_view: Sequence[int] = memoryview(self._whole)  # type: ignore[arg-type]

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
        total: int = self._several_view[(_main(node) * self._depth + level) * self._places + node.idle]
        here = self._part_level[level] * self._stride
        for i in node.index:
            milli = node.milli[i]
            if milli > 0 and node.usable[i]:
                total += device[here + node.codes[i] * AMOUNTS + (milli if milli < WHOLE else WHOLE)]
        return total

    def lost(self, node: NodeState, ask: Ask) -> int:
        """By how much the node's value changes when the task is placed on the devices that leave most: 0 or less. The
        task fits."""
        if node.shut:
            return 0
        levels, cpu, index, codes, idle = self._levels, node.cpu, node.index, node.codes, node.idle
        before, after = bisect_right(levels, cpu), bisect_right(levels, cpu - ask.cpu)
        part = self._part_level[after]
        first = codes[index[0]] if index else 0
        several = self._several_view
        at = (first * self._depth + after) * self._places + idle
        total: int = several[at] - several[at + (before - after) * self._places]
        if ask.share:
            moves = self._moves(node, ask, part, several[at] - several[at - 1] if idle else 0)
            if ask.count == 1:
                total -= min(moves)[0]
            else:
                moves.sort()
                total -= sum([change for change, _ in moves[: ask.count]])
        elif ask.count:
            total += several[at - ask.count] - several[at] - ask.count * self._whole_view[part * self._models + first]
        of_now = self._part_level[before]
        if part != of_now:
            # Else what single devices are worth as they stand is the same before and after.
            device, stride, milli, usable = self._device_view, self._stride, node.milli, node.usable
            here, there = part * stride, of_now * stride
            for i in index:
                held = milli[i]
                if held > 0 and usable[i]:
                    at = codes[i] * AMOUNTS + (held if held < WHOLE else WHOLE)
                    total += device[here + at] - device[there + at]
        return total

    def devices(self, node: NodeState, ask: Ask) -> list[int]:
        """The devices that `lost` places a task with shares on: best first, lower index first on ties."""
        level = bisect_right(self._levels, node.cpu - ask.cpu)
        base = (_main(node) * self._depth + level) * self._places + node.idle
        broken = self._several_view[base] - self._several_view[base - 1] if node.idle else 0
        return [i for _, i in sorted(self._moves(node, ask, self._part_level[level], broken))[: ask.count]]

    def _moves(self, node: NodeState, ask: Ask, part: int, broken: int) -> list[tuple[int, int]]:
        """(value lost, device) for every device that one share of the task fits on."""
        device, codes, milli, mib, level = self._device_view, node.codes, node.milli, node.mib, part * self._stride
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
            at = level + codes[i] * AMOUNTS + held
            lost = device[at] - device[at - taken]
            if held == WHOLE and broken and milli[i] == WHOLE and mib[i] == sizes[i]:
                lost += broken
            moves.append((lost, i))
        return moves

    # -- many nodes -------------------------------------------------------------------------------------------------
    def lost_many(self, nodes: Columns, ask: Ask) -> Ints:
        """`lost` for every node; what stands for nodes where the task does not fit means nothing."""
        reached, count = self._kinds.reached, ask.count
        cpu = nodes.cpu + 1
        before = reached.take(cpu, mode="clip")
        cpu -= ask.cpu
        after = reached.take(cpu, mode="clip")
        part, of_now = self._part_levels.take(after), self._part_levels.take(before)
        main = nodes.main
        at = main * (self._depth * self._places)
        at += nodes.idle
        then = after * self._places
        then += at
        at += before * self._places
        total: Ints
        if ask.share:
            total = self._shared(nodes, ask, part, then)
        else:
            then -= count
            total = self._several.take(then, mode="clip")
            if count:
                where = part * self._models
                where += main
                total -= count * self._whole.take(where)
        total -= self._several.take(at)
        moved = (part != of_now).nonzero()[0]
        if len(moved):
            rows = nodes.take(moved)
            cells = rows.model * AMOUNTS
            cells += held_on(rows)
            now = self._device.take(cells + (of_now[moved] * self._stride)[:, None])
            cells += (part[moved] * self._stride)[:, None]
            total[moved] += row_sums(self._device.take(cells) - now)
        if not count:
            total[nodes.shut] = 0
        return total

    def _shared(self, nodes: Columns, ask: Ask, part: Ints, at: Ints) -> Ints:
        """What stands for whole devices there, with the changes on the devices that leave most."""
        asked, fits = share_fit(self._kinds.snapshot, nodes, ask)
        held = np.minimum(nodes.milli, WHOLE)
        cells = nodes.model * AMOUNTS
        cells += held
        cells += (part * self._stride)[:, None]
        change = -self._device.take(cells, mode="clip")  # where the task does not fit, of no meaning
        cells -= asked
        change += self._device.take(cells, mode="clip")
        idle = self._several.take(at)
        broken = self._several[at - (nodes.idle > 0)] - idle
        change += ((held == WHOLE) & (nodes.mib == nodes.dev_mib)) * broken[:, None]
        change = np.where(fits, change, _NONE)
        if ask.count == 1:
            return idle + row_maxima(change)
        ordered = np.sort(change, axis=1)[:, ::-1][:, : ask.count]
        idle += np.where(ordered > _NONE, ordered, 0).sum(axis=1)
        return idle


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
