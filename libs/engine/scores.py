"""How well tasks that ask for the same CPU and GPUs fit on a node, by what the node looks like (`looks`).

Worked out once for each look and kept until the policies' formulas change. A look that is new is scored alone with
plain integers; many new ones are scored together with numpy; both give the same integers. Classes of tasks that differ
in memory, selectors or tolerations only share all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence
from typing import Final

import numpy as np

from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.filters import device_fit
from libs.engine.looks import FULL
from libs.engine.policies.base import Policy
from libs.engine.snapshot import Snapshot

#: A score stands above so many bits for whatever else orders nodes.
SHIFT: Final = 24
#: The score of looks on which the task does not fit, so far below zero that with whatever else orders nodes it stays
#: there; and of those of which that is not known yet.
MISFIT: Final = -(3 << 61)
UNKNOWN: Final = MISFIT + 1
#: Rows that do not fit are dropped where fewer than one in this many are left over.
_MOST: Final = 1.5


class Scores:
    """`values[look]` is the weighted score, shifted by SHIFT; MISFIT; or UNKNOWN. `view` is the same as plain integers.

    Where a policy looks at more than a node's looks, each row counts as a look of its own, and is to be forgotten when
    its node changes; such scores serve one class.
    """

    def __init__(self, snapshot: Snapshot, ask: Ask, policies: tuple[tuple[Policy, int], ...]) -> None:
        """Memory is left out of what is asked for, unless it matters to the policies: looks do not have it either."""
        self._snapshot = snapshot
        self._policies = policies
        self.by_look = all(policy.by_look for policy, _ in policies)
        self._ask = ask if not ask.mem or any(policy.by_memory for policy, _ in policies) else ask.without_memory()
        self._epochs: tuple[int, ...] = ()
        self._exactly = any(policy.by_tightness for policy, _ in policies)
        #: Grows when nothing of what was known holds any more.
        self.version = 0
        self.values: Ints = np.zeros(0, np.int64)
        self.view: MutableSequence[int] = []

    def follow(self) -> int:
        """The version, after forgetting what does not hold any more."""
        epochs = (self._snapshot.look_generation, *[policy.epoch() for policy, _ in self._policies])
        if epochs != self._epochs:
            self._epochs = epochs
            self.version += 1
            self._forget_all()
        return self.version

    def looks(self) -> Sequence[int]:
        """The look of each row, for each of which there is a value."""
        snapshot = self._snapshot
        if self.by_look:
            looks: Sequence[int] = snapshot.looks()
            count = snapshot.look_count
        else:
            looks, count = range(snapshot.capacity), snapshot.capacity
        if len(self.values) < count:
            known = self.values
            self.values = np.empty(max(2 * len(known), count), np.int64)
            self.view = memoryview(self.values)  # type: ignore[arg-type, assignment]
            self._forget_all()
            self.values[: len(known)] = known
        return looks

    def looks_of(self, columns: Columns, rows: Ints) -> Ints:
        """The looks of these rows, of which `columns` is."""
        return columns.look if self.by_look else rows

    def forget(self, rows: Iterable[int]) -> None:
        for row in rows:
            self.view[row] = UNKNOWN

    def _forget_all(self) -> None:
        self.values.fill(UNKNOWN)
        if self.by_look and len(self.values):
            self.values[FULL] = MISFIT

    # -- working them out -------------------------------------------------------------------------------------------
    def one(self, state: NodeState) -> int:
        """The value of a node's look, with plain integers."""
        ask = self._ask
        tight = state.tight(ask, self._exactly)
        if tight < 0:
            return MISFIT
        score = 0
        for policy, weight in self._policies:
            score += weight * policy.one(state, ask, tight)
        return score << SHIFT

    def many(self, rows: Ints) -> None:
        """Work out the values of these rows' looks, with numpy. Their CPU and idle GPU are enough."""
        snapshot, ask = self._snapshot, self._ask
        columns = snapshot.columns().take(rows)
        fits, tight = device_fit(snapshot, columns, ask, self._exactly)
        fits = fits & (columns.pods >= 1)
        if ask.count:
            fits &= ~columns.shut
        if ask.mem:
            fits &= columns.mem >= ask.mem
        kept = fits.nonzero()[0]
        if _MOST * len(kept) < len(rows):
            self.values[self.looks_of(columns, rows)] = MISFIT
            rows, fits, tight = rows[kept], fits[kept], tight[kept]
            columns = snapshot.columns().take(rows)
        total = np.zeros(len(rows), np.int64)
        for policy, weight in self._policies:
            total += weight * policy.many(columns, ask, tight)
        total <<= SHIFT
        np.putmask(total, ~fits, MISFIT)
        self.values[self.looks_of(columns, rows)] = total
