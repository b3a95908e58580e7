"""Several placement replicas against one ledger: how often a plan is refused because another was first, and what
replicas bring. Real processes on real Kafka partitions, Redis and API server.

*Churn*: two replicas on a cluster held at a share of its GPUs; pods end at random (Poisson) and for each comes another
of the same size. *Burst*: single pods created while the services stand still; from their going on to all bound, with
the first of the `candidates`. Plans and refusals are read off placement's own metrics; every plan here has one task,
so that plans are the tasks that were taken and those that were refused.
"""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.pipeline import percentiles, prepare
from libs.contracts.topics import JOB_PARTITIONS
from libs.kube import writes
from tools.fleet import Fleet
from tools.load import Load, pod_object
from tools.stack import Stack, StackInfo

Report = Callable[[str], None]
GPUS: Final = 8
#: GPUs of a pod, as often as training jobs ask for them here.
SIZES: Final = (1, 1, 1, 1, 1, 2, 2, 4)
NAMESPACE: Final = "default"
_CHURN_REPLICAS: Final = 2


@dataclass(frozen=True, slots=True)
class Count:
    """Plans since the start, of all replicas together."""

    taken: int
    refused: Counter[str]

    @classmethod
    def of(cls, fleet: Fleet) -> Count:
        texts = [m.metrics() for m in fleet.members if m.service == "placement"]
        taken = sum(sum(values(text, "drystone_placement_planned_tasks_total").values()) for text in texts)
        refused: Counter[str] = Counter()
        for text in texts:
            refused.update(values(text, "drystone_placement_commit_refusals_total"))
        return cls(taken, refused)

    def since(self, before: Count) -> dict[str, Any]:
        refused = self.refused - before.refused
        plans = self.taken - before.taken + refused.total()
        return {
            "plans": plans,
            "refused": dict(sorted(refused.items())),
            "conflict_rate": round(refused.total() / plans, 4) if plans else 0.0,
        }


def values(metrics: str, name: str) -> dict[str, int]:
    """A counter in Prometheus' text form, by the value of its only label ("" without one)."""
    lines = re.finditer(rf'^{name}(?:{{\w+="([^"]*)"}})? (\S+)$', metrics, re.MULTILINE)
    return {match[1] or "": int(float(match[2])) for match in lines}


@dataclass(slots=True)
class Cluster:
    """Pods on the running system, by what they hold."""

    load: Load
    nodes: int
    rng: random.Random
    pods: dict[str, int] = field(default_factory=dict)
    _number: int = 0

    @property
    def share(self) -> float:
        return sum(self.pods.values()) / (GPUS * self.nodes)

    def new(self, gpus: int) -> dict[str, object]:
        self._number += 1
        name = f"p-{self._number}"
        self.pods[name] = gpus
        return pod_object(name, gpus=gpus, cpu="1", memory="1Gi", labels={"run": "conflicts"})

    async def fill(self, share: float) -> None:
        """Pods created until the cluster is that full, and bound."""
        fresh = []
        while self.share < share:
            left = round(share * GPUS * self.nodes) - sum(self.pods.values())
            fresh.append(self.new(min(self.rng.choice(SIZES), max(1, left))))
        async with self.load.count_bound(selector="run=conflicts") as count:
            await self.load.create_pods(fresh)
            await count.reach(len(fresh), 120)

    async def churn(self, seconds: float, rate: float) -> dict[str, Any]:
        """`rate` pods a second end, and as many come."""
        until, slots = time.monotonic() + seconds, asyncio.Semaphore(32)
        come = 0
        async with self.load.count_bound(selector="run=conflicts") as count:
            async with asyncio.TaskGroup() as tasks:
                while time.monotonic() < until:
                    tasks.create_task(self._replace(slots), name=f"replace {come}")
                    come += 1
                    await asyncio.sleep(self.rng.expovariate(rate))
            await asyncio.sleep(1.0)
            waits = [1000 * (at - count.created_at[name]) for name, at in count.bound_at.items() if name in self.pods]
        return {"came": come, "create_to_bound_ms": percentiles(waits) if waits else {}}

    async def _replace(self, slots: asyncio.Semaphore) -> None:
        name = self.rng.choice(list(self.pods))
        gpus = self.pods.pop(name)
        async with slots:
            path = writes.pods_path(NAMESPACE, name)
            await self.load.kube.call("DELETE", path, b'{"gracePeriodSeconds":0}', timeout_s=30)
            await self.load.create_pods([self.new(gpus)])

    async def empty(self) -> None:
        await self.load.delete_pods()
        self.pods.clear()
        await asyncio.sleep(1.0)


