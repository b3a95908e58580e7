"""Five thousand pods of one tenant that fit nowhere, all different, and another tenant that goes on as if they were not
there. Passes are real, time is not: each costs what its evaluations and its commit are set to cost."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Sequence

from libs.bus.memory import MemoryBus
from libs.domain.jobs import JobHead, Task
from libs.domain.nodes import Node
from libs.domain.queues import Queue
from libs.domain.resources import GpuRequest, Request
from libs.engine.api import Decision, EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.runtime.backoff import Backoff
from libs.store.embedded import embedded_ledger
from libs.testkit.builders import node
from services.placement.attention import Attention
from services.placement.cycle import Cycle
from services.placement.decide import Tenure
from services.placement.emit import Emitter
from services.placement.jobs import Job, Pending
from services.placement.settings import PlacementSettings
from services.placement.state import State
from services.placement.view import View

#: Seconds that one evaluation, a pass, and the hand-over of a pass to ledger and broker take.
EVALUATION, PASS, COMMIT = 0.0003, 0.0005, 0.008


class Virtual:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1.8e9 + self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Counted(PlacementEngine):
    decided: list[str]

    def decide(self, jobs: list[PendingJob], now: float = 0.0) -> list[Decision]:
        self.decided += [job.head.queue for job in jobs]
        return super().decide(jobs, now)


def job(name: str, queue: str, gpus: int, cpu: int = 100) -> Job:
    task = Task(id=f"uid-{name}", name=name, namespace=queue, version="1", request=Request(cpu, 1, GpuRequest(gpus)))
    head = JobHead(f"pod/{queue}/{name}", queue, queue, queue, created=1.8e9)
    return Job(head=head, partition=0, since=0.0, tasks={task.id: task})


async def waits_of_b(hopeless: int, seconds: float = 5.0) -> tuple[list[float], float]:
    """Seconds from arrival to commit of B's pods, and evaluations of A's per second."""
    clock, ledger, bus = Virtual(), embedded_ledger(), MemoryBus()
    await bus.open()
    await ledger.open()
    await ledger.begin_rebuild(1)
    nodes: Sequence[Node] = [node("n1", gpus=8), node("n2", gpus=8)]
    await ledger.nodes_seen(nodes, 1)
    await ledger.whole(1)
    await ledger.open()
    generation = (await ledger.state()).generation
    engine = Counted(EngineConfig())
    engine.decided = []
    view = View(lambda: engine)
    settings = PlacementSettings(placement_reserve_s=0)
    pending = Pending(attention=Attention(settings.placement_hopeless_per_s))
    state = State(view=view, pending=pending)
    state.tenures[0] = Tenure(0, (await ledger.take(0)).epoch, generation)
    state.active.add(0)
    for one in nodes:
        view._see_node(one, 0.0)
    for path in ("a", "b"):
        view._see_queue(Queue(path))
    emitter = Emitter(bus.publisher(), (Backoff(0.01, 0.1), Backoff(0.01, 0.1)), 12)
    cycle = Cycle(state, ledger, emitter, settings, clock, waits=lambda _job, _verdict: None, fenced=lambda _p: None)
    position = (await ledger.dump()).position

    draw = random.Random(4)
    coming: list[tuple[float, int, str]] = []  # (time, order, name of the pod of B, or "" where one ends)
    at = 0.0
    while at < seconds:
        at += draw.expovariate(40.0)
        coming.append((at, len(coming), f"b{len(coming)}"))
    arrived: dict[str, float] = {}
    ends: list[tuple[float, str]] = []
    waits: list[float] = []

    def enter(one: Job) -> None:
        pending.jobs[one.head.key] = one
        pending.dirty(one)

    sender = asyncio.create_task(emitter.urgent.run())
    try:
        for name in ("one", "other"):
            enter(job(name, "b", 5))
        await cycle.once()
        for number in range(hopeless):  # a node's worth of GPUs, where every node has less: might fit one day
            enter(job(f"a{number}", "a", 8, cpu=100 + number))
        while clock.now < seconds:
            while coming and coming[0][0] <= clock.now:
                at, _, name = heapq.heappop(coming)
                arrived[f"pod/b/{name}"] = at
                enter(job(name, "b", 1))
            ended = False
            while ends and ends[0][0] <= clock.now:
                _, key = heapq.heappop(ends)
                gone = pending.jobs[key]
                await ledger.drop(key, [c.id for c in gone.claims.values()], generation)
                state.forget(key)
                ended = True
            if ended:
                batch = await ledger.tail(position, 0.0)
                position = batch.position
                view.use(batch.nodes, batch.queues)
            before, open_before = len(engine.decided), {k for k, j in pending.jobs.items() if j.claims}
            did = await cycle.once()
            started = [k for k, j in pending.jobs.items() if j.claims and k not in open_before]
            clock.now += PASS + EVALUATION * (len(engine.decided) - before) + (COMMIT if started else 0.0)
            for key in started:
                if key in arrived:
                    waits.append(clock.now - arrived[key])
                    heapq.heappush(ends, (clock.now + 0.05, key))
            if not did:
                times = [t for t in (cycle._due(), coming[0][0] if coming else None, ends[0][0] if ends else None) if t]
                clock.now = max(clock.now, min(times, default=seconds))
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
        await bus.close()
        await ledger.close()
    return waits, engine.decided.count("a") / seconds


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


async def test_five_thousand_hopeless_pods_of_one_tenant_do_not_slow_another() -> None:
    alone, _ = await waits_of_b(0)
    beside, evaluations = await waits_of_b(5000)
    assert len(beside) >= 0.98 * len(alone) > 150
    assert p99(beside) <= 1.1 * p99(alone), (p99(alone), p99(beside), evaluations)
    assert 50 <= evaluations <= 250, "they are looked at all the same, within the bound"
