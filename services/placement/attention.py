"""How much deciding a queue gets that comes to nothing: one tenant's hopeless jobs must not slow another's.

Alike jobs share a verdict, so a thousand of them cost one evaluation. A thousand that all differ cost a thousand, at
every event that might help them. Each queue has a budget of evaluations that place nothing: `per_s` a second, saved up
to `burst`. A queue that overdrew it is closed until the budget is made up for; what places something costs nothing. A
queue whose last evaluations all failed gets no more into one pass than it can pay for. Pure: time is handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: So many failures in a row, and a queue is taken for one of hopeless jobs.
_STREAK: Final = 8


@dataclass(slots=True)
class _Purse:
    left: float
    at: float
    streak: int = 0
    failed: int = 0


class Attention:
    def __init__(self, per_s: float = 500.0, burst: int = 64) -> None:
        self.per_s = per_s
        self.burst = burst
        self._purses: dict[str, _Purse] = {}

    def _purse(self, queue: str, now: float) -> _Purse:
        purse = self._purses.get(queue)
        if purse is None:
            purse = self._purses[queue] = _Purse(float(self.burst), now)
        else:
            purse.left = min(float(self.burst), purse.left + (now - purse.at) * self.per_s)
            purse.at = now
        return purse

    def failed(self, queue: str, now: float) -> bool:
        """An evaluation placed nothing; whether the queue is closed by it."""
        purse = self._purse(queue, now)
        before = purse.left
        purse.left -= 1
        purse.streak += 1
        purse.failed += 1
        return before >= 1.0 > purse.left

    def placed(self, queue: str) -> None:
        purse = self._purses.get(queue)
        if purse is not None:
            purse.streak = 0

    def most(self, queue: str, now: float, limit: int) -> int:
        """How many jobs of the queue may be decided in a pass that takes `limit`."""
        if queue not in self._purses:
            return limit
        purse = self._purse(queue, now)
        if purse.left < 1.0:
            return 0
        return limit if purse.streak < _STREAK else min(limit, int(purse.left))

    def opens(self, queue: str, now: float) -> float:
        """When the queue can pay for an evaluation again."""
        purse = self._purse(queue, now)
        return now + max(0.0, 1.0 - purse.left) / self.per_s

    def count(self, queue: str) -> int:
        """Evaluations of the queue that placed nothing, so far."""
        purse = self._purses.get(queue)
        return purse.failed if purse is not None else 0
