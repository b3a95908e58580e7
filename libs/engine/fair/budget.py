"""What evictions for little service, and for the overdue, may cost: so many for each job, and so much of the GPU time
worked.

An eviction of these kinds is only made out of what is there, so all of them together never exceed `per_job` of all jobs
that came. What is left over fades, a half every half-life: a long quiet time is no licence for a burst. What is owed,
because evictions for other reasons count as well and are not bounded here, does not fade: it is paid back in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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

    def left(self, now: float) -> int:
        """How many may be evicted at once."""
        self._advance(now)
        return int(self.evictions) if self.evictions >= 1.0 and self.seconds >= 0.0 else 0

    def open(self, now: float) -> bool:
        """Whether one more may be evicted."""
        return self.left(now) > 0

    def came(self, now: float, jobs: int = 1) -> None:
        self._advance(now)
        self.evictions += self.per_job * jobs

    def worked(self, gpu_seconds: float, now: float) -> None:
        self._advance(now)
        self.seconds += self.lost * gpu_seconds

    def evicted(self, lost: float, now: float) -> None:
        """`lost`: GPU seconds."""
        self._advance(now)
        self.evictions -= 1.0
        self.seconds -= lost

    def _advance(self, now: float) -> None:
        if now > self.at:
            left = decay.left(now - self.at, self.half_life_s)
            if self.evictions > 0.0:
                self.evictions *= left
            if self.seconds > 0.0:
                self.seconds *= left
            self.at = now
