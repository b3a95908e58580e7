"""Placement's passes on the real ledger in virtual time: what a pass costs is set, jobs run as long as is said."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from libs.bus.memory import MemoryBus
from libs.contracts.events import NodeFact, PodFact, QueueFact
from libs.domain.jobs import JobHead, Task
from libs.domain.nodes import Node
from libs.domain.plans import Plan
from libs.domain.queues import Queue
from libs.domain.resources import GpuRequest, Request
from libs.engine.api import Decision, EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.runtime.backoff import Backoff
from libs.store.embedded import embedded_ledger
from services.placement.attention import Attention
from services.placement.cycle import Cycle
from services.placement.decide import Tenure
from services.placement.emit import Emitter
from services.placement.explain import Explainer
from services.placement.jobs import Job, Pending
from services.placement.settings import PlacementSettings
from services.placement.state import State
from services.placement.view import View

EPOCH = 1.8e9
#: Seconds that one evaluation, a pass, and the hand-over of a pass to ledger and broker take.
EVALUATION, PASS, COMMIT = 0.0003, 0.0005, 0.008


class Virtual:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return EPOCH + self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Counted(PlacementEngine):
    """Whose jobs were evaluated, by queue and by key."""

    decided: list[str]
    looked_at: list[str]

    def decide(self, jobs: list[PendingJob], now: float = 0.0) -> list[Decision]:
        self.decided += [job.head.queue for job in jobs]
        self.looked_at += [job.head.key for job in jobs]
        return super().decide(jobs, now)


class Plans(Emitter):
    taken: list[Plan]

    def plans(self, plans: Iterable[Plan]) -> None:
        self.taken += plans


class World:
    def __init__(self, ledger: Any, bus: MemoryBus, nodes: Sequence[Node], generation: int, epoch: int, **set_: Any):
        self.clock, self.ledger = Virtual(), ledger
        settings = PlacementSettings(**set_)
        self.engine = Counted(EngineConfig(overdue_s=settings.placement_overdue_s))
        self.engine.decided, self.engine.looked_at = [], []
        pending = Pending(
            overdue_s=settings.placement_overdue_s, attention=Attention(settings.placement_hopeless_per_s)
        )
        pending.wall = self.clock.wall
        self.state = State(view=View(lambda: self.engine), pending=pending)
        self.state.tenures[0] = Tenure(0, epoch, generation)
        self.state.active.add(0)
        for node in nodes:
            self.state.view.see(NodeFact(node), 0.0)
        self._generation = generation
        self._emitter = Plans(bus.publisher(), (Backoff(0.01, 0.1), Backoff(0.01, 0.1)), 12)
        self._emitter.taken = []
        self.cycle = Cycle(
            self.state, ledger, self._emitter, settings, self.clock,
            waits=lambda _job, _verdict: None, fenced=lambda _partition: None,
        )  # fmt: skip
        self.explainer = Explainer(self.state, settings)
        self.position = ""
        self.started: dict[str, float] = {}
        self.runs: Callable[[str], float] = lambda _key: 0.05
        self._ends: list[tuple[float, str, str]] = []
        self._coming: list[tuple[float, int, Job]] = []

    def queues(self, *queues: Queue) -> None:
        for queue in queues:
            self.state.view.see(QueueFact(queue), 0.0)

    def job(self, name: str, gpus: int, *, queue: str = "default", cpu: int = 100, at: float = 0.0, **head: Any) -> Job:
        uid = f"uid-{name}"
        task = Task(id=uid, name=name, namespace=queue, version="1", request=Request(cpu, 1, GpuRequest(gpus)))
        key = f"pod/{queue}/{name}"
        made = JobHead(key, queue, queue, queue, created=EPOCH + at, **head)
        return Job(head=made, partition=0, since=at, tasks={task.id: task})

    def comes(self, job: Job, at: float) -> None:
        heapq.heappush(self._coming, (at, len(self._coming), job))

    async def join(self, node: Node) -> None:
        """A node more, in the ledger and in the view."""
        await self.ledger.nodes_seen([node], 1)
        await self._tail()
        self.state.view.see(NodeFact(node), self.clock.now)

    def enter(self, job: Job) -> None:
        self.state.pending.jobs[job.head.key] = job
        self.state.pending.dirty(job)

    async def play(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        while self.clock.now < until and not done():
            now = self.clock.now
            while self._coming and self._coming[0][0] <= now:
                self.enter(heapq.heappop(self._coming)[2])
            await self._end_due(now)
            if self.state.returns:
                for back in self.state.returns:
                    await self.ledger.drop(back.job, back.ids, back.generation)
                self.state.returns.clear()
                await self._tail()
            before = len(self.engine.decided)
            did = await self.cycle.once()
            plans, self._emitter.taken = self._emitter.taken, []
            self.clock.now += PASS + EVALUATION * (len(self.engine.decided) - before) + (COMMIT if plans else 0.0)
            for plan in plans:
                self._start(plan)
            if not did:
                times = [
                    at
                    for at in (
                        self.cycle._due(),
                        self._coming[0][0] if self._coming else None,
                        self._ends[0][0] if self._ends else None,
                    )
                    if at is not None
                ]
                self.clock.now = max(self.clock.now, min([*times, until]))

    def _start(self, plan: Plan) -> None:
        now = self.clock.now
        self.started[plan.job] = now
        job = self.state.pending.jobs[plan.job]
        for a in plan.assignments:
            self.state.view.see(
                PodFact(
                    uid=a.task, name=a.name, namespace=plan.namespace, version="1", node=a.node, charge=a.charge,
                    job="", queue=plan.queue, priority=plan.priority, ours=True, started=EPOCH + now,
                    expected_s=job.head.expected_s,
                ),
                now,
            )  # fmt: skip
            heapq.heappush(self._ends, (now + self.runs(plan.job), plan.job, a.task))

    async def _end_due(self, now: float) -> None:
        ended = False
        while self._ends and self._ends[0][0] <= now:
            _, key, task = heapq.heappop(self._ends)
            job = self.state.pending.jobs[key]
            await self.ledger.drop(key, [c.id for c in job.claims.values()], self._generation)
            self.state.forget(key)
            self.state.view.gone(f"pod/{task}")
            ended = True
        if ended:
            await self._tail()

    async def _tail(self) -> None:
        batch = await self.ledger.tail(self.position, 0.0)
        self.position = batch.position
        self.state.view.use(batch.nodes, batch.queues)


@asynccontextmanager
async def world(*nodes: Node, made: type[World] = World, **settings: Any) -> AsyncIterator[World]:
    """Claims live as long as the test: no binder confirms them."""
    ledger, bus = embedded_ledger(planned_s=3600.0), MemoryBus()
    await bus.open()
    await ledger.open()
    await ledger.begin_rebuild(1)
    await ledger.nodes_seen(nodes, 1)
    await ledger.whole(1)
    await ledger.open()
    generation, epoch = (await ledger.state()).generation, (await ledger.take(0)).epoch
    found = made(ledger, bus, nodes, generation, epoch, **settings)
    found.position = (await ledger.dump()).position
    sender = asyncio.create_task(found._emitter.urgent.run(), name="sender")
    try:
        yield found
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
        await bus.close()
        await ledger.close()
