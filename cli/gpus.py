"""GPUs of the simulated cluster as Prometheus would show them, and what the metrics-collector makes of them.

`SimulatedPrometheus` answers instant queries for the DCGM exporter's metrics over HTTP on a free loopback port, so the
collector runs as in production. What it shows follows from the pods that run: a pod fills the memory that it was
granted and keeps its share of each device busy to a degree of its own (60 to 100 %, by its name).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aiohttp import web

from libs.bus.port import Bus
from libs.contracts.events import GpuFacts
from libs.contracts.topics import GPUS
from libs.domain.nodes import Node
from libs.domain.resources import WHOLE, GpuGrant
from libs.kube.embedded import EmbeddedCluster
from libs.kube.nodes import parse_node
from libs.kube.pods import parse_pod
from libs.kube.sim.podrules import PODS
from libs.kube.sim.store import Change, Place
from libs.prom import dcgm

_NODES: Final = "/nodes"
_LEAST_BUSY, _MOST_BUSY = 60, 100


@dataclass(frozen=True, slots=True)
class _Running:
    pod: str
    node: str
    grants: tuple[GpuGrant, ...]
    busy_pct: int


class SimulatedPrometheus:
    """Made before the cluster has pods. `url` is known while `serving` lasts."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._store = cluster.store
        self._nodes: dict[str, Node] = {}
        self._running: dict[str, _Running] = {}
        self.url = ""
        for place, stored in self._store.all(_NODES):
            self._nodes[place.name] = parse_node(stored.raw)
        self._store.observers.append(self._changed)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/api/v1/query", self._query)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self.url
        finally:
            self._store.observers.remove(self._changed)
            await runner.cleanup()

    def _changed(self, change: Change) -> None:
        if change.place.resource == _NODES:
            self._node(change.place, change.raw if change.new is not None else None)
        elif change.place.resource == PODS:
            if change.new is not None and change.new["status"].get("phase") == "Running":
                if change.new["metadata"]["uid"] not in self._running:
                    self._start(change.raw)
            elif (item := change.new or change.old) is not None:
                self._running.pop(item["metadata"]["uid"], None)

    def _node(self, place: Place, raw: bytes | None) -> None:
        if raw is None:
            self._nodes.pop(place.name, None)
        else:
            self._nodes[place.name] = parse_node(raw)

    def _start(self, raw: bytes) -> None:
        pod = parse_pod(raw)
        node = self._nodes.get(pod.node)
        grants = pod.charge(node.gpus).gpus if node else ()
        if grants:
            busy = _LEAST_BUSY + zlib.crc32(pod.name.encode()) % (_MOST_BUSY - _LEAST_BUSY + 1)
            self._running[pod.uid] = _Running(f"{pod.namespace}/{pod.name}", pod.node, grants, busy)

    async def _query(self, request: web.Request) -> web.Response:
        query = (await request.post()).get("query")
        if query != dcgm.SELECTOR:
            error = "only the exporter's metrics are to be had here"
            return web.json_response({"status": "error", "errorType": "bad_data", "error": error}, status=400)
        now = time.time()
        result = [{"metric": labels, "value": [now, f"{value:g}"]} for labels, value in self._series()]
        body = {"status": "success", "data": {"resultType": "vector", "result": result}}
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    def _series(self) -> Iterator[tuple[dict[str, str], float]]:
        used: dict[tuple[str, int], int] = {}
        busy: dict[tuple[str, int], float] = {}
        pods: dict[tuple[str, int], str] = {}
        for pod in self._running.values():
            for grant in pod.grants:
                device = pod.node, grant.index
                used[device] = used.get(device, 0) + grant.mib
                busy[device] = busy.get(device, 0.0) + pod.busy_pct * grant.milli / WHOLE
                pods.setdefault(device, pod.pod)
        for node in self._nodes.values():
            for gpu in node.gpus:
                device = node.name, gpu.index
                labels = {
                    "Hostname": node.name,
                    "gpu": str(gpu.index),
                    "UUID": f"GPU-{node.name}-{gpu.index}",
                    "modelName": gpu.model,
                }
                if device in pods:
                    labels["namespace"], _, labels["pod"] = pods[device].partition("/")
                taken = used.get(device, 0)
                yield {"__name__": dcgm.USED, **labels}, taken
                yield {"__name__": dcgm.FREE, **labels}, gpu.mib - taken
                yield {"__name__": dcgm.UTIL, **labels}, round(busy.get(device, 0.0), 1)


@dataclass(slots=True)
class Measured:
    """Means over time and devices of what `drystone.gpus` says, from the first fact to `until`."""

    nodes: dict[str, GpuFacts] = field(default_factory=dict)
    facts: int = 0
    _since: float = 0.0
    _seconds: float = 0.0
    _util: float = 0.0
    _memory: float = 0.0

    async def follow(self, bus: Bus) -> None:
        """Until it is cancelled."""
        reader = bus.follow([GPUS.name], from_start=True)
        decode: Any = msgspec.json.Decoder(GpuFacts).decode
        while True:
            for record in await reader.batch():
                self.until(time.monotonic())
                self.facts += 1
                if record.value is None:
                    self.nodes.pop(record.key, None)
                else:
                    self.nodes[record.key] = decode(record.value)

    def until(self, now: float) -> None:
        """What was last said has held until now."""
        devices = [gpu for facts in self.nodes.values() for gpu in facts.gpus]
        if devices:
            passed = now - self._since
            self._seconds += passed
            self._util += passed * sum(gpu.util_pct or 0.0 for gpu in devices) / len(devices)
            total = sum(gpu.mib_total for gpu in devices)
            self._memory += passed * 100 * sum(gpu.mib_used for gpu in devices) / max(total, 1)
        self._since = now

    def summary(self) -> dict[str, float]:
        seconds = max(self._seconds, 1e-9)
        return {
            "facts": self.facts,
            "utilisation %": round(self._util / seconds, 1),
            "memory %": round(self._memory / seconds, 1),
        }
