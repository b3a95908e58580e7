"""Who has waited too long: goes first from then on, by arrival, and yields to no little service.

With demand above the cluster nobody can promise that to all, and order of arrival is the worst for the mean wait. So
those who are overdue at once have `LittleService.share_of_overdue` together. They are chosen by arrival; who was chosen
stays while that suffices, and where it shrinks those lose their place first who have had most service.
"""

from __future__ import annotations

from collections.abc import Callable

from libs.engine.fair.little import overdue


class Overdue:
    """Of those who have waited long enough, by key, who goes first."""

    def __init__(self) -> None:
        #: (created, GPUs) of those who have waited long enough.
        self._late: dict[str, tuple[float, float]] = {}
        self.chosen: frozenset[str] = frozenset()

    def __contains__(self, key: str) -> bool:
        return key in self.chosen

    def __bool__(self) -> bool:
        return bool(self._late)

    def knows(self, key: str) -> bool:
        return key in self._late

    def late(self, key: str, created: float, gpus: float) -> None:
        """It has waited long enough."""
        self._late[key] = created, gpus

    def left(self, key: str) -> None:
        """It neither waits nor runs any more."""
        if self._late.pop(key, None) is not None and key in self.chosen:
            self.chosen = self.chosen - {key}

    def keep(self, there: Callable[[str], bool]) -> None:
        """Who is not `there` has left."""
        for key in [key for key in self._late if not there(key)]:
            self.left(key)

    def review(self, room: float, had: Callable[[str], float]) -> frozenset[str]:
        """Choose anew for so many GPUs; whose place changed. `had`: GPU seconds of one that was chosen."""
        if not self._late:
            return frozenset()
        chosen, late = self.chosen, self._late
        kept = list(chosen)
        taken = sum(late[key][1] for key in kept)
        if taken > room:
            kept.sort(key=lambda key: (had(key), key))
            while taken > room:
                taken -= late[kept.pop()][1]
        others = sorted(late.keys() - kept, key=lambda key: (late[key][0], key))
        fits = overdue((late[key][1] for key in others), room - taken)
        self.chosen = frozenset(kept).union(key for key, one in zip(others, fits, strict=True) if one)
        return self.chosen ^ chosen
