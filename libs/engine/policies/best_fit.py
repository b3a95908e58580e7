"""Best fit as the FGD paper's artifact has it: the node with least room left afterwards, GPU and CPU counting alike,
each as a share of the largest node; on it the tightest device. Scores are cut to whole percents.

Beware of Fragmentation, USENIX ATC 2023, artifact: policy "BestFit". The stretching to 0..100 that follows there keeps
order and ties, so it is left out.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.policies.base import Base

#: The artifact's largest node: 128 cores and 8 GPUs, in milli.
MAX_CPU: Final = 128_000
MAX_GPU: Final = 8_000


class BestFit(Base):
    name = "best-fit"

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:  # noqa: ARG002
        return max(0, min(100, int(_score(node.cpu, node.gpu_free, ask))))

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints:  # noqa: ARG002
        scores: Ints = np.clip(_score(nodes.cpu, nodes.gpu_free, ask), 0, 100)
        return scores


def _score(cpu: Any, gpu: Any, ask: Ask) -> Any:
    """100 x (1 - CPU left / (2 MAX_CPU) - GPU left / (2 MAX_GPU)), cut."""
    left = (cpu - ask.cpu) + MAX_CPU // MAX_GPU * (gpu - ask.gpu_milli)
    return 100 + (-50 * left) // MAX_CPU