@asynccontextmanager
async def _services(info: StackInfo, directory: Path, replicas: int, candidates: int) -> AsyncIterator[Fleet]:
    async with Fleet(info, directory) as fleet:
        fleet.spawn("watcher")
        fleet.spawn("binder")
        for n in range(replicas):
            fleet.spawn("placement", str(n), DRYSTONE_PLACEMENT_CANDIDATES=str(candidates))
        await fleet.wait_ready(90.0)
        await _divided(fleet)
        yield fleet


async def _divided(fleet: Fleet, limit_s: float = 60.0) -> None:
    """Until every replica has its part of the partitions."""
    members = [m for m in fleet.members if m.service == "placement"]
    until = time.monotonic() + limit_s
    while True:
        owned = [values(m.metrics(), "drystone_placement_partitions").get("", 0) for m in members]
        if sum(owned) == JOB_PARTITIONS and max(owned) - min(owned) <= 1:
            return
        if time.monotonic() > until:
            raise RuntimeError(f"partitions are not divided: {owned}")
        await asyncio.sleep(0.2)


async def run(
    nodes: int,
    pods: int,
    seconds: float,
    rate: float,
    candidates: Sequence[int],
    fills: Sequence[float],
    replicas: Sequence[int],
    runs: int,
    *,
    report: Report,
) -> dict[str, Any]:
    churns: list[dict[str, Any]] = []
    bursts: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="drystone-conflicts-") as scratch:
        stack = Stack(Path(scratch) / "stack", parts=("etcd", "apiserver", "kafka", "redis"))
        info = await asyncio.to_thread(stack.up)
        try:
            async with Load.of(info) as load:
                await prepare(info, load, nodes)
                for several in candidates:
                    place = Path(scratch) / f"churn-{several}"
                    async with _services(info, place, _CHURN_REPLICAS, several) as fleet:
                        cluster = Cluster(load, nodes, random.Random(1))
                        for fill in fills:
                            churns.append(await _churn(cluster, fleet, fill, seconds, rate, several))
                            report(str(churns[-1]))
                        await cluster.empty()
                for count in replicas:
                    place = Path(scratch) / f"burst-{count}"
                    async with _services(info, place, count, candidates[0]) as fleet:
                        bursts.append(await _bursts(load, fleet, pods, runs, count, candidates[0]))
                        report(str(bursts[-1]))
        finally:
            await asyncio.to_thread(stack.down)
    return {"nodes": nodes, "rate": rate, "seconds": seconds, "churn": churns, "burst": bursts}


async def _churn(
    cluster: Cluster, fleet: Fleet, fill: float, seconds: float, rate: float, candidates: int
) -> dict[str, Any]:
    await cluster.fill(fill)
    await asyncio.sleep(1.0)
    before = Count.of(fleet)
    found = await cluster.churn(seconds, rate)
    counted = Count.of(fleet).since(before)
    return {"candidates": candidates, "fill": fill, "held": round(cluster.share, 4), **counted, **found}


async def _bursts(load: Load, fleet: Fleet, pods: int, runs: int, replicas: int, candidates: int) -> dict[str, Any]:
    await _burst(load, fleet, min(200, pods), "warm")
    before = Count.of(fleet)
    usage = fleet.usage()
    rates = [pods / await _burst(load, fleet, pods, f"burst-{n}") for n in range(runs)]
    spent = {name: row["cpu_s"] - usage[name]["cpu_s"] for name, row in fleet.usage().items()}
    return {
        "candidates": candidates,
        "replicas": replicas,
        "pods": pods,
        "bound_per_s": [round(rate) for rate in rates],
        "bound_per_s_median": round(statistics.median(rates)),
        "placement_cpu_ms_per_pod": round(
            1000 * sum(cpu for name, cpu in spent.items() if name.startswith("placement")) / (pods * runs), 3
        ),
        **Count.of(fleet).since(before),
    }


async def _burst(load: Load, fleet: Fleet, pods: int, run: str) -> float:
    """Seconds from the services' going on to all pods bound."""
    fresh = [pod_object(f"{run}-{n}", cpu="1", memory="1Gi", labels={"run": run}) for n in range(pods)]
    async with load.count_bound(selector=f"run={run}") as count:
        fleet.pause()
        try:
            await load.create_pods(fresh)
            await asyncio.sleep(0.5)
        finally:
            begun = time.monotonic()
            fleet.resume()
        took = await count.reach(pods, 180) - begun
    await load.delete_pods()
    await asyncio.sleep(1.0)
    return took
