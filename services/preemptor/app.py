"""The preemptor: eviction plans in, victims on their way, outcomes out."""

from __future__ import annotations

import asyncio
import random

import structlog

from libs.bus.positions import Positions
from libs.host.parts import Parts
from libs.runtime.lifecycle import Health
from libs.runtime.phases import Phase, run_phases
from libs.runtime.tasks import ended, never_ends
from services.preemptor.budgets import Budgets
from services.preemptor.emit import Emitter
from services.preemptor.evict import Evictor
from services.preemptor.intake import Intake
from services.preemptor.settings import PreemptorSettings

log = structlog.get_logger()

_FAILING_S = 5.0


class Preemptor:
    name = "preemptor"

    def __init__(self, settings: PreemptorSettings, parts: Parts, rng: random.Random | None = None) -> None:
        rng = rng or random.Random()
        self._settings = settings
        self._parts = parts
        self._budgets = Budgets()
        positions = Positions()
        self._emitter = Emitter(parts.bus.publisher(), positions, parts.clock, rng)
        evictor = Evictor(parts.kube, parts.ledger, self._budgets, settings, parts.clock, rng)
        self._intake = Intake(parts.bus, self._budgets, evictor, self._emitter, positions, settings, parts.clock)
        self._stopping = False

    async def serve(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            eternal = [
                tasks.create_task(never_ends(self._intake.follow_facts(), "budgets"), name="budgets"),
                tasks.create_task(never_ends(self._emitter.forever(), "outcomes"), name="outcomes"),
            ]
            taking = tasks.create_task(self._intake.take_plans(stop, tasks), name="eviction plans")
            await stop.wait()
            self._stopping = True
            await run_phases(
                [
                    Phase("stop intake", 3.0, lambda: asyncio.wait({taking})),
                    Phase("finish evictions", self._settings.finish_s, self._intake.drained),
                    Phase("flush outcomes", 5.0, self._emitter.drained),
                ],
                self._parts.clock,
            )
            # Plans that are left come back by redelivery; whoever takes over finds who left already.
            await ended((taking, *eternal, *self._intake.running))

    def health(self) -> Health:
        detail = {"budgets": str(len(self._budgets)), "plans in hand": str(self._intake.plans_in_hand)}
        ready = not self._stopping
        if not self._intake.facts_ready.is_set():
            ready = False
            detail["cluster facts"] = "not caught up"
        if not self._parts.bus.healthy:
            ready = False
            detail["bus"] = "unhealthy"
        since = self._emitter.failing_since
        now = self._parts.clock.monotonic()
        if since is not None and now - since > _FAILING_S:
            ready = False
            detail["reports"] = f"failing for {now - since:.0f} s"
        return Health(ready, detail=detail)


def build(settings: PreemptorSettings, parts: Parts) -> Preemptor:
    return Preemptor(settings, parts)
