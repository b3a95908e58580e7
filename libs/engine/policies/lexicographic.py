"""Lexicographic best fit: the node with least free GPU; among those, the one with least free CPU; then memory."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.policies.base import Base

#: Resolution of each resource's place in the order: GPU in milli up to 32 devices, CPU in quarters of a core up to 512
#: cores, memory in 16 GiB up to 2 TiB. What is beyond counts as the most.
GPU_STEPS: Final = 32_768
CPU_STEPS: Final = 2_048
MEM_STEPS: Final = 128


class LexicographicBestFit(Base):
    name = "lexicographic-best-fit"
    ceiling = GPU_STEPS * CPU_STEPS * MEM_STEPS - 1
    by_memory = True

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:  # noqa: ARG002
        gpu = max(0, min(GPU_STEPS - 1, node.gpu_free))
        cpu = max(0, min(CPU_STEPS - 1, node.cpu // 250))
        mem = max(0, min(MEM_STEPS - 1, node.mem // 16_384))
        return int(_score(gpu, cpu, mem))

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints:  # noqa: ARG002
        gpu = np.clip(nodes.gpu_free, 0, GPU_STEPS - 1)
        cpu = np.clip(nodes.cpu // 250, 0, CPU_STEPS - 1)
        mem = np.clip(nodes.mem // 16_384, 0, MEM_STEPS - 1)
        scores: Ints = _score(gpu, cpu, mem)
        return scores


def _score(gpu: Any, cpu: Any, mem: Any) -> Any:
    return LexicographicBestFit.ceiling - ((gpu * CPU_STEPS + cpu) * MEM_STEPS + mem)
