"""A seeded generator of our own: the same numbers in every process and release (SplitMix64)."""

from __future__ import annotations

from typing import Final

_MASK: Final = (1 << 64) - 1


class Draw:
    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, bound: int) -> int:
        """A number in 0..bound-1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((z ^ (z >> 31)) * bound) >> 64 if bound else 0
