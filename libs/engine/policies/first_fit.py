"""First fit: every node that fits is equally good, so the first by name is taken, and on it the first device. Cheap
and fills nodes in order; how well depends on the order alone."""

from __future__ import annotations

import numpy as np

from libs.domain.resources import GpuGrant
from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.policies.base import Base, first_devices


class FirstFit(Base):
    name = "first-fit"

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:  # noqa: ARG002
        return 100

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints:  # noqa: ARG002
        return np.full(len(nodes.cpu), 100, np.int64)

    def choose(self, node: NodeState, ask: Ask) -> tuple[GpuGrant, ...] | None:
        return first_devices(node, ask)
