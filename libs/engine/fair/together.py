"""Since when those who wait for as much have waited: what an eviction would serve is their wait, not that of one.

An eviction is worth while once those whom it may help have waited for long enough together: many that came just now
are served as soon as one that has waited for long, and the few evictions that there are go where most wait. Counted by
what is asked for; those count with a job that stand as high as it does, or higher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: What somebody asks for, where it stands (the lesser the higher), and since when it waits, in seconds.
_Entry = tuple[float, int, float]

#: Who has left by itself is looked for no more often than this, seconds.
CLEANED_S: Final = 30.0


class Together:
    """Who waits, by key."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        #: By what is asked for and standing: how many, and the sum of their starts.
        self._sums: dict[float, dict[int, list[float]]] = {}
        self._cleaned = float("-inf")

    def __len__(self) -> int:
        return len(self._entries)

    def waits(self, key: str, ask: float, standing: int, since: float) -> None:
        """It waits, as of now."""
        entry = ask, standing, since
        known = self._entries.get(key)
        if known == entry:
            return
        if known is not None:
            self.left(key)
        self._entries[key] = entry
        sums = self._sums.setdefault(ask, {}).setdefault(standing, [0, 0.0])
        sums[0] += 1
        sums[1] += since

    def left(self, key: str) -> None:
        """It waits no more."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        ask, standing, since = entry
        standings = self._sums[ask]
        sums = standings[standing]
        sums[0] -= 1
        sums[1] -= since
        if not sums[0]:
            del standings[standing]
            if not standings:
                del self._sums[ask]

    def keep(self, there: Callable[[str], bool], now: float) -> None:
        """Who is not `there` has left; now and then."""
        if 0 <= now - self._cleaned < CLEANED_S:
            return
        self._cleaned = now
        for key in [key for key in self._entries if not there(key)]:
            self.left(key)

    def reach(self, ask: float, standing: int, seconds: float) -> float:
        """When those who ask for as much and stand as high, or higher, will have waited for so many seconds together;
        infinite where nobody does."""
        count = since = 0.0
        for at, (many, starts) in self._sums.get(ask, {}).items():
            if at <= standing:
                count += many
                since += starts
        return (seconds + since) / count if count else float("inf")
