"""The world in virtual time with bound pods, that others may be evicted for: victims leave after their grace period."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from libs.contracts.events import PodFact
from libs.domain.nodes import Node
from libs.domain.plans import EvictionPlan, Plan
from services.placement.jobs import Job
from tests.component.virtual_placement import EPOCH, Plans, World, world


class Bound(World):
    """Every plan is carried out at once. Who is evicted comes again as a new pod of the same workload, with the work
    that it saved."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.grace_s = 2.0
        self.evicted: list[tuple[float, str, str]] = []  # when, whom, for whom
        self.busy: list[tuple[float, float, int]] = []  # from, to, GPUs
        self._begun: dict[str, tuple[Plan, float, Job]] = {}
        self._going: list[tuple[float, str]] = []
        self._bound: list[Plan] = []
        self.comes_again: Callable[[Job, float, float], None] = lambda _job, _ran, _now: None
        self._evictions: list[EvictionPlan] = []
        emitter = self._emitter
        emitter.evictions = self._take  # type: ignore[method-assign]
        assert isinstance(emitter, Plans)

    def _take(self, plans: Iterable[EvictionPlan]) -> None:
        self._evictions += plans

    def _start(self, plan: Plan) -> None:
        now = self.clock.now
        self.started[plan.job] = now
        job = self.state.pending.jobs[plan.job]
        head = job.head
        for a in plan.assignments:
            self.state.view.see(
                PodFact(
                    uid=a.task, name=a.name, namespace=plan.namespace, version="1", node=a.node, charge=a.charge,
                    job=head.key, queue=plan.queue, priority=plan.priority, ours=True, started=EPOCH + now,
                    expected_s=head.expected_s, checkpoint_s=head.checkpoint_s, preemptible=head.preemptible,
                    workload=head.workload, gang_min=head.gang_min,
                ),
                now,
            )  # fmt: skip
            self._begun[a.task] = plan, now, job
            heapq.heappush(self._ends, (now + self.runs(plan.job), plan.job, a.task))
        self._bound.append(plan)

    async def _end_due(self, now: float) -> None:
        for plan in self._bound:
            await self.ledger.begin([plan])
            await self.ledger.confirm({a.claim: a.task for a in plan.assignments}, self._generation)
        self._bound.clear()
        for eviction in self._evictions:
            assert not await self.ledger.begin_evict(eviction)
            for victim in eviction.victims:
                self.evicted.append((now, victim.uid, eviction.job))
                heapq.heappush(self._going, (now + self.grace_s, victim.uid))
                heapq.heappush(self._ends, (now + self.grace_s, self._begun[victim.uid][2].head.key, victim.uid))
        self._evictions.clear()
        left = False
        while self._ends and self._ends[0][0] <= now:
            _, _, uid = heapq.heappop(self._ends)
            begun = self._begun.pop(uid, None)
            if begun is None:
                continue  # evicted before its time
            plan, since, job = begun
            gpus = sum(a.charge.gpu_milli for a in plan.assignments if a.task == uid) // 1000
            self.busy.append((since, now, gpus))
            await self.ledger.tasks_gone([uid], 1)
            self.state.view.gone(f"pod/{uid}")
            if any(uid == gone for _, gone in self._going):
                self._going = [one for one in self._going if one[1] != uid]
                self.comes_again(job, now - since, now)
            left = True
        if left:
            await self._tail()

    def used(self, start: float, end: float) -> float:
        """GPU seconds in use in that time."""
        running = [(since, self.clock.now, sum(a.charge.gpu_milli for a in plan.assignments if a.task == uid) // 1000)
                   for uid, (plan, since, _) in self._begun.items()]  # fmt: skip
        return sum(
            max(0.0, min(until, end) - max(since, start)) * gpus for since, until, gpus in [*self.busy, *running]
        )


@asynccontextmanager
async def bound_world(*nodes: Node, **settings: Any) -> AsyncIterator[Bound]:
    async with world(*nodes, made=Bound, **settings) as w:
        assert isinstance(w, Bound)
        yield w
