"""Which nodes take a class of alike tasks, and which is best: kept up to date change by change.

One integer per node orders everything: no PreferNoSchedule taint first, then the weighted score, then the earlier name;
-1 where the task does not fit. The best node is one argmax. A changed node is scored alone with plain integers; many
changed ones are scored together with numpy; both give the same integers.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from libs.domain.verdicts import Verdict
from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.filters import (
    device_fit,
    disliked,
    disliked_rows,
    dynamic_codes,
    empty_slots,
    static_codes,
)
from libs.engine.policies.base import Policy
from libs.engine.snapshot import Snapshot

RANK_BITS: Final = 24
RANK_MASK: Final = (1 << RANK_BITS) - 1
#: From this many changed rows on, numpy on all of them beats integers one by one.
FEW: Final = 32
#: Less than any amount that a node may have left.
_NO_MATTER: Final = -(1 << 62)
#: Rows that do not fit are dropped where fewer than one in this many are left over.
_MOST: Final = 1.5


class Feasibility:
    #: Whether rules beyond a node's own facts and its room have a say.
    ruled = False

    def __init__(self, snapshot: Snapshot, ask: Ask, policies: tuple[tuple[Policy, int], ...]) -> None:
        self._snapshot = snapshot
        self._policies = policies
        self._liked = sum(weight * policy.ceiling for policy, weight in policies) + 1
        self._by_room = all(policy.by_room for policy, _ in policies)
        self.ask = ask
        self.codes: Ints = np.zeros(0, np.int64)
        self.keys: Ints = np.zeros(0, np.int64)
        self._shape = -1
        self._at = 0
        self._spec_at = 0
        self._epochs: tuple[int, ...] = ()
        self._slots: Ints | None = None
        #: What `explain` said last, with the snapshot's version that it is true for.
        self.told: tuple[int, Verdict] | None = None

    # -- keeping up -------------------------------------------------------------------------------------------------
    def refresh(self) -> None:
        """Take in what changed in the snapshot since the last time. Every answer is of that moment."""
        snapshot = self._snapshot
        if self._spec_at != len(snapshot.spec_changes) or self._shape != snapshot.shape:
            snapshot.columns()  # ranks new rows, which may change the shape
            if self._shape != snapshot.shape:
                self._rebuild()
                return
            changed = np.asarray(sorted(set(snapshot.spec_changes[self._spec_at :])), np.int64)
            self.codes[changed] = static_codes(snapshot, self.ask, changed)
            self._spec_at = len(snapshot.spec_changes)
            self._slots = None
        epochs = tuple([policy.epoch() for policy, _ in self._policies])
        if epochs != self._epochs:
            self._epochs = epochs
            self._at = len(snapshot.changes)
            self._score(None)
            return
        changes = snapshot.changes
        if self._at == len(changes):
            return
        rows = set(changes[self._at :])
        self._at = len(changes)
        if len(rows) > FEW:
            self._score(None if 2 * len(rows) > len(snapshot.states) else np.asarray(list(rows), np.int64))
            return
        keys, states, ask = self.keys, snapshot.states, self.ask
        cpu = ask.cpu or _NO_MATTER
        gpu = ask.gpu_milli if ask.count else _NO_MATTER
        for row in rows:
            state = states[row]
            # Most rows that do not fit lack CPU, or idle GPUs.
            keys[row] = -1 if state is None or state.cpu < cpu or state.gpu_free < gpu else self._key(row)

    def _rebuild(self) -> None:
        snapshot = self._snapshot
        self.codes = static_codes(snapshot, self.ask, np.arange(snapshot.capacity, dtype=np.int64))
        self.keys = np.full(snapshot.capacity, -1, np.int64)
        self._shape = snapshot.shape
        self._spec_at = len(snapshot.spec_changes)
        self._at = len(snapshot.changes)
        self._slots = None
        self._epochs = tuple([policy.epoch() for policy, _ in self._policies])
        self._score(None)

    def _key(self, row: int) -> int:
        """One row, with plain integers."""
        snapshot = self._snapshot
        state = snapshot.states[row]
        if state is None or self.codes[row]:
            return -1
        ask = self.ask
        tight = state.tight(ask)
        if tight < 0:
            return -1
        score = 0
        for policy, weight in self._policies:
            score += weight * policy.one(state, ask, tight)
        taints = state.node.taints
        if not taints or not disliked(taints, ask.tolerations):
            score += self._liked
        return (score << RANK_BITS) | (RANK_MASK - int(snapshot.rank[row]))

    def _score(self, rows: Ints | None) -> None:
        """Many rows (None: all) with numpy. Rows that cannot take the task drop out before anything dear is asked."""
        snapshot, ask = self._snapshot, self.ask
        everything = snapshot.columns()
        columns = everything
        if rows is None:
            rows = columns.row
        else:
            columns = columns.take(rows)
        fits = (self.codes.take(rows) == 0) & (columns.pods >= 1)
        if ask.cpu:
            fits &= columns.cpu >= ask.cpu
        if ask.mem:
            fits &= columns.mem >= ask.mem
        if ask.count:
            fits &= ~columns.shut
            fits &= columns.gpu_free >= ask.gpu_milli
        self.keys[rows] = -1
        kept = np.flatnonzero(fits)
        if not len(kept):
            return
        if _MOST * len(kept) < len(rows):
            rows, columns, fits = rows[kept], everything.take(rows[kept]), fits[kept]
        room, tight = device_fit(snapshot, columns, ask)
        fits &= room
        kept = np.flatnonzero(fits)
        if _MOST * len(kept) < len(rows):
            rows, columns, fits, tight = rows[kept], everything.take(rows[kept]), fits[kept], tight[kept]
        total = self._totals(columns, everything, rows, tight)
        if len(snapshot.taint_sets) > 1:
            total += np.where(disliked_rows(snapshot, ask, rows), 0, self._liked)
        else:
            total += self._liked
        self.keys[rows] = np.where(fits, (total << RANK_BITS) | (RANK_MASK - snapshot.rank[rows]), -1)

    def _totals(self, columns: Columns, everything: Columns, rows: Ints, tight: Ints) -> Ints:
        """Weighted scores. Of the nodes of one kind that nothing is on, one is scored for all."""
        back: Ints | None = None
        if self._by_room and len(rows) > FEW:
            bare = (columns.cpu == columns.cap_cpu) & (columns.mem == columns.cap_mem)
            bare &= columns.idle == columns.devices
            empty = np.flatnonzero(bare)
            if 2 * len(empty) > len(rows):
                used, kinds = np.flatnonzero(~bare), columns.kind[empty]
                one_of = np.full(self._snapshot.kind_count, -1, np.int64)
                one_of[kinds] = empty
                there = np.flatnonzero(one_of >= 0)
                place = np.zeros(len(one_of), np.int64)
                place[there] = np.arange(len(used), len(used) + len(there))
                back = np.empty(len(rows), np.int64)
                back[used] = np.arange(len(used))
                back[empty] = place[kinds]
                scored = np.concatenate([used, one_of[there]])
                columns, tight = everything.take(rows[scored]), tight[scored]
        total = np.zeros(len(tight), np.int64)
        for policy, weight in self._policies:
            total += weight * policy.many(columns, self.ask, tight)
        return total if back is None else total[back]

    # -- answers ----------------------------------------------------------------------------------------------------
    def now(self) -> Ints:
        """One integer per row, the higher the better; -1 where the task does not fit now."""
        return self.keys

    def best(self) -> int:
        """The best row now, or -1."""
        keys = self.keys
        if not len(keys):
            return -1
        row = int(keys.argmax())
        return row if keys[row] >= 0 else -1

    def top(self, count: int) -> list[int]:
        """The best rows in order, at most `count`."""
        keys = self.keys
        if count >= len(keys):
            rows = np.argsort(-keys)
        else:
            rows = np.argpartition(keys, len(keys) - count)[len(keys) - count :]
            rows = rows[np.argsort(-keys[rows])]
        return [row for row in rows.tolist() if keys[row] >= 0]

    def fits(self, row: int) -> bool:
        return bool(self.keys[row] >= 0)

    def admits(self, row: int) -> bool:  # noqa: ARG002
        """Whether rules beyond the node's own facts and its room let the task in."""
        return True

    def more_nodes_help(self) -> bool:
        """Whether some node would take the task if it were empty and open, so that another like it would."""
        return bool(self.slots().any())

    def slots(self) -> Ints:
        """Tasks that each node would take if it were empty (see `filters.empty_slots`)."""
        if self._slots is None:
            self._slots = empty_slots(self._snapshot, self.ask, self.codes)
        return self._slots

    def codes_now(self) -> Ints:
        return dynamic_codes(self._snapshot, self.ask, self.codes)
