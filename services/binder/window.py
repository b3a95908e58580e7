"""How many writes are in flight at once: additive growth, multiplicative retreat.

An API server says that it has enough in three ways: 429, time-outs, and answers that become slow. Each halves the
window, at most once per `rest_s`, because the answers to writes sent before a retreat say nothing about the window
after it. Every full round of good answers widens it by one until the cap.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Window:
    cap: int = 64
    floor: int = 2
    start: int = 32
    slow_s: float = 1.0
    rest_s: float = 0.5
    retreats: int = 0
    _size: float = 0.0
    _rested_at: float = 0.0

    def __post_init__(self) -> None:
        self._size = float(min(self.cap, max(self.floor, self.start)))

    @property
    def size(self) -> int:
        return int(self._size)

    def answered(self, took_s: float, *, enough: bool, now: float) -> None:
        """One answer after `took_s`; `enough` where the server or the line gave way."""
        if enough or took_s > self.slow_s:
            if now >= self._rested_at:
                self._size = max(float(self.floor), self._size / 2)
                self._rested_at = now + self.rest_s
                self.retreats += 1
        elif self._size < self.cap:
            self._size = min(float(self.cap), self._size + 1 / self._size)
