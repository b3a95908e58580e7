"""How much of a node's idle GPU the typical tasks could use: the fragment measure of FGD, turned round, as look-ups.

For a typical task asking c CPU and q GPUs of r milli each, the usable part of a node is the sum of those idle amounts
that are at least r, if at least q of them are and the CPU suffices and the model is right; else nothing. A node's value
is the mean of that over the typical tasks, by weight. (FGD's F is idle GPU less this value.)

The mean is a sum over devices of a function of (model, CPU left, idle amount), plus, for tasks with several GPUs, a
function of (model, CPU left, wholly idle devices). Both are tables here, made anew when the weights change; to value a
node is then a handful of look-ups, in plain integers or for all nodes at once, with the same result.

Integers throughout: values are milli GPU times `mix.ONE`. On a node with several models the look-up for several GPUs
goes by the model of its first device.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np

from libs.domain.resources import WHOLE
from libs.engine.ask import Ask
from libs.engine.devices import NodeState
from libs.engine.mix import Shape, Share
from libs.engine.snapshot import Columns, Ints, Snapshot

_AMOUNTS: Final = WHOLE + 1
_NONE: Final = -(1 << 60)
#: The most CPU thresholds told apart; where tasks ask for more different amounts, these are rounded up.
_LEVELS: Final = 128


class Usable:
    def __init__(self, snapshot: Snapshot, shares: list[Share]) -> None:
        columns = snapshot.columns()
        self._names = snapshot.model_names()
        self.models = len(self._names)
        self._codes = {name: code for code, name in enumerate(self._names)}
        self._mib = _model_sizes(columns, self.models)
        self.width = columns.milli.shape[1]
        self.levels = _levels({share.shape.cpu for share in shares if share.shape.gpus})
        self._depth = len(self.levels) + 1
        self._level_array = np.asarray(self.levels, np.int64)
        device = np.zeros((self.models, self._depth, _AMOUNTS), np.int64)
        several = np.zeros((self.models, self._depth, self.width + 1), np.int64)
        for shape, weight in shares:
            if not shape.gpus or shape.gpus > self.width:
                continue
            level = self._level_of(shape)
            for code in self.codes(shape):
                amount = self.amount(shape, code)
                if shape.gpus == 1 or amount < WHOLE:
                    if amount <= WHOLE:
                        device[code, level, amount] += weight
                else:
                    several[code, level, shape.gpus] += weight
        for table, unit in ((device, 1), (several, WHOLE)):
            np.cumsum(table, axis=1, out=table)
            np.cumsum(table, axis=2, out=table)
            table *= unit * np.arange(table.shape[2], dtype=np.int64)
        self._device: Ints = device.reshape(-1)
        self._several: Ints = several.reshape(-1)
        # A view gives plain integers, several times faster than numpy scalars.
        self._device_view: Sequence[int] = memoryview(self._device)  # type: ignore[arg-type]
        self._several_view: Sequence[int] = memoryview(self._several)  # type: ignore[arg-type]

    # -- shapes -----------------------------------------------------------------------------------------------------
    def codes(self, shape: Shape) -> list[int]:
        """Codes of the models that will do."""
        if not shape.models:
            return list(range(self.models))
        return [self._codes[name] for name in shape.models if name in self._codes and name]

    def amount(self, shape: Shape, code: int) -> int:
        """Milli of one device of that model; above WHOLE where it cannot serve the task."""
        if shape.milli:
            return shape.milli
        if shape.mib:
            size = self._mib[code]
            return -(-shape.mib * WHOLE // size) if 0 < shape.mib <= size else WHOLE + 1
        return WHOLE

    def asked(self, ask: Ask, code: int) -> int:
        """Milli GPU that the task takes on devices of that model."""
        return ask.gpu_milli if not ask.charge_depends else ask.count * int(self._by_memory(ask)[code])

    def asked_many(self, ask: Ask, codes: Ints) -> Ints | int:
        return ask.gpu_milli if not ask.charge_depends else ask.count * self._by_memory(ask)[codes]

    def _by_memory(self, ask: Ask) -> Ints:
        sizes = np.asarray(self._mib, np.int64)
        return np.where(sizes > 0, ask.mib * WHOLE // np.maximum(sizes, 1), WHOLE)

    def _level_of(self, shape: Shape) -> int:
        """A node of that level or a higher one has the CPU."""
        return bisect_left(self.levels, shape.cpu) + 1

    def reach(self, nodes: Columns, shares: list[Share]) -> tuple[int, list[int]]:
        """All idle GPU of the nodes, and the part of it that each shape could use, milli."""
        held = np.where(nodes.usable & ~nodes.shut[:, None], np.clip(nodes.milli, 0, WHOLE), 0)
        level = np.searchsorted(self._level_array, nodes.cpu, side="right")
        size = self.models * self._depth
        at = (nodes.model * self._depth + level[:, None]) * _AMOUNTS + held
        device = np.bincount(at[held > 0], minlength=size * _AMOUNTS).reshape(self.models, self._depth, _AMOUNTS)
        device = _from_above(device * np.arange(_AMOUNTS, dtype=np.int64))
        idle = np.where(nodes.shut, 0, nodes.idle)
        at_idle = (nodes.main * self._depth + level) * (self.width + 1) + idle
        several = np.bincount(at_idle, minlength=size * (self.width + 1)).reshape(self.models, self._depth, -1)
        several = _from_above(several * (WHOLE * np.arange(self.width + 1, dtype=np.int64)))
        found: list[int] = []
        for shape, _ in shares:
            total = 0
            if 0 < shape.gpus <= self.width:
                at_level = self._level_of(shape)
                for code in self.codes(shape):
                    amount = self.amount(shape, code)
                    if shape.gpus == 1 or amount < WHOLE:
                        total += int(device[code, at_level, amount]) if amount <= WHOLE else 0
                    else:
                        total += int(several[code, at_level, shape.gpus])
            found.append(total)
        return int(held.sum()), found

    # -- one node ---------------------------------------------------------------------------------------------------
    def _base(self, code: int, cpu: int) -> int:
        return code * self._depth + bisect_right(self.levels, cpu)

    def of(self, node: NodeState) -> int:
        """The value of a node as it is."""
        if node.shut:
            return 0
        device = self._device_view
        level = bisect_right(self.levels, node.cpu)
        depth, codes = self._depth, node.codes
        total: int = 0
        for i in node.index:
            if node.usable[i]:
                milli = node.milli[i]
                if milli > 0:
                    total += device[(codes[i] * depth + level) * _AMOUNTS + milli]
        total += self._several_view[(_main(node) * depth + level) * (self.width + 1) + node.idle]
        return total

    def after(self, node: NodeState, ask: Ask) -> int:
        """The value after the task was placed on the devices that leave most. The task fits."""
        value, _ = self._after(node, ask)
        return value

    def devices(self, node: NodeState, ask: Ask) -> list[int]:
        """The devices that `after` places a task with shares on: best first, lower index first on ties."""
        return self._after(node, ask)[1]

    def _after(self, node: NodeState, ask: Ask) -> tuple[int, list[int]]:
        if node.shut:
            return 0, []
        device, several = self._device_view, self._several_view
        level = bisect_right(self.levels, node.cpu - ask.cpu)
        depth, codes = self._depth, node.codes
        idle, base = node.idle, (_main(node) * depth + level) * (self.width + 1)
        total = several[base + idle]
        milli, usable = node.milli, node.usable
        for i in node.index:
            if usable[i] and milli[i] > 0:
                total += device[(codes[i] * depth + level) * _AMOUNTS + milli[i]]
        if not ask.count:
            return total, []
        if not ask.share:
            whole = device[(_main(node) * depth + level) * _AMOUNTS + WHOLE]
            return total - ask.count * whole + several[base + idle - ask.count] - several[base + idle], []
        broken = several[base + max(idle - 1, 0)] - several[base + idle]
        moves: list[tuple[int, int]] = []
        for i in node.index:
            if not usable[i] or (ask.models and node.models[i] not in ask.models):
                continue
            taken, mib = ask.grant(node.dev_mib[i])
            left = milli[i] - taken
            if left < 0 or node.mib[i] < mib:
                continue
            at = (codes[i] * depth + level) * _AMOUNTS
            change = device[at + left] - device[at + milli[i]]
            moves.append((change + broken if node.is_idle(i) else change, i))
        moves.sort(key=_by_change)
        moves = moves[: ask.count]
        return total + sum(change for change, _ in moves), [i for _, i in moves]

    # -- many nodes -------------------------------------------------------------------------------------------------
    def of_many(self, nodes: Columns) -> Ints:
        level = np.searchsorted(self._level_array, nodes.cpu, side="right")
        held = np.where(nodes.usable, np.clip(nodes.milli, 0, WHOLE), 0)
        at = (nodes.model * self._depth + level[:, None]) * _AMOUNTS
        main = (nodes.main * self._depth + level) * (self.width + 1)
        value = self._device[at + held].sum(axis=1) + self._several[main + nodes.idle]
        return np.where(nodes.shut, 0, value)

    def after_many(self, nodes: Columns, ask: Ask, allowed: Ints | None = None) -> Ints:
        """`after` for every node; what stands for nodes where the task does not fit means nothing. `allowed`: codes of
        the models that will do, None for any."""
        level = np.searchsorted(self._level_array, nodes.cpu - ask.cpu, side="right")
        held = np.where(nodes.usable, np.clip(nodes.milli, 0, WHOLE), 0)
        at = (nodes.model * self._depth + level[:, None]) * _AMOUNTS
        values = self._device[at + held]
        main = nodes.main * self._depth + level
        base = main * (self.width + 1)
        idle = self._several[base + nodes.idle]
        total: Ints = values.sum(axis=1) + idle
        if not ask.count:
            return np.where(nodes.shut, 0, total)
        if not ask.share:
            whole = self._device[main * _AMOUNTS + WHOLE]
            total += self._several[base + np.maximum(nodes.idle - ask.count, 0)] - idle - ask.count * whole
            return total
        if ask.milli:
            left = held - ask.milli
            fits = (left >= 0) & nodes.usable & (nodes.mib >= ask.milli * nodes.dev_mib // WHOLE)
        else:
            size = nodes.dev_mib
            left = held - np.where(size > 0, ask.mib * WHOLE // np.maximum(size, 1), WHOLE)
            fits = (left >= 0) & nodes.usable & (nodes.mib >= ask.mib)
        if allowed is not None:
            fits &= np.isin(nodes.model, allowed)
        change = self._device[at + np.maximum(left, 0)] - values
        broken = self._several[base + np.maximum(nodes.idle - 1, 0)] - idle
        whole_device = (held == WHOLE) & (nodes.mib == nodes.dev_mib)
        change = np.where(fits, change + np.where(whole_device, broken[:, None], 0), _NONE)
        if ask.count == 1:
            total += change.max(axis=1)
            return total
        ordered = np.sort(change, axis=1)[:, ::-1][:, : ask.count]
        total += np.where(ordered > _NONE, ordered, 0).sum(axis=1)
        return total


def _levels(amounts: set[int]) -> list[int]:
    bits = 30
    found = amounts
    while len(found) > _LEVELS:
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


def _by_change(move: tuple[int, int]) -> tuple[int, int]:
    return -move[0], move[1]


def _main(node: NodeState) -> int:
    return node.codes[node.index[0]] if node.index else 0


def _model_sizes(columns: Columns, models: int) -> list[int]:
    """The largest device of each model, MiB."""
    sizes = np.zeros(models, np.int64)
    np.maximum.at(sizes, columns.model[columns.exists], columns.dev_mib[columns.exists])
    return [int(size) for size in sizes]
