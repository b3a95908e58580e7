"""Room is made in a full cluster: from the acknowledged create of the pods that want it to all of them bound.

Every GPU is held by a pod of a queue without a share, each the pod of a workload of its own without a disruption
budget, whose controller makes it again at once; kubelets end pods as soon as they are told. A queue with a share has
one GPU back, then a gang of many; between two measurements what was reclaimed goes back to whoever was evicted. At last
half of the pods leave a part of the nodes, and a gang of whole nodes is let in by moving the others together.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.pipeline import percentiles, prepare
from bench.remake import Remake, owned
from libs.domain import keys
from libs.kube import writes
from libs.kube.pods import PodView, parse_pod
from tools.fleet import Fleet
from tools.load import Load, LoadError, pod_object
from tools.stack import Stack

#: What is asked of it, in seconds.
ONE_S = 1.0
GANG_S = 10.0
MOVES_S = 20.0
_GUESTS, _OWNERS = "guests", "owners"


async def run(
    nodes: int,
    size: int,
    singles: int,
    gangs: int,
    moves: int,
    *,
    report: Callable[[str], None],
    directory: Path | None = None,
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="drystone-bench-") as scratch:
        place = directory or Path(scratch)
        stack = Stack(place / "stack", parts=("etcd", "apiserver", "kafka", "redis", "prometheus"))
        info = await asyncio.to_thread(stack.up)
        ones: list[float] = []
        manys: list[float] = []
        stages: dict[str, float] = {}
        usage: dict[str, dict[str, float]] = {}
        moved: dict[str, Any] = {}
        try:
            async with Load.of(info) as load:
                await prepare(info, load, nodes)
                await _queues(load, size)
                remake = Remake(load.kube, _guest)
                surroundings = asyncio.create_task(remake.run(), name="kubelets and controllers")
                # Pods of this bench are young: they may be moved all the same.
                settings = {"DRYSTONE_PLACEMENT_CONSOLIDATE_AFTER_S": "0"}
                async with Fleet(info, place / "fleet", environment=settings) as fleet:
                    await fleet.start()
                    await _fill(load, 8 * nodes, report)
                    for n in range(singles + 1):
                        took, _ = await _reclaim(load, remake, f"one-{n}", 1)
                        if n:  # the first one warms up
                            ones.append(took)
                    report(f"one GPU: {statistics.median(ones):.3f} s, at most {max(ones):.3f} s")
                    for n in range(gangs):
                        before = fleet.usage()
                        took, stages = await _reclaim(load, remake, f"gang-{n}", size)
                        manys.append(took)
                        usage = _less(fleet.usage(), before)
                        report(f"gang of {size}: {took:.2f} s, {stages}")
                    moved = await _consolidate(load, remake, moves, report) if moves else {}
                surroundings.cancel()
                await asyncio.gather(surroundings, return_exceptions=True)
        finally:
            await asyncio.to_thread(stack.down)
    return {
        "nodes": nodes,
        "gpus": 8 * nodes,
        "one_gpu_s": [round(s, 3) for s in ones],
        "one_gpu_median_s": round(statistics.median(ones), 3),
        "one_gpu_max_s": round(max(ones), 3),
        "one_gpu_ms": percentiles([1000 * s for s in ones]),
        "size": size,
        "gang_s": [round(s, 3) for s in manys],
        "gang_max_s": round(max(manys), 3),
        "gang_stages_s": stages,
        "gang_usage": usage,
        "moves": moved,
        "evicted": remake.ended,
        "made_again": remake.made,
        "within": max(ones) <= ONE_S and max(manys) <= GANG_S and moved.get("gang_s", 0.0) <= MOVES_S,
    }


def _guest(owner: int, times: int) -> dict[str, object]:
    return pod_object(f"guest-{owner}-{times}", labels={"run": "guests"}, annotations={keys.QUEUE: _GUESTS})


async def _queues(load: Load, size: int) -> None:
    for name, spec in (
        (_GUESTS, {}),
        (_OWNERS, {"deserved": {keys.GPU_RESOURCE: str(size)}}),
    ):
        item = {"apiVersion": keys.API_VERSION, "kind": "Queue", "metadata": {"name": name}, "spec": spec}
        answer = await load.kube.call("POST", writes.QUEUES, json.dumps(item).encode())
        if not answer.ok:
            raise LoadError(f"queue {name}: {answer.status} {answer.body[:300]!r}")


async def _fill(load: Load, count: int, report: Callable[[str], None]) -> None:
    begun = time.monotonic()
    async with load.count_bound(selector="run=guests") as bound:
        await load.create_pods([owned(dict(_guest(n, 0)), n) for n in range(count)])
        await bound.reach(count, 240)
    report(f"{count} GPUs held after {time.monotonic() - begun:.1f} s")
    await asyncio.sleep(2.0)


async def _reclaim(load: Load, remake: Remake, name: str, size: int) -> tuple[float, dict[str, float]]:
    """Seconds from the last create's acknowledgement to the last pod bound, and to the stages on the way; then
    everything is as before."""
    marks = {keys.QUEUE: _OWNERS}
    if size > 1:
        marks |= {keys.JOB: name, keys.GANG_MIN: str(size)}
    pods = [pod_object(f"{name}-{n}", labels={"run": name}, annotations=marks) for n in range(size)]
    made = remake.made
    remake.told_at.clear()
    remake.gone_at.clear()
    async with load.count_bound(selector=f"run={name}") as bound:
        await load.create_pods(pods)
        begun = time.monotonic()
        took = await bound.reach(size, 120) - begun
        stages = {
            "first_told": min(remake.told_at, default=begun),
            "last_told": max(remake.told_at, default=begun),
            "last_gone": max(remake.gone_at, default=begun),
            "first_bound": min(bound.bound_at.values()),
        }
    await _made(remake, made + size)
    async with load.count_bound(selector="run=guests") as back:
        await load.delete_pods(selector=f"run={name}")
        await back.reach(size, 120)
    await asyncio.sleep(1.0)
    return max(took, 0.0), {name: round(at - begun, 3) for name, at in stages.items()}


async def _consolidate(load: Load, remake: Remake, moves: int, report: Callable[[str], None]) -> dict[str, Any]:
    """A gang of whole nodes comes in where `moves` pods of one GPU, four to a node, move to as many half full nodes."""
    listed = await writes.list_all(load.kube, writes.pods_path("default"), label_selector="run=guests")
    by_node: defaultdict[str, list[PodView]] = defaultdict(list)
    for pod in map(parse_pod, listed.items):
        by_node[pod.node].append(pod)
    full = [pods for node, pods in sorted(by_node.items()) if node and len(pods) == 8][: moves // 2]
    if len(full) < moves // 2:
        raise LoadError(f"{len(full)} full nodes, {moves // 2} are needed for {moves} moves")
    remake.remaking = False
    gone = [pod for pods in full for pod in pods[:4]]
    await asyncio.gather(*(writes.delete_pod(load.kube, "default", p.name, p.uid, grace_s=0) for p in gone))
    await asyncio.sleep(5.0)
    remake.remaking = True
    evicted, name = remake.ended, "whole"
    marks = {keys.QUEUE: _GUESTS, keys.JOB: name, keys.GANG_MIN: str(moves // 4)}
    pods = [pod_object(f"{name}-{n}", gpus=8, labels={"run": name}, annotations=marks) for n in range(moves // 4)]
    async with load.count_bound(selector=f"run={name}") as bound:
        await load.create_pods(pods)
        begun = time.monotonic()
        took = await bound.reach(len(pods), 180) - begun
    report(f"gang of {len(pods)} whole nodes, {remake.ended - evicted} moves: {took:.2f} s")
    return {"asked": moves, "moved": remake.ended - evicted, "gang": len(pods), "gang_s": round(took, 3)}


async def _made(remake: Remake, count: int) -> None:
    try:
        async with asyncio.timeout(60):
            while remake.made < count:  # noqa: ASYNC110 - its controllers tell nobody
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise LoadError(f"{remake.made} of {count} evicted pods were made again") from None


def _less(after: dict[str, dict[str, float]], before: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {"cpu_s": round(row["cpu_s"] - before[name]["cpu_s"], 3), "peak_mib": row["peak_mib"]}
        for name, row in after.items()
    }
