"""The binder: plans in, pods bound, outcomes out.

Guarantees: a task is bound at most once and only under a claim that the ledger holds for it; a plan is done when every
task's claim is confirmed or freed and its outcome acknowledged, and only then its offset is committed; redelivery and
several binders at work on one plan change nothing.
"""

from __future__ import annotations

import asyncio
import random

import structlog

from libs.bus.positions import Positions
from libs.host.parts import Parts
from libs.runtime.lifecycle import Health
from libs.runtime.phases import Phase, run_phases
from libs.runtime.tasks import ended, never_ends
from libs.store.port import LedgerUnavailable, StaleGeneration
from services.binder import metrics
from services.binder.applier import Applier
from services.binder.carry import Carrier
from services.binder.emit import Emitter
from services.binder.facts import NodeFacts
from services.binder.intake import Intake
from services.binder.pauses import Pauses
from services.binder.prepare import Preparer
from services.binder.settings import BinderSettings
from services.binder.tenure import Tenure
from services.binder.window import Window

log = structlog.get_logger()

_FAILING_S = 5.0


class Binder:
    name = "binder"

    def __init__(self, settings: BinderSettings, parts: Parts, rng: random.Random | None = None) -> None:
        rng = rng or random.Random()
        self._settings = settings
        self._parts = parts
        self._facts = NodeFacts()
        self._window = Window(cap=settings.window_cap, start=settings.window_start, slow_s=settings.slow_write_s)
        self._tenure = Tenure(parts.ledger, parts.clock)
        positions = Positions()
        self._emitter = Emitter(parts.ledger, parts.bus.publisher(), positions, parts.clock, rng)
        pauses = Pauses(settings.backoff_base_s, settings.backoff_cap_s, rng)
        preparer = Preparer(parts.kube, pauses, settings.write_timeout_s, parts.clock)
        carrier = Carrier(
            parts.kube, self._tenure, self._facts, self._window, self._emitter, pauses, settings, parts.clock
        )
        self._applier = Applier(parts.ledger, self._facts, preparer, carrier, self._emitter, settings, parts.clock, rng)
        self._intake = Intake(parts.bus, self._facts, self._applier, self._emitter, positions, settings.tasks_in_hand)
        self._stopping = False
        self._expire_failed = False

    async def serve(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._applier.pool.run_in(tasks)
            eternal = [
                tasks.create_task(never_ends(self._intake.follow_facts(), "node facts"), name="node facts"),
                tasks.create_task(never_ends(self._emitter.forever(), "outcomes"), name="outcomes"),
                tasks.create_task(never_ends(self._expire(), "expired claims"), name="expired claims"),
                tasks.create_task(
                    never_ends(self._tenure.watch(self._applier.pool.waiting), "waiting claims"), name="waiting claims"
                ),
                tasks.create_task(never_ends(self._measure(), "gauges"), name="gauges"),
            ]
            taking = tasks.create_task(self._intake.take_plans(stop), name="plans")
            await stop.wait()
            self._stopping = True
            await run_phases(
                [
                    Phase("stop intake", 3.0, lambda: asyncio.wait({taking})),
                    Phase("finish writes", self._settings.finish_s, self._applier.drained),
                    Phase("flush outcomes", 5.0, self._emitter.drained),
                ],
                self._parts.clock,
            )
            # What is left comes back by redelivery, or by the deadline of its claim.
            await ended((taking, *eternal, *self._applier.pool.close()))

    async def _expire(self) -> None:
        while True:
            await self._parts.clock.sleep(self._settings.expire_every_s)
            try:
                await self._applier.expire()
            except (LedgerUnavailable, StaleGeneration) as fault:
                if not self._expire_failed:
                    log.warning("expired claims cannot be asked for", fault=str(fault))
                self._expire_failed = True
                if isinstance(fault, StaleGeneration):
                    await self._reopen()
            else:
                self._expire_failed = False

    async def _reopen(self) -> None:
        try:
            await self._parts.ledger.open()
        except (LedgerUnavailable, StaleGeneration):
            return  # the next round tries again

    async def _measure(self) -> None:
        while True:
            metrics.WINDOW.set(self._window.size)
            metrics.IN_FLIGHT.set(self._applier.pool.active)
            metrics.QUEUED.set(self._applier.pool.queued)
            metrics.PLANS.set(self._applier.plans_in_hand)
            await self._parts.clock.sleep(1.0)

    def health(self) -> Health:
        detail = {"nodes": str(len(self._facts)), "plans in hand": str(self._applier.plans_in_hand)}
        ready = not self._stopping
        if not self._intake.facts_ready.is_set():
            ready = False
            detail["node facts"] = "not caught up"
        if not self._parts.bus.healthy:
            ready = False
            detail["bus"] = "unhealthy"
        now = self._parts.clock.monotonic()
        for what, since in (("ledger", self._applier.failing_since), ("reports", self._emitter.failing_since)):
            if since is not None and now - since > _FAILING_S:
                ready = False
                detail[what] = f"failing for {now - since:.0f} s"
        return Health(ready, detail=detail)


def build(settings: BinderSettings, parts: Parts) -> Binder:
    return Binder(settings, parts)
