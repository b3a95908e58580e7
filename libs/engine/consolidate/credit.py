"""How much of the time planning moves may take: a plan is never cut short for it, the next one waits instead."""

from __future__ import annotations

from typing import Final

#: Looks at nodes and tasks a second, in the long run: less than a tenth of the time.
PER_S: Final = 300
#: What may be saved up.
MOST: Final = 12_000


class Credit:
    def __init__(self) -> None:
        self._left = float(MOST)
        self._at = 0.0

    def open(self, now: float) -> bool:
        """Whether a plan may be looked for. `now`: seconds since the epoch; without it, always."""
        if not now:
            return True
        if now > self._at:
            self._left = min(MOST, self._left + (now - self._at) * PER_S) if self._at else float(MOST)
        self._at = now
        return self._left > 0

    def spend(self, looks: int) -> None:
        self._left -= looks
