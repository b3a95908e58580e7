"""Shortest first, by run times predicted from history.

A job of the same tenant and size as those that ended last takes as long as they did: the median of those among them
that ran longer than it has, between their tenth and ninetieth percentile. Where fewer than FEWEST of its tenant ended,
those of its size tell, then all. Nothing is known of a job before it ends.

`Predicted` lets nobody yield. With `PredictedRemaining` who runs yields where the error bars stand apart: even at the
soonest it would run longer than the other one, and its restart, at the latest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final, NamedTuple

from libs.engine.order.base import NEVER, Item, Order, Rank

FEWEST: Final = 5
_KEPT: Final = 16
#: Who waits is lined up anew where the median of those before it changed by so much.
_CHANGED: Final = 0.1
#: What is assumed of one of whom nothing is known: as long again as it has run, but this at least.
_LEAST_S: Final = 3600.0

_Key = tuple[str, float]
#: In place of a tenant's name.
_ALL: Final = "\0"


class Left(NamedTuple):
    """Seconds of run that are left: at the soonest, in the middle, at the latest."""

    low: float
    middle: float
    high: float


class Runs:
    """Run times of ended jobs, the last of each kind."""

    def __init__(self) -> None:
        self._runs: dict[_Key, deque[float]] = {}
        self._sorted: dict[_Key, list[float]] = {}

    def ended(self, item: Item) -> None:
        for key in _keys(item):
            self._runs.setdefault(key, deque(maxlen=_KEPT)).append(item.attained)
            self._sorted.pop(key, None)

    def left(self, item: Item, now: float) -> Left:
        """Of a job as it stands."""
        had = item.service(now)
        for key in _keys(item):
            runs = self._known(key)
            longer = runs[bisect_right(runs, had) :] if len(runs) >= FEWEST else []
            if longer:
                low, middle, high = (longer[min(len(longer) - 1, int(q * len(longer)))] for q in (0.1, 0.5, 0.9))
                return Left(low - had, middle - had, high - had)
        return Left(0.0, max(had, _LEAST_S), NEVER)

    def tell(self, key: _Key) -> bool:
        """Whether enough of the kind have ended."""
        return len(self._runs.get(key, ())) >= FEWEST

    def median(self, key: _Key) -> float:
        """Nought where too few have ended."""
        runs = self._known(key)
        return runs[len(runs) // 2] if len(runs) >= FEWEST else 0.0

    def _known(self, key: _Key) -> list[float]:
        runs = self._sorted.get(key)
        if runs is None:
            runs = self._sorted[key] = sorted(self._runs.get(key, ()))
        return runs


def _keys(item: Item) -> tuple[_Key, ...]:
    """Kinds that tell of it, the most telling first."""
    kind = (item.tenant, item.gpus)
    return kind, *_wider(kind)


def _wider(kind: _Key) -> tuple[_Key, _Key]:
    """All of the size, and all."""
    return (_ALL, kind[1]), (_ALL, -1.0)


class Predicted(Order):
    name = "predicted"

    def __init__(self) -> None:
        self.runs = Runs()
        self._waiting: dict[_Key, dict[int, None]] = {}
        self._medians: dict[_Key, float] = {}
        self._moved: list[int] = []

    def rank(self, item: Item, now: float) -> Rank:
        return (-item.priority, self.runs.left(item, now).middle, item.submitted)

    def moved(self) -> list[int]:
        moved, self._moved = self._moved, []
        return moved

    def arrived(self, item: Item, now: float) -> None:  # noqa: ARG002
        self._waiting.setdefault(_keys(item)[0], {})[item.key] = None

    def started(self, item: Item, now: float) -> None:  # noqa: ARG002
        del self._waiting[_keys(item)[0]][item.key]

    def evicted(self, item: Item, lost: float, now: float) -> None:  # noqa: ARG002
        self.arrived(item, now)

    def ended(self, item: Item, now: float) -> None:  # noqa: ARG002
        self.runs.ended(item)
        own, *wider = _keys(item)
        if self._changed(own):
            self._moved += self._waiting.get(own, ())
        for key in wider:
            if self._changed(key):
                for kind, waiting in self._waiting.items():
                    if key in _wider(kind) and not self.runs.tell(kind):
                        self._moved += waiting

    def _changed(self, key: _Key) -> bool:
        median = self.runs.median(key)
        if abs(median - self._medians.get(key, 0.0)) <= _CHANGED * median:
            return False
        self._medians[key] = median
        return True


class PredictedRemaining(Predicted):
    """A run of less than `protect` seconds is not evicted."""

    name = "predicted-remaining"
    evicts = True

    def __init__(self, restart: float = 60.0, protect: float = 1800.0) -> None:
        super().__init__()
        self.restart = restart
        self.protect = protect

    def claims_from(self, item: Item, now: float) -> float:
        return now if self.runs.left(item, now).high < NEVER else NEVER

    def offers(self, victim: Item, now: float) -> bool:
        return now - victim.begins >= self.protect

    def yields(self, victim: Item, to: Item, now: float) -> bool:
        if victim.priority != to.priority:
            return victim.priority < to.priority
        return self.runs.left(victim, now).low > self.runs.left(to, now).high + self.restart

    def ripens(self, victim: Item, to: Item, now: float) -> float:  # noqa: ARG002
        until = victim.begins + self.protect
        return until if until > now else NEVER
