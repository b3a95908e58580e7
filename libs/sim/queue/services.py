"""The queue simulator with the services' own engine in the loop: their line, their shares, their evictions.

Who goes next is `fair.Line` over the queues, who fits, who yields and where room is kept is `PlacementEngine`, with the
services' defaults; here is only what the ledger, the watcher and the binder do around it, in virtual time and without
delay: victims leave and beneficiaries start at once. A tenant is a queue; a fence is what it deserves. Run times are
never declared, so that nobody is lent kept room, and ends are predicted from earlier runs of the same queue and size.

Not played: consolidation (jobs here have no other place to go), several replicas, refusals by the ledger, and the rule
that bounds evaluations of hopeless jobs. Who cannot fit by a count of free GPUs, and may evict nobody, is not put to
the engine: its answer is known. Who found nobody to yield asks for evictions again after a minute.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from libs.domain.jobs import JobHead, Task
from libs.domain.nodes import Gpu, Node
from libs.domain.queues import Queue, Quota
from libs.domain.resources import Charge, GpuRequest, Request
from libs.domain.usage import NodeUse, QueueUse
from libs.engine.api import EngineConfig, PendingJob, Placement, Reserved, RunningTask
from libs.engine.core import PlacementEngine
from libs.engine.fair import Line
from libs.engine.fair.shares import WITHIN
from libs.engine.order.base import NEVER, Item, Order, Rank
from libs.engine.order.services import Services
from libs.engine.reserve import lasts
from libs.sim.queue.accounts import Account
from libs.sim.queue.cluster import WHOLE, Cluster, Parts
from libs.sim.queue.loop import LOOK, Costs, Lane, QueueLoop
from libs.sim.queue.trace import TraceJob
from libs.sim.queue.victims import Run
from libs.sim.world import DEVICE_MIB, PODS

#: Times of the engine: 0 would be unknown.
EPOCH: Final = 1_000_000_000.0
#: Defaults of the services' settings.
FAIRNESS: Final = 100
HISTORY: Final = 50
OVERDUE_S: Final = 129_600.0
AFTER_S: Final = 60.0
TURN_S: Final = 600.0
#: A head that got no room kept is looked at again no sooner.
AGAIN_S: Final = 10.0
#: The same where those in the way yield once it has waited too long.
YIELDING_AGAIN_S: Final = 60.0
#: Histories are told this often, and at once with an eviction.
TOLD_S: Final = 10.0
#: After a turn it is past, whatever rounding makes of sums.
_SLACK_S: Final = 1e-3
_HEADS: Final = 16


@dataclass(slots=True)
class _Kept:
    """Room kept for a job, by node number, until a time of the loop."""

    key: int
    until: float
    charges: dict[int, list[Charge]]


class ServicesLoop(QueueLoop):
    """`deserved`: GPUs by tenant."""

    def __init__(
        self, cluster: Cluster, order: Order, costs: Costs, jobs: Sequence[TraceJob], deserved: Mapping[str, float]
    ) -> None:
        super().__init__(cluster, order, costs, jobs)
        self._little = order.little if isinstance(order, Services) else None
        policy = "spread" if cluster.spreads else "drystone"
        self._engine = PlacementEngine(
            EngineConfig(
                {policy: 1},
                explain=False,
                fairness=FAIRNESS,
                history=HISTORY,
                overdue_s=self._little.overdue_s if self._little is not None else OVERDUE_S,
                little=self._little,
            )
        )
        gpus = tuple(Gpu(i, DEVICE_MIB, "") for i in range(cluster.width))
        self._names = [f"n{at:06d}" for at in range(cluster.size)]
        self._rows = {name: at for at, name in enumerate(self._names)}
        for name in self._names:
            self._engine.node_seen(Node(name, name, "1", "1", 10**6, 10**6, PODS, gpus))
        for tenant, share in deserved.items():
            self._engine.queue_seen(Queue(tenant, deserved=Quota(gpu_milli=round(share * WHOLE))))
        self._held: list[dict[str, Charge]] = [{} for _ in self._names]
        self._revisions = [0] * cluster.size
        self._pods: dict[int, list[tuple[str, int]]] = {}  # uid and node number
        self._accounts: dict[str, Account] = {}
        self._kept: dict[str, _Kept] = {}  # by tenant
        self._kept_milli: dict[str, dict[int, int]] = {}  # by tenant, what of it is free, by node
        self._turns_had: dict[int, int] = {}
        self._cooling: set[int] = set()
        self._again: dict[str, tuple[int, float]] = {}
        self._waiting_milli = 0
        self._priorities: dict[int, int] = {}  # of what runs
        self._vain: dict[tuple[str, int, int], float] = {}  # until when a kind does not ask for evictions again
        for name in self._names:
            self._tell_node(self._rows[name])

    @property
    def _clock(self) -> float:
        return EPOCH + self.now

    # -- moves --------------------------------------------------------------------------------------------------------
    def _kind(self, item: Item) -> tuple[str, int, int]:
        return item.tenant, self.jobs[item.key].milli, item.priority

    def _arrive(self, key: int) -> Lane:
        job = self.jobs[key]
        account = self._accounts.setdefault(job.tenant, Account(EPOCH))
        account.shift(0, self._clock)
        account.jobs += 1
        self._waiting_milli += job.milli
        return super()._arrive(key)

    def _rank(self, item: Item) -> Rank:
        return self._engine.place(self._job(item).head, self._clock, item.gpus)[:3]

    def _turn_of(self, item: Item) -> float:
        left = self._engine.turns(self._job(item).head, self._clock)
        return self.now + left + _SLACK_S if left > 0 else NEVER

    def _moved(self) -> list[int]:
        if self._little is None:
            return []
        moved = self._engine.line_seen(self._waiting_milli / WHOLE, self._waits, self._clock)
        return sorted(key for name in moved if not self._items[key := _key(name)].running)

    def _waits(self, name: str) -> bool:
        key = _key(name)
        return not self._items[key].running and math.isnan(self.history.outcomes[key].end)

    def _ends_due(self) -> int:
        if self._ends and self._ends[0][0] <= self.now:
            self._engine.decide([], self._clock)  # run times end now
        return super()._ends_due()

    def _leave(self, key: int) -> Run:
        run = super()._leave(key)
        item = run.item
        for uid, at in self._pods.pop(key):
            self._engine.pod_gone(uid)
            del self._held[at][uid]
            self._tell_node(at)
        self._priorities[item.priority] -= 1
        self._use(item.tenant, -run.milli)
        return run

    def _end(self, key: int) -> None:
        super()._end(key)
        self._cooling.discard(key)
        self._turns_had.pop(key, None)
        self._accounts[self._items[key].tenant].served.pop(self._job(self._items[key]).head.key, None)
        tenant = self._items[key].tenant
        self._vain = {kind: until for kind, until in self._vain.items() if kind[0] != tenant}  # it uses less

    def _begin(self, item: Item, placements: Sequence[Placement]) -> None:
        job = self._job(item)
        self._cooling.discard(item.key)
        kept = self._kept.get(item.tenant)
        if kept is not None and kept.key == item.key:
            self._release(item.tenant)
        pods = self._pods[item.key] = []
        for placement in placements:
            at = self._rows[placement.node]
            uid = placement.task.id
            self._held[at][uid] = placement.charge
            pods.append((uid, at))
            self._engine.pod_seen(
                RunningTask(
                    uid, uid, item.tenant, placement.node, job.head.key, item.tenant, item.priority, placement.charge,
                    True, gang_min=job.head.gang_min, started=self._clock, checkpoint_s=round(self.costs.checkpoint),
                )
            )  # fmt: skip
            self._tell_node(at)
        milli = self.jobs[item.key].milli
        self._waiting_milli -= milli
        self._vain = {kind: until for kind, until in self._vain.items() if kind[2] <= item.priority}  # it may yield
        self._priorities[item.priority] = self._priorities.get(item.priority, 0) + 1
        self._use(item.tenant, milli)
        self._start(item, Run(item, _parts(placements, self._rows), milli))

    def _job(self, item: Item) -> PendingJob:
        milli = self.jobs[item.key].milli
        width = self.cluster.width
        if milli < WHOLE:
            asks = [GpuRequest(1, milli)]
        else:
            nodes, rest = divmod(milli // WHOLE, width)
            asks = [GpuRequest(width)] * nodes + ([GpuRequest(rest)] if rest else [])
        many = len(asks)
        name = f"{item.key:09d}"
        head = JobHead(
            f"{'gang' if many > 1 else 'pod'}/{item.tenant}/{name}", item.tenant, item.tenant, item.tenant,
            priority=item.priority, gang_min=many, declared=many, created=EPOCH + item.submitted,
        )  # fmt: skip
        tasks = tuple(
            Task(f"{name}.{n}.{item.evictions}", name, item.tenant, "1", index=n, request=Request(gpu=ask))
            for n, ask in enumerate(asks)
        )
        return PendingJob(head, tasks)

    # -- what the engine is told --------------------------------------------------------------------------------------
    def _tell_node(self, at: int) -> None:
        gpus = [[0, 0] for _ in range(self.cluster.width)]
        for charge in self._held[at].values():
            for grant in charge.gpus:
                gpus[grant.index][0] += grant.milli
                gpus[grant.index][1] += grant.mib
        earmarked: dict[str, tuple[Charge, ...]] = {}
        for tenant, kept in self._kept.items():
            free: list[Charge] = []
            for charge in kept.charges.get(at, ()):
                grants = tuple(g for g in charge.gpus if gpus[g.index][0] + g.milli <= WHOLE)
                for grant in grants:
                    gpus[grant.index][0] += grant.milli
                    gpus[grant.index][1] += grant.mib
                if grants:
                    free.append(Charge(gpus=grants))
            if at in kept.charges:
                self._kept_milli.setdefault(tenant, {})[at] = sum(charge.gpu_milli for charge in free)
                self._use(tenant, 0)
            if free:
                earmarked[self._job(self._items[kept.key]).head.key] = tuple(free)
        self._revisions[at] += 1
        used = tuple((milli, mib) for milli, mib in gpus)
        pods = len(self._held[at])
        self._engine.use_seen(NodeUse(self._names[at], self._revisions[at], pods=pods, gpus=used, earmarked=earmarked))

    def _use(self, tenant: str, milli: int) -> None:
        account = self._accounts.setdefault(tenant, Account(EPOCH))
        account.shift(milli, self._clock)
        account.revision += 1
        used = account.milli + sum(self._kept_milli.get(tenant, {}).values())
        self._engine.queue_use_seen(QueueUse(tenant, account.revision, used))

    def _tell_histories(self) -> None:
        if self._engine.shares.silent and self._little is None:
            return
        for tenant, account in self._accounts.items():
            if account.told + TOLD_S <= self._clock:
                self._tell_history(tenant, account)

    def _tell_history(self, tenant: str, account: Account) -> None:
        self._engine.queue_history_seen(account.history(tenant, self._clock))

    def _record(self, run: Run) -> None:
        """What the watcher's leader writes down of an eviction."""
        item = run.item
        uids = [uid for uid, _ in self._pods[item.key]]
        self._accounts[item.tenant].evict(
            self._job(item).head.key, uids, run.milli, self.now - item.since, self._loss(item)[0], self._clock
        )

    # -- decisions ----------------------------------------------------------------------------------------------------
    def _fill(self, lanes: Iterable[Lane]) -> None:
        self._engine.decide([], self._clock)
        if any(kept.until <= self.now for kept in self._kept.values()):
            self._lapse()
            lanes = self._lanes.values()
        self._tell_histories()
        line: Line[int] = Line(self._engine.shares)
        standing: dict[int, Lane] = {}
        for lane in lanes:
            self._offer(line, standing, lane)
        while (entry := line.next()) is not None:
            lane = standing.pop(entry.key)
            before, item = self._waiting, self._items[entry.key]
            if not self._decide(item):
                continue
            # Somebody yielded and waits again, or this one may yield.
            if self._waiting >= before or any(priority > item.priority for _, _, priority in self._lanes):
                for other in self._lanes.values():
                    self._offer(line, standing, other)
            else:
                self._offer(line, standing, lane)
            line.touched(self._accounts)
        self._keep_room()

    def _offer(self, line: Line[int], standing: dict[int, Lane], lane: Lane) -> None:
        item = lane.head()
        if item is None or item.key in line:
            return
        vain = self._vain.get(self._kind(item), 0.0) > self.now
        if not self._could_fit(item) and (vain or not self._could_evict(item)):
            return
        standing[item.key] = lane
        line.put(item.key, item.tenant, (*item.rank, item.key), (lane.milli, 0, 0))

    def _could_fit(self, item: Item) -> bool:
        """What no engine could find room for, beside what is kept for others, is not asked for."""
        cluster = self.cluster
        free = cluster.free
        others = [kept for tenant, kept in self._kept_milli.items() if self._kept[tenant].key != item.key]
        if others:
            free = list(free)
            for kept in others:
                for at, milli in kept.items():
                    free[at] -= milli // WHOLE
        asked = self.jobs[item.key].milli
        if asked < WHOLE and any(idle >= asked for idle in cluster.shared.values()):
            return True
        gpus = max(1, asked // WHOLE)
        if gpus <= cluster.width:
            return max(free) >= gpus
        return sum(free) >= gpus and sum(idle == cluster.width for idle in free) >= gpus // cluster.width

    def _could_evict(self, item: Item) -> bool:
        if self._little is not None:
            claims = item.since + self._little.patience_s
            if self.now >= claims:
                return True
            self._look = min(self._look, claims)
        if any(running and priority < item.priority for priority, running in self._priorities.items()):
            return True
        shares = self._engine.shares
        ask = (self.jobs[item.key].milli, 0, 0)
        return not shares.silent and shares.standing(item.tenant, ask).tier == WITHIN

    def _decide(self, item: Item) -> bool:
        """Whether it starts."""
        decision = self._engine.decide([self._job(item)], self._clock)[0]
        if not decision.placements:
            self._engine.settle()
            if not self._could_fit(item):
                until = decision.verdict.until - EPOCH
                until = self._vain[self._kind(item)] = until if until > self.now else self.now + LOOK
                self._look = min(self._look, until)
            return False
        for key in sorted({int(victim.uid.partition(".")[0]) for victim in decision.victims}):
            run = self.runs[key]
            self._record(run)
            self._evict(run)
            self._waiting_milli += run.milli
            self._tell_history(run.item.tenant, self._accounts[run.item.tenant])
        self._engine.settle()
        self._begin(item, decision.placements)
        return True

    # -- room that is kept --------------------------------------------------------------------------------------------
    def _keep_room(self) -> None:
        heads: dict[str, list[Item]] = {}
        for (tenant, _, _), lane in self._lanes.items():
            if lane.head() is not None:
                valid = (item for rank, _, item in lane.heap if item.rank is rank)
                heads.setdefault(tenant, []).extend(nsmallest(_HEADS, valid, key=_place))
        for tenant, items in heads.items():
            item = self._turn(tenant, sorted(items, key=_place)[:_HEADS])
            if item is None:
                continue
            due = item.submitted + AFTER_S
            key, again = self._again.get(tenant, (-1, 0.0))
            if key == item.key:
                due = max(due, again)
            if due > self.now:
                self._look = min(self._look, due)
                continue
            job = self._job(item)
            milli = self.jobs[item.key].milli
            reserved = None
            if self._engine.shares.entitled(tenant, (milli, 0, 0)):
                reserved = self._engine.reserve(job, self._clock)
                self._engine.settle()
            if reserved is None:
                self._again[tenant] = item.key, self.now + AGAIN_S
            elif reserved.yielding and item.rank[0]:
                self._again[tenant] = item.key, self.now + YIELDING_AGAIN_S
            else:
                self._reserve(item, reserved)
        for kept in self._kept.values():
            self._look = min(self._look, max(kept.until, self.now + 1e-3))

    def _turn(self, tenant: str, items: Sequence[Item]) -> Item | None:
        """The first of the queue that had no turn of late, else the first; nobody while a better one has room kept."""
        kept = self._kept.get(tenant)
        holder = self._items[kept.key] if kept is not None else None
        for item in items:
            if holder is not None and _place(holder) <= _place(item):
                return None
            if item.key not in self._cooling:
                return item
        return items[0]

    def _reserve(self, item: Item, reserved: Reserved) -> None:
        self._release(item.tenant)
        seconds = lasts(reserved.start, self._clock, TURN_S, self._turns_had.get(item.key, 0))
        charges: dict[int, list[Charge]] = {}
        for placement in reserved.placements:
            charges.setdefault(self._rows[placement.node], []).append(placement.charge)
        self._kept[item.tenant] = _Kept(item.key, self.now + seconds, charges)
        for at in charges:
            self._tell_node(at)

    def _release(self, tenant: str) -> None:
        kept = self._kept.pop(tenant, None)
        if kept is not None:
            self._kept_milli.pop(tenant, None)
            for at in kept.charges:
                self._tell_node(at)
            self._use(tenant, 0)

    def _lapse(self) -> None:
        for tenant, kept in list(self._kept.items()):
            if kept.until <= self.now:
                self._turns_had[kept.key] = self._turns_had.get(kept.key, 0) + 1
                self._release(tenant)
                self._cooling -= {key for key in self._cooling if self._items[key].tenant == tenant}
                self._cooling.add(kept.key)


def _key(name: str) -> int:
    """Of the job that the engine knows by this name."""
    return int(name.rpartition("/")[2])


def _place(item: Item) -> tuple[object, ...]:
    return (*item.rank, item.key)


def _parts(placements: Sequence[Placement], rows: Mapping[str, int]) -> Parts:
    """The same in the terms of the lean cluster."""
    parts: list[tuple[int, ...]] = []
    for placement in placements:
        at = rows[placement.node]
        grants = placement.charge.gpus
        if grants[0].milli < WHOLE:
            parts.append((at, 0, grants[0].index, grants[0].milli))
        else:
            parts.append((at, len(grants)))
    return tuple(parts)
