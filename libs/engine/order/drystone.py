"""Drystone's own order: little service first, few evictions that are worth it, nobody waits for ever.

Run times are never known. Four rules, each with a bound that holds on any workload:

- **Levels.** Who has had less service goes first, in a few levels, each a factor above the one before; first come,
  first served within one. Only a job two levels up yields: it has had at least `factor` times the service, and by the
  falling hazard of training jobs has about as much more to go.
- **Budgets.** Evictions of this kind never exceed `per_job` for each job that came, and stop when all evictions
  together have cost more than `lost` of the GPU time worked. A claim waits `patience`, so that room that comes free by
  itself is not taken by force; it is served by one victim, the smallest that will do, just after a checkpoint
  (`window`).
- **Overdue.** Who has waited `overdue` in all goes first from then on, by arrival, may evict anybody who is not
  overdue, and is not evicted. With demand above capacity nobody can promise that to all, and order of arrival is the
  worst for the mean: overdue jobs then have at most `reserve` / demand of the cluster, demand counted in clusters, and
  those with most service lose their place first.
- **Deserved shares.** A queue below its share goes first, and takes room back from those above theirs at any level.
  Queues above stand behind each other as the services order them (`fair.shares`), as finely as `fairness` says.
  A job that was evicted `most_evictions` times within `protection`, for whatever reason, yields to no share.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass

from libs.domain.queues import Queue, Quota
from libs.domain.resources import WHOLE
from libs.engine.fair.shares import WITHIN, Shares
from libs.engine.order.base import NEVER, Item, Order, Rank

HOUR = 3600.0
DAY = 24 * HOUR
STEPS = 12
#: Of those who would be overdue, so many are looked at for one that the room suffices for.
LOOKED_AT = 64


@dataclass(frozen=True, slots=True)
class Parameters:
    """Seconds, and shares. `base`: GPU seconds up to which a job counts as new. `checkpoint`: run between two
    checkpoints, as jobs declare it; a run shorter than that is not evicted. `fairness`: 0 to 100, see `fair.shares`."""

    base: float = 16 * HOUR
    factor: float = 4.0
    per_job: float = 0.3
    lost: float = 0.02
    patience: float = 600.0
    window: float = 120.0
    checkpoint: float = 1800.0
    overdue: float = 1.5 * DAY
    reserve: float = 2.0
    most_evictions: int = 3
    protection: float = DAY
    fairness: int = 0


class Drystone(Order):
    name = "drystone"
    evicts = True

    def __init__(
        self, gpus: float, parameters: Parameters | None = None, deserved: Mapping[str, float] | None = None
    ) -> None:
        """`gpus`: of the whole cluster; `deserved`: GPUs per tenant, for tenants that have a share."""
        self.gpus = gpus
        self.parameters = parameters or Parameters()
        self.deserved = dict(deserved or {})
        self.by_tenant = bool(self.deserved) or self.parameters.fairness > 0
        self.shares = Shares(self._milli_used, fairness=self.parameters.fairness)
        self.shares.total_seen((round(gpus * WHOLE), 0, 0))
        for tenant, share in self.deserved.items():
            self.shares.queue_seen(Queue(tenant, deserved=Quota(gpu_milli=round(share * WHOLE))))
        #: What `front` says of a tenant's requests, until what it uses changes.
        self._fronts: dict[str, dict[float, float]] = {}
        #: When each item was evicted of late.
        self._yielded: dict[int, list[float]] = {}
        self._begins = [self.parameters.base * self.parameters.factor**k for k in range(STEPS)]
        self._used: dict[str, float] = {}
        self._demand = 0.0
        self._evictions_left = 0.0
        self._loss_left = 0.0
        self._present: dict[int, Item] = {}
        self._overdue: set[int] = set()
        self._overdue_gpus = 0.0
        self._late: list[tuple[float, int]] = []  # (submitted, key) of those who would be overdue, were there room
        self._moved: list[int] = []

    def level(self, item: Item, now: float) -> int:
        return bisect_right(self._begins, item.service(now) * item.gpus)

    # -- who goes next ----------------------------------------------------------------------------------------------
    def front(self, item: Item, now: float) -> float:  # noqa: ARG002
        if not self.by_tenant:
            return 1.0 if item.key in self._overdue else 2.0
        known = self._fronts.setdefault(item.tenant, {})
        front = known.get(item.gpus)
        if front is None:
            standing = self.shares.standing(item.tenant, (round(item.gpus * WHOLE), 0, 0))
            front = 0.0 if standing.tier == WITHIN else 1.0 + standing.tier + standing.band
            known[item.gpus] = front
        return min(front, 1.0) if item.key in self._overdue else front

    def rank(self, item: Item, now: float) -> Rank:
        key = item.key
        if key not in self._overdue and item.waits(now) >= self.parameters.overdue - 1e-6:
            insort(self._late, (item.submitted, key))
            self._promote(asked=key)
        if key in self._overdue:
            return (-NEVER, item.submitted)
        return (-item.priority, self.level(item, now), item.submitted)

    def turns(self, item: Item, now: float) -> float:
        # The same tolerance as in `rank`: a turn that rounding puts at this very moment would come for ever.
        left = self.parameters.overdue - item.waits(now)
        return now + left if left > 1e-6 else NEVER

    def moved(self) -> list[int]:
        moved, self._moved = self._moved, []
        return moved

    def _milli_used(self, tenant: str) -> tuple[int, int, int]:
        return round(self._used.get(tenant, 0.0) * WHOLE), 0, 0

    def _entitled(self, item: Item) -> bool:
        share = self.deserved.get(item.tenant)
        return share is not None and self._used.get(item.tenant, 0.0) + item.gpus <= share

    # -- overdue ----------------------------------------------------------------------------------------------------
    def _room(self) -> float:
        return self.gpus * min(1.0, self.parameters.reserve * self.gpus / max(self._demand, 1.0))

    def _promote(self, asked: int = -1) -> None:
        """Late jobs become overdue while there is room for them, by arrival."""
        if not self._late:
            return
        room = self._room()
        still: list[tuple[float, int]] = []
        for submitted, key in self._late[:LOOKED_AT]:
            item = self._present.get(key)
            if item is None or key in self._overdue:
                continue
            if self._overdue_gpus + item.gpus > room:
                still.append((submitted, key))
                continue
            self._overdue.add(key)
            self._overdue_gpus += item.gpus
            if key != asked:
                self._moved.append(key)
        self._late[:LOOKED_AT] = still

    def _demote(self, now: float) -> None:
        """Demand grew, the room for overdue jobs shrank."""
        room = self._room()
        if self._overdue_gpus <= room:
            return
        overdue = sorted((self._present[key] for key in self._overdue), key=lambda i: (-i.service(now) * i.gpus, i.key))
        for item in overdue:
            if self._overdue_gpus <= room:
                return
            self._overdue.discard(item.key)
            self._overdue_gpus -= item.gpus
            if item.running:
                insort(self._late, (item.submitted, item.key))
            else:
                self._moved.append(item.key)  # its new rank puts it among the late

    # -- who must yield ---------------------------------------------------------------------------------------------
    def claims_from(self, item: Item, now: float) -> float:
        if item.key in self._overdue or self._entitled(item):
            return now
        if self._evictions_left < 1 or self._loss_left < 0:
            return NEVER
        return item.since + self.parameters.patience

    def most(self, item: Item, now: float) -> float:  # noqa: ARG002
        return NEVER if item.key in self._overdue or self._entitled(item) else 1

    def offers(self, victim: Item, now: float) -> bool:
        return now - victim.begins >= self.parameters.checkpoint

    def fresh(self, victim: Item, now: float) -> bool:
        return (now - victim.begins) % self.parameters.checkpoint <= self.parameters.window

    def needs_fresh(self, item: Item, now: float) -> bool:
        waited = now - item.since
        late = item.key in self._overdue and waited >= self.parameters.checkpoint
        return not (late or (waited >= self.parameters.patience and self._entitled(item)))

    def _protected_until(self, victim: Item, now: float) -> float:
        times = self._yielded.get(victim.key, ())
        most = self.parameters.most_evictions
        if len(times) < most:
            return now
        return times[-most] + self.parameters.protection if most else NEVER

    def yields(self, victim: Item, to: Item, now: float) -> bool:
        fresh = self.fresh(victim, now)
        if self._reclaims(to, victim) and self._protected_until(victim, now) <= now:
            return fresh or now - to.since >= self.parameters.patience
        if victim.key in self._overdue or victim.priority > to.priority:
            return False
        if to.key in self._overdue:
            return fresh or now - to.since >= self.parameters.checkpoint
        return fresh and (victim.priority < to.priority or self.level(victim, now) > self.level(to, now) + 1)

    def _reclaims(self, to: Item, victim: Item) -> bool:
        return self._entitled(to) and self._above(victim)

    def _above(self, victim: Item) -> bool:
        return self._used.get(victim.tenant, 0.0) > self.deserved.get(victim.tenant, 0.0)

    def price(self, victim: Item, lost: float, now: float) -> float:  # noqa: ARG002
        """GPUs; among as many, the one with most service."""
        return victim.gpus - 0.01 * self.level(victim, now)

    def ripens(self, victim: Item, to: Item, now: float) -> float:
        every = self.parameters.checkpoint
        run = now - victim.begins
        if run < every:
            return victim.begins + every
        saves = victim.begins + (run // every + 1) * every
        if self._reclaims(to, victim):
            return max(saves, self._protected_until(victim, now))
        if victim.key in self._overdue or victim.priority > to.priority:
            return NEVER
        level = self.level(to, now) + 1
        if to.key in self._overdue or victim.priority < to.priority or self.level(victim, now) > level:
            return saves
        return now + self._begins[level] / victim.gpus - victim.service(now) if level < STEPS else NEVER

    # -- what happened ----------------------------------------------------------------------------------------------
    def arrived(self, item: Item, now: float) -> None:
        self._present[item.key] = item
        self._demand += item.gpus
        self._evictions_left += self.parameters.per_job
        self._demote(now)

    def started(self, item: Item, now: float) -> None:  # noqa: ARG002
        self._used[item.tenant] = self._used.get(item.tenant, 0.0) + item.gpus
        self._fronts.pop(item.tenant, None)

    def ended(self, item: Item, now: float) -> None:  # noqa: ARG002
        del self._present[item.key]
        self._yielded.pop(item.key, None)
        self._demand -= item.gpus
        self._used[item.tenant] -= item.gpus
        self._fronts.pop(item.tenant, None)
        self._loss_left += self.parameters.lost * item.attained * item.gpus
        if item.key in self._overdue:
            self._overdue.discard(item.key)
            self._overdue_gpus -= item.gpus
        self._promote()

    def evicted(self, item: Item, lost: float, now: float) -> None:
        self._yielded.setdefault(item.key, []).append(now)
        self._used[item.tenant] -= item.gpus
        self._fronts.pop(item.tenant, None)
        self._evictions_left -= 1
        self._loss_left -= lost
