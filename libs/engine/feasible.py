"""Which nodes take a class of alike tasks, and which is best: kept up to date change by change.

One integer per node orders everything: no PreferNoSchedule taint first, then the weighted score, then the earlier name;
-1 where the task does not fit. The best node is one argmax.

Whether the task fits and how well follows from what a node looks like (`looks`), so it is worked out once for each look
and kept until the policies' formulas change. A look that is new is scored alone with plain integers; many new ones are
scored together with numpy; both give the same integers.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence
from typing import Final

import numpy as np

from libs.domain.verdicts import Verdict
from libs.engine.ask import Ask
from libs.engine.columns import Bools, Columns, Ints
from libs.engine.filters import (
    device_fit,
    disliked_rows,
    dynamic_codes,
    empty_slots,
    static_codes,
)
from libs.engine.policies.base import Policy
from libs.engine.snapshot import Snapshot

RANK_BITS: Final = 24
RANK_MASK: Final = (1 << RANK_BITS) - 1
#: From this many new looks on, numpy on all of them beats integers one by one.
FEW: Final = 16
#: From this many changed rows on, and one in so many of all, numpy on all rows beats looking at these.
MANY: Final = 256
MANY_PARTS: Final = 8
#: Less than any amount that a node may have left.
_NO_MATTER: Final = -(1 << 62)
#: Rows that do not fit are dropped where fewer than one in this many are left over.
_MOST: Final = 1.5
#: Scores of looks on which the task does not fit, or of which that is not known; and what stands for a node that is out
#: of the question. So far below zero that the sum of one of them with anything is negative, and both together no
#: overflow.
MISFIT: Final = -(3 << 61)
UNKNOWN: Final = MISFIT + 1
BARRED: Final = -(1 << 61)


class Feasibility:
    #: Whether rules beyond a node's own facts and its room have a say.
    ruled = False

    def __init__(self, snapshot: Snapshot, ask: Ask, policies: tuple[tuple[Policy, int], ...]) -> None:
        self._snapshot = snapshot
        self._policies = policies
        self._liked = sum(weight * policy.ceiling for policy, weight in policies) + 1
        #: Else each row counts as a look of its own.
        self._by_look = all(policy.by_look for policy, _ in policies)
        self.ask = ask
        self.codes: Ints = np.zeros(0, np.int64)
        self.keys: Ints = np.zeros(0, np.int64)
        #: What each row adds to the score of its look: whether the task likes it there, and the order by name.
        self._places: Ints = np.zeros(0, np.int64)
        #: By look, the score with room for what the row adds.
        self._scores: Ints = np.zeros(0, np.int64)
        self._shape = -1
        self._at = 0
        self._spec_at = 0
        self._epochs: tuple[int, ...] = ()
        self._slots: Ints | None = None
        #: When it was asked for last, counted by who keeps it.
        self.asked = 0
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
            self._places[changed] = self._place(changed)
            self._spec_at = len(snapshot.spec_changes)
            self._slots = None
        epochs = (snapshot.look_generation, *[policy.epoch() for policy, _ in self._policies])
        if epochs != self._epochs:
            self._epochs = epochs
            self._at = len(snapshot.changes)
            self._score_all()
            return
        changes = snapshot.changes
        if self._at == len(changes):
            return
        rows = set(changes[self._at :])
        self._at = len(changes)
        if len(rows) > MANY and MANY_PARTS * len(rows) > len(snapshot.states):
            self._score_all()
        else:
            self._score(rows)

    def _rebuild(self) -> None:
        snapshot = self._snapshot
        everything = np.arange(snapshot.capacity, dtype=np.int64)
        self.codes = static_codes(snapshot, self.ask, everything)
        self.keys = np.full(snapshot.capacity, -1, np.int64)
        self._places = self._place(everything)
        self._keys_view = _plain(self.keys)
        self._places_view = _plain(self._places)
        self._shape = snapshot.shape
        self._spec_at = len(snapshot.spec_changes)
        self._at = len(snapshot.changes)
        self._slots = None
        self._epochs = (snapshot.look_generation, *[policy.epoch() for policy, _ in self._policies])
        self._score_all()

    def _place(self, rows: Ints) -> Ints:
        """What these rows add to scores; `BARRED` where the task cannot be for good."""
        snapshot = self._snapshot
        liked = np.where(disliked_rows(snapshot, self.ask, rows), 0, self._liked)
        places = (liked << RANK_BITS) | (RANK_MASK - snapshot.rank[rows])
        return np.where(self.codes[rows] == 0, places, BARRED)

    def _looks(self) -> Sequence[int]:
        """The look of each row. The table of scores has room for all of them."""
        snapshot = self._snapshot
        looks: Sequence[int] = snapshot.looks() if self._by_look else range(snapshot.capacity)
        count = snapshot.look_count if self._by_look else snapshot.capacity
        if len(self._scores) < count:
            grown = np.full(max(2 * len(self._scores), count), UNKNOWN, np.int64)
            grown[: len(self._scores)] = self._scores
            self._scores = grown
            self._scores_view = _plain(grown)
        return looks

    # -- scores -----------------------------------------------------------------------------------------------------
    def _score(self, rows: Iterable[int]) -> None:
        """Follow changed rows."""
        looks = self._looks()
        scores, places, keys = self._scores_view, self._places_view, self._keys_view
        if not self._by_look:
            for row in rows:
                scores[row] = UNKNOWN
        states, ask = self._snapshot.states, self.ask
        cpu = ask.cpu or _NO_MATTER
        gpu = ask.gpu_milli if ask.count else _NO_MATTER
        new: list[int] = []
        for row in rows:
            state = states[row]
            # Most rows that do not fit lack CPU, or idle GPUs.
            if state is None or state.cpu < cpu or state.gpu_free < gpu or places[row] < 0:
                keys[row] = -1
                continue
            score = scores[looks[row]]
            if score == UNKNOWN:
                new.append(row)
            else:
                keys[row] = score + places[row] if score >= 0 else -1
        if len(new) > FEW:
            self._work_out(np.asarray(new, np.int64))
        for row in new:
            score = scores[looks[row]]
            if score == UNKNOWN:
                score = scores[looks[row]] = self._score_of(row)
            keys[row] = score + places[row] if score >= 0 else -1

    def _score_of(self, row: int) -> int:
        """The score of one row's look, with plain integers."""
        state, ask = self._snapshot.states[row], self.ask
        tight = -1 if state is None else state.tight(ask)
        if state is None or tight < 0:
            return MISFIT
        score = 0
        for policy, weight in self._policies:
            score += weight * policy.one(state, ask, tight)
        return score << RANK_BITS

    def _score_all(self) -> None:
        """All rows anew, each look once."""
        self._looks()
        columns = self._snapshot.columns()
        self._scores.fill(UNKNOWN)
        rows = (self._may(columns) & (self._places >= 0)).nonzero()[0]
        looks = columns.look if self._by_look else columns.row
        if len(rows):
            if self._by_look:
                of_rows = looks.take(rows)
                order = np.arange(len(rows))
                last = np.empty(self._snapshot.look_count, np.int64)
                last[of_rows] = order
                rows = rows[last.take(of_rows) == order]
            self._evaluate(rows)
        keys = self._scores.take(looks)
        keys += self._places
        np.maximum(keys, -1, out=self.keys)

    def _work_out(self, rows: Ints) -> None:
        """The scores of the looks of these rows, with numpy."""
        columns = self._snapshot.columns().take(rows)
        self._scores[columns.look if self._by_look else rows] = MISFIT
        rows = rows[self._may(columns)]
        if len(rows):
            self._evaluate(rows)

    def _may(self, columns: Columns) -> Bools:
        """Where the task may fit, by what is cheap to ask."""
        ask = self.ask
        fits = columns.pods >= 1
        if ask.cpu:
            fits &= columns.cpu >= ask.cpu
        if ask.mem:
            fits &= columns.mem >= ask.mem
        if ask.count:
            fits &= ~columns.shut
            fits &= columns.gpu_free >= ask.gpu_milli
            if not ask.share:
                fits &= columns.idle >= ask.count
        return fits

    def _evaluate(self, rows: Ints) -> None:
        """The scores of the looks of these rows, where the task may fit."""
        snapshot, ask = self._snapshot, self.ask
        columns = snapshot.columns().take(rows)
        fits, tight = device_fit(snapshot, columns, ask)
        kept = fits.nonzero()[0]
        if _MOST * len(kept) < len(rows):
            self._scores[columns.look if self._by_look else rows] = MISFIT
            rows, columns, fits, tight = rows[kept], snapshot.columns().take(rows[kept]), fits[kept], tight[kept]
        total = np.zeros(len(rows), np.int64)
        for policy, weight in self._policies:
            total += weight * policy.many(columns, ask, tight)
        self._scores[columns.look if self._by_look else rows] = np.where(fits, total << RANK_BITS, MISFIT)

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


def _plain(vector: Ints) -> MutableSequence[int]:
    """A view that gives and takes plain integers, several times faster than numpy's own."""
    return memoryview(vector)  # type: ignore[arg-type, return-value]
