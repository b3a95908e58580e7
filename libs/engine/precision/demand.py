"""What precisions tasks ask for here, learned from the jobs that came before; of jobs that declare none, only how many.

A job counts once, when it is first decided. Counts are halved when they have grown large, so that an old mix fades.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from libs.domain.jobs import Task
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


class PrecisionDemand:
    """`counts`: milli GPUs asked for by kind. `version` grows when it is to be looked at anew."""

    def __init__(self) -> None:
        self.counts: dict[Kind, int] = {}
        self.version = 0
        self.seen = 0  # milli GPUs of tasks that declare something
        self._known: dict[str, None] = {}
        self.tasks = 0  # that declared something
        self._due = 1

    def learn(self, job: PendingJob) -> None:
        declared = [task for task in job.tasks if task.request.gpu.precision]
        if declared:
            self._learn(job.head.key, declared)

    def _learn(self, key: str, tasks: list[Task]) -> None:
        known = self._known
        if key in known:
            return
        known[key] = None
        if len(known) > REMEMBERED:
            del known[next(iter(known))]
        for task in tasks:
            gpu = task.request.gpu
            kind = Kind(gpu.precision, gpu.precision_required)
            asked = task.request.gpu_milli or gpu.count * WHOLE // 2
            self.counts[kind] = self.counts.get(kind, 0) + asked
            self.seen += asked
        if self.seen >= FADE:
            self.counts = {kind: count >> 1 for kind, count in self.counts.items() if count > 1}
            self.seen = sum(self.counts.values())
        self.tasks += len(tasks)
        if self.tasks >= self._due:
            self.version += 1
            self._due = self.tasks + max(1, min(self.tasks // 2, RENEWED))
