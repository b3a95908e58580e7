"""Fragmentation gradient descent as published: place where the least GPU becomes unusable for the typical tasks.

D is the fragment measure before less the one after; the score is int(100 / (1 + exp(-D / 1000))), D in milli GPU, and
equal scores go to the first node in the order of names. Both the cut and the fixed order are part of the published
result. Beware of Fragmentation, USENIX ATC 2023, and its artifact (policy "FGD").

The typical tasks are those that configuration names, else those learned so far, the most frequent that make up 95 %.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

import numpy as np

from libs.domain.resources import WHOLE, GpuGrant
from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.mix import ONE, Share
from libs.engine.policies.base import Base, Surroundings
from libs.engine.policies.kinds import Kinds
from libs.engine.policies.tables import Tables
from libs.engine.policies.usable import Usable

#: The least D, in milli GPU times ONE, of each score from 1 to 100 (100 itself is out of reach).
_STEPS: Final = [round(-WHOLE * math.log(100 / score - 1) * ONE) for score in range(1, 100)]
_STEP_ARRAY: Final = np.asarray(_STEPS, np.int64)
_COVER_PERCENT: Final = 95


class Fgd(Base):
    name = "fgd"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._tables = Tables(around.snapshot, around.mix, typical, _as_they_are, ours=False)

    def epoch(self) -> int:
        return self._tables.epoch()

    @property
    def learned(self) -> str:
        return self._tables.learned

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:  # noqa: ARG002
        gain = self._tables.usable.lost(node, ask) + ask.gpu_milli * ONE
        return bisect_right(_STEPS, gain)

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints:  # noqa: ARG002
        gain = self._tables.usable.lost_many(nodes, ask) + ask.gpu_milli * ONE
        return np.searchsorted(_STEP_ARRAY, gain, side="right")

    def choose(self, node: NodeState, ask: Ask) -> tuple[GpuGrant, ...] | None:
        return best_devices(self._tables.usable, node, ask)


def _as_they_are(kinds: Kinds, shares: list[Share]) -> list[Share]:  # noqa: ARG001
    return shares


def typical(shares: list[Share]) -> list[Share]:
    """The shortest prefix of the most frequent shapes that covers 95 %, its weights made to sum to ONE."""
    total = sum(share.weight for share in shares)
    kept: list[Share] = []
    covered = 0
    for share in shares:
        if covered * 100 >= _COVER_PERCENT * total:
            break
        kept.append(share)
        covered += share.weight
    return [Share(shape, weight * ONE // covered) for shape, weight in kept]


def best_devices(usable: Usable, node: NodeState, ask: Ask) -> tuple[GpuGrant, ...] | None:
    """The devices that leave most of the node usable."""
    if not ask.share:
        return node.choose(ask)
    if node.shut:
        return None
    chosen = usable.devices(node, ask)
    if len(chosen) < ask.count:
        return None
    return tuple(GpuGrant(i, *ask.grant(node.dev_mib[i])) for i in sorted(chosen))
