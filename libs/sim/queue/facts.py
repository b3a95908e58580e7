"""What the services' engine is told in the queue simulator, as things happen: pods, rooms, queues, what was used.

In place of ledger, watcher and binder, in virtual time and without delay: victims leave and beneficiaries start at
once. A tenant is a queue; a fence is what it deserves. Run times are never declared, and all jobs save their work.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from libs.domain.jobs import JobHead, Task, Wishes
from libs.domain.nodes import Gpu, Node
from libs.domain.queues import Queue, Quota
from libs.domain.resources import Charge, GpuRequest, Request
from libs.domain.usage import NodeUse, QueueUse
from libs.engine.api import EngineConfig, PendingJob, Placement, RunningTask
from libs.engine.core import PlacementEngine
from libs.engine.fair.budget import Budget
from libs.engine.order.base import NEVER, Item, Order, Rank
from libs.engine.order.services import Services
from libs.sim.queue.accounts import Account
from libs.sim.queue.cluster import WHOLE, Cluster, Parts
from libs.sim.queue.loop import Costs, Lane, QueueLoop
from libs.sim.queue.trace import TraceJob
from libs.sim.queue.victims import Run
from libs.sim.world import DEVICE_MIB, PODS

#: Times of the engine: 0 would be unknown.
EPOCH: Final = 1_000_000_000.0
#: Defaults of the services' settings.
FAIRNESS: Final = 100
HISTORY: Final = 50
OVERDUE_S: Final = 129_600.0
MOVES_AFTER_S: Final = 600.0
#: Histories are told this often, and at once with an eviction.
TOLD_S: Final = 10.0
#: After a turn it is past, whatever rounding makes of sums.
_SLACK_S: Final = 1e-3


@dataclass(slots=True)
class Kept:
    """Room kept for a job, by node number, until a time of the loop."""

    key: int
    until: float
    charges: dict[int, list[Charge]]


class EngineLoop(QueueLoop):
    """Everything but decisions. `deserved`: GPUs by tenant."""

    def __init__(
        self, cluster: Cluster, order: Order, costs: Costs, jobs: Sequence[TraceJob], deserved: Mapping[str, float]
    ) -> None:
        super().__init__(cluster, order, costs, jobs)
        self._little = order.little if isinstance(order, Services) else None
        self._moves = order.moves if isinstance(order, Services) else False
        policy = "spread" if cluster.spreads else "drystone"
        self._engine = PlacementEngine(
            EngineConfig(
                {policy: 1},
                explain=False,
                fairness=FAIRNESS,
                history=HISTORY,
                overdue_s=self._little.overdue_s if self._little is not None else OVERDUE_S,
                little=self._little,
                consolidate=self._moves,
                consolidate_after_s=MOVES_AFTER_S,
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
        self._pods: dict[int, list[tuple[RunningTask, int]]] = {}  # with the node number
        self._accounts: dict[str, Account] = {}
        #: What is left to spend, by what is held since when.
        little = self._little
        self._budget = Budget(little.evictions_per_job, little.lost, at=EPOCH) if little is not None else None
        self._holding = 0  # milli GPUs
        self._worked = EPOCH
        self._kept: dict[str, Kept] = {}  # by tenant
        self._kept_milli: dict[str, dict[int, int]] = {}  # by tenant, what of it is free, by node
        self._turns_had: dict[int, int] = {}
        self._cooling: set[int] = set()
        self._again: dict[str, tuple[int, float]] = {}
        self._waiting_milli = 0
        self._priorities: dict[int, int] = {}  # of what runs
        self._vain: dict[tuple[str, int, int], float] = {}  # until when a kind does not ask for evictions again
        self._unmoved: dict[tuple[str, int, int], float] = {}  # and not for moves
        self._known: dict[int, tuple[int, PendingJob]] = {}  # with the evictions that its tasks are named by
        #: Who began again and has not said yet that its work is saved: (when it will, key, evictions).
        self._restored: list[tuple[float, int, int]] = []
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
        if self._budget is not None:
            self._budget.came(self._clock)
        self._waiting_milli += job.milli
        return super()._arrive(key)

    def _rank(self, item: Item) -> Rank:
        return self._engine.place(self._head(item), self._clock, item.gpus)[:3]

    def _turn_of(self, item: Item) -> float:
        left = self._engine.turns(self._head(item), self._clock)
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
        for pod, at in self._pods.pop(key):
            self._engine.pod_gone(pod.uid)
            del self._held[at][pod.uid]
            self._tell_node(at)
        self._priorities[item.priority] -= 1
        self._use(item.tenant, -run.milli)
        return run

    def _end(self, key: int) -> None:
        super()._end(key)
        self._cooling.discard(key)
        self._turns_had.pop(key, None)
        self._accounts[self._items[key].tenant].served.pop(self._head(self._items[key]).key, None)
        del self._known[key]
        if not self._engine.shares.silent:
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
            pod = RunningTask(
                uid, uid, item.tenant, placement.node, job.head.key, item.tenant, item.priority, placement.charge,
                True, gang_min=job.head.gang_min, started=self._clock, checkpoint_s=round(self.costs.checkpoint),
                wishes=Wishes(placement.task.request) if self._moves else None,
            )  # fmt: skip
            pods.append((pod, at))
            self._engine.pod_seen(pod)
            self._tell_node(at)
        milli = self.jobs[item.key].milli
        self._waiting_milli -= milli
        self._vain = {kind: until for kind, until in self._vain.items() if kind[2] <= item.priority}  # it may yield
        self._priorities[item.priority] = self._priorities.get(item.priority, 0) + 1
        self._use(item.tenant, milli)
        self._start(item, Run(item, _parts(placements, self._rows), milli))
        if item.begins > self.now:
            heapq.heappush(self._restored, (item.begins, item.key, item.evictions))

    def _say_saved(self) -> None:
        """Who was made again says when it had loaded what it saved: its checkpoints count from there."""
        while self._restored and self._restored[0][0] <= self.now:
            at, key, evictions = heapq.heappop(self._restored)
            if key in self.runs and self._items[key].evictions == evictions:
                pod, _ = self._pods[key][0]  # for all of its gang
                self._engine.pod_seen(msgspec.structs.replace(pod, saved=EPOCH + at))

    def _job(self, item: Item) -> PendingJob:
        known = self._known.get(item.key)
        if known is None or known[0] != item.evictions:
            known = self._known[item.key] = item.evictions, self._as_job(item)
        return known[1]

    def _head(self, item: Item) -> JobHead:
        return EngineLoop._job(self, item).head

    def _as_job(self, item: Item) -> PendingJob:
        milli = self.jobs[item.key].milli
        width = self.cluster.width
        if milli < WHOLE:
            asks = [GpuRequest(1, milli)]
        else:
            nodes, rest = divmod(milli // WHOLE, width)
            asks = [GpuRequest(width)] * nodes + ([GpuRequest(rest)] if rest else [])
        many = len(asks)
        name = f"{item.key:09d}"
        key = f"{'gang' if many > 1 else 'pod'}/{item.tenant}/{name}"
        head = JobHead(
            key, item.tenant, item.tenant, item.tenant,
            priority=item.priority, gang_min=many, declared=many, created=EPOCH + item.submitted,
            checkpoint_s=round(self.costs.checkpoint), workload=key,
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
                earmarked[self._head(self._items[kept.key]).key] = tuple(free)
        self._revisions[at] += 1
        used = tuple((milli, mib) for milli, mib in gpus)
        pods = len(self._held[at])
        self._engine.use_seen(NodeUse(self._names[at], self._revisions[at], pods=pods, gpus=used, earmarked=earmarked))

    def _use(self, tenant: str, milli: int) -> None:
        account = self._accounts.setdefault(tenant, Account(EPOCH))
        self._work()
        self._holding += milli
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

    def _work(self) -> None:
        """What ran until now is worked."""
        if self._budget is not None:
            self._budget.worked(self._holding / WHOLE * (self._clock - self._worked), self._clock)
            self._worked = self._clock

    def _tell_history(self, tenant: str, account: Account) -> None:
        left = None
        if self._budget is not None:
            self._work()
            left = self._budget.told(self._clock)
        self._engine.queue_history_seen(account.history(tenant, self._clock, left))

    def _record(self, run: Run) -> None:
        """What the watcher's leader writes down of an eviction."""
        item = run.item
        uids = [pod.uid for pod, _ in self._pods[item.key]]
        if self._budget is not None:
            self._budget.evicted(self._loss(item)[0] * run.milli / WHOLE, self._clock)
        self._accounts[item.tenant].evict(self._head(item).key, uids, run.milli, self.now - item.since, self._clock)

    def _release(self, tenant: str) -> None:
        kept = self._kept.pop(tenant, None)
        if kept is not None:
            self._kept_milli.pop(tenant, None)
            for at in kept.charges:
                self._tell_node(at)
            self._use(tenant, 0)


def _key(name: str) -> int:
    """Of the job that the engine knows by this name."""
    return int(name.rpartition("/")[2])


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
