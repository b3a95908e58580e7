"""Which nodes take a class of alike tasks, and which is best: kept up to date change by change.

One integer per node orders everything: no PreferNoSchedule taint first, then the weighted score, then the earlier name;
-1 where the task does not fit. The best node is one argmax. The scores are those of what nodes look like (`scores`);
what a node adds to the score of its look follows from its facts and its name.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence
from typing import Final

import numpy as np

from libs.domain.verdicts import Verdict
from libs.engine.ask import Ask
from libs.engine.columns import Bools, Columns, Ints
from libs.engine.filters import disliked_rows, dynamic_codes, empty_slots, static_codes
from libs.engine.policies.base import Policy
from libs.engine.scores import SHIFT, UNKNOWN, Scores
from libs.engine.snapshot import Snapshot

RANK_BITS: Final = SHIFT
RANK_MASK: Final = (1 << RANK_BITS) - 1
#: From this many new looks on, numpy on all of them beats integers one by one.
FEW: Final = 24
#: From this many changed rows on, and one in so many of all, numpy on all rows beats looking at these.
MANY: Final = 256
MANY_PARTS: Final = 8
#: Less than any amount that a node may have left.
_NO_MATTER: Final = -(1 << 62)
#: Stands for a node that is out of the question: with any score the sum is negative, with MISFIT no overflow.
_BARRED: Final = -(1 << 61)


class Feasibility:
    #: Whether rules beyond a node's own facts and its room have a say.
    ruled = False

    def __init__(
        self,
        snapshot: Snapshot,
        ask: Ask,
        policies: tuple[tuple[Policy, int], ...],
        scores: Scores | None = None,
    ) -> None:
        """`scores`: those that other classes have of the same CPU and GPUs; None: its own."""
        self._snapshot = snapshot
        self._liked = sum(weight * policy.ceiling for policy, weight in policies) + 1
        self.scores = scores or Scores(snapshot, ask, policies)
        self.ask = ask
        self.codes: Ints = np.zeros(0, np.int64)
        self.keys: Ints = np.zeros(0, np.int64)
        #: What each row adds to the score of its look: whether the task likes it there, and the order by name.
        self._places: Ints = np.zeros(0, np.int64)
        self._shape = -1
        self._at = 0
        self._spec_at = 0
        self._version = 0
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
            self._places[changed] = self._place(changed)
            self._spec_at = len(snapshot.spec_changes)
            self._slots = None
        version, changes = self.scores.follow(), snapshot.changes
        if version == self._version and self._at == len(changes):
            return
        rows = set(changes[self._at :])
        self._at = len(changes)
        if version != self._version or (len(rows) > MANY and MANY_PARTS * len(rows) > len(snapshot.states)):
            self._version = version
            self._follow_all()
        else:
            self._follow(rows)

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
        self._version = self.scores.follow()
        self._follow_all()

    def _place(self, rows: Ints) -> Ints:
        """What these rows add to scores; `_BARRED` where the task cannot be for good."""
        snapshot = self._snapshot
        liked = np.where(disliked_rows(snapshot, self.ask, rows), 0, self._liked)
        places = (liked << RANK_BITS) | (RANK_MASK - snapshot.rank[rows])
        return np.where(self.codes[rows] == 0, places, _BARRED)

    def _follow(self, rows: Iterable[int]) -> None:
        """These rows have changed."""
        scores, states, ask = self.scores, self._snapshot.states, self.ask
        looks = scores.looks()
        known, places, keys = scores.view, self._places_view, self._keys_view
        if not scores.by_look:
            scores.forget(rows)
        cpu, mem = ask.cpu or _NO_MATTER, ask.mem or _NO_MATTER
        gpu = ask.gpu_milli if ask.count else _NO_MATTER
        new: list[int] = []
        for row in rows:
            state = states[row]
            # Most rows that do not fit lack CPU, or idle GPUs.
            if state is None or state.cpu < cpu or state.gpu_free < gpu or state.mem < mem or places[row] < 0:
                keys[row] = -1
                continue
            score = known[looks[row]]
            if score == UNKNOWN:
                new.append(row)
            else:
                keys[row] = score + places[row] if score >= 0 else -1
        if len(new) > FEW:
            scores.many(np.asarray(new, np.int64))
        for row in new:
            state, look = states[row], looks[row]
            score = known[look]
            if score == UNKNOWN and state is not None:
                score = known[look] = scores.one(state)
            keys[row] = score + places[row] if score >= 0 else -1

    def _follow_all(self) -> None:
        """Any row may have changed."""
        scores, columns = self.scores, self._snapshot.columns()
        scores.looks()
        fits = self._may(columns)
        rows = fits.nonzero()[0]
        looks = scores.looks_of(columns, columns.row)
        if not scores.by_look:
            scores.values.fill(UNKNOWN)
            scores.many(rows)
        elif len(rows):
            of_rows = looks.take(rows)
            new = (scores.values.take(of_rows) == UNKNOWN).nonzero()[0]
            if len(new):
                of_rows, order = of_rows.take(new), np.arange(len(new))
                one_of = np.empty(self._snapshot.look_count, np.int64)
                one_of[of_rows] = order
                scores.many(rows.take(new[one_of.take(of_rows) == order]))
        keys = scores.values.take(looks)
        keys += self._places
        if self.ask.mem:
            keys[~fits] = -1
        np.maximum(keys, -1, out=self.keys)

    def _may(self, columns: Columns) -> Bools:
        """Where the task may fit, by what is cheap to ask."""
        ask = self.ask
        fits = self._places >= 0
        fits &= columns.pods >= 1
        if ask.cpu:
            fits &= columns.cpu >= ask.cpu
        if ask.mem:
            fits &= columns.mem >= ask.mem
        if ask.count:
            fits &= columns.gpu_free >= ask.gpu_milli
            if not ask.share:
                fits &= columns.idle >= ask.count
        return fits

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
        return row if self._keys_view[row] >= 0 else -1

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
