"""How often pods of one workload were evicted within the window, in bounded room and never counted too low.

Of a gang one time per occasion is kept (`libs.domain.occasions`), of other workloads one per pod; where these are too
many the two oldest are told as one of two pods, at the later time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from libs.domain.occasions import MOST, chained, joins


@dataclass(slots=True)
class Evicted:
    """`times` in order, whole seconds since the epoch; `pods` went at each. `counted`: that is so; else each time is
    that of one pod."""

    times: list[int]
    pods: list[int]
    counted: bool = False

    @staticmethod
    def recalled(times: Sequence[int], pods: Sequence[int] = ()) -> Evicted:
        """As it was told. `pods` may be missing."""
        if len(pods) == len(times):
            return Evicted(list(times), list(pods), counted=True)
        return Evicted(list(times), [1] * len(times))

    def has(self, at: float, started: float, gang: bool) -> bool:
        """Whether the eviction of this pod may be counted already."""
        return int(at) in self.times or (gang and self._occasion(at, started) is not None)

    def add(self, at: float, started: float, gang: bool) -> bool:
        """Whether it counts by itself, and is not another pod of an occasion that is known."""
        if gang and not self.counted:
            self._chain()
        found = self._occasion(at, started) if gang else None
        if found is not None:
            self.pods[found] += 1
            self.times[found] = min(self.times[found], int(at))
        else:
            self.times.append(int(at))
            self.pods.append(1)
        self._sort()
        if len(self.times) > MOST:
            self._shorten(gang)
        return found is None

    def merge(self, other: Evicted, gang: bool = False) -> None:
        """Of the same workload."""
        self.times += other.times
        self.pods += other.pods
        self.counted |= other.counted
        self._sort()
        while len(self.times) > MOST:
            self._shorten(gang)

    def forget(self, before: float) -> int:
        """Forget what is older; how many times are gone."""
        gone = sum(at < before for at in self.times)
        del self.times[:gone], self.pods[:gone]
        return gone

    def _occasion(self, at: float, started: float) -> int | None:
        return next((n for n, begun in enumerate(self.times) if joins(at, started, begun)), None)

    def _chain(self) -> None:
        begun = [*map(int, chained(self.times)), 2**62]
        pods = [sum(n for at, n in zip(self.times, self.pods, strict=True) if a <= at < b)
                for a, b in pairwise(begun)]  # fmt: skip
        self.times, self.pods, self.counted = begun[:-1], pods, True

    def _sort(self) -> None:
        pairs = sorted(zip(self.times, self.pods, strict=True))
        self.times, self.pods = [at for at, _ in pairs], [pods for _, pods in pairs]

    def _shorten(self, gang: bool) -> None:
        oldest = self.pods.pop(0)
        del self.times[0]
        if not gang:
            self.pods[0] += oldest
            self.counted = True
