"""Placement: hints and facts in, plans out. Wired here; every part is a file of its own.

Jobs are divided among replicas by partition; the ledger makes them safe against each other. Nothing here is saved: the
pending set is listed again by whoever takes a partition, claims are in the ledger, and the room is read from it.
"""

from __future__ import annotations

import asyncio

import structlog

from libs.bus.port import GroupReader
from libs.contracts.hardware import gpu_models_of, levels_of
from libs.contracts.tenants import most_tasks
from libs.contracts.topics import CLUSTER, GPUS, MIX, OUTCOMES, TASKS
from libs.engine.api import Engine, EngineConfig
from libs.host.parts import Parts
from libs.runtime.backoff import Backoff
from libs.runtime.lifecycle import Health
from libs.runtime.phases import Phase, run_phases
from libs.runtime.tasks import ended, never_ends
from services.placement import measures
from services.placement.advice import Advisor
from services.placement.attention import Attention
from services.placement.controller import Controller
from services.placement.cycle import Cycle
from services.placement.emit import Emitter
from services.placement.gangs import Mender
from services.placement.guard import GuardedEngine
from services.placement.intake import Intake
from services.placement.jobs import Pending
from services.placement.learning import Learning
from services.placement.ownership import Ownership
from services.placement.returns import Returns
from services.placement.settings import PlacementSettings
from services.placement.state import State
from services.placement.status import Teller
from services.placement.view import View

log = structlog.get_logger()


