"""Drystone's own order: little service first, few evictions that are worth it, nobody waits for ever.

Run times are never known. The rules are the services' (`fair.little`, `fair.budget`, `fair.shares`); here they are
played on the simulator's lean cluster, without an engine. Each has a bound that holds on any workload:

- **Levels.** Who has had less service goes first, in a few levels; first come, first served within one. Only a job two
  levels up yields.
- **Budgets.** Evictions of this kind, and for the overdue, never exceed `per_job` for each job that came, and stop when
  all evictions together have cost more than `lost` of the GPU time worked. A claim waits `patience`, and until those
  who wait for as many GPUs and have had no more have waited for `together` in all, so that room that comes free by
  itself is not taken by force and an eviction serves many; it is served by one victim, the smallest that will do, just
  after a checkpoint (`window`).
- **Overdue.** Who has waited `overdue` in all goes first from then on, by arrival, may evict anybody who is not
  overdue, within the same budget, and is not evicted. With demand above capacity nobody can promise that to all, and
  order of arrival is the worst for the mean: overdue jobs then have at most `reserve` / demand of the cluster, demand
  counted in clusters, and those with most service lose their place first.
- **Deserved shares.** A queue below its share goes first, and takes room back from those above theirs at any level.
  Queues above stand behind each other as the services order them (`fair.shares`), as finely as `fairness` says.
  A job that was evicted `most_evictions` times within `protection`, for whatever reason, yields to no share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from libs.domain.queues import Queue, Quota
from libs.domain.resources import WHOLE
from libs.engine.fair.budget import HALF_LIFE_S, Budget
from libs.engine.fair.little import HOUR, LEVELS, STEPS, LittleService
from libs.engine.fair.overdue import Overdue
from libs.engine.fair.shares import WITHIN, Shares
from libs.engine.fair.together import Together
from libs.engine.order.base import NEVER, Item, Order, Rank

DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class Parameters:
    """Seconds, and shares. `base`: GPU seconds up to which a job counts as new. `checkpoint`: run between two
    checkpoints, as jobs declare it; a run shorter than that is not evicted. `fairness`: 0 to 100, see `fair.shares`."""

    base: float = 16 * HOUR
    factor: float = 4.0
    per_job: float = 0.3
    lost: float = 0.02
    patience: float = 600.0
    together: float = 7200.0
    window: float = 120.0
    checkpoint: float = 1800.0
    overdue: float = 1.5 * DAY
    reserve: float = 2.0
    most_evictions: int = 3
    protection: float = DAY
    fairness: int = 0
    half_life: float = HALF_LIFE_S

    @property
    def rules(self) -> LittleService:
        return LittleService(
            self.base, self.factor, self.patience, self.window, self.overdue, self.reserve, together_s=self.together
        )


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
        self._rules = self.parameters.rules
        self._budget = Budget(self.parameters.per_job, self.parameters.lost, self.parameters.half_life)
        self._used: dict[str, float] = {}
        self._demand = 0.0
        self._present: dict[int, Item] = {}
        self._overdue = Overdue()
        self._together = Together()
        self._moved: list[int] = []

    def level(self, item: Item, now: float) -> int:
        return self._rules.level(item.service(now) * item.gpus)

    # -- who goes next ----------------------------------------------------------------------------------------------
    def front(self, item: Item, now: float) -> float:  # noqa: ARG002
        if not self.by_tenant:
            return 1.0 if _name(item) in self._overdue else 2.0
        known = self._fronts.setdefault(item.tenant, {})
        front = known.get(item.gpus)
        if front is None:
            standing = self.shares.standing(item.tenant, (round(item.gpus * WHOLE), 0, 0))
            front = 0.0 if standing.tier == WITHIN else 1.0 + standing.tier + standing.band
            known[item.gpus] = front
        return min(front, 1.0) if _name(item) in self._overdue else front

    def rank(self, item: Item, now: float) -> Rank:
        key = _name(item)
        if not self._overdue.knows(key) and item.waits(now) >= self.parameters.overdue - 1e-6:
            self._overdue.late(key, item.submitted, item.gpus)
            self._review(now, asked=item.key)
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
    def _review(self, now: float, asked: int = -1) -> None:
        """Who of the late is overdue, as things stand."""
        room = self._rules.share_of_overdue(self.gpus, self._demand)

        def had(key: str) -> float:
            item = self._present[int(key)]
            return item.service(now) * item.gpus

        for key in sorted(map(int, self._overdue.review(room, had))):
            if key != asked and not self._present[key].running:
                self._moved.append(key)

    # -- who must yield ---------------------------------------------------------------------------------------------
    def claims_from(self, item: Item, now: float) -> float:
        if self._entitled(item):
            return now
        if not self._budget.open(now):
            return NEVER
        if _name(item) in self._overdue:
            return now
        together = self._together.reach(item.gpus, self._standing(item, now), self.parameters.together)
        return self._rules.claims(item.since, together)

    def most(self, item: Item, now: float) -> float:
        if self._entitled(item):
            return NEVER
        return self._budget.left(now) if _name(item) in self._overdue else 1

    def _standing(self, item: Item, now: float) -> int:
        return self.level(item, now) - item.priority * LEVELS

    def _waits(self, item: Item, now: float) -> None:
        self._together.waits(_name(item), item.gpus, self._standing(item, now), item.since)

    def offers(self, victim: Item, now: float) -> bool:
        return now - victim.begins >= self.parameters.checkpoint

    def fresh(self, victim: Item, now: float) -> bool:
        return self._rules.fresh(now - victim.begins, self.parameters.checkpoint)

    def needs_fresh(self, item: Item, now: float) -> bool:
        waited = now - item.since
        late = _name(item) in self._overdue and waited >= self.parameters.checkpoint
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
        if _name(victim) in self._overdue or victim.priority > to.priority:
            return False
        if _name(to) in self._overdue:
            # One that is below its share as well claims that without asking for the budget.
            return self._budget.open(now) and (fresh or now - to.since >= self.parameters.checkpoint)
        return fresh and (
            victim.priority < to.priority or self._rules.yields(self.level(victim, now), self.level(to, now))
        )

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
        saves = now + self._rules.saves(run, every)
        if self._reclaims(to, victim):
            return max(saves, self._protected_until(victim, now))
        if _name(victim) in self._overdue or victim.priority > to.priority:
            return NEVER
        level = self.level(to, now)
        if (
            _name(to) in self._overdue
            or victim.priority < to.priority
            or self._rules.yields(self.level(victim, now), level)
        ):
            return saves
        return now + self._rules.reaches(level + 2) / victim.gpus - victim.service(now) if level + 2 <= STEPS else NEVER

    # -- what happened ----------------------------------------------------------------------------------------------
    def arrived(self, item: Item, now: float) -> None:
        self._present[item.key] = item
        self._demand += item.gpus
        self._budget.came(now)
        self._waits(item, now)
        self._review(now)

    def started(self, item: Item, now: float) -> None:  # noqa: ARG002
        self._together.left(_name(item))
        self._used[item.tenant] = self._used.get(item.tenant, 0.0) + item.gpus
        self._fronts.pop(item.tenant, None)

    def ended(self, item: Item, now: float) -> None:
        del self._present[item.key]
        self._yielded.pop(item.key, None)
        self._demand -= item.gpus
        self._used[item.tenant] -= item.gpus
        self._fronts.pop(item.tenant, None)
        self._budget.worked(item.attained * item.gpus, now)
        self._overdue.left(_name(item))
        self._review(now)

    def evicted(self, item: Item, lost: float, now: float) -> None:
        self._yielded.setdefault(item.key, []).append(now)
        self._used[item.tenant] -= item.gpus
        self._fronts.pop(item.tenant, None)
        self._budget.evicted(lost, now)
        self._waits(item, now)


def _name(item: Item) -> str:
    return f"{item.key:09d}"
