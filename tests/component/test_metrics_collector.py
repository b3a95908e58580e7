"""The metrics-collector against an HTTP server that speaks Prometheus' API, on the in-process bus."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from libs.bus.memory import MemoryBus
from libs.bus.port import Outgoing
from libs.contracts.events import EventType, GpuFacts, PodFact
from libs.contracts.topics import CLUSTER, GPUS
from libs.domain.resources import Charge, GpuGrant
from libs.host.parts import Parts, not_opened
from libs.observe import metrics
from services.metrics_collector.app import Collector
from services.metrics_collector.settings import CollectorSettings


class Prometheus:
    """Answers every query with the series that it was given."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, str, int], float] = {}
        self.status = 200
        self.url = ""

    def device(self, node: str, gpu: int, *, used: float, free: float, util: float) -> None:
        for name, value in (("FB_USED", used), ("FB_FREE", free), ("GPU_UTIL", util)):
            self.series[f"DCGM_FI_DEV_{name}", node, gpu] = value

    async def answer(self, request: web.Request) -> web.Response:
        assert "DCGM_FI_DEV_FB_USED" in (await request.post())["query"]
        result = [
            {"metric": {"__name__": name, "Hostname": node, "gpu": str(gpu)}, "value": [1.5, str(value)]}
            for (name, node, gpu), value in self.series.items()
        ]
        return web.json_response(
            {"status": "success", "data": {"resultType": "vector", "result": result}}, status=self.status
        )


@asynccontextmanager
async def collecting(bus: MemoryBus, **settings: Any) -> AsyncIterator[tuple[Prometheus, Collector]]:
    prometheus = Prometheus()
    app = web.Application()
    app.router.add_post("/api/v1/query", prometheus.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    chosen = {"interval_s": 0.1, "smoothing_s": 0.0, **settings}
    collector = Collector(
        CollectorSettings(prometheus_url=f"http://127.0.0.1:{runner.addresses[0][1]}", **chosen),
        Parts(bus, not_opened("ledger", "test"), not_opened("kube", "test")),
    )
    stop = asyncio.Event()
    serving = asyncio.create_task(collector.serve(stop))
    try:
        yield prometheus, collector
    finally:
        stop.set()
        await serving
        await runner.cleanup()


async def until(true: Callable[[], Any], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


class Topic:
    """What a placement replica would know from `drystone.gpus`."""

    def __init__(self, bus: MemoryBus) -> None:
        self._reader = bus.follow([GPUS.name], from_start=True)
        self.facts: dict[str, GpuFacts] = {}
        self.records = 0

    async def read(self) -> dict[str, GpuFacts]:
        for record in await self._reader.batch(1000, 0.05):
            self.records += 1
            if record.value is None:
                self.facts.pop(record.key, None)
            else:
                self.facts[record.key] = msgspec.json.decode(record.value, type=GpuFacts)
        return self.facts

    async def until(self, true: Callable[[dict[str, GpuFacts]], Any]) -> None:
        async with asyncio.timeout(30):
            while not true(await self.read()):
                pass


async def test_a_changed_gauge_reaches_placement_and_an_unchanged_one_is_not_told_again() -> None:
    bus = MemoryBus()
    topic = Topic(bus)
    async with collecting(bus) as (prometheus, collector):
        prometheus.device("n1", 0, used=100, free=900, util=5)
        await topic.until(lambda facts: "n1" in facts)
        assert (topic.facts["n1"].gpus[0].mib_used, topic.facts["n1"].gpus[0].mib_total) == (100, 1000)
        prometheus.device("n1", 0, used=400, free=600, util=80)
        await topic.until(lambda facts: facts["n1"].gpus[0].mib_used == 400)
        assert topic.facts["n1"].gpus[0].util_pct == 80
        told = topic.records
        await asyncio.sleep(0.4)
        await topic.read()
        assert topic.records == told
        assert collector.health().ready
        own = metrics.render().decode()
        assert 'gpu_utilization{gpu_id="0",node="n1"} 80.0' in own
        assert 'gpu_memory_used_mib{gpu_id="0",node="n1"} 400.0' in own


async def test_a_node_that_vanished_while_nobody_looked_gets_its_tombstone() -> None:
    bus = MemoryBus()
    topic = Topic(bus)
    old = msgspec.json.encode(GpuFacts("ghost", ()))
    await bus.publish([Outgoing(GPUS.name, "ghost", old, EventType.GPUS)])
    await topic.until(lambda facts: "ghost" in facts)
    async with collecting(bus, vanish_s=0.2) as (prometheus, _):
        prometheus.device("n1", 0, used=1, free=2, util=3)
        await topic.until(lambda facts: "ghost" not in facts and "n1" in facts)


async def test_prometheus_away_makes_unready_and_no_node_vanish() -> None:
    bus = MemoryBus()
    topic = Topic(bus)
    async with collecting(bus, vanish_s=0.2, query_timeout_s=0.3) as (prometheus, collector):
        prometheus.device("n1", 0, used=1, free=2, util=3)
        await topic.until(lambda facts: "n1" in facts)
        prometheus.status = 503
        await until(lambda: not collector.health().ready)
        assert "503" in collector.health().detail["prometheus"]
        assert "n1" in await topic.read()


async def test_memory_that_no_bound_pod_is_charged_for_is_a_leak() -> None:
    bus = MemoryBus()
    pod = PodFact("u1", "p", "ns", "1", "n1", Charge(gpus=(GpuGrant(0, 1000, 81920),)))
    await bus.publish([Outgoing(CLUSTER.name, "pod/u1", msgspec.json.encode(pod), EventType.CLUSTER)])
    leaked = 'gpu_memory_leaked_mib{gpu_id="0",node="n1"}'
    async with collecting(bus, leak_s=0.3) as (prometheus, _):
        prometheus.device("n1", 0, used=40000, free=41920, util=90)
        await asyncio.sleep(0.6)
        assert leaked not in metrics.render().decode()
        await bus.publish([Outgoing(CLUSTER.name, "pod/u1", None, EventType.CLUSTER)])
        await until(lambda: f"{leaked} 40000.0" in metrics.render().decode())
        prometheus.device("n1", 0, used=3, free=81917, util=0)
        await until(lambda: leaked not in metrics.render().decode())


async def test_two_replicas_divide_the_nodes() -> None:
    nodes = [f"n{n}" for n in range(20)]
    shares = []
    for shard in range(2):
        bus = MemoryBus()
        topic = Topic(bus)
        async with collecting(bus, shard=shard, shards=2) as (prometheus, _):
            for node in nodes:
                prometheus.device(node, 0, used=1, free=1, util=1)
            await topic.until(lambda facts: len(facts) >= 5)
            await asyncio.sleep(0.3)
            shares.append(set(await topic.read()))
    assert shares[0] | shares[1] == set(nodes)
    assert not shares[0] & shares[1]


@pytest.mark.parametrize("settings", [{"shard": 2, "shards": 2}, {"prometheus_url": "prometheus:9090"}])
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="DRYSTONE_"):
        CollectorSettings(**settings)
