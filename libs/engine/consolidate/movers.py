"""Which running tasks may be moved for a job, together with whom, and what of their work that loses.

A task may move that is ours and evictable, of no higher priority than the job, that something makes anew when it is
evicted, that no disruption budget guards, that wishes to be near nobody, that nobody protects, and that has run for a
while: whoever was moved a moment ago stays.
"""

from __future__ import annotations

from collections.abc import Callable

from libs.domain.jobs import JobHead, Task, Wishes
from libs.domain.resources import WHOLE
from libs.domain.saving import unsaved
from libs.engine.api import RunningTask
from libs.engine.session import Session

#: What moves together: one task, or a whole gang that would otherwise fall below its minimum.
Unit = tuple[RunningTask, ...]


def _nobody(pod: RunningTask) -> bool:  # noqa: ARG001
    return False


class Movers:
    """`after_s`: a task stays where it is until it has run so long (where the time is known). `shielded`: whom its
    queue or its owner protects now."""

    def __init__(
        self, session: Session, head: JobHead, after_s: float = 0.0, shielded: Callable[[RunningTask], bool] = _nobody
    ) -> None:
        self._running = session.running
        self._now = session.now
        self._after_s = after_s
        self._head = head
        self._shielded = shielded
        self._tasks: dict[str, Task] = {}

    def may(self, pod: RunningTask) -> bool:
        return (
            pod.ours
            and pod.preemptible
            and pod.wishes is not None
            and not pod.guarded
            and not pod.charge.blind
            and pod.priority <= self._head.priority
            and pod.job != self._head.key
            and self._running.stays(pod)
            and not pod.topology
            and (not self._now or self._now - pod.started >= self._after_s)
            and not self._shielded(pod)
        )

    def any(self) -> bool:
        return any(map(self.may, self._running.by_uid.values()))

    def units_on(self, node: str) -> list[Unit]:
        """What may leave the node, as things stand: single tasks, and gangs that can only move whole."""
        units: list[Unit] = []
        spare: dict[str, int] = {}
        whole: set[str] = set()
        pods = sorted(self._running.by_node.get(node, {}).values(), key=lambda p: (self.lost(p), p.uid))
        for pod in pods:
            if not self.may(pod):
                continue
            if pod.gang_min <= 1 or not pod.job:
                units.append((pod,))
                continue
            members = [p for p in self._running.by_job[pod.job].values() if self._running.stays(p)]
            left = spare.setdefault(pod.job, len(members) - pod.gang_min)
            if left > 0:
                spare[pod.job] = left - 1
                units.append((pod,))
            elif pod.job not in whole:
                whole.add(pod.job)
                if all(map(self.may, members)):
                    units.append(tuple(sorted(members, key=lambda p: p.uid)))
        return units

    def lost(self, pod: RunningTask) -> float:
        """GPU seconds since the task started, or since its last checkpoint; GPU shares in proportion. Without GPU, a
        thousandth of its seconds."""
        if not self._now:
            return 0.0
        ran = unsaved(self._now, pod.started, pod.saved, pod.checkpoint_s)
        return ran * max(pod.charge.gpu_milli, 1) / WHOLE

    def as_task(self, pod: RunningTask) -> Task:
        """The task that is to be placed anew when the pod is gone."""
        task = self._tasks.get(pod.uid)
        if task is None:
            wishes = pod.wishes or Wishes()
            task = self._tasks[pod.uid] = Task(
                id=f"moved/{pod.uid}",
                name=pod.name,
                namespace=pod.namespace,
                request=wishes.request,
                node_selector=wishes.node_selector,
                tolerations=wishes.tolerations,
                labels=pod.labels,
                rules=wishes.rules,
            )
        return task
