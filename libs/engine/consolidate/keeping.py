"""Room that is kept for tasks that were moved, until they come again: what their plans had for them.

Known to this engine alone and for a while only: the task comes again as a pod that nobody knows yet, by its workload.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from libs.domain.resources import Charge

#: Long enough for a pod to stop in its own time and to be made again.
KEPT_S: Final = 120.0


class Kept(NamedTuple):
    node: str
    charge: Charge
    until: float


class Keeping:
    def __init__(self) -> None:
        self._of: dict[str, list[Kept]] = {}

    def keep(self, workload: str, node: str, charge: Charge, now: float) -> None:
        """From now on; without a clock nothing is kept."""
        if now:
            self._of.setdefault(workload, []).append(Kept(node, charge, now + KEPT_S))

    def current(self, now: float) -> Iterator[Kept]:
        """What is kept now; what was kept long enough is forgotten."""
        for workload in list(self._of):
            left = [kept for kept in self._of[workload] if kept.until > now]
            if left:
                self._of[workload] = left
                yield from left
            else:
                del self._of[workload]

    def of(self, workload: str) -> tuple[Kept, ...]:
        return tuple(self._of.get(workload, ()))

    def used(self, workload: str, count: int) -> None:
        """So many tasks of the workload were placed."""
        left = self._of.get(workload, [])[count:]
        if left:
            self._of[workload] = left
        else:
            self._of.pop(workload, None)
