"""The limit: what no policy can exceed, whatever it knew beforehand.

For the arrivals of a run up to load L, all known and free to be placed in any order, GPUs are bins of 1000 milli, a
share is an item of its size, a whole GPU an item that fills one. CPU, memory, models and nodes are left out, so nothing
that can be placed in the cluster is excluded. How much fits is a cutting-stock programme; its linear relaxation, by
columns (Gilmore and Gomory), bounds it from above.

The programme is solved in floating point by a small simplex; what is told is not its value but the bound that its dual
prices prove: for any prices y >= 0, no more fits than sum(demand x y) + bins x (the most that one bin holds above its
items' prices). That is worked out in whole numbers, so it holds whatever the solver's accuracy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from libs.domain.resources import WHOLE
from libs.sim.arrivals import arrivals, capacity
from libs.sim.errors import SimulationError
from libs.sim.lists import NodeRow, TaskRow

_Floats = npt.NDArray[np.float64]
#: Dual prices are rounded to this part of a milli GPU.
_FINE: Final = 1_000_000
#: Groups of arrivals at one load that are bounded each by itself.
PARTS: Final = 10
_MOST_COLUMNS: Final = 2_000
_ENOUGH: Final = 1e-7


@dataclass(frozen=True, slots=True)
class Bound:
    """At most `allocated_milli` of `capacity_milli` can be allocated. `status` is "optimal" where no column improves
    the programme any more, else "stopped"; the bound holds in both cases. `value_milli` is the programme's value."""

    capacity_milli: int
    allocated_milli: float
    value_milli: float
    columns: int
    status: str

    @property
    def unallocated_pct(self) -> float:
        return 100 * (1 - self.allocated_milli / self.capacity_milli)


