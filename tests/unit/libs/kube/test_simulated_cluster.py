"""Kubelets that admit as real ones do, and the two controllers, on the embedded API server."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from libs.kube import trainingjobs, writes
from libs.kube.embedded import EmbeddedCluster
from libs.kube.outcomes import Outcome, classify
from libs.kube.pods import PodView, parse_pod
from libs.kube.sim.control import Controllers
from libs.kube.sim.kubelet import SimulatedKubelets
from tests.unit.libs.kube.objects_for_tests import raw_node

A100 = {"nvidia.com/gpu.product": "A100", "nvidia.com/gpu.memory": "40960"}


class World:
    def __init__(self, **kubelets: float) -> None:
        self.cluster = EmbeddedCluster()
        self.kubelets = SimulatedKubelets(self.cluster, **kubelets)
        node = msgspec.json.decode(raw_node("n1", gpus=2, labels=A100, allocatable={"cpu": "8", "pods": "5"}))
        for key in ("uid", "resourceVersion"):
            del node["metadata"][key]
        assert self.cluster.call_now("POST", "/api/v1/nodes", msgspec.json.encode(node)).ok

    async def bound(self, name: str, *, limits: dict[str, str] | None = None, **annotations: str) -> PodView:
        body: dict[str, Any] = {
            "metadata": {
                "name": name,
                "annotations": {f"drystone.dev/{k.replace('_', '-')}": v for k, v in annotations.items()},
            },
            "spec": {
                "schedulerName": "drystone",
                "nodeName": "n1",
                "containers": [{"name": "c", "resources": {"limits": limits or {"cpu": "1"}}}],
            },
        }
        answer = await writes.create_pod(self.cluster, "default", msgspec.json.encode(body))
        assert answer.ok, answer.body
        return parse_pod(answer.body)

    def pod(self, name: str) -> PodView | None:
        answer = self.cluster.call_now("GET", f"/api/v1/namespaces/default/pods/{name}")
        return parse_pod(answer.body) if answer.ok else None

    def phase(self, name: str) -> str:
        pod = self.pod(name)
        return pod.phase if pod else "gone"


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not fact():  # noqa: ASYNC110 - the simulation has no event for it
            await asyncio.sleep(0.005)


async def test_a_pod_runs_for_its_seconds_and_succeeds() -> None:
    world = World(speed=100)
    await world.bound("p", simulated_seconds="5")
    await until(lambda: world.phase("p") == "Running")
    await until(lambda: world.phase("p") == "Succeeded")
    assert world.kubelets.refusals == []


async def test_a_pod_may_be_made_to_fail() -> None:
    world = World(speed=100)
    await world.bound("p", simulated_seconds="1", simulated_end="Failed")
    await until(lambda: world.phase("p") == "Failed")
    assert world.kubelets.refusals == []


async def test_one_gpu_is_given_out_once() -> None:
    world = World()
    one = {"nvidia.com/gpu": "1"}
    await world.bound("a", limits=one, gpus="0")
    await world.bound("b", limits=one, gpus="0")
    await until(lambda: world.phase("b") == "Failed")
    assert world.phase("a") == "Running"
    assert [r.reason for r in world.kubelets.refusals] == ["OutOfnvidia.com/gpu"]
    await world.bound("c", limits=one, gpus="1")
    await until(lambda: world.phase("c") == "Running")


async def test_shares_of_a_gpu_add_up_to_one() -> None:
    world = World()
    for name, share in (("a", "0.6"), ("b", "0.4"), ("c", "0.1")):
        await world.bound(name, gpu_fraction=share, gpus="0")
    await until(lambda: world.phase("c") == "Failed")
    assert (world.phase("a"), world.phase("b")) == ("Running", "Running")


async def test_a_pod_that_is_leaving_still_holds_its_room() -> None:
    world = World(leave_s=30)
    pod = await world.bound("a", limits={"cpu": "8"})
    await until(lambda: world.phase("a") == "Running")
    assert (await writes.delete_pod(world.cluster, "default", "a", pod.uid)).ok
    await world.bound("b", limits={"cpu": "1"})
    await until(lambda: world.phase("b") == "Failed")
    assert world.kubelets.refusals[0].reason == "OutOfcpu"
    world.kubelets.stop()


async def test_room_comes_back_when_a_pod_has_left() -> None:
    world = World(leave_s=0.01)
    pod = await world.bound("a", limits={"cpu": "8"})
    await until(lambda: world.phase("a") == "Running")
    assert (await writes.delete_pod(world.cluster, "default", "a", pod.uid)).ok
    await until(lambda: world.phase("a") == "gone")
    await world.bound("b", limits={"cpu": "8"})
    await until(lambda: world.phase("b") == "Running")


async def test_pods_go_with_the_job_that_owns_them_and_late_ones_too() -> None:
    world = World(leave_s=0.01)
    Controllers(world.cluster)
    created = await writes.create_trainingjob(world.cluster, "default", "run", {"roles": []})
    job = trainingjobs.parse(created.body)
    owner = {"apiVersion": "drystone.dev/v1alpha1", "kind": "TrainingJob", "name": "run", "uid": job.uid}
    body = {"metadata": {"name": "p", "ownerReferences": [owner]}, "spec": {"containers": [{"name": "c"}]}}
    assert (await writes.create_pod(world.cluster, "default", msgspec.json.encode(body))).ok
    assert (await writes.delete_trainingjob(world.cluster, "default", "run", job.uid)).ok
    await until(lambda: world.phase("p") == "gone")
    late = {**body, "metadata": {**body["metadata"], "name": "late"}}
    assert (await writes.create_pod(world.cluster, "default", msgspec.json.encode(late))).ok
    await until(lambda: world.phase("late") == "gone")


async def test_a_budget_follows_the_pods_it_guards() -> None:
    world = World(leave_s=0.01)
    Controllers(world.cluster)
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {}}}}
    assert world.cluster.call_now("POST", path, msgspec.json.encode(budget)).ok
    first, second = await world.bound("a"), await world.bound("b")
    await until(lambda: world.phase("a") == world.phase("b") == "Running")
    await asyncio.sleep(0.01)
    assert classify(await writes.evict(world.cluster, "default", "a", first.uid)) is Outcome.DONE
    assert classify(await writes.evict(world.cluster, "default", "b", second.uid)) is Outcome.THROTTLED
    await until(lambda: world.phase("a") == "gone")
    await world.bound("c")
    await until(lambda: world.phase("c") == "Running")
    await asyncio.sleep(0.01)
    assert classify(await writes.evict(world.cluster, "default", "b", second.uid)) is Outcome.DONE
