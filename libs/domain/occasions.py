"""Which evictions of a gang's pods are one.

An eviction of a gang is an occasion. A pod's own belongs to an occasion exactly when the pod had started before that
began, and goes within some minutes of it: pods of one decision do, whenever each of them is told. A pod that started
since opens a new occasion, however soon that is. So a gang of any size that is evicted, starts again and is evicted
again counts every time, and no pod is in an occasion twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: The longest notice that a pod may have, and a minute.
TOGETHER_S: Final = 360.0
#: Occasions of one gang that are remembered, the most recent, so it is never evicted more often within a window.
MOST: Final = 64
#: Times of single pods, of whose starts nothing is known, are one occasion where each is so close to the next.
_CHAINED_S: Final = 60.0


def joins(at: float, started: float, begun: float) -> bool:
    """Whether a pod that started then (0: nobody knows) and went at `at` is of the occasion that began at `begun`; all
    in seconds since the epoch, of which the API server tells whole ones."""
    return abs(at - begun) <= TOGETHER_S and started <= begun


def chained(times: Iterable[float]) -> list[float]:
    """When occasions began, of the times of single pods, in order, as releases before kept them."""
    begun: list[float] = []
    last = float("-inf")
    for at in times:
        if at - last > _CHAINED_S:
            begun.append(at)
        last = at
    return begun
