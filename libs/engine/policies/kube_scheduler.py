"""kube-scheduler's NodeResourcesFit with its strategies MostAllocated and RequestedToCapacityRatio.

Resources cpu, memory and nvidia.com/gpu, equal weights, a resource that a node has none of left out of its mean. A
share of a GPU counts as that share. RequestedToCapacityRatio has the shape of its documentation for bin packing (0 at
0 %, 10 at 100 %); resources that score 0 do not count in its mean, which is rounded. Source: kubernetes
pkg/scheduler/framework/plugins/noderesources (most_allocated.go, requested_to_capacity_ratio.go).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.policies.base import Base


class MostAllocated(Base):
    name = "most-allocated"
    by_memory = True

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:  # noqa: ARG002
        total = count = 0
        for cap, free, asked in _resources(node, ask):
            if cap > 0:
                total += 100 * max(0, min(cap, cap - free + asked)) // cap
                count += 1
        return total // count if count else 0

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints:  # noqa: ARG002
        total = np.zeros(len(nodes.cpu), np.int64)
        count = np.zeros(len(nodes.cpu), np.int64)
        for cap, free, asked in _resources(nodes, ask):
            used = np.clip(cap - free + asked, 0, cap)
            total += np.where(cap > 0, 100 * used // np.maximum(cap, 1), 0)
            count += cap > 0
        return total // np.maximum(count, 1)


class RequestedToCapacityRatio(Base):
    name = "requested-to-capacity-ratio"
    by_memory = True

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:  # noqa: ARG002
        scores = [
            100 * max(0, min(cap, cap - free + asked)) // cap for cap, free, asked in _resources(node, ask) if cap > 0
        ]
        told = sum(1 for score in scores if score > 0)
        return (2 * sum(scores) + told) // (2 * told) if told else 0

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints:  # noqa: ARG002
        total = np.zeros(len(nodes.cpu), np.int64)
        told = np.zeros(len(nodes.cpu), np.int64)
        for cap, free, asked in _resources(nodes, ask):
            score = np.where(cap > 0, 100 * np.clip(cap - free + asked, 0, cap) // np.maximum(cap, 1), 0)
            total += score
            told += score > 0
        return np.where(told > 0, (2 * total + told) // np.maximum(2 * told, 1), 0)


def _resources(node: Any, ask: Ask) -> tuple[tuple[Any, Any, int], ...]:
    return (
        (node.cap_cpu, node.cpu, ask.cpu),
        (node.cap_mem, node.mem, ask.mem),
        (node.gpu_cap, node.gpu_free, ask.gpu_milli),
    )
