"""A gang of one-GPU pods from the first create to all bound, and a hopeless job from its create to its Never."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.pipeline import prepare
from libs.domain import keys
from tools.fleet import Fleet
from tools.load import Load, LoadError, pod_object
from tools.stack import Stack

HOPELESS_LIMIT_S = 30.0


async def run(size: int, nodes: int, runs: int, *, report: Callable[[str], None]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="drystone-bench-") as scratch:
        stack = Stack(Path(scratch) / "stack", parts=("etcd", "apiserver", "kafka", "redis", "prometheus"))
        info = await asyncio.to_thread(stack.up)
        gangs: list[float] = []
        never: list[float] = []
        try:
            async with Load.of(info) as load:
                await prepare(info, load, nodes)
                async with Fleet(info, Path(scratch) / "fleet") as fleet:
                    await fleet.start()
                    for n in range(runs + 1):
                        gangs.append(await _gang(load, f"gang-{n}", size))
                        report(f"gang of {size}: {gangs[-1]:.2f} s{' (warm-up)' if n == 0 else ''}")
                        await load.delete_pods()
                        await asyncio.sleep(1.0)
                    never.extend([await _hopeless(load, f"hopeless-{n}") for n in range(10)])
                    report(f"hopeless job: Never after {statistics.median(never):.3f} s, at most {max(never):.3f} s")
        finally:
            await asyncio.to_thread(stack.down)
    return {
        "size": size,
        "nodes": nodes,
        "gang_s": [round(s, 3) for s in gangs[1:]],
        "gang_median_s": round(statistics.median(gangs[1:]), 3),
        "never_s": [round(s, 3) for s in never],
        "never_median_s": round(statistics.median(never), 3),
        "never_max_s": round(max(never), 3),
    }


async def _gang(load: Load, name: str, size: int) -> float:
    marks = {keys.JOB: name, keys.GANG_MIN: str(size)}
    pods = [pod_object(f"{name}-{n}", labels={"run": name}, annotations=marks) for n in range(size)]
    async with load.count_bound(selector=f"run={name}") as count:
        begun = time.monotonic()
        async with asyncio.TaskGroup() as both:
            both.create_task(load.create_pods(pods), name="creator")
            bound = both.create_task(count.reach(size, 60), name="bound")
        return bound.result() - begun


async def _hopeless(load: Load, name: str) -> float:
    """Seconds until the pod's own condition says that no node of this cluster, empty, would do."""
    begun = time.monotonic()
    await load.create_pods([pod_object(name, gpus=64)])
    path = f"/api/v1/namespaces/default/pods/{name}"
    while time.monotonic() - begun < HOPELESS_LIMIT_S:
        answer = await load.kube.call("GET", path)
        status = msgspec.json.decode(answer.body).get("status", {})
        for condition in status.get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return time.monotonic() - begun
        await asyncio.sleep(0.01)
    raise LoadError(f"no verdict on {name}: {json.dumps(status)[:300]}")
