"""The engine that services, embedded mode and simulator share: facts in, decisions out.

Guarantees, for any input: no capacity or limit of the snapshot is exceeded by what is decided, tentative decisions
included; a gang's minimum is placed together or not at all; victims are of lower priority, sufficient, and none of them
is superfluous; the same facts and jobs give the same decisions, in whatever order the facts came.
"""

from __future__ import annotations

from libs.domain.nodes import Node
from libs.domain.queues import Queue
from libs.domain.usage import NodeUse, QueueUse
from libs.engine.actions import ACTIONS
from libs.engine.api import Decision, EngineConfig, PendingJob, RunningTask
from libs.engine.session import Session


class PlacementEngine:
    def __init__(self, config: EngineConfig | None = None) -> None:
        self._session = Session(config or EngineConfig())

    # -- facts ------------------------------------------------------------------------------------------------------
    def node_seen(self, node: Node) -> None:
        if self._session.snapshot.node_seen(node):
            self._session.row_replaced(self._session.snapshot.rows[node.name])

    def node_gone(self, name: str) -> None:
        row = self._session.snapshot.rows.get(name)
        if row is not None:
            self._session.snapshot.node_gone(name)
            self._session.row_gone(row)

    def use_seen(self, use: NodeUse) -> bool:
        return self._session.use_seen(use)

    def queue_seen(self, queue: Queue) -> None:
        self._session.queues.queue_seen(queue)

    def queue_gone(self, path: str) -> None:
        self._session.queues.queue_gone(path)

    def queue_use_seen(self, use: QueueUse) -> None:
        self._session.queues.use_seen(use)

    def pod_seen(self, task: RunningTask) -> None:
        self._session.running.seen(task)

    def pod_gone(self, uid: str) -> None:
        self._session.running.gone(uid)

    # -- decisions --------------------------------------------------------------------------------------------------
    def decide(self, jobs: list[PendingJob]) -> list[Decision]:
        """Decisions stand in the order of `jobs`; they are made by (priority, age, key)."""
        self._session.begin()
        decisions: dict[int, Decision] = {}
        for at in sorted(range(len(jobs)), key=lambda i: _position(jobs[i])):
            decisions[at] = self._decide(jobs[at])
        return [decisions[at] for at in range(len(jobs))]

    def _decide(self, job: PendingJob) -> Decision:
        decision: Decision | None = None
        for action in ACTIONS:
            decision = action(self._session, job, decision)
            if decision.placements:
                break
        if decision is None:
            raise AssertionError("there are no actions")
        return decision

    def settle(self) -> None:
        self._session.settle()

    # -- inspection -------------------------------------------------------------------------------------------------
    def free_room(self) -> dict[str, tuple[int, int, int, tuple[tuple[int, int], ...]]]:
        """CPU, memory, pods and (milli, MiB) per device that are free on each node, tentative decisions deducted."""
        states = sorted((s for s in self._session.snapshot.states if s is not None), key=lambda s: s.name)
        return {s.name: (s.cpu, s.mem, s.pods, tuple(zip(s.milli, s.mib, strict=True))) for s in states}

    def queue_room(self) -> dict[str, tuple[int, int, int]]:
        """Milli GPUs, milli CPU and MiB used per queue, tentative decisions included."""
        return self._session.queues.truth()


def _position(job: PendingJob) -> tuple[int, float, str]:
    head = job.head
    return -head.priority, head.created, head.key
