"""What evictions for little service, and for the overdue, may cost: so many for each job, and so much of the GPU time
worked.

An eviction of these kinds is only made out of what is there, so all of them together never exceed `per_job` of all jobs
that came. What is left over fades, a half every half-life: a long quiet time is no licence for a burst. What is owed,
because evictions for other reasons count as well and are not bounded here, does not fade: it is paid back in full.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from libs.domain.queues import Left, QueueHistory
from libs.engine.fair import decay

HALF_LIFE_S: Final = 7 * 86_400.0


@dataclass(slots=True)
class Budget:
    """`evictions` are left, and `seconds` of GPU time, as of `at`. Negative where evictions for other reasons took more
    than was there, or one cost more than was left."""

    per_job: float = 0.3
    lost: float = 0.02
    half_life_s: float = HALF_LIFE_S
    evictions: float = 0.0
    seconds: float = 0.0
    at: float = 0.0

    def left(self, now: float, begun: int = 0) -> int:
        """How many may be evicted at once, beside those that were begun and are not counted yet."""
        self._advance(now)
        evictions = self.evictions - begun
        return int(evictions) if evictions >= 1.0 and self.seconds >= 0.0 else 0

    def open(self, now: float) -> bool:
        """Whether one more may be evicted."""
        return self.left(now) > 0

    def came(self, now: float, jobs: int = 1) -> None:
        self._advance(now)
        self.evictions += self.per_job * jobs

    def worked(self, gpu_seconds: float, now: float) -> None:
        self._advance(now)
        self.seconds += self.lost * gpu_seconds

    def evicted(self, lost: float, now: float, evictions: int = 1) -> None:
        """`lost`: GPU seconds. `evictions` 0: more pods of what was counted."""
        self._advance(now)
        self.evictions -= evictions
        self.seconds -= lost

    def told(self, now: float) -> Left:
        """As records keep it."""
        self._advance(now)
        return Left(round(self.at, 3), round(self.evictions, 6), round(self.seconds * 1000))

    def recall(self, histories: Iterable[QueueHistory], now: float) -> None:
        """What was left by the records of all queues: as the youngest of them says, of those as young the least. Where
        none says it, they are of the release before, in which each faded by itself, what was owed as well."""
        known = list(histories)
        said = [history.left for history in known if history.left is not None]
        if said:
            last = max(said, key=lambda one: (one.at, -one.evictions))
            self.at, self.evictions, self.seconds = last.at, last.evictions, last.gpu_milli_s / 1000
            return
        self.at, self.evictions, self.seconds = now, 0.0, 0.0
        for history in known:
            passed, spent = max(0.0, now - history.at), history.spending
            self.evictions += (self.per_job * spent.jobs - spent.evictions) * decay.left(passed, HALF_LIFE_S)
            half_life_s = spent.half_life_s or history.half_life_s
            if half_life_s > 0:
                used = spent.worked_milli_s if spent.half_life_s else history.gpu_milli_s
                worked = 0.0 if "/" in history.path else self.lost * used
                self.seconds += (worked - spent.lost_milli_s) * decay.left(passed, half_life_s) / 1000

    def _advance(self, now: float) -> None:
        if now > self.at:
            left = decay.left(now - self.at, self.half_life_s)
            if self.evictions > 0.0:
                self.evictions *= left
            if self.seconds > 0.0:
                self.seconds *= left
            self.at = now
