"""Pauses between the tries of a write: growing and capped, with jitter so that writes that failed together do not come
back together."""

from __future__ import annotations

import random


class Pauses:
    def __init__(self, base_s: float, cap_s: float, rng: random.Random) -> None:
        self._base_s, self._cap_s = base_s, cap_s
        self._rng = rng

    def after(self, tries: int, asked_s: float = 0.0) -> float:
        """Seconds to wait after this many tries in a row (from 1 on), at least what the server asked for as far as the
        cap allows."""
        most = min(self._cap_s, self._base_s * 2.0 ** min(tries - 1, 16))
        pause = most * (0.5 + self._rng.random() / 2)
        return max(pause, min(asked_s, self._cap_s) * (1 + self._rng.random() / 4), 0.001)
