"""Pauses between tries: growing, capped, jittered and counted, so that many clients never try again in step."""

from __future__ import annotations

import random


class Backoff:
    """The n-th pause lies between half of and the whole of min(cap, base * 2**n)."""

    def __init__(self, base_s: float, cap_s: float, rng: random.Random | None = None) -> None:
        if not 0 < base_s <= cap_s:
            raise ValueError("a backoff needs 0 < base <= cap")
        self.tries = 0
        self._base_s, self._cap_s = base_s, cap_s
        self._rng = rng or random.Random()

    def next(self) -> float:
        """Seconds to wait before the next try."""
        # The exponent is held down: 2.0 ** 1100 overflows, and a service may try for weeks.
        whole = min(self._cap_s, self._base_s * 2.0 ** min(self.tries, 60))
        self.tries += 1
        return whole * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        self.tries = 0
