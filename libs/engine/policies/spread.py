"""Spread: the node with the largest free share of what the task asks for (GPUs, else CPU and memory); on it the
emptiest device. For services that want distance from each other rather than full nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from libs.domain.resources import GpuGrant
from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.policies.base import Base, fitting


class Spread(Base):
    name = "spread"
    ceiling = 1000
    by_memory = True

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:  # noqa: ARG002
        if ask.count:
            return max(0, min(1000, int(_share(node.gpu_free, max(node.gpu_cap, 1)))))
        cpu, mem = _share(node.cpu, max(node.cap_cpu, 1)), _share(node.mem, max(node.cap_mem, 1))
        return max(0, min(1000, int(cpu + mem) // 2))

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints:  # noqa: ARG002
        if ask.count:
            return _cut(_share(nodes.gpu_free, np.maximum(nodes.gpu_cap, 1)))
        cpu = _share(nodes.cpu, np.maximum(nodes.cap_cpu, 1))
        mem = _share(nodes.mem, np.maximum(nodes.cap_mem, 1))
        return _cut((cpu + mem) // 2)

    def choose(self, node: NodeState, ask: Ask) -> tuple[GpuGrant, ...] | None:
        if not ask.share:
            return node.choose(ask)
        found = fitting(node, ask)
        if len(found) < ask.count:
            return None
        emptiest = sorted(found, key=lambda grant: (-node.milli[grant.index], grant.index))
        return tuple(sorted(emptiest[: ask.count], key=lambda grant: grant.index))


def _share(free: Any, cap: Any) -> Any:
    return 1000 * free // cap


def _cut(scores: Ints) -> Ints:
    return np.clip(scores, 0, 1000)
