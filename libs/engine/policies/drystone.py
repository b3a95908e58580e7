"""Ours: place where the typical tasks lose least, weighing each kind of task by how little is left for it; among nearly
equal places take the one that stays in balance.

**What is lost.** For every kind of task m of the typical mix, U(m) is the idle GPU of the cluster that it could use
now; of whole GPUs, what whole tasks like it could take side by side (`kinds`). A placement takes some of it. The score
is the gradient of a fair sum over the kinds (alpha-fairness with alpha = 3/2): a loss counts by the task's part p(m) of
the mix, divided by U(m) to the power 3/2, and by the root of how many GPUs such a task takes. Nodes that are still
whole where large tasks come, nodes with much CPU: each is dear as far as it is scarce now, and by nothing that was set.
Of tasks with several GPUs the place in question is not counted, so that the last one is dearest. Where a task names
models, U(m) is what it could use were any to do, and of how much less it is by the names only the fourth root counts:
at full power, whole nodes of the common models go to small tasks so that those with names find theirs.

**What stays in balance.** A node whose CPU runs out before its GPUs strands the GPUs, and the other way round. The
difference between its free share of CPU and its free share of GPU, after the placement, costs as many milli GPUs as
BALANCE says. It replaces the tie-break by the nodes' order, so that names and listing do not matter.

**What it knows.** The mix is learned from the jobs that came before (`mix`). Beside it, with a weight of PRIOR and more
while the mix is young, stand tasks that would take a whole node of each kind that the cluster has: so that whole nodes
are not broken up without need before the first large task was seen.

Nothing is refused or held back for the score's sake: it only orders the nodes where a task fits.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from libs.domain.resources import WHOLE, GpuGrant
from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.mix import ONE, Shape, Share
from libs.engine.policies.base import Base, Surroundings
from libs.engine.policies.fgd import best_devices
from libs.engine.policies.kinds import Kinds
from libs.engine.policies.tables import Tables

#: A score's unit is 1/256 milli GPU.
UNIT: Final = 256
_SHIFT: Final = (ONE // UNIT).bit_length() - 1
#: Milli GPUs that a difference of the whole between the free shares of CPU and GPU is worth.
BALANCE: Final = 300
_BALANCE_UNITS: Final = BALANCE * UNIT
#: Weight of tasks that take a whole node, beside the mix: two in a thousand.
PRIOR: Final = ONE * 2 // 1000
#: They count for half of the mix when so many tasks were seen, squared.
YOUNG: Final = 1
#: Nothing counts as scarcer than this part of the idle GPU: one fiftieth; the last place of tasks with several GPUs:
#: one thousandth.
SCARCEST: Final = 50
LAST: Final = 1000
_ROOT_BITS: Final = 10


class Drystone(Base):
    name = "drystone"
    ceiling = 1 << 28

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._whole: list[Share] = []
        self._free: dict[Shape, Shape] = {}
        self._whole_for: tuple[int, int] | None = None
        self._tables = Tables(around.snapshot, around.mix, self._gather, self._weigh, ours=True)

    def epoch(self) -> int:
        return self._tables.epoch()

    @property
    def learned(self) -> str:
        return self._tables.learned

    def _gather(self, shares: list[Share]) -> list[Share]:
        """The mix and the prior; with weight 0, tasks of the mix that name models as they would be without."""
        snapshot = self.around.snapshot
        facts = (snapshot.shape, len(snapshot.spec_changes))
        if facts != self._whole_for:
            self._whole = whole_nodes(snapshot.columns(), snapshot.model_names())
            self._whole_for = (snapshot.shape, len(snapshot.spec_changes))
        prior = self._prior(known=bool(shares))
        self._free = {shape: shape._replace(models=()) for shape, _ in shares if shape.models}
        return [
            *(Share(shape, weight * (ONE - prior) // ONE) for shape, weight in shares),
            *(Share(shape, weight * prior // ONE) for shape, weight in self._whole),
            *(Share(shape, 0) for shape in dict.fromkeys(self._free.values())),
        ]

    def _prior(self, *, known: bool) -> int:
        """All while no task was seen, then less with the square of how many were, PRIOR at the least."""
        seen = self.around.mix.seen
        if known and not seen:
            return PRIOR  # a mix that was told
        return max(PRIOR, ONE * YOUNG // (YOUNG + seen * seen))

    def _weigh(self, kinds: Kinds, shares: list[Share]) -> list[Share]:
        """Each kind's weight by how scarce it is: times s x sqrt(s / GPUs), s = idle GPU / idle GPU that it can use."""
        idle, reach = kinds.reach(self.around.snapshot.columns(), shares)
        prior = {shape for shape, _ in self._whole}
        left: dict[Shape, int] = {}
        for (shape, _), usable in zip(shares, reach, strict=True):
            if shape.gpus > 1 and shape not in prior:
                left[shape] = max(usable - WHOLE * shape.gpus, idle // LAST, 1)
            else:
                left[shape] = max(usable, idle // SCARCEST, 1)
        found: list[Share] = []
        for shape, weight in shares:
            if not weight:
                continue
            free = self._free.get(shape)
            there = left[shape if free is None else free]
            root = math.isqrt((idle << 2 * _ROOT_BITS) // (there * max(shape.gpus, 1)))
            scarce = (weight * idle // there * root) >> _ROOT_BITS
            if free is not None:
                fourth = math.isqrt(math.isqrt((there << 4 * _ROOT_BITS) // left[shape]))
                scarce = (scarce * fourth) >> _ROOT_BITS
            found.append(Share(shape, scarce))
        return found

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:  # noqa: ARG002
        usable, gpu_cap = self._tables.usable, node.gpu_cap
        score = self.ceiling + (usable.lost(node, ask) >> _SHIFT)
        if gpu_cap:
            gpu = node.gpu_free - (usable.asked(ask, node.codes[node.index[0]]) if ask.mib else ask.gpu_milli)
            score -= _imbalance(node.cpu - ask.cpu, node.cap_cpu or 1, gpu, gpu_cap)
        return score if 0 <= score <= self.ceiling else max(0, min(self.ceiling, score))

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints:  # noqa: ARG002
        usable = self._tables.usable
        lost = usable.lost_many(nodes, ask)
        gpu = nodes.gpu_free - usable.asked_many(ask, nodes.main)
        off = _imbalance(nodes.cpu - ask.cpu, np.maximum(nodes.cap_cpu, 1), gpu, np.maximum(nodes.gpu_cap, 1))
        off *= nodes.gpu_cap > 0
        lost >>= _SHIFT
        lost -= off
        lost += self.ceiling
        np.maximum(lost, 0, out=lost)
        np.minimum(lost, self.ceiling, out=lost)
        return lost

    def choose(self, node: NodeState, ask: Ask) -> tuple[GpuGrant, ...] | None:
        return best_devices(self._tables.usable, node, ask)


def _imbalance(cpu: Any, cap_cpu: Any, gpu: Any, cap_gpu: Any) -> Any:
    return _BALANCE_UNITS * abs(cpu * cap_gpu - gpu * cap_cpu) // (cap_cpu * cap_gpu)


def whole_nodes(nodes: Columns, names: list[str]) -> list[Share]:
    """One task per kind of node that takes all its GPUs and about all its CPU (an eighth less at most, so that nodes
    that differ by what their system reserves count as one kind). Weights by GPUs, ONE in all."""
    where = nodes.devices > 1
    total = int(nodes.devices.sum())
    kinds: dict[tuple[int, int, int], int] = {}
    found, counts = np.unique(
        np.stack([_cut(nodes.cap_cpu[where]), nodes.devices[where], nodes.main[where]]), axis=1, return_counts=True
    )
    for cpu, devices, model, count in zip(*found.tolist(), counts.tolist(), strict=True):
        kinds[cpu, devices, model] = count
    return [
        Share(Shape(cpu, devices, 0, 0, (names[model],) if names[model] else ()), ONE * count * devices // total)
        for (cpu, devices, model), count in sorted(kinds.items())
    ]


def _cut(cpu: Ints) -> Ints:
    """To the three leading bits after the first."""
    spare = np.maximum(np.frexp(cpu.astype(np.float64))[1].astype(np.int64) - 4, 0)
    return (cpu >> spare) << spare
