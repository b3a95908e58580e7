"""Wishes for topology and precision from the API server or an event to the node: watcher, placement and binder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from libs.bus.memory import MemoryBus
from libs.bus.port import Outgoing
from libs.contracts.events import EventType
from libs.contracts.topics import JOBS
from libs.domain import keys
from libs.host.parts import Parts
from libs.kube import trainingjobs, writes
from libs.kube.embedded import EmbeddedCluster
from libs.kube.pods import PodView, parse_pod
from libs.store.embedded import embedded_ledger
from services.binder.app import Binder
from services.binder.settings import BinderSettings
from services.placement.app import Placement
from services.placement.settings import PlacementSettings
from services.watcher.app import Watcher
from services.watcher.settings import WatcherSettings

NS = "default"
ENCODE = msgspec.json.encode
ZONE, RACK = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack"
H100, A100, V100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "Tesla-V100-SXM2-16GB"


class World:
    def __init__(self, bus: MemoryBus, cluster: EmbeddedCluster) -> None:
        self.bus, self.cluster = bus, cluster

    def node(self, name: str, rack: str, gpus: int = 8, model: str = A100, zone: str = "a", **annotations: str) -> None:
        labels = {ZONE: zone, RACK: rack, keys.NODE_GPU_MODEL: model, keys.NODE_GPU_MEMORY: "80000"}
        item = {
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", keys.GPU_RESOURCE: str(gpus)},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        assert self.cluster.call_now("POST", "/api/v1/nodes", ENCODE(item)).ok

    def pod(self, name: str, gpus: int = 8, **annotations: str) -> None:
        item = {
            "metadata": {"name": name, "namespace": NS, "annotations": annotations},
            "spec": {"schedulerName": keys.SCHEDULER_NAME, "containers": [container(gpus)]},
        }
        answer = self.cluster.call_now("POST", writes.pods_path(NS), ENCODE(item))
        assert answer.ok, answer.body

    def gang(self, name: str, size: int, gpus: int = 8, **annotations: str) -> None:
        for i in range(size):
            self.pod(f"{name}-{i}", gpus, **{keys.JOB: name, keys.GANG_MIN: str(size), **annotations})

    def pods(self) -> list[PodView]:
        answer = self.cluster.call_now("GET", writes.pods_path())
        return [parse_pod(ENCODE(item)) for item in msgspec.json.decode(answer.body)["items"]]

    def bound(self, prefix: str) -> dict[str, str]:
        return {p.name: p.node for p in self.pods() if p.name.startswith(prefix) and p.node and not p.ended}

    def racks(self, prefix: str) -> set[str]:
        return {node.split("-")[0] for node in self.bound(prefix).values()}

    def condition(self, name: str) -> str:
        answer = self.cluster.call_now("GET", writes.pods_path(NS, name))
        conditions = msgspec.json.decode(answer.body)["status"].get("conditions") or []
        return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")

    async def until(self, true: Callable[[], object], within_s: float = 30.0) -> None:
        began = time.monotonic()
        while not true():
            assert time.monotonic() - began < within_s, "it did not come about in time"
            await asyncio.sleep(0.01)


def container(gpus: int) -> dict[str, Any]:
    return {"name": "c", "image": "i", "resources": {"limits": {keys.GPU_RESOURCE: str(gpus)}}}


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    bus, cluster, ledger = MemoryBus(), EmbeddedCluster(), embedded_ledger()
    await bus.open()
    await ledger.open()
    parts = Parts(bus, ledger, cluster)
    watcher = WatcherSettings(longest_write_s=0, replica_id="w", lease_s=2, renew_s=0.3, slow_pass_s=0.6)
    stop = asyncio.Event()
    services = (
        Watcher(watcher, parts),
        Placement(PlacementSettings(), parts),
        Binder(BinderSettings(), parts),
    )
    serving = [asyncio.create_task(service.serve(stop), name=service.name) for service in services]
    try:
        yield World(bus, cluster)
    finally:
        stop.set()
        await asyncio.gather(*serving)
        await bus.close()
        await cluster.close()
        await ledger.close()


async def test_a_gang_of_pods_that_asks_for_one_rack_gets_one_and_is_mended_in_it() -> None:
    async with world() as w:
        for rack, size in (("r1", 2), ("r2", 3), ("r3", 4)):
            for i in range(size):
                w.node(f"{rack}-{i}", rack)
        w.gang("train", 3, **{keys.TOPOLOGY_REQUIRED: "rack"})
        await w.until(lambda: len(w.bound("train")) == 3)
        assert w.racks("train") == {"r2"}
        lost = w.bound("train")["train-1"]
        w.cluster.call_now("DELETE", writes.pods_path(NS, "train-1"), b'{"gracePeriodSeconds":0}')
        await w.until(lambda: len(w.bound("train")) == 2)
        again = {keys.JOB: "train", keys.GANG_MIN: "3", keys.TOPOLOGY_REQUIRED: "rack"}
        w.pod("train-1b", **again)
        await w.until(lambda: len(w.bound("train")) == 3)
        assert w.bound("train")["train-1b"] == lost, "the one place left in its rack, although r3 is free"


async def test_kueues_annotation_means_the_same_and_a_refusal_says_how_short_the_best_rack_is() -> None:
    async with world() as w:
        for rack in ("r1", "r2"):
            for i in range(2):
                w.node(f"{rack}-{i}", rack)
        w.pod("base", 4)
        await w.until(lambda: w.bound("base"))
        taken = w.racks("base").pop()
        w.gang("train", 4, 4, **{"kueue.x-k8s.io/podset-required-topology": RACK})
        await w.until(lambda: len(w.bound("train")) == 4)
        assert w.racks("train") == {"r1", "r2"} - {taken}
        w.gang("late", 4, 4, **{"kueue.x-k8s.io/podset-required-topology": RACK})
        await w.until(lambda: w.condition("late-0"))
        assert f"rack {taken} has room for 3 of 4 tasks" in w.condition("late-0")


async def test_a_training_job_puts_each_group_in_a_rack_and_everything_in_one_zone() -> None:
    async with world() as w:
        for rack, zone, size in (("r1", "a", 3), ("r2", "b", 2), ("r3", "b", 2)):
            for i in range(size):
                w.node(f"{rack}-{i}", rack, zone=zone)
        spec = {
            "topology": {"required": "zone"},
            "precision": {"kind": "bf16"},
            "roles": [
                {
                    "name": "worker",
                    "replicas": 4,
                    "template": {"spec": {"containers": [container(8)]}},
                    "topology": {"groups": {"size": 2, "required": "rack"}},
                },
            ],
        }
        body = trainingjobs.manifest(NS, "run", spec, {}, {})
        assert w.cluster.call_now("POST", trainingjobs.path(NS), body).ok
        await w.until(lambda: len(w.bound("run")) == 4)
        racks = {name: node.split("-")[0] for name, node in w.bound("run").items()}
        groups = [{racks[f"run-worker-{i}-0"] for i in pair} for pair in ((0, 1), (2, 3))]
        assert sorted(map(sorted, groups)) == [["r2"], ["r3"]]
        marks = next(p for p in w.pods() if p.name == "run-worker-3-0").annotations
        assert marks[keys.JOB_TOPOLOGY_REQUIRED] == "zone"
        assert (marks[keys.GROUP_TOPOLOGY_REQUIRED], marks[keys.GROUP_SIZE]) == ("rack", "2")
        assert marks[keys.PRECISION] == "bf16"


async def test_a_submitted_job_of_fp8_goes_to_the_gpus_that_have_it_and_one_nobody_has_is_told_so() -> None:
    async with world() as w:
        w.node("v-0", "r1", model=V100)
        w.node("a-0", "r1", model=A100)
        w.node("h-0", "r1", model=H100)
        fp8 = {
            "id": "llm",
            "roles": [{"replicas": 2, "template": {"image": "i", "resources": {"gpu": 4}}}],
            "precision": {"kind": "fp8", "required": True},
        }
        await w.bus.publish([Outgoing(JOBS.name, "llm", ENCODE(fp8), EventType.JOB_SUBMIT)])
        await w.until(lambda: len(w.bound("llm")) == 2)
        assert set(w.bound("llm").values()) == {"h-0"}
        w.pod("more", 1, **{keys.PRECISION: "fp8", keys.PRECISION_REQUIRED: "true"})
        await w.until(lambda: w.condition("more"))
        assert "not enough free GPUs" in w.condition("more")
        w.pod("never", 1, **{keys.PRECISION: "fp8", keys.PRECISION_REQUIRED: "true", keys.GPU_MODELS: f"{A100},{V100}"})
        await w.until(lambda: w.condition("never"))
        assert "2 GPU does not support the precision" in w.condition("never")


async def test_gpus_that_share_nvlink_are_given_together() -> None:
    async with world() as w:
        w.node("n-0", "r1", **{keys.NVLINK_GROUPS: "0,2,4,6;1,3,5,7"})
        w.pod("one", 1)
        await w.until(lambda: w.bound("one"))
        w.pod("four", 4)
        await w.until(lambda: w.bound("four"))
        given = {p.name: p.annotations[keys.GPUS] for p in w.pods()}
        assert given == {"one": "0", "four": "1,3,5,7"}
