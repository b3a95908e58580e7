"""Clustering as the FGD paper's artifact has it: tasks of one kind (shared, 1, 2, 4, 8 GPUs) keep together.

Beware of Fragmentation, USENIX ATC 2023, artifact: policy "Clustering". Tasks without GPU score 0 everywhere.
"""

from __future__ import annotations

from libs.domain.resources import WHOLE, Charge
from libs.engine.ask import Ask
from libs.engine.devices import NodeState
from libs.engine.policies.base import Base
from libs.engine.policies.best_fit import MAX_GPU


class Clustering(Base):
    name = "clustering"
    by_look = False

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:  # noqa: ARG002
        if not ask.count:
            return 0
        base = 25 * max(0, MAX_GPU - node.gpu_free) // MAX_GPU
        kinds = {_kind(charge) for charge in self.around.charges(node.row) if charge.gpus}
        if not kinds:
            return base + 25
        own = 0 if ask.share else ask.count
        if own not in kinds:
            return base
        return base + (75 if len(kinds) == 1 else 50)


def _kind(charge: Charge) -> int:
    """How many whole devices, 0 for shares."""
    return len(charge.gpus) if all(grant.milli >= WHOLE for grant in charge.gpus) else 0
