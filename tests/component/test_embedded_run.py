"""`drystone run`: the five services in one process, and GPU facts that go the way they go in production."""

import asyncio
import json
from typing import Any

import pytest

from cli.embedded import _replay
from cli.gpus import SimulatedPrometheus
from libs.domain import keys
from libs.kube.embedded import EmbeddedCluster
from libs.kube.sim.kubelet import SimulatedKubelets
from libs.prom import dcgm
from libs.prom.client import PromClient, PromFault


def node(name: str, gpus: int, mib: int) -> bytes:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", keys.GPU_RESOURCE: str(gpus)}
    labels = {keys.NODE_GPU_MODEL: "T4", keys.NODE_GPU_MEMORY: str(mib)}
    status = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return json.dumps({"metadata": {"name": name, "labels": labels}, "status": status}).encode()


def bound(name: str, gpus: str, **annotations: str) -> bytes:
    marks = {keys.GPUS: gpus, **annotations}
    amounts = {} if keys.GPU_FRACTION in annotations else {keys.GPU_RESOURCE: str(len(gpus.split(",")))}
    spec: dict[str, Any] = {
        "schedulerName": keys.SCHEDULER_NAME,
        "nodeName": "n1",
        "containers": [{"name": "main", "resources": {"limits": amounts}}],
    }
    return json.dumps({"metadata": {"name": name, "namespace": "default", "annotations": marks}, "spec": spec}).encode()


async def devices(prom: PromClient) -> list[dcgm.Device]:
    samples = await prom.instant(dcgm.SELECTOR)
    assert not isinstance(samples, PromFault), samples.why
    return dcgm.devices(samples)


async def test_the_simulated_exporter_shows_what_runs_and_only_that() -> None:
    cluster = EmbeddedCluster()
    kubelets = SimulatedKubelets(cluster)
    pods = "/api/v1/namespaces/default/pods"
    async with SimulatedPrometheus(cluster).serving() as url:
        prom = PromClient(url)
        try:
            cluster.call_now("POST", "/api/v1/nodes", node("n1", 3, 16000))
            assert [(d.used_mib, d.total_mib, d.util_pct, d.pod) for d in await devices(prom)] == [
                (0, 16000, 0, "")
            ] * 3
            assert cluster.call_now("POST", pods, bound("whole", "1")).ok
            half = {keys.GPU_FRACTION: "0.5", keys.GPU_MILLI: "500", keys.GPU_MIB: "8000"}
            assert cluster.call_now("POST", pods, bound("half", "2", **half)).ok
            await asyncio.sleep(0.02)
            free, whole, shared = await devices(prom)
            assert (free.used_mib, free.util_pct) == (0, 0)
            assert (whole.used_mib, whole.pod) == (16000, "default/whole")
            assert (shared.used_mib, shared.model) == (8000, "T4")
            assert 60 <= (whole.util_pct or 0) <= 100
            assert 30 <= (shared.util_pct or 0) <= 50
            cluster.call_now("DELETE", f"{pods}/whole", b'{"gracePeriodSeconds":0}')
            await asyncio.sleep(0.02)
            assert [d.used_mib for d in await devices(prom)] == [0, 0, 8000]
            refused = await prom.instant("up")
            assert isinstance(refused, PromFault)
            assert "only the exporter's metrics" in refused.why
        finally:
            await prom.close()
            kubelets.stop()


async def test_a_replay_places_everything_and_its_gpus_are_measured() -> None:
    summary = await _replay(2.0, 60, quiet=True)
    assert summary["tasks placed"] == summary["tasks finished"] == summary["tasks"] == 60
    assert summary["refused by kubelets"] == 0
    measured = summary["GPUs as measured"]
    assert measured["facts"] > summary["nodes"]
    assert 0 < measured["utilisation %"] < summary["GPU allocation %"] + 20
    assert 0 < measured["memory %"] <= 100


def test_the_replay_runs_the_five_services() -> None:
    from cli.embedded import services
    from cli.main import SERVICES
    from libs.bus.memory import MemoryBus
    from libs.host.parts import Parts
    from libs.store.embedded import embedded_ledger

    async def names() -> list[str]:
        cluster, bus, ledger = EmbeddedCluster(), MemoryBus(), embedded_ledger()
        await bus.open()
        await ledger.open()
        async with (
            SimulatedPrometheus(cluster).serving() as url,
            services(Parts(bus, ledger, cluster), url) as running,
        ):
            return [service.name for service in running]

    assert sorted(asyncio.run(names())) == sorted(SERVICES)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the caller exported for a real stack must not reach the services in this process."""
    import os

    for name in [name for name in os.environ if name.startswith("DRYSTONE_")]:
        monkeypatch.delenv(name)
