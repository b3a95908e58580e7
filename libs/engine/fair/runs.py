"""When running tasks will end: as declared, else as those before them ran, else nobody knows.

Run times of ended tasks are kept per owner and size and per queue and size, the latest few. Of a task that has run for
`age` seconds, those that ran longer tell what is left: their median, between their tenth and ninetieth percentile.
Where fewer than FEWEST ended, or none ran as long, nothing is said: a guess without grounds is worse than none.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import StrEnum
from typing import Final, NamedTuple

from libs.engine.api import RunningTask

FEWEST: Final = 5
_KEPT: Final = 64
_KEYS: Final = 4096


class Basis(StrEnum):
    DECLARED = "declared run times"
    PREDICTED = "predicted from earlier runs"
    UNKNOWN = "unknown run times"


class End(NamedTuple):
    """Seconds since the epoch; infinite where nothing is known. `low` and `high` are the error bars."""

    at: float
    low: float
    high: float
    basis: Basis


UNKNOWN: Final = End(float("inf"), float("inf"), float("inf"), Basis.UNKNOWN)

_Key = tuple[str, str, int]


class Runs:
    """Run times of tasks that ended by themselves."""

    def __init__(self) -> None:
        #: Lists, because most have one element: a pod without an owner is its own.
        self._runs: dict[_Key, list[float]] = {}
        self._sorted: dict[_Key, list[float]] = {}

    def ended(self, task: RunningTask, now: float) -> None:
        if task.started <= 0 or now <= task.started:
            return
        for key in _keys(task):
            runs = self._runs.pop(key, None)
            if runs is None:
                if len(self._runs) >= _KEYS:
                    oldest = next(iter(self._runs))
                    del self._runs[oldest]
                    self._sorted.pop(oldest, None)
                runs = []
            runs.append(now - task.started)
            del runs[:-_KEPT]
            self._sorted.pop(key, None)
            self._runs[key] = runs  # the least lately told goes first

    def lasts(self, task: RunningTask) -> float:
        """How long a task like this runs at the most, in nine of ten cases, seconds; 0 where nobody knows."""
        for key in _keys(task):
            runs = self._known(key)
            if len(runs) >= FEWEST:
                return _quantile(runs, 0.9)
        return 0.0

    def _known(self, key: _Key) -> list[float]:
        runs = self._sorted.get(key)
        if runs is None:
            runs = sorted(self._runs.get(key, ()))
            if runs:
                self._sorted[key] = runs
        return runs

    def end_of(self, task: RunningTask, now: float) -> End:
        """A task that outran what it declared counts as one that declared nothing."""
        if task.started > 0 and task.expected_s and now < task.started + task.expected_s:
            at = task.started + task.expected_s
            return End(at, at, at, Basis.DECLARED)
        age = now - task.started
        if task.started <= 0 or not now:
            return UNKNOWN
        for key in _keys(task):
            runs = self._known(key)
            longer = runs[bisect_right(runs, age) :]
            if len(runs) >= FEWEST and longer:
                low, at, high = (task.started + _quantile(longer, q) for q in (0.1, 0.5, 0.9))
                return End(at, low, high, Basis.PREDICTED)
        return UNKNOWN


def _keys(task: RunningTask) -> tuple[_Key, ...]:
    """What tells of a task's run time, the most telling first."""
    size = task.charge.gpu_milli
    queue = ("queue", task.queue, size)
    return (("owner", task.workload, size), queue) if task.workload else (queue,)


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
