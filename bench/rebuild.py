"""Redis is emptied while a burst of pods is being bound: how soon the ledger is whole again and binding goes on.

Honest kubelets hold every device to its one owner all the time, and at the end the laws are checked against the API
server: nothing may be granted twice, and every pod must be bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from bench.chaos.kubelet import SECONDS, HonestKubelets, held_twice
from bench.failover import Ground, grounded, redis_emptied
from bench.steady import spread
from libs.host.laws import violations
from libs.store.port import LedgerUnavailable, StaleGeneration
from libs.store.redis import RedisLedger
from tools.load import BoundCount, Load, pod_object

Report = Callable[[str], None]

#: So much of the burst is bound when Redis is emptied.
SHARE: Final = 0.25
LIMIT_S: Final = 15.0
_ALL_BOUND_S: Final = 240.0
_LOOK_S: Final = 0.02
#: Pods of the burst do not end, so what was promised twice stays so.
_DEVICES_S: Final = 0.5


async def run(pods: int, nodes: int, repeats: int, *, keep: Path | None = None, report: Report) -> dict[str, Any]:
    each: list[dict[str, Any]] = []
    async with grounded(keep, nodes=nodes) as (ground, load):
        for n in range(repeats):
            each.append(await _once(ground, load, f"burst-{n}", pods))
            report(f"{n + 1} of {repeats}: {each[-1]}")
    return {
        "pods": pods,
        "nodes": nodes,
        "limit_s": LIMIT_S,
        "whole_s": spread([row["whole_s"] for row in each]),
        "binding_again_s": spread([row["binding_again_s"] for row in each]),
        "gap_s": spread([row["gap_s"] for row in each]),
        "within": all(row["binding_again_s"] <= LIMIT_S for row in each),
        "problems": [problem for row in each for problem in row["problems"]],
        "each": each,
    }


async def _once(ground: Ground, load: Load, name: str, pods: int) -> dict[str, Any]:
    # They run for as long as the burst lasts: what is granted twice cannot hide behind a pod that ended.
    burst = [pod_object(f"{name}-{n}", labels={"run": name}, annotations={SECONDS: "3600"}) for n in range(pods)]
    kubelets, twice = HonestKubelets(load.kube), set[str]()
    ledger = RedisLedger(ground.stack.info.redis_url)
    await ledger.open()
    try:
        async with load.count_bound(selector=f"run={name}") as count, asyncio.TaskGroup() as tasks:
            beside = [
                tasks.create_task(kubelets.run(), name="kubelets"),
                tasks.create_task(_devices(kubelets, twice), name="devices"),
            ]
            creating = tasks.create_task(load.create_pods(burst), name="creator")
            await count.reach(int(SHARE * pods), _ALL_BOUND_S)
            emptied = time.monotonic()
            await redis_emptied(ground)
            bound_before = len(count.bound_at)
            whole = await _whole(ledger)
            await count.reach(pods, _ALL_BOUND_S)
            await creating
            found = await violations(load.kube, ledger)
            for task in beside:
                task.cancel()
    finally:
        await ledger.close()
    row = figures(count, emptied, whole)
    row["bound_before"] = bound_before
    row["problems"] = [
        *sorted(twice),
        *(f"refused by kubelet: {r}" for r in kubelets.refusals),
        *(f"{v.law}: {v.about}: {v.detail}" for v in found),
    ]
    await load.delete_pods(limit_s=120.0)
    await asyncio.sleep(2.0)
    return row


def figures(count: BoundCount, emptied: float, whole: float) -> dict[str, Any]:
    """Seconds after Redis was emptied: until the ledger was whole, until the first binding after that; and the longest
    gap between two bindings from then on."""
    times = sorted(count.bound_at.values())
    after = [t for t in times if t > whole]
    around = [max((t for t in times if t <= emptied), default=emptied), *(t for t in times if t > emptied)]
    return {
        "whole_s": round(whole - emptied, 2),
        "binding_again_s": round(after[0] - emptied, 2) if after else float("inf"),
        "gap_s": round(max(b - a for a, b in itertools.pairwise(around)), 2) if len(around) > 1 else 0.0,
        "all_bound_s": round(times[-1] - emptied, 2),
    }


async def _devices(kubelets: HonestKubelets, twice: set[str]) -> NoReturn:
    while True:
        twice |= {f"device promised twice: {what}" for what in held_twice(list(kubelets.pods.values()))}
        await asyncio.sleep(_DEVICES_S)


async def _whole(ledger: RedisLedger) -> float:
    """When the ledger was whole again: first it must be seen not to be."""
    lost = False
    while True:
        try:
            state = await ledger.state()
            lost = lost or not state.whole
            if lost and state.whole:
                return time.monotonic()
        except LedgerUnavailable:
            lost = True
        except StaleGeneration:
            lost = True
            with contextlib.suppress(LedgerUnavailable, StaleGeneration):
                await ledger.open()
        await asyncio.sleep(_LOOK_S)
