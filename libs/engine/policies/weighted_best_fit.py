"""Weighted best fit: the fuller a node would be afterwards, the better, GPUs first, then CPU and memory.

Whole GPUs go where few are left, so that whole nodes stay free for large tasks; shares go to the device that they fill
best. Tasks without GPU prefer nodes without GPUs or with all GPUs taken, so that they strand none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from libs.domain.resources import WHOLE
from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.policies.base import Base

GPU, CPU, MEM = 6, 2, 2


class WeightedBestFit(Base):
    name = "weighted-best-fit"
    by_memory = True
    by_tightness = True

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:
        gpu_cap = node.gpu_cap
        # A node without GPUs counts as full: nothing can be stranded there.
        gpu = 100 * (gpu_cap - node.gpu_free + _gpu(ask)) // gpu_cap if gpu_cap else 100
        cpu = 100 * (node.cap_cpu - node.cpu + ask.cpu) // max(node.cap_cpu, 1)
        mem = 100 * (node.cap_mem - node.mem + ask.mem) // max(node.cap_mem, 1)
        score: int = max(0, min(100, _blend(gpu, cpu, mem, ask, tight)))
        return score

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints:
        used = nodes.gpu_cap - nodes.gpu_free + _gpu(ask)
        gpu = np.where(nodes.gpu_cap > 0, 100 * used // np.maximum(nodes.gpu_cap, 1), 100)
        cpu = 100 * (nodes.cap_cpu - nodes.cpu + ask.cpu) // np.maximum(nodes.cap_cpu, 1)
        mem = 100 * (nodes.cap_mem - nodes.mem + ask.mem) // np.maximum(nodes.cap_mem, 1)
        scores: Ints = np.clip(_blend(gpu, cpu, mem, ask, tight), 0, 100)
        return scores


def _gpu(ask: Ask) -> int:
    """Milli asked; a request by memory has none until a device is known and is told apart by `tight` alone."""
    return ask.gpu_milli


def _blend(gpu: Any, cpu: Any, mem: Any, ask: Ask, tight: Any) -> Any:
    """The same arithmetic for integers and for vectors."""
    if ask.share:
        gpu = (gpu + 2 * (100 * (WHOLE - tight) // WHOLE)) // 3
    return (GPU * gpu + CPU * cpu + MEM * mem) // (GPU + CPU + MEM)
