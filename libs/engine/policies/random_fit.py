"""Random: any node that fits, any device that fits, each with equal chance, from the engine's seeded generator."""

from __future__ import annotations

import numpy as np

from libs.domain.resources import GpuGrant
from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.policies.base import Base, fitting


class RandomFit(Base):
    name = "random"
    draws = True

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:  # noqa: ARG002
        return 0

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints:  # noqa: ARG002
        return np.zeros(len(nodes.cpu), np.int64)

    def choose(self, node: NodeState, ask: Ask) -> tuple[GpuGrant, ...] | None:
        if not ask.share:
            return node.choose(ask)
        left = fitting(node, ask)
        if len(left) < ask.count:
            return None
        taken: list[GpuGrant] = []
        while len(taken) < ask.count:
            taken.append(left.pop(self.around.draw.below(len(left))))
        return tuple(sorted(taken, key=lambda grant: grant.index))
