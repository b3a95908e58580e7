"""What evictions for little service may cost: so many for each job, and so much of the GPU time worked.

Both sides of an account fade alike, a half every half-life, so a long quiet time is no licence for a burst, and since
an eviction is only paid for out of what is there, all of them together never exceed `per_job` of all jobs that came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from libs.engine.fair import decay

HALF_LIFE_S: Final = 7 * 86_400.0


@dataclass(slots=True)
class Budget:
    """`evictions` are left, and `seconds` of GPU time, as of `at`. Negative where evictions for other reasons, which
    count as well and are not bounded here, took more than was there."""

    per_job: float = 0.3
    lost: float = 0.02
    half_life_s: float = HALF_LIFE_S
    evictions: float = 0.0
    seconds: float = 0.0
    at: float = 0.0

    def open(self, now: float) -> bool:
        """Whether one more may be evicted."""
        self._advance(now)
        return self.evictions >= 1.0 and self.seconds >= 0.0

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
            self.evictions *= left
            self.seconds *= left
            self.at = now
