"""Packing as the FGD paper's artifact has it: rather a node in use than an idle one, rather devices in use than idle.

Beware of Fragmentation, USENIX ATC 2023, artifact: policy "Packing". Tasks without GPU score 0 everywhere.
"""

from __future__ import annotations

from libs.domain.resources import WHOLE
from libs.engine.ask import Ask
from libs.engine.devices import NodeState
from libs.engine.policies.base import Base, fitting


class Packing(Base):
    name = "packing"

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:  # noqa: ARG002
        if not ask.count:
            return 0
        idle = node.idle
        if idle == node.devices:
            return min(100, max(33 - idle, idle))
        if not ask.share:
            return max(50 - ask.count, 33)
        taken = sorted(node.milli[grant.index] for grant in fitting(node, ask))[: ask.count]
        fresh = sum(1 for milli in taken if milli == WHOLE)
        if fresh:
            return max(50 - fresh, 33)
        return max(100 - sum(taken) // 10 // 10, 50)
