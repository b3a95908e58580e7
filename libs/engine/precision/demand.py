"""What precisions tasks ask for here, learned from the jobs that came before; of jobs that declare none, only how many.

A job counts once, when it is first decided. Counts are halved when they have grown large, so that an old mix fades.

Kept in slots, by a hash of the job's key, as the typical mix is and for the same reason: who decides the jobs of a slot
counts them, other replicas take over what it has counted (`state`, `restore`), and all go by the sum.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from libs.domain.jobs import JobHead, Task, partition_of
from libs.domain.resources import WHOLE
from libs.engine.api import PendingJob

#: Halve all counts when they sum to this many milli GPUs.
FADE: Final = 8_192 * WHOLE
REMEMBERED: Final = 65_536
#: The most tasks between two versions.
RENEWED: Final = 1_024


class Kind(NamedTuple):
    precision: str
    required: bool


class DemandState(NamedTuple):
    """All that a slot is: milli GPUs by kind, and how many tasks that declared something it has seen."""

    counts: tuple[tuple[Kind, int], ...] = ()
    tasks: int = 0


class _Slot:
    """`before`: jobs created by then were counted before the slot was taken over, or never will be."""

    __slots__ = ("before", "counts", "tasks")

    def __init__(self) -> None:
        self.counts: dict[Kind, int] = {}
        self.tasks = 0
        self.before = float("-inf")


class PrecisionDemand:
    """`version` grows when `counts` is to be looked at anew; `tasks` is how many declared something."""

    def __init__(self, slots: int = 1) -> None:
        self.version = 0
        self.tasks = 0
        self._slots = [_Slot() for _ in range(slots)]
        self._full = FADE // slots
        self._known: dict[str, None] = {}
        self._due = 1

    @property
    def counts(self) -> dict[Kind, int]:
        """Milli GPUs asked for by kind."""
        sums: dict[Kind, int] = {}
        for slot in self._slots:
            for kind, count in slot.counts.items():
                sums[kind] = sums.get(kind, 0) + count
        return sums

    def learn(self, job: PendingJob) -> None:
        declared = [task for task in job.tasks if task.request.gpu.precision]
        if declared:
            self._learn(job.head, declared)

    def _learn(self, head: JobHead, tasks: list[Task]) -> None:
        known = self._known
        if head.key in known:
            return
        known[head.key] = None
        if len(known) > REMEMBERED:
            del known[next(iter(known))]
        slot = self._slots[partition_of(head.key, len(self._slots))]
        if head.created <= slot.before:
            return
        counts = slot.counts
        for task in tasks:
            gpu = task.request.gpu
            kind = Kind(gpu.precision, gpu.precision_required)
            counts[kind] = counts.get(kind, 0) + (task.request.gpu_milli or gpu.count * WHOLE // 2)
        if sum(counts.values()) >= self._full:
            slot.counts = {kind: count >> 1 for kind, count in counts.items() if count > 1}
        slot.tasks += len(tasks)
        self.tasks += len(tasks)
        if self.tasks >= self._due:
            self._renew()

    def _renew(self) -> None:
        self.version += 1
        self._due = self.tasks + max(1, min(self.tasks // 2, RENEWED))

    # -- over restarts and between replicas ---------------------------------------------------------------------------
    def state(self, slot: int = 0) -> DemandState:
        held = self._slots[slot]
        return DemandState(tuple(sorted(held.counts.items())), held.tasks)

    def restore(self, state: DemandState, slot: int = 0, until: float = 0.0) -> None:
        """Take over what was counted elsewhere, in place of what the slot has. Jobs created by `until`, the newest of
        those that were counted, are not counted again."""
        held = self._slots[slot]
        first = not self.tasks and state.tasks > 0
        self.tasks += state.tasks - held.tasks
        held.counts = dict(state.counts)
        held.tasks = state.tasks
        held.before = until or float("-inf")
        if first or self.tasks >= self._due:
            self._renew()
