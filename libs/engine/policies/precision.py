"""Precision: each job where it computes fastest for what is scarce; for jobs that declare what they compute in.

**What a place is worth.** The gain of a kind of task on a model of GPU is its speed there, as a part of the highest
speed that this cluster has for it. From that goes the price of the model: what one more GPU of it would bring the
tasks that are to be expected (`precision.prices`), were all that is idle divided among them in the best way. So fp8
jobs find the few GPUs that compute fp8 dear for everybody else; and jobs that gain little by the newest GPUs leave them
to those that gain much, as far as those come and the GPUs are few, and no further.

**In which unit.** A score says how many milli GPUs of speed are lost against the best model, in the unit of the policy
`drystone`: weights of 1 and 1 mean that a GPU left unusable and a GPU's worth of speed lost are equally bad.

**What it knows.** The models by the table (`precision.table`), the demand by the jobs that came before, and beside it,
with a weight of PRIOR each, jobs of every precision: so that a rare feature is not used up before the first job that
needs it was seen. A model that the table does not know counts as the average of those that it knows.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from libs.domain.precision import PRECISIONS
from libs.domain.resources import WHOLE
from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.mix import ONE
from libs.engine.policies.base import Base, Surroundings
from libs.engine.policies.drystone import UNIT, Drystone
from libs.engine.policies.usable import held_on
from libs.engine.precision.demand import Kind
from libs.engine.precision.prices import prices

#: Of what was learned, each precision's share that is expected anyhow: one in fifty.
PRIOR: Final = 50
#: Prices are made anew when idle GPU has changed by this part of what it was.
IDLE_PARTS: Final = 8
_SHIFT: Final = (ONE // UNIT).bit_length() - 1


class PrecisionPolicy(Base):
    name = "precision"
    ceiling = Drystone.ceiling
    declared_only = True

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._epoch = 0
        self._made_for: tuple[int, int] | None = None
        self._idle = 0
        self._learned = ""
        self._names: list[str] = []
        self._known: list[str] = []
        self._speeds: dict[str, list[int]] = {}
        self._prices: Ints = np.zeros(0, np.int64)
        self._lost: dict[Kind, Ints] = {}

    def epoch(self) -> int:
        around = self.around
        if not around.precisions.version:
            return 0  # nobody has declared anything
        snapshot = around.snapshot
        made_for = (around.precisions.version, snapshot.model_count)
        if made_for != self._made_for or IDLE_PARTS * abs(snapshot.gpu_free - self._idle) > self._idle:
            self._make()
            self._epoch += 1
        return self._epoch

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:  # noqa: ARG002
        if not ask.count or not ask.gpu.precision or not node.index:
            return self.ceiling
        first = node.index[0]
        asked = ask.gpu_milli if not ask.mib else ask.count * ask.grant(node.dev_mib[first])[0]
        return self.ceiling - ((asked * int(self._of(ask)[node.codes[first]])) >> _SHIFT)

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints:  # noqa: ARG002
        if not ask.count or not ask.gpu.precision:
            return np.full(len(nodes.cpu), self.ceiling, np.int64)
        asked: Ints | int = ask.gpu_milli
        if ask.mib:
            at = np.argmax(nodes.exists, axis=1)
            size = nodes.dev_mib[np.arange(len(at)), at]
            asked = ask.count * np.where(size > 0, ask.mib * WHOLE // np.maximum(size, 1), WHOLE)
        lost = (asked * self._of(ask)[nodes.main]) >> _SHIFT
        scores: Ints = np.where(nodes.devices > 0, self.ceiling - lost, self.ceiling)
        return scores

    def _of(self, ask: Ask) -> Ints:
        """What is lost on each model, by its code, in ONE-ths."""
        if self._made_for is None:
            self._make()  # the first job that declares something
        kind = Kind(ask.gpu.precision, ask.gpu.precision_required)
        found = self._lost.get(kind)
        if found is None or len(found) < self.around.snapshot.model_count:
            found = self._lost[kind] = self._lost_by(kind)
        return found

    @property
    def learned(self) -> str:
        return self._learned

    # -- tables -----------------------------------------------------------------------------------------------------
    def _make(self) -> None:
        """Prices by the demand and by what is idle. Models stand in the order of their names: codes depend on the order
        in which nodes came."""
        around = self.around
        self._made_for = (around.precisions.version, around.snapshot.model_count)
        self._idle = around.snapshot.gpu_free
        self._lost = {}
        self._names = around.snapshot.model_names()
        self._known = sorted(name for name in self._names if around.table.model(name) is not None)
        for precision in PRECISIONS:
            self._speeds[precision] = [around.table.gflops(name, precision) or 0 for name in self._known]
        supply = self._supply()
        counts = around.precisions.counts
        told = repr(sorted(tuple(item) for item in counts.items())).encode()
        self._learned = hashlib.blake2b(told, digest_size=4).hexdigest() if counts else ""
        total = max(sum(counts.values()), 1)
        weights = {Kind(precision, False): max(total // PRIOR, 1) for precision in PRECISIONS}
        for kind, count in counts.items():
            weights[kind] = weights.get(kind, 0) + count
        kinds = sorted(weights)
        gain = np.asarray([self._gain(kind) for kind in kinds], np.int64).reshape(len(kinds), len(self._known))
        idle, everybody = int(supply.sum()), sum(weights.values())
        declared = min(around.precisions.tasks * ONE // max(around.mix.seen, 1), ONE) if around.mix.seen else ONE
        demand = np.asarray([idle * weights[kind] // everybody * declared // ONE for kind in kinds], np.int64)
        self._prices = prices(gain, demand, supply) if self._known else np.zeros(0, np.int64)

    def _supply(self) -> Ints:
        columns = self.around.snapshot.columns()
        held = np.where(columns.shut[:, None], 0, held_on(columns))
        by_code = np.bincount(columns.model.reshape(-1), held.reshape(-1), len(self._names)).astype(np.int64)
        place = {name: code for code, name in enumerate(self._names)}
        return np.asarray([by_code[place[name]] for name in self._known], np.int64)

    def _gain(self, kind: Kind) -> list[int]:
        speeds = self._speeds[kind.precision]
        if kind.required:
            table = self.around.table
            speeds = [
                speed if table.supports(name, kind.precision) else 0
                for name, speed in zip(self._known, speeds, strict=True)
            ]
        best = max(speeds, default=0)
        return [speed * ONE // best if best else 0 for speed in speeds]

    def _lost_by(self, kind: Kind) -> Ints:
        names = self.around.snapshot.model_names()
        worth = dict(zip(self._known, (np.asarray(self._gain(kind), np.int64) - self._prices).tolist(), strict=True))
        known = list(worth.values())
        average = sum(known) // len(known) if known else 0
        best = max(known, default=0)
        return np.asarray([best - worth.get(name, average) for name in names], np.int64)
