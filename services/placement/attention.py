"""How much deciding a queue gets that comes to nothing: one tenant's hopeless jobs must not slow another's.

Alike jobs share a verdict, so a thousand of them cost one evaluation. A thousand that all differ cost a thousand, at
every event that might help them. So evaluations that place nothing are bounded per queue: `per_s` a second. A queue of
which the last STREAK came to nothing is decided in slices of SLICE, with pauses between them in which others are
served; any success opens it again. A queue never seen before begins with START jobs in a pass. Pure: time is handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STREAK: Final = 8
SLICE: Final = 4
START: Final = 16
#: In one pass, of all queues that are decided in slices together.
SLICES: Final = 8


@dataclass(slots=True)
class _Record:
    window: int = START
    streak: int = 0
    failed: int = 0
    sliced_at: float = float("-inf")


class Attention:
    def __init__(self, per_s: float = 200.0) -> None:
        self.per_s = per_s
        self._pause = SLICE / per_s
        self._records: dict[str, _Record] = {}

    def failed(self, queue: str) -> bool:
        """An evaluation placed nothing; whether the queue is bounded from now on."""
        record = self._records.setdefault(queue, _Record())
        record.streak += 1
        record.failed += 1
        record.window = max(SLICE, record.window // 2) if record.streak == STREAK else record.window
        return record.streak == STREAK

    def placed(self, queue: str) -> None:
        record = self._records.setdefault(queue, _Record())
        record.streak = 0
        record.window = max(START, record.window * 2)

    def bounded(self, queue: str) -> bool:
        record = self._records.get(queue)
        return record is not None and record.streak >= STREAK

    def most(self, queue: str, now: float, limit: int) -> int:
        """How many jobs of the queue may be decided in a pass that takes `limit`."""
        record = self._records.get(queue)
        if record is None:
            return min(limit, START)
        if record.streak >= STREAK:
            return min(limit, SLICE) if now - record.sliced_at >= self._pause - 1e-9 else 0
        return min(limit, record.window)

    def took(self, queue: str, now: float) -> None:
        """Some of the queue are decided in a pass that begins now."""
        record = self._records.get(queue)
        if record is not None and record.streak >= STREAK:
            record.sliced_at = now

    def opens(self, queue: str, now: float) -> float:
        """When the queue may have jobs decided again."""
        record = self._records.get(queue)
        if record is None or record.streak < STREAK:
            return now
        return max(now, record.sliced_at + self._pause)

    def count(self, queue: str) -> int:
        """Evaluations of the queue that placed nothing, so far."""
        record = self._records.get(queue)
        return record.failed if record is not None else 0
