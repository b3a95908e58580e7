"""The services' loop with kept room lent meanwhile, as placement does it.

Room that gathers for a job goes to others that yield to it when it lacks no other: here all jobs save their work, every
so many seconds, and say so. They are evicted by the engine's rule `lent`, and the job starts at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from libs.domain.resources import Charge
from libs.engine.api import PendingJob, Reserved
from libs.engine.fair import Line
from libs.engine.loans import Loans
from libs.engine.order.base import Item, Order
from libs.sim.queue.cluster import WHOLE, Cluster
from libs.sim.queue.loop import Costs, Lane
from libs.sim.queue.services import ServicesLoop
from libs.sim.queue.trace import TraceJob

#: Who started before room was kept is no borrower, though it was at the same moment.
_AFTER_S: Final = 1e-3


class LendingLoop(ServicesLoop):
    def __init__(
        self, cluster: Cluster, order: Order, costs: Costs, jobs: Sequence[TraceJob], deserved: Mapping[str, float]
    ) -> None:
        super().__init__(cluster, order, costs, jobs, deserved)
        #: By tenant; and when the job was to start.
        self._loans: dict[str, Loans] = {}
        self._until: dict[int, float] = {}

    def _job(self, item: Item) -> PendingJob:
        job = super()._job(item)
        lent = self._loans.get(item.tenant)
        if lent is not None:
            job = msgspec.structs.replace(job, lent=lent)
        kept = self._kept.get(item.tenant)
        if kept is None or kept.key != item.key:
            return job
        return msgspec.structs.replace(job, kept=self._charges(kept.charges), kept_until=self._until.get(item.key, 0.0))

    def _charges(self, charges: Mapping[int, Sequence[Charge]]) -> tuple[tuple[str, Charge], ...]:
        return tuple((self._names[at], charge) for at, of_node in charges.items() for charge in of_node)

    def _reserve(self, item: Item, reserved: Reserved) -> None:
        super()._reserve(item, reserved)
        since = self._clock + _AFTER_S
        charges = self._charges(self._kept[item.tenant].charges)
        self._loans.setdefault(item.tenant, Loans()).keep(charges, since)
        self._until[item.key] = reserved.start.low

    def _release(self, tenant: str) -> None:
        if tenant in self._kept:
            self._loans[tenant].end(self._clock)
        super()._release(tenant)

    # -- who borrows --------------------------------------------------------------------------------------------------
    def _offer(self, line: Line[int], standing: dict[int, Lane], lane: Lane) -> None:
        item = lane.head()
        if item is not None and self._gathers(item):
            self._vain.pop(self._kind(item), None)
        super()._offer(line, standing, lane)

    def _could_fit(self, item: Item) -> bool:
        return super()._could_fit(item) or (self._lenders(item) != () and self._has_room(item))

    def _could_evict(self, item: Item) -> bool:
        return super()._could_evict(item) or self._gathers(item)

    def _decide(self, item: Item) -> bool:
        if super()._decide(item):
            return True
        lenders = self._lenders(item)
        job = self._job(item)
        if not lenders or not self._has_room(item) or self._engine.borrows(job, self._clock) is None:
            return False
        placements = self._engine.backfill(job, lenders, self._clock)
        self._engine.settle()
        if not placements:
            return False
        self._begin(item, placements)
        return True

    def _gathers(self, item: Item) -> bool:
        kept = self._kept.get(item.tenant)
        return kept is not None and kept.key == item.key

    def _has_room(self, item: Item) -> bool:
        """By a count of GPUs that nobody uses. A share of a GPU is not worth an eviction."""
        milli = self.jobs[item.key].milli
        return WHOLE <= milli <= self.cluster.width * WHOLE and max(self.cluster.free) >= milli // WHOLE

    def _lenders(self, item: Item) -> tuple[str, ...]:
        """Jobs whose room is not complete yet."""
        found = []
        for tenant, kept in self._kept.items():
            if kept.key != item.key and sum(self._kept_milli.get(tenant, {}).values()) < _milli(kept.charges):
                found.append(self._head(self._items[kept.key]).key)
        return tuple(found)


def _milli(charges: Mapping[int, Sequence[Charge]]) -> int:
    return sum(charge.gpu_milli for of_node in charges.values() for charge in of_node)
