"""What the devices of a run's nodes say, by a Prometheus exporter, and whether it is what the collector told of them.

Nodes and their devices are those of the kubelets; a machine that is down says nothing. What is told is read off the
topic all the time, past whatever is broken.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from aiohttp import web

from bench.chaos.kubelet import HonestKubelets
from bench.chaos.machines import DEVICE_MIB
from libs.bus.kafka import KafkaBus
from libs.bus.settings import KafkaSettings
from libs.contracts.events import GpuFacts
from libs.contracts.topics import GPUS
from libs.prom import dcgm
from tools.stack import StackInfo

MODEL: Final = "NVIDIA A100-SXM4-80GB"


class Devices:
    """`async with Devices(kubelets).shown(info)`: Prometheus scrapes us, and we read what the collector tells."""

    def __init__(self, kubelets: HonestKubelets) -> None:
        self._kubelets = kubelets
        self._told: dict[str, GpuFacts] = {}

    @asynccontextmanager
    async def shown(self, info: StackInfo) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/metrics", self._exported)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        info.prometheus_targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{runner.addresses[0][1]}"]}]))
        # Kafka breaks by intention, and what the client says of that is no news.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        bus = KafkaBus(KafkaSettings(info.kafka_bootstrap, client_id="chaos-devices"))
        await bus.open()
        reading = asyncio.create_task(self._read(bus), name="facts of devices")
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            await bus.close()
            await runner.cleanup()

    def _used(self) -> dict[str, dict[int, int]]:
        found = {node.name: self._kubelets.used_mib(node) for node in self._kubelets.nodes}
        return {name: used for name, used in found.items() if used is not None}

    async def _exported(self, _request: web.Request) -> web.Response:
        lines: list[str] = []
        for name, used in self._used().items():
            for index, mib in used.items():
                labels = f'gpu="{index}",UUID="GPU-{name}-{index}",modelName="{MODEL}",Hostname="{name}"'
                lines += [
                    f"{dcgm.USED}{{{labels}}} {mib}",
                    f"{dcgm.FREE}{{{labels}}} {DEVICE_MIB - mib}",
                    f"{dcgm.UTIL}{{{labels}}} {90 if mib else 0}",
                ]
        return web.Response(text="".join(f"{line}\n" for line in lines))

    async def _read(self, bus: KafkaBus) -> None:
        reader = bus.follow([GPUS.name], from_start=True)
        while True:
            for record in await reader.batch():
                if record.value is None:
                    self._told.pop(record.key, None)
                else:
                    self._told[record.key] = msgspec.json.decode(record.value, type=GpuFacts)

    def astray(self) -> list[str]:
        """Differences between what is told and what is so, in words. None where nothing changes for some seconds."""
        there = self._used()
        found = [f"facts are told of node {name}, which says nothing" for name in sorted(self._told.keys() - there)]
        for name, used in sorted(there.items()):
            if (facts := self._told.get(name)) is None:
                found.append(f"no facts are told of node {name}")
            elif (told := {g.index: g.mib_used for g in facts.gpus}) != used:
                found.append(f"node {name} uses {used} MiB of its devices, told are {told}")
        return found
