"""Look-up tables of usable GPU that follow the typical mix: made anew when the mix has a new version or the cluster a
new model of GPU, and at no other time, so that all classes of tasks are scored by the same numbers."""

from __future__ import annotations

from collections.abc import Callable

from libs.engine.mix import Share, TypicalMix
from libs.engine.policies.usable import Usable
from libs.engine.snapshot import Columns, Snapshot

Weigh = Callable[[list[Share], Columns], list[Share]]


class Tables:
    def __init__(self, snapshot: Snapshot, mix: TypicalMix, weigh: Weigh) -> None:
        self._snapshot = snapshot
        self._mix = mix
        self._weigh = weigh
        self._made_for: tuple[int, int, int] | None = None
        self._epoch = 0
        self.usable: Usable = Usable(snapshot, [])

    def epoch(self) -> int:
        """How many times the tables were made; makes them where that is due."""
        snapshot = self._snapshot
        now = (self._mix.version, snapshot.model_count, snapshot.width)
        if now != self._made_for:
            self.usable = Usable(snapshot, self._weigh(self._mix.shares(), snapshot.columns()))
            self._made_for = (self._mix.version, snapshot.model_count, snapshot.width)
            self._epoch += 1
        return self._epoch
