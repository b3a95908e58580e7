"""Rows of lists as the facts that an engine is told: nodes with devices, jobs of one task."""

from __future__ import annotations

from typing import Final

from libs.domain.jobs import JobHead, Task
from libs.domain.nodes import Gpu, Node
from libs.engine.api import PendingJob
from libs.sim.lists import NodeRow, TaskRow

#: Memory per device is no part of the lists: shares are by milli, so any size serves.
DEVICE_MIB: Final = 16_384
#: Pods per node are no part of the lists either: no limit.
PODS: Final = 100_000


def node_fact(row: NodeRow, position: int) -> Node:
    """The node of a list, named so that the engine's order by name is the order of the run."""
    return Node(
        name=f"{position:06d}-{row.name}",
        uid=row.name,
        version="1",
        spec="1",
        cpu=row.cpu,
        mem=row.mem,
        pods=PODS,
        gpus=tuple(Gpu(i, DEVICE_MIB, row.model) for i in range(row.gpus)),
    )


def pending(row: TaskRow, position: int) -> PendingJob:
    """A job of one task that arrives as the `position`-th. All have one owner: lists do not say whose tasks are."""
    name = f"{position:08d}"
    head = JobHead(key=name, tenant="", namespace="", created=float(position))
    return PendingJob(head, (Task(id=name, name=row.name, namespace="", request=row.request),))
