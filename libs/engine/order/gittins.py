"""The Gittins index over learned service: who is likeliest to end soon, for the service that it takes, goes first.

The index of a job that has had service a is the greatest rate, over all spans of service d, at which it ends:
P(S - a <= d | S > a) / E[min(S - a, d) | S > a] (Gittins 1979; for jobs of unknown length Aalto, Ayesta, Righter 2009).
S is learned from what has ended, nothing is known in advance; who still waits or runs counts as censored at what it has
had (Kaplan and Meier 1958), else only the short ones would have been seen. Service is counted in GPU seconds, on a
grid of STEPS to a doubling: within a step all have the same index. Where nothing ended yet, less service goes first.

Who runs yields to one whose index is `margin` times its own: at 1 whoever is better takes the room, whatever it costs.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from libs.engine.order.base import NEVER, Item, Order, Rank

#: GPU seconds at which the grid begins, steps to a doubling, and how many there are: up to 10^9 GPU seconds.
_BEGINS: Final = 60.0
STEPS: Final = 4
_BINS: Final = 100
#: The index is worked out anew when so many more have ended, and this part of those that had.
_FEWEST: Final = 16
_MORE: Final = 0.02

Floats = NDArray[np.float64]


def step_of(service: float) -> int:
    """Of the grid, for so many GPU seconds."""
    if service < _BEGINS:
        return 0
    return min(_BINS - 1, 1 + int(STEPS * math.log2(service / _BEGINS)))


def begins(step: int) -> float:
    """GPU seconds at which it begins."""
    return _BEGINS * 2.0 ** ((step - 1) / STEPS) if step > 0 else 0.0


_EDGES: Final[Floats] = np.array([begins(step) for step in range(_BINS + 1)])


def survival(ended: Floats, censored: Floats) -> Floats:
    """Kaplan-Meier: the share that goes on beyond each step, from how many ended, and were last seen, within each. Who
    was last seen within a step was at risk in it."""
    at_risk = np.cumsum((ended + censored)[::-1])[::-1]
    return np.asarray(np.cumprod(1.0 - ended / np.maximum(at_risk, 1.0)), np.float64)


def indices(ended: Floats, censored: Floats) -> Floats:
    """The index at the beginning of each step, 1/GPU seconds."""
    left = np.concatenate(([1.0], survival(ended, censored)))
    served = np.concatenate(([0.0], np.cumsum((left[:-1] + left[1:]) / 2 * np.diff(_EDGES))))
    ends = left[:-1, None] - left[None, :]
    takes = served[None, :] - served[:-1, None]
    rates = np.where(takes > 0, ends / np.where(takes > 0, takes, 1.0), 0.0)
    # Where none was seen to end, or to go on, the one with less service goes first.
    return np.asarray(np.maximum(rates.max(axis=1), 1e-15 / _EDGES[1:]), np.float64)


class Gittins(Order):
    """A run of less than `protect` seconds is not evicted: jobs that save nothing could evict each other for ever."""

    name = "gittins"
    evicts = True

    def __init__(self, margin: float = 2.0, protect: float = 1800.0) -> None:
        self.margin = margin
        self.protect = protect
        self._present: dict[int, Item] = {}
        self._ended: Floats = np.zeros(_BINS)
        self._count = 0
        self._next = _FEWEST
        self._index: list[float] = indices(self._ended, self._ended).tolist()
        self._moved: list[int] = []

    def index(self, item: Item, now: float) -> float:
        return self._index[step_of(item.service(now) * item.gpus)]

    def rank(self, item: Item, now: float) -> Rank:
        return (-item.priority, -self.index(item, now), item.submitted)

    def moved(self) -> list[int]:
        moved, self._moved = self._moved, []
        return [key for key in moved if key in self._present and not self._present[key].running]

    # -- who must yield ---------------------------------------------------------------------------------------------
    def claims_from(self, item: Item, now: float) -> float:  # noqa: ARG002
        return now

    def offers(self, victim: Item, now: float) -> bool:
        return now - victim.begins >= self.protect

    def yields(self, victim: Item, to: Item, now: float) -> bool:
        if victim.priority != to.priority:
            return victim.priority < to.priority
        return self.index(to, now) > self.margin * self.index(victim, now)

    def ripens(self, victim: Item, to: Item, now: float) -> float:
        until = victim.begins + self.protect
        if victim.priority > to.priority:
            return NEVER
        if until > now:
            return until
        step = step_of(victim.service(now) * victim.gpus)
        return now + max(1.0, begins(step + 1) / victim.gpus - victim.service(now))

    # -- what happened ----------------------------------------------------------------------------------------------
    def arrived(self, item: Item, now: float) -> None:  # noqa: ARG002
        self._present[item.key] = item

    def ended(self, item: Item, now: float) -> None:
        del self._present[item.key]
        self._ended[step_of(item.attained * item.gpus)] += 1
        self._count += 1
        if self._count >= self._next:
            self._next = self._count + max(_FEWEST, int(self._count * _MORE))
            self._learn(now)

    def _learn(self, now: float) -> None:
        censored = np.zeros(_BINS)
        for item in self._present.values():
            censored[step_of(item.service(now) * item.gpus)] += 1
        before, self._index = self._index, indices(self._ended, censored).tolist()
        if before != self._index:
            self._moved = [key for key, item in self._present.items() if not item.running]
