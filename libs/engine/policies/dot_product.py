"""Dot product as the FGD paper's artifact has it: the smaller the product of what is asked and what is free, the
better. A node scores high where it has little of what the task asks for.

Beware of Fragmentation, USENIX ATC 2023, artifact: policy "DotProd".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.policies.base import Base
from libs.engine.policies.best_fit import MAX_CPU, MAX_GPU


class DotProduct(Base):
    name = "dot-product"

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:  # noqa: ARG002
        return max(0, min(100, int(_score(node.cpu, node.gpu_free, ask))))

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints:  # noqa: ARG002
        scores: Ints = np.clip(_score(nodes.cpu, nodes.gpu_free, ask), 0, 100)
        return scores


def _score(cpu: Any, gpu: Any, ask: Ask) -> Any:
    """100 x (1 - (CPU free x CPU asked / MAX_CPU^2 + GPU free x GPU asked / MAX_GPU^2) / 2), cut."""
    product = cpu * ask.cpu + (MAX_CPU // MAX_GPU) ** 2 * gpu * ask.gpu_milli
    return 100 + (-50 * product) // MAX_CPU**2