class Placement:
    name = "placement"

    def __init__(self, settings: PlacementSettings, parts: Parts) -> None:
        self._settings = settings
        self._parts = parts
        self._partitions = parts.bus.partitions(TASKS.name)
        if parts.bus.partitions(OUTCOMES.name) != self._partitions:
            raise ValueError(f"{TASKS.name} and {OUTCOMES.name} must have equally many partitions")
        clock = parts.clock
        config = EngineConfig(
            weights=settings.placement_weights,
            candidates=settings.placement_candidates,
            seed=settings.draws_by,
            mix_slots=self._partitions,
            consolidate=settings.placement_consolidate,
            consolidate_after_s=settings.placement_consolidate_after_s,
            fairness=settings.placement_fairness,
            history=settings.placement_history,
            overdue_s=settings.placement_overdue_s,
            little=settings.little_service,
            levels=levels_of(settings.placement_topology_levels),
            gpu_models=gpu_models_of(settings.placement_gpu_models),
        )

        def new_engine() -> Engine:
            return GuardedEngine(config)

        tenants = {namespace: tenant.name for tenant in settings.tenants for namespace in tenant.namespaces}
        view = View(
            new_engine,
            gpu_max_age_s=settings.placement_gpu_max_age_s,
            tenants=tenants,
            mix_slots=self._partitions,
            most_tasks=most_tasks(settings.job_tasks, settings.tenants),
        )
        attention = Attention(settings.placement_hopeless_per_s)
        pending = Pending(overdue_s=settings.placement_overdue_s, attention=attention)
        pending.wall = clock.wall
        self.state = State(view=view, pending=pending)
        pauses = (Backoff(0.05, 5.0), Backoff(0.05, 5.0))
        self._emitter = Emitter(parts.bus.publisher(), pauses, self._partitions)
        self._teller = Teller(self.state, parts.kube, self._emitter, settings, clock)
        self._advisor = Advisor(self.state, settings, clock, self._teller.waits)
        self._teller.advised = self._advisor.advised
        self._controller = Controller(self.state, parts.kube, self._teller, clock, self._partitions)
        self._returns = Returns(self.state, parts.ledger, clock)
        self._mender = Mender(self.state, parts.kube, self._teller, settings, clock)
        self.state.on_bound = self._controller.bound
        self._learning = Learning(
            self.state,
            parts.bus.publisher(),
            clock,
            self._partitions,
            settings.placement_mix_s,
            self._teller.explainer,
            self._teller.look,
        )
        self._outcomes = parts.bus.follow([OUTCOMES.name], from_start=False)
        self._outcomes.assign([], at_end=True)
        self._ownership = Ownership(
            self.state,
            parts.ledger,
            parts.kube,
            self._emitter,
            settings,
            clock,
            self._partitions,
            reviewed=self._controller.reviewed,
            cancelled=self._controller.cancelled,
            follow=self._follow,
            followed=lambda: self._outcomes.caught_up,
        )
        self._cycle = Cycle(
            self.state,
            parts.ledger,
            self._emitter,
            settings,
            clock,
            waits=self._teller.waits,
            fenced=self._ownership.fenced,
        )
        self._intake = Intake(
            self.state,
            settings,
            clock,
            self._partitions,
            owned=lambda: self._ownership.owned,
            cancelled=self._controller.cancelled,
            waits=self._teller.waits,
        )
        self._stopping = False

    def _follow(self, partitions: frozenset[int]) -> None:
        self._outcomes.assign([(OUTCOMES.name, p) for p in partitions], at_end=True)

    async def serve(self, stop: asyncio.Event) -> None:
        """Facts first: partitions are asked for only when the view is complete, so that the first decision is as good
        as any other."""
        bus, ledger, intake = self._parts.bus, self._parts.ledger, self._intake
        group: GroupReader | None = None
        async with asyncio.TaskGroup() as tasks:

            def start(coro: object, name: str) -> asyncio.Task[None]:
                return tasks.create_task(never_ends(coro, name), name=f"placement {name}")  # type: ignore[arg-type]

            readers = [
                start(intake.cluster(bus.follow([CLUSTER.name], from_start=True)), "cluster"),
                start(intake.gpus(bus.follow([GPUS.name], from_start=True)), "gpus"),
                start(intake.uses(ledger, self._ownership.fenced), "uses"),
                start(self._learning.follow(bus.follow([MIX.name], from_start=True)), "learned mix"),
            ]
            senders = [
                start(self._emitter.urgent.run(), "plans out"),
                start(self._emitter.words.run(), "status out"),
                start(self._teller.run(), "words"),
                *(start(self._teller.writer(), f"writer {n}") for n in range(self._settings.placement_status_writers)),
            ]
            deciders: list[asyncio.Task[None]] = []
            if await _either(stop, intake.cluster_ready, intake.uses_ready, self._learning.ready):
                group = bus.group(self._settings.placement_group, [TASKS.name], rebalanced=self._ownership.rebalanced)
                self._ownership.seat = lambda: group.seat
                readers += [
                    start(intake.hints(group), "hints"),
                    start(intake.outcomes(self._outcomes), "outcomes"),
                ]
                deciders = [
                    start(self._ownership.run(), "ownership"),
                    start(self._controller.run(), "controller"),
                    start(self._returns.run(), "returns"),
                    start(self._mender.run(), "broken gangs"),
                    start(self._gauge(), "gauges"),
                    start(self._learning.run(), "learning"),
                    start(self._advisor.run(), "advice"),
                ]
                passes = start(self._cycle.run(), "passes")
                deciders.append(passes)  # one that outlasts its phase must not hold up the end
                await stop.wait()
                self._stopping = True
                for reader in readers:
                    reader.cancel()
                await run_phases(
                    [
                        Phase("finish the pass in hand", 2.0, lambda: self._finish(passes)),
                        Phase("publish plans", 5.0, self._emitter.urgent.drained),
                        Phase("publish status", 2.0, self._flush_words),
                        Phase("write what was learned", 2.0, lambda: self._learning.tell(at_once=True)),
                    ]
                )
            await ended([*readers, *deciders, *senders])
        # Beside others in one process the bus lives on: our partitions go to the other members at once.
        leave = getattr(group, "leave", None)
        if leave is not None:
            leave()

    async def _finish(self, passes: asyncio.Task[None]) -> None:
        """A pass between its commit and its hand-over is let through: what it claimed is published by us, not only by
        the next owner."""
        await self._cycle.stop()
        passes.cancel()

    async def _flush_words(self) -> None:
        self._teller.flush()
        await self._emitter.words.drained()

    async def _gauge(self) -> None:
        while True:
            pending = self.state.pending
            measures.PENDING.set(len(pending.jobs))
            measures.WAITING.set(len(self.state.waiting))
            measures.GATHERERS.set(len(self.state.gatherers))
            measures.CLAIMS.set(sum(len(job.claims) for job in pending.jobs.values()))
            await self._parts.clock.sleep(1.0)

    def health(self) -> Health:
        intake, owned = self._intake, self._ownership.owned
        ready = (
            intake.cluster_ready.is_set()
            and intake.uses_ready.is_set()
            and owned <= self.state.active
            and self._parts.bus.healthy
            and not self._stopping
        )
        return Health(
            ready=ready,
            detail={
                "cluster": "read" if intake.cluster_ready.is_set() else "reading",
                "ledger": "read" if intake.uses_ready.is_set() else "reading",
                "partitions": f"{len(self.state.active)} of {len(owned)} owned ones are taken",
                "bus": "healthy" if self._parts.bus.healthy else "stuck",
            },
        )


async def _either(stop: asyncio.Event, *events: asyncio.Event) -> bool:
    """Wait for all events; False as soon as `stop` is set."""
    waiting = [asyncio.create_task(event.wait(), name="placement ready") for event in events]
    stopped = asyncio.create_task(stop.wait(), name="placement stop")
    try:
        while any(not task.done() for task in waiting):
            await asyncio.wait([stopped, *(t for t in waiting if not t.done())], return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                return False
        return True
    finally:
        for task in (*waiting, stopped):
            task.cancel()


def build(settings: PlacementSettings, parts: Parts) -> Placement:
    return Placement(settings, parts)