def bound_at(nodes: list[NodeRow], tasks: list[TaskRow], seed: int, load_percent: int = 100) -> Bound:
    """The bound for the mean over the arrivals whose arrived % rounds to `load_percent`, as a run with that seed has
    them. These are taken in PARTS groups, each with the bound of its last arrival: what fits only grows."""
    total = capacity(nodes)
    asked = 0
    sizes: Counter[int] = Counter()
    at_load: list[dict[int, int]] = []
    for task in arrivals(tasks, total, max(130, load_percent), seed):
        asked += task.gpu_milli
        gpu = task.request.gpu
        if gpu.count:
            sizes[gpu.milli or WHOLE] += gpu.count
        load = (200 * asked + total) // (2 * total)
        if load > load_percent:
            break
        if load == load_percent:
            at_load.append(dict(sizes))
    if not at_load:
        raise SimulationError(f"the tasks never ask for {load_percent} % of the GPUs")
    ends = sorted({len(at_load) * (part + 1) // PARTS for part in range(PARTS)} - {0})
    bounds = [cutting_stock(at_load[end - 1], total // WHOLE) for end in ends]
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return Bound(
        total,
        sum(b.allocated_milli * n for b, n in zip(bounds, counts, strict=True)) / len(at_load),
        sum(b.value_milli * n for b, n in zip(bounds, counts, strict=True)) / len(at_load),
        max(b.columns for b in bounds),
        "optimal" if all(b.status == "optimal" for b in bounds) else "stopped",
    )


def cutting_stock(demand: dict[int, int], bins: int) -> Bound:
    """`demand`: how many items there are of each size in milli."""
    sizes = sorted(demand)
    counts = [demand[size] for size in sizes]
    programme = _Programme(sizes, counts, bins)
    status = "stopped"
    while programme.columns < _MOST_COLUMNS:
        programme.solve()
        prices, room = programme.prices()
        best, pattern = _best_pattern(sizes, [size - price for size, price in zip(sizes, prices, strict=True)])
        if best <= room + _ENOUGH:
            status = "optimal"
            break
        programme.add(pattern)
    programme.solve()
    prices, _ = programme.prices()
    proven = _proven(sizes, counts, bins, prices)
    asked = sum(size * count for size, count in demand.items())
    return Bound(bins * WHOLE, min(proven, asked, bins * WHOLE), programme.value, programme.columns, status)


def _proven(sizes: list[int], counts: list[int], bins: int, prices: list[float]) -> float:
    """The bound of these prices, in whole numbers of 1/FINE milli."""
    fixed = [min(max(round(price * _FINE), 0), size * _FINE) for price, size in zip(prices, sizes, strict=True)]
    gains = [size * _FINE - price for size, price in zip(sizes, fixed, strict=True)]
    most = [0] * (WHOLE + 1)
    for room in range(1, WHOLE + 1):
        most[room] = max(
            most[room - 1],
            max((most[room - size] + gain for size, gain in zip(sizes, gains, strict=True) if size <= room), default=0),
        )
    return (sum(count * price for count, price in zip(counts, fixed, strict=True)) + bins * most[WHOLE]) / _FINE


def _best_pattern(sizes: list[int], gains: list[float]) -> tuple[float, list[int]]:
    """The most gain in one bin, and how many items of each size that takes."""
    widths, values = np.asarray(sizes), np.asarray(gains)
    useful = values > 0
    most = np.zeros(WHOLE + 1)
    choice = np.full(WHOLE + 1, -1)
    order = np.flatnonzero(useful)
    for room in range(1, WHOLE + 1):
        most[room] = most[room - 1]
        fits = order[widths[order] <= room]
        if len(fits):
            found = most[room - widths[fits]] + values[fits]
            at = int(found.argmax())
            if found[at] > most[room]:
                most[room], choice[room] = found[at], fits[at]
    pattern = [0] * len(sizes)
    room = WHOLE
    while room > 0:
        item = int(choice[room])
        if item < 0:
            room -= 1
            continue
        pattern[item] += 1
        room -= sizes[item]
    return float(most[WHOLE]), pattern


class _Programme:
    """max value x, subject to: items used <= demand, patterns used <= bins, x >= 0. A dense tableau that starts from
    its slacks (all right-hand sides are positive) and is continued as columns come."""

    def __init__(self, sizes: list[int], counts: list[int], bins: int) -> None:
        rows = len(sizes) + 1
        self._rows = rows
        self._sizes = sizes
        self._table: _Floats = np.zeros((rows + 1, rows + 1))
        self._table[:rows, :rows] = np.eye(rows)
        self._table[:rows, -1] = [*counts, bins]
        self._basis = list(range(rows))
        self.columns = 0

    def add(self, pattern: list[int]) -> None:
        column = np.asarray([*pattern, 1], np.float64)
        value = float(np.dot(pattern, self._sizes))
        inverse = self._table[:, : self._rows]
        entry = inverse @ column
        entry[-1] -= value
        self._table = np.insert(self._table, self._table.shape[1] - 1, entry, axis=1)
        self.columns += 1

    def solve(self) -> None:
        table = self._table
        for turn in range(20_000):
            costs = table[-1, :-1]
            # Bland's rule after a while: it cannot go round in circles.
            entering = int(costs.argmin()) if turn < 5_000 else int(np.argmax(costs < -_ENOUGH))
            if costs[entering] >= -_ENOUGH:
                return
            column = table[: self._rows, entering]
            ratios = np.full(self._rows, np.inf)
            positive = column > 1e-9
            ratios[positive] = table[: self._rows, -1][positive] / column[positive]
            leaving = int(ratios.argmin())
            if not np.isfinite(ratios[leaving]):
                raise ArithmeticError("a programme of bins cannot be unbounded")
            table[leaving] /= table[leaving, entering]
            for row in range(self._rows + 1):
                if row != leaving and table[row, entering]:
                    table[row] -= table[row, entering] * table[leaving]
            self._basis[leaving] = entering

    def prices(self) -> tuple[list[float], float]:
        """Of the items, and of a bin."""
        duals = self._table[-1, : self._rows]
        return [float(price) for price in duals[:-1]], float(duals[-1])

    @property
    def value(self) -> float:
        return float(self._table[-1, -1])
