"""The metrics-collector: asks Prometheus at an interval, tells what changed.

Guarantees: a gauge that changed is on `drystone.gpus` at most one interval and one query after Prometheus scraped it; a
fact counts as told only when the broker acknowledged it; a query that fails changes nothing (facts age at their
readers, nodes do not vanish). Replicas divide the nodes; without a replica its nodes' facts age out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from libs.bus.port import BusUnavailable
from libs.contracts.events import GpuFacts
from libs.contracts.topics import CLUSTER, GPUS
from libs.host.parts import Parts
from libs.prom.client import PromClient, PromFault
from libs.runtime.lifecycle import Health, Service
from libs.runtime.tasks import run_until
from services.metrics_collector import emit, intake
from services.metrics_collector.decide import Charged, LeakGuard, Rules, Smoother, Told, facts
from services.metrics_collector.settings import CollectorSettings

log = structlog.get_logger()


class Collector:
    name = "metrics-collector"

    def __init__(self, settings: CollectorSettings, parts: Parts) -> None:
        self._settings = settings
        self._clock = parts.clock
        rules = Rules(
            settings.smoothing_s,
            settings.mib_step,
            settings.util_step,
            settings.refresh_s,
            settings.vanish_s,
            settings.leak_mib,
            settings.leak_s,
        )
        self._publisher = parts.bus.publisher()
        self._cluster = parts.bus.follow([CLUSTER.name], from_start=True)
        self._own = parts.bus.follow([GPUS.name], from_start=True)
        self._smoother = Smoother(settings.smoothing_s)
        self._told = Told(rules)
        self._charged = Charged()
        self._guard = LeakGuard(rules)
        self._gauges = emit.Gauges()
        self._prom = PromClient(
            settings.prometheus_url,
            timeout_s=settings.query_timeout_s,
            token=settings.prometheus_bearer,
            tls=settings.prometheus_tls(),
        )
        self._fault = "no answer of Prometheus yet"
        self._answered_at: float | None = None
        self._lacks: tuple[str, ...] = ()

    async def serve(self, stop: asyncio.Event) -> None:
        try:
            await run_until(stop, {"collect": self._collect(), "pods": self._pods(), "told": self._read_told()})
        finally:
            await self._prom.close()

    def health(self) -> Health:
        limit = 3 * self._settings.interval_s + self._settings.query_timeout_s
        fresh = self._answered_at is not None and self._clock.monotonic() - self._answered_at < limit
        detail = {"prometheus": "answers" if fresh and not self._fault else self._fault or "silent"}
        if self._lacks:
            detail["missing"] = ", ".join(self._lacks)
        return Health(ready=fresh and self._own.caught_up, detail=detail)

    async def _pods(self) -> None:
        while True:
            intake.learn_pods(await self._cluster.batch(), self._charged)

    async def _read_told(self) -> None:
        """Our own topic, read on after the start too: a replica of another division may have told a node of ours."""
        while True:
            records = await self._own.batch()
            intake.learn_told(records, self._told, self._settings, self._clock.monotonic())

    async def _collect(self) -> None:
        while not self._own.caught_up:
            await self._clock.sleep(0.05)
        while True:
            began = self._clock.monotonic()
            await self.once()
            await self._clock.sleep(max(0.0, self._settings.interval_s - (self._clock.monotonic() - began)))

    async def once(self) -> None:
        """One query and what follows from it."""
        devices = await intake.devices(self._prom, self._settings)
        now = self._clock.monotonic()
        if isinstance(devices, PromFault):
            emit.QUERY_FAULTS.inc()
            if devices.why != self._fault:
                log.warning("no facts of GPUs", fault=devices.why, passing=devices.passing)
            self._fault = devices.why
            return
        if self._fault:
            log.info("Prometheus answers", devices=len(devices))
        self._fault, self._answered_at = "", now
        self._gauges.show(devices)
        self._say_what_is_missing(emit.kinds(devices) if devices else {})
        present = facts(devices, self._smoother, now)
        await self._tell(present, now)
        if self._cluster.caught_up:
            self._look_for_leaks(present, now)

    async def _tell(self, present: dict[str, GpuFacts], now: float) -> None:
        news, gone = self._told.changed(present, now), self._told.vanished(now)
        try:
            await emit.publish(self._publisher, news, gone)
        except BusUnavailable as error:
            log.warning("facts not told", fault=str(error), nodes=len(news) + len(gone))
            return
        self._told.acknowledged(news, gone, now)
        for node in gone:
            self._smoother.forget(node)
            log.info("node without facts", node=node)

    def _look_for_leaks(self, present: dict[str, GpuFacts], now: float) -> None:
        leaks, new, ended = self._guard.look(present, self._charged, now)
        self._gauges.leaks(leaks, ended)
        for leak in new:
            log.warning(
                "memory leaked: in use, and no bound pod is charged", node=leak.node, gpu=leak.index, mib=leak.mib
            )
        for node, index in ended:
            log.info("leak ended", node=node, gpu=index)

    def _say_what_is_missing(self, found: Mapping[str, bool]) -> None:
        lacks = tuple(kind for kind, there in found.items() if not there)
        emit.MISSING.set(len(lacks))
        if lacks != self._lacks:
            self._lacks = lacks
            if lacks:
                log.warning("exporters do not give everything", missing=list(lacks))


def build(settings: CollectorSettings, parts: Parts) -> Service:
    return Collector(settings, parts)
