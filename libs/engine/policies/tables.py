"""Look-up tables of usable GPU that follow the typical mix: made anew when the mix has a new version or the cluster a
new model of GPU, and at no other time, so that all classes of tasks are scored by the same numbers.

What every node is worth as it stands is the same for all classes, so it is kept and followed node by node.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from libs.engine.devices import NodeState
from libs.engine.mix import Share, TypicalMix
from libs.engine.policies.kinds import Kinds
from libs.engine.policies.usable import Usable
from libs.engine.snapshot import Columns, Ints, Snapshot

#: The shares that stand in the tables, and those in their place that are scored by.
Weigh = Callable[[Kinds, list[Share]], list[Share]]
#: From this many changed rows on, all are valued at once.
_MANY = 64


class Tables:
    def __init__(
        self, snapshot: Snapshot, mix: TypicalMix, gather: Callable[[list[Share]], list[Share]], weigh: Weigh
    ) -> None:
        self._snapshot = snapshot
        self._mix = mix
        self._gather = gather
        self._weigh = weigh
        self._made_for: tuple[int, int, int] | None = None
        self._epoch = 0
        self._at = -1
        self._shape = -1
        self._worth: Ints = np.zeros(0, np.int64)
        self.usable = Usable(Kinds(snapshot, ()), [])

    def epoch(self) -> int:
        """How many times the tables were made; makes them where that is due."""
        snapshot = self._snapshot
        made_for = (self._mix.version, snapshot.model_count, snapshot.width)
        if made_for != self._made_for:
            shares = self._gather(self._mix.shares())
            kinds = Kinds(snapshot, [share.shape for share in shares])
            self.usable = Usable(kinds, self._weigh(kinds, shares))
            self._made_for = (self._mix.version, snapshot.model_count, snapshot.width)
            self._epoch += 1
            self._at = -1
        return self._epoch

    def worth(self, node: NodeState) -> int:
        """What the node is worth as it is."""
        if self._at != len(self._snapshot.changes) or self._shape != self._snapshot.shape:
            self._follow()
        return int(self._worth[node.row])

    def worth_many(self, nodes: Columns) -> Ints:
        self._follow()
        worth: Ints = self._worth[nodes.row]
        return worth

    def _follow(self) -> None:
        snapshot = self._snapshot
        changes = snapshot.changes
        if self._at == len(changes) and self._shape == snapshot.shape:
            return
        rows = changes[self._at :] if self._at >= 0 and self._shape == snapshot.shape else None
        if rows is None or len(rows) > _MANY or len(self._worth) != snapshot.capacity:
            self._worth = self.usable.of_many(snapshot.columns())
        else:
            for row in rows:
                state = snapshot.states[row]
                self._worth[row] = self.usable.of(state) if state is not None else 0
        self._at = len(changes)
        self._shape = snapshot.shape
