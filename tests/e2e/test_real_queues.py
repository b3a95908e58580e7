"""Queues on the running system: changed live, and kept in their status by the leader. Nothing is restarted."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from libs.domain import keys
from libs.kube import trainingjobs, writes
from tests.e2e.test_real_pods import bound
from tests.e2e.world import World

pytestmark = pytest.mark.real


async def make(world: World, spec: dict[str, Any], name: str = "q") -> str:
    full = f"{name}-{world.namespace}"
    body = {"apiVersion": keys.API_VERSION, "kind": "Queue", "metadata": {"name": full}, "spec": spec}
    await world.load.create_all(writes.QUEUES, [body])
    world.queues.append(full)
    return full


async def change(world: World, name: str, **spec: Any) -> None:
    body = json.dumps({"spec": spec}).encode()
    answer = await world.load.kube.call("PATCH", f"{writes.QUEUES}/{name}", body, content_type=writes.MERGE)
    assert answer.ok, answer.body


async def status(world: World, name: str) -> dict[str, Any]:
    answer = await world.load.kube.call("GET", f"{writes.QUEUES}/{name}")
    return json.loads(answer.body).get("status") or {}


async def test_limits_and_namespaces_of_queues_change_while_everything_runs(world: World) -> None:
    await world.nodes(1)
    small = await make(world, {"limits": {keys.GPU_RESOURCE: 1}, "namespaces": [world.namespace]}, "small")
    await world.create(world.pod("first"), world.pod("second"))
    pods = await world.until(
        lambda pods: len(bound(pods)) == 1 and sum(p.reason == "QuotaExceeded" for p in pods.values()) == 1
    )
    (waits,) = pods.keys() - set(bound(pods))
    await change(world, small, limits={keys.GPU_RESOURCE: 2})
    await world.until(lambda pods: waits in bound(pods), within_s=60.0)

    await world.create(world.pod("third"))
    await world.until(lambda pods: pods["third"].reason == "QuotaExceeded")
    large = await make(world, {"limits": {keys.GPU_RESOURCE: 4}}, "large")
    await change(world, small, namespaces=[])
    await change(world, large, namespaces=[world.namespace])
    await world.until(lambda pods: "third" in bound(pods), within_s=60.0)
    holders = await world.until_held(lambda held: [h.state for h in held] == ["bound"] * 3)
    assert sorted(h.queue for h in holders) == [large, small, small]


async def test_a_queue_of_other_namespaces_is_not_open_until_it_is_said_to_be(world: World) -> None:
    await world.nodes(1)
    queue = await make(world, {"namespaces": ["somebody-elses"]})
    spec = {"roles": world.job("x", 2)["roles"], "queue": queue}
    body = {"apiVersion": keys.API_VERSION, "kind": trainingjobs.KIND, "metadata": {"name": "job"}, "spec": spec}
    await world.load.create_all(trainingjobs.path(world.namespace), [body])
    async with world.listening() as heard:
        await world.create(world.pod("pod", annotations={keys.QUEUE: queue}))
        pods = await world.until(lambda pods: "pod" in pods and bool(pods["pod"].reason))
        assert pods["pod"].reason == "QueueNotOpen"
        condition = pods["pod"].condition
        assert condition is not None
        assert f"queue {queue} is for the namespaces somebody-elses alone" in (condition.message or "")
        await heard.until(lambda heard: bool(heard.about(f"pod/{world.namespace}/pod")))
        verdict = heard.about(f"pod/{world.namespace}/pod")[0].verdict
        assert verdict is not None
        assert verdict.kind == "Never"
    await world.until_job("job", lambda view: view.status.reason == "QueueNotOpen", namespace=world.namespace)
    await change(world, queue, namespaces=["somebody-elses", world.namespace])
    await world.until(lambda pods: len(bound(pods)) == 3, within_s=30.0)


async def test_a_limit_of_one_model_holds_back_that_model_alone(world: World) -> None:
    await world.nodes(1, model="H100")
    await world.nodes(1, model="A100")
    queue = await make(world, {"limits": {f"{keys.GPU_RESOURCE}:H100": 1}})
    mine = {keys.QUEUE: queue}
    hard = {**mine, keys.GPU_MODELS: "H100"}
    await world.create(world.pod("h-0", annotations=hard))
    await world.until(lambda pods: bound(pods) == ["h-0"])
    await world.create(world.pod("h-1", annotations=hard), *(world.pod(f"any-{n}", annotations=mine) for n in range(3)))
    pods = await world.until(lambda pods: len(bound(pods)) == 4 and bool(pods["h-1"].reason))
    assert pods["h-1"].reason == "QuotaExceeded"
    assert {pods[f"any-{n}"].view.node for n in range(3)} == {world.node_names[1]}
    await change(world, queue, limits={f"{keys.GPU_RESOURCE}:H100": 2})
    await world.until(lambda pods: "h-1" in bound(pods), within_s=60.0)


async def test_who_was_evicted_and_what_was_used_stands_in_the_queues_status(world: World) -> None:
    await world.nodes(1)
    queue = await make(world, {"namespaces": [world.namespace]})
    await world.create(*(world.pod(f"low-{n}", labels={"priority": "low"}) for n in range(8)))
    await world.until(lambda pods: sum(p.view.phase == "Running" for p in pods.values()) == 8)
    await world.create(world.pod("high", gpus=2, labels={"priority": "high"}))
    pods = await world.until(lambda pods: "high" in pods and bool(pods["high"].view.node), within_s=30)
    gone = {f"pod/{world.namespace}/low-{n}" for n in range(8) if f"low-{n}" not in pods}
    assert len(gone) == 2
    said: dict[str, Any] = {}
    async with asyncio.timeout(90):
        while {one["workload"] for one in said.get("evictions") or ()} != gone:
            await asyncio.sleep(0.5)
            said = await status(world, queue)
    assert all(len(one["times"]) == 1 for one in said["evictions"])
    assert said["history"]["gpuMilliSeconds"] > 0
    assert said["used"][keys.GPU_RESOURCE] == "8"
    assert said["conditions"][0]["status"] == "True"

    command = [str(Path(sys.executable).with_name("drystone")), "queue", queue, "--json"]
    command += ["--kubeconfig", str(world.info.kubeconfig)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True, timeout=60)
    (row,) = json.loads(done.stdout)
    assert row["used"][keys.GPU_RESOURCE] == "8"
    assert row["evicted"].keys() == gone


async def test_the_half_life_of_what_was_used_is_changed_by_its_owner_and_the_mean_does_not_jump(world: World) -> None:
    await world.nodes(1)
    above = await make(world, {}, "org")
    queue = await make(world, {"parent": above, "namespaces": [world.namespace]}, "team")
    await world.create(*(world.pod(f"p-{n}") for n in range(4)))
    await world.until(lambda pods: sum(p.view.phase == "Running" for p in pods.values()) == 4)

    async def told(half_life_s: int | None) -> dict[str, Any]:
        async with asyncio.timeout(90):
            while True:
                said = (await status(world, queue)).get("history") or {}
                if said.get("gpuMilliSeconds") and half_life_s in (None, said["halfLifeSeconds"]):
                    return said
                await asyncio.sleep(0.2)

    def mean(said: dict[str, Any]) -> float:
        return float(said["gpuMilliSeconds"] * math.log(2) / said["halfLifeSeconds"])

    before = await told(None)
    await change(world, above, usageHalfLifeSeconds=3600)
    after = await told(3600)
    most = 4000 * (1 - 2 ** (-(after["at"] - before["at"]) / 3600))
    assert mean(before) * 0.99 <= mean(after) <= mean(before) + most + 1.0
