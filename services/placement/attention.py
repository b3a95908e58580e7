"""How much deciding a queue gets that comes to nothing: one tenant's hopeless jobs must not slow another's.

Alike jobs share a verdict, so a thousand of them cost one evaluation. A thousand that all differ cost a thousand, at
every event that might help them. So evaluations that place nothing are bounded per queue: `per_s` a second. A queue of
which the last STREAK came to nothing is decided in slices of SLICE, with pauses between them in which others are
served; any success opens it again. A queue never seen before begins with START jobs in a pass. While anything is
being placed, all rates are a quarter (`busy`): what comes to nothing has the time that is left.

Who was looked at before is looked at again at half of `per_s` at most, so that who is new is never behind those for
long; and the more rarely, the longer nothing of the queue was placed: after CALM evaluations in vain the rate falls as
their number grows, down to an eighth of `per_s`. With N groups of alike jobs each is so looked at again every
8 N / `per_s` seconds at the latest, four times that where others are placed all the while. A node that joins or changes
makes the rate full again. The first in line is tried at every event, or 10 / `per_s` seconds after it was last tried.
Pure: time is handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STREAK: Final = 8
SLICE: Final = 4
START: Final = 16
#: In one pass, of all queues that are decided in slices together.
SLICES: Final = 8
#: So many evaluations in vain, one after the other, leave a queue its full rate.
CALM: Final = 1000
#: Of `per_s`, what those who were looked at before have at most, and at the least.
AGAIN_MOST: Final = 1 / 2
AGAIN_LEAST: Final = 1 / 8
#: And the first in line by itself.
FIRST: Final = 1 / 10
#: Of each rate, while anything is being placed.
BUSY: Final = 1 / 4
#: Queues that are remembered, the last that began: pods may name any queue. Who is forgotten begins anew.
QUEUES: Final = 10_000


@dataclass(slots=True)
class _Record:
    window: int = START
    streak: int = 0
    failed: int = 0
    sliced_at: float = float("-inf")
    again_at: float = float("-inf")
    first_at: float = float("-inf")


class Attention:
    def __init__(self, per_s: float = 200.0) -> None:
        self.per_s = per_s
        #: Something is being placed.
        self.busy = False
        self._records: dict[str, _Record] = {}

    @property
    def _now_per_s(self) -> float:
        return self.per_s * BUSY if self.busy else self.per_s

    @property
    def _pause(self) -> float:
        return SLICE / self._now_per_s

    def failed(self, queue: str) -> bool:
        """An evaluation placed nothing; whether the queue is bounded from now on."""
        record = self._record(queue)
        record.streak += 1
        record.failed += 1
        record.window = max(SLICE, record.window // 2) if record.streak == STREAK else record.window
        return record.streak == STREAK

    def placed(self, queue: str) -> None:
        record = self._record(queue)
        record.streak = 0
        record.window = max(START, record.window * 2)

    def _record(self, queue: str) -> _Record:
        record = self._records.get(queue)
        if record is None:
            if len(self._records) >= QUEUES:
                del self._records[next(iter(self._records))]
            record = self._records[queue] = _Record()
        return record

    def stirred(self) -> None:
        """Something happened that may help any of those who wait: the next look at them is not a rare one."""
        for record in self._records.values():
            record.streak = min(record.streak, STREAK)

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
            record.sliced_at = _after(record.sliced_at, self._pause, now)

    def opens(self, queue: str, now: float) -> float:
        """When the queue may have jobs decided again."""
        record = self._records.get(queue)
        if record is None or record.streak < STREAK:
            return now
        return max(now, record.sliced_at + self._pause)

    # -- those who were looked at before ------------------------------------------------------------------------------
    def again(self, queue: str, now: float, limit: int) -> int:
        """How many who were looked at before may be looked at again in a pass that takes `limit`; taken as done."""
        if self.again_opens(queue, now) > now:
            return 0
        record = self._records.get(queue)
        if record is None or record.streak < STREAK:
            return self.most(queue, now, limit)
        record.again_at = _after(record.again_at, SLICE / self.again_per_s(queue), now)
        return min(limit, SLICE)

    def again_opens(self, queue: str, now: float) -> float:
        """When the next of those may be."""
        record = self._records.get(queue)
        if record is None or record.streak < STREAK:
            return now
        at = record.again_at + SLICE / self.again_per_s(queue)
        return at if at > now + 1e-9 else now

    def again_per_s(self, queue: str) -> float:
        record = self._records.get(queue)
        rare = CALM / record.streak if record is not None and record.streak > CALM else 1.0
        return self._now_per_s * max(AGAIN_LEAST, AGAIN_MOST * rare)

    def first(self, queue: str, now: float) -> bool:
        """Whether the first in line may be looked at again; taken as done."""
        if self.first_opens(queue, now) > now:
            return False
        record = self._records.get(queue)
        if record is not None:
            record.first_at = now
        return True

    def first_opens(self, queue: str, now: float) -> float:
        record = self._records.get(queue)
        if record is None or record.streak < STREAK:
            return now
        at = record.first_at + 1 / (FIRST * self._now_per_s)
        return at if at > now + 1e-9 else now

    def count(self, queue: str) -> int:
        """Evaluations of the queue that placed nothing, so far."""
        record = self._records.get(queue)
        return record.failed if record is not None else 0


def _after(last: float, pause: float, now: float) -> float:
    """When the turn counts as taken: turns that passes come late for are no rarer for that."""
    return last + pause if now - last < 2 * pause else now
