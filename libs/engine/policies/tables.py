"""Look-up tables of usable GPU that follow the typical mix: made anew when the mix has a new version, when the idle GPU
of the cluster has changed by an eighth (seen every few decisions, or at once where it has doubled), or when a model of
GPU is new, and at no other time, so that all classes of tasks are scored by the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from libs.engine.mix import Shape, Share, TypicalMix, name_of
from libs.engine.policies.kinds import Kinds
from libs.engine.policies.usable import Usable
from libs.engine.snapshot import Snapshot

#: The shares that stand in the tables, and those in their place that are scored by.
Weigh = Callable[[Kinds, list[Share]], list[Share]]
#: Tables are made anew when idle GPU has changed by this part of what it was, but not for every single task: when so
#: many were decided, those that waited included; at once where it has more than doubled: else who is decided first when
#: much has come free would be placed by the prices of scarcity (of nothing at all, where nothing was idle). While
#: nothing is idle there is nothing to price.
IDLE_PARTS: Final = 8
LEAST_TASKS: Final = 16


class Tables:
    def __init__(
        self,
        snapshot: Snapshot,
        mix: TypicalMix,
        gather: Callable[[list[Share]], list[Share]],
        weigh: Weigh,
        ours: bool,
    ) -> None:
        """With `ours` the weights depend on what is idle, and tasks of whole GPUs are counted by places (`kinds`)."""
        self._snapshot = snapshot
        self._mix = mix
        self._follows = self._places = ours
        self._made_at = self._idle = 0
        self._gather = gather
        self._weigh = weigh
        self._made_for: tuple[int, int, int] | None = None
        self._epoch = 0
        self._kinds_for: tuple[frozenset[Shape], int, int, int, int] | None = None
        self._kinds_made = Kinds(snapshot, ())
        self.usable = Usable(self._kinds_made, [])
        #: Names the mix that the tables were made of, empty before the first task was seen.
        self.learned = ""

    def epoch(self) -> int:
        """How many times the tables were made; makes them where that is due."""
        snapshot, mix = self._snapshot, self._mix
        made_for = (mix.version, snapshot.model_count, snapshot.width)
        if made_for != self._made_for or (
            self._follows
            and snapshot.gpu_free > 0
            and (mix.decided - self._made_at >= LEAST_TASKS or snapshot.gpu_free > 2 * self._idle)
            and IDLE_PARTS * abs(snapshot.gpu_free - self._idle) > self._idle
        ):
            typical = mix.shares()
            self.learned = name_of(typical) if typical else ""
            shares = self._gather(typical)
            kinds = self._kinds(frozenset([share.shape for share in shares]))
            self.usable = Usable(kinds, self._weigh(kinds, shares))
            # The vectors may have grown wider meanwhile.
            self._made_for = (mix.version, snapshot.model_count, snapshot.width)
            self._made_at = mix.decided
            self._idle = snapshot.gpu_free
            self._epoch += 1
        return self._epoch

    def _kinds(self, shapes: frozenset[Shape]) -> Kinds:
        """Those made last where nothing that they depend on is another."""
        snapshot = self._snapshot
        made_for = (shapes, snapshot.shape, len(snapshot.spec_changes), snapshot.model_count, snapshot.width)
        if made_for != self._kinds_for:
            self._kinds_for = made_for
            self._kinds_made = Kinds(snapshot, shapes, self._places)
        return self._kinds_made
