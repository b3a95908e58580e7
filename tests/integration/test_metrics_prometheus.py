"""A changed gauge of an exporter, through a real Prometheus and a real broker, to every placement replica."""

import asyncio
import json
import time
import uuid

import msgspec
import pytest
from aiohttp import web

from libs.bus.kafka import KafkaBus, KafkaSettings
from libs.contracts.events import GpuFacts
from libs.contracts.topics import GPUS
from libs.host.parts import Parts, not_opened
from services.metrics_collector.app import Collector
from services.metrics_collector.settings import CollectorSettings
from tools.stack import StackInfo

pytestmark = pytest.mark.real

SCRAPE_S = 1.0  # the stack's scrape interval


async def test_a_changed_gauge_reaches_every_replica_within_a_scrape_and_two_seconds(info: StackInfo) -> None:
    node = f"gpu-{uuid.uuid4().hex[:6]}"
    used = 1000

    async def exporter(_request: web.Request) -> web.Response:
        labels = f'gpu="0",UUID="GPU-1",modelName="A100",Hostname="{node}",pod="train-0",namespace="a"'
        return web.Response(
            text=f"DCGM_FI_DEV_FB_USED{{{labels}}} {used}\n"
            f"DCGM_FI_DEV_FB_FREE{{{labels}}} {80000 - used}\n"
            f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 50\n"
        )

    app = web.Application()
    app.router.add_get("/metrics", exporter)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    buses = [KafkaBus(KafkaSettings(info.kafka_bootstrap)) for _ in range(3)]
    for bus in buses:
        await bus.open()
    replicas = [bus.follow([GPUS.name], from_start=True) for bus in buses[1:]]
    stop = asyncio.Event()
    settings = CollectorSettings(prometheus_url=info.prometheus_url or "", interval_s=0.5)
    collector = Collector(settings, Parts(buses[0], not_opened("ledger", "t"), not_opened("kube", "t")))
    serving = asyncio.create_task(collector.serve(stop))
    before = info.prometheus_targets.read_text()
    info.prometheus_targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{runner.addresses[0][1]}"]}]))

    async def sees(reader: object, mib: int) -> None:
        while True:
            for record in await reader.batch(1000, 0.1):  # type: ignore[attr-defined]
                if record.key == node and record.value:
                    fact = msgspec.json.decode(record.value, type=GpuFacts)
                    if fact.gpus[0].mib_used == mib:
                        return

    try:
        async with asyncio.timeout(30):
            await asyncio.gather(*(sees(reader, 1000) for reader in replicas))
        for mib in (2000, 61000):
            used, began = mib, time.monotonic()
            async with asyncio.timeout(30):
                await asyncio.gather(*(sees(reader, mib) for reader in replicas))
            assert time.monotonic() - began <= SCRAPE_S + 2
        assert collector.health().ready
    finally:
        info.prometheus_targets.write_text(before)
        stop.set()
        await serving
        await runner.cleanup()
        for bus in buses:
            await bus.close()
