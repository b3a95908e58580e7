"""One tenant's pods that fit nowhere, thousands of them and no two alike, beside another tenant's that fit at once.

The other tenant's pods are measured, from their first sight on a watch to bound, with the hopeless ones there and
without, in turns on the same cluster. Each node has a GPU taken for good, so a pod of eight might fit one day.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.conflicts import values
from bench.pipeline import percentiles, prepare
from libs.domain import keys
from libs.kube import writes
from tools.fleet import Fleet
from tools.load import Load, LoadError, pod_object
from tools.stack import Stack

#: What is asked of the median over the runs: P99 beside the hopeless ones against P99 without.
RATIO: Final = 1.5


async def run(
    nodes: int, hopeless: int, pods: int, rate: float, runs: int, settle_s: float, *, report: Callable[[str], None]
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="drystone-bench-") as scratch:
        place = Path(scratch)
        stack = Stack(place / "stack", parts=("etcd", "apiserver", "kafka", "redis", "prometheus"))
        info = await asyncio.to_thread(stack.up)
        alone: list[dict[str, float]] = []
        beside: list[dict[str, float]] = []
        evaluated: list[float] = []
        try:
            async with Load.of(info) as load:
                await prepare(info, load, nodes)
                await _queues(load)
                async with Fleet(info, place / "fleet") as fleet:
                    await fleet.start()
                    await _one_taken_on_each(load, nodes)
                    await _measure(load, "warm", pods, rate, random.Random(0))
                    for n in range(runs):
                        alone.append(await _measure(load, f"alone-{n}", pods, rate, random.Random(n)))
                        await load.create_pods([_hopeless(n, i) for i in range(hopeless)])
                        await asyncio.sleep(settle_s)
                        before, begun = _evaluations(fleet), time.monotonic()
                        beside.append(await _measure(load, f"beside-{n}", pods, rate, random.Random(n)))
                        evaluated.append((_evaluations(fleet) - before) / (time.monotonic() - begun))
                        report(
                            f"run {n + 1}: P99 {alone[-1]['p99']} ms alone, {beside[-1]['p99']} ms beside {hopeless}; "
                            f"{evaluated[-1]:.0f} hopeless evaluations a second"
                        )
                        await load.delete_pods(selector="run=hopeless")
                        await asyncio.sleep(2.0)
        finally:
            await asyncio.to_thread(stack.down)
    ratios = [round(b["p99"] / a["p99"], 2) for a, b in zip(alone, beside, strict=True)]
    return {
        "nodes": nodes,
        "hopeless": hopeless,
        "pods": pods,
        "settle_s": settle_s,
        "alone_ms": alone,
        "beside_ms": beside,
        "p99_ratios": ratios,
        "p99_ratio_median": statistics.median(ratios),
        "p50_ratio_median": round(
            statistics.median(b["p50"] / a["p50"] for a, b in zip(alone, beside, strict=True)), 2
        ),
        "hopeless_evaluations_per_s": [round(e, 1) for e in evaluated],
        "within": statistics.median(ratios) <= RATIO,
    }


async def _queues(load: Load) -> None:
    for name in ("a", "b"):
        item = {"apiVersion": keys.API_VERSION, "kind": "Queue", "metadata": {"name": name}, "spec": {}}
        answer = await load.kube.call("POST", writes.QUEUES, json.dumps(item).encode())
        if not answer.ok:
            raise LoadError(f"queue {name}: {answer.status} {answer.body[:300]!r}")


async def _one_taken_on_each(load: Load, nodes: int) -> None:
    async with load.count_bound(selector="run=taken") as bound:
        at = [{"kubernetes.io/hostname": f"node-{n:05d}"} for n in range(nodes)]
        await load.create_pods(
            [pod_object(f"taken-{n}", labels={"run": "taken"}, nodeSelector=at[n]) for n in range(nodes)]
        )
        await bound.reach(nodes, 120)


def _hopeless(run: int, number: int) -> dict[str, object]:
    return pod_object(
        f"hopeless-{run}-{number}",
        gpus=8,
        cpu=f"{1000 + number}m",
        labels={"run": "hopeless"},
        annotations={keys.QUEUE: "a"},
    )


async def _measure(load: Load, name: str, pods: int, rate: float, draw: random.Random) -> dict[str, float]:
    async with load.count_bound(selector=f"run={name}") as bound:
        creating: list[asyncio.Task[None]] = []
        for n in range(pods):
            pod = pod_object(f"{name}-{n}", cpu="1", labels={"run": name}, annotations={keys.QUEUE: "b"})
            creating.append(asyncio.create_task(load.create_pods([pod]), name=f"create {name}-{n}"))
            await asyncio.sleep(draw.expovariate(rate))
        await asyncio.gather(*creating)
        await bound.reach(pods, 120)
    await load.delete_pods(selector=f"run={name}")
    await asyncio.sleep(1.0)
    return percentiles([1000 * (at - bound.created_at[pod]) for pod, at in bound.bound_at.items()])


def _evaluations(fleet: Fleet) -> float:
    return sum(
        sum(values(m.metrics(), "drystone_placement_hopeless_evaluations_total").values())
        for m in fleet.members
        if m.service == "placement"
    )
