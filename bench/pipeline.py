"""The pipeline as processes on real Kafka, Redis and kube-apiserver, against kube-scheduler on the same API server.

Two measures per run. *Beforehand*: the scheduler is stopped (SIGSTOP), the pods are created, it goes on; from then to
all bound. *Live*: from the first create to all bound, while creating. Runs are interleaved, each side runs alone with
only its own processes alive. Its processes are new in each run, so it is warmed up first, by as many pods as are
measured, not counted. Bound pods are counted by a watch of the harness' own.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tools.fleet import TICKS, Fleet
from tools.load import Load, apply_base, create_topics, node_object, pod_object
from tools.stack import Stack, StackInfo

Report = Callable[[str], None]
OURS = "system:serviceaccount:drystone-system:"
WRITES = ("create", "update", "patch", "delete", "deletecollection")


class Side(Protocol):
    """One scheduler under test: how it is started, stopped for a while, and what its pods name."""

    scheduler: str

    def running(self) -> Any: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def usage(self) -> dict[str, dict[str, float]]: ...


@dataclass(slots=True)
class Drystone:
    info: StackInfo
    directory: Path
    scheduler: str = "drystone"
    fleet: Fleet | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with Fleet(self.info, self.directory) as fleet:
            self.fleet = fleet
            await fleet.start()
            yield

    def pause(self) -> None:
        if self.fleet:
            self.fleet.pause()

    def resume(self) -> None:
        if self.fleet:
            self.fleet.resume()

    def usage(self) -> dict[str, dict[str, float]]:
        return self.fleet.usage() if self.fleet else {}


@dataclass(slots=True)
class KubeScheduler:
    stack: Stack
    scheduler: str = "default-scheduler"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await asyncio.to_thread(self.stack.start_part, "scheduler")
        try:
            yield
        finally:
            self.stack.resume_part("scheduler")
            await asyncio.to_thread(self.stack.stop_part, "scheduler")

    def pause(self) -> None:
        self.stack.pause_part("scheduler")

    def resume(self) -> None:
        self.stack.resume_part("scheduler")

    def usage(self) -> dict[str, dict[str, float]]:
        return {"kube-scheduler": _process_usage(self.stack.pid("scheduler"))}


@dataclass(slots=True)
class Figures:
    """Seconds per run, and what the last live run cost."""

    beforehand_s: list[float] = field(default_factory=list)
    live_s: list[float] = field(default_factory=list)
    latency_ms: list[float] = field(default_factory=list)
    usage: dict[str, dict[str, float]] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "beforehand_s": [round(s, 3) for s in self.beforehand_s],
            "live_s": [round(s, 3) for s in self.live_s],
        }
        if self.beforehand_s:
            result["beforehand_median_s"] = round(statistics.median(self.beforehand_s), 3)
        if self.live_s:
            result["live_median_s"] = round(statistics.median(self.live_s), 3)
        if self.latency_ms:
            result["create_to_bound_ms"] = percentiles(self.latency_ms)
        result["usage"] = self.usage
        return result


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)

    return {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": round(ordered[-1], 1)}


def part_usage(stack: Stack) -> dict[str, dict[str, float]]:
    """CPU seconds and peak memory of the parts that both sides share, since their start."""
    return {part: _process_usage(pid) for part, pid in stack.info.pids.items()}


def _process_usage(pid: int) -> dict[str, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    status = Path(f"/proc/{pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return {"cpu_s": (int(fields[11]) + int(fields[12])) / TICKS, "peak_mib": round(peak / 1024, 1)}


def _pods(side: Side, run: str, pods: int) -> list[dict[str, object]]:
    return [pod_object(f"{run}-{n}", scheduler=side.scheduler, labels={"run": run}) for n in range(pods)]


async def _beforehand(stack: Stack, load: Load, side: Side, run: str, pods: int, figures: Figures) -> float:
    async with load.count_bound(selector=f"run={run}") as count:
        side.pause()
        await load.create_pods(_pods(side, run, pods))
        await asyncio.sleep(0.5)
        before = {**part_usage(stack), **side.usage()}
        begun = time.monotonic()
        side.resume()
        took = await count.reach(pods, 180) - begun
        figures.usage = _difference({**part_usage(stack), **side.usage()}, before)
        return took


async def _live(load: Load, side: Side, run: str, pods: int, figures: Figures | None) -> float:
    async with load.count_bound(selector=f"run={run}") as count:
        begun = time.monotonic()
        async with asyncio.TaskGroup() as both:
            both.create_task(load.create_pods(_pods(side, run, pods)), name="creator")
            bound = both.create_task(count.reach(pods, 180), name="bound")
        if figures is not None:
            figures.latency_ms += [1000 * (at - count.created_at[name]) for name, at in count.bound_at.items()]
        return bound.result() - begun


def _difference(after: dict[str, dict[str, float]], before: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {"cpu_s": round(row["cpu_s"] - before[name]["cpu_s"], 3), "peak_mib": row["peak_mib"]}
        for name, row in after.items()
    }


async def _round(stack: Stack, load: Load, side: Side, name: str, pods: int, figures: Figures, report: Report) -> None:
    async with side.running():
        await _live(load, side, f"{name}-warm", pods, None)
        await load.delete_pods()
        await asyncio.sleep(1.0)
        figures.beforehand_s.append(await _beforehand(stack, load, side, f"{name}-beforehand", pods, figures))
        report(f"{name}: created beforehand {figures.beforehand_s[-1]:.2f} s")
        await load.delete_pods()
        await asyncio.sleep(1.0)
        figures.live_s.append(await _live(load, side, f"{name}-live", pods, figures))
        report(f"{name}: while creating {figures.live_s[-1]:.2f} s")
        await load.delete_pods()
        await asyncio.sleep(0.5)


async def _count_writes(directory: Path, nodes: int, pods: int, report: Report) -> dict[str, Any]:
    """Writes of our accounts per task, from the API server's audit log; leases are not counted."""
    stack = Stack(directory / "audited", parts=("etcd", "apiserver", "kafka", "redis", "prometheus"), audit=True)
    info = await asyncio.to_thread(stack.up)
    try:
        async with Load.of(info) as load:
            await prepare(info, load, nodes)
            side = Drystone(info, directory / "audited-fleet")
            async with side.running():
                await _live(load, side, "counted", pods, None)
                await asyncio.sleep(2.0)
        counted = count_writes(info.audit_log)
    finally:
        await asyncio.to_thread(stack.down)
    total = sum(counted.values())
    report(f"writes of our accounts: {total} for {pods} tasks")
    return {"writes_per_task": round(total / pods, 4), "by_call": dict(counted)}


def count_writes(audit_log: Path | None) -> Counter[str]:
    """Completed writes of the services' accounts by "account verb resource/subresource", leases left out."""
    counted: Counter[str] = Counter()
    if audit_log is None:
        return counted
    with audit_log.open() as lines:
        for line in lines:
            event = json.loads(line)
            user = event["user"]["username"]
            what = event.get("objectRef", {})
            if event["stage"] != "ResponseComplete" or not user.startswith(OURS) or event["verb"] not in WRITES:
                continue
            if what.get("resource") == "leases":
                continue
            resource = "/".join(part for part in (what.get("resource"), what.get("subresource")) if part)
            counted[f"{user.removeprefix(OURS)} {event['verb']} {resource}"] += 1
    return counted


async def prepare(info: StackInfo, load: Load, nodes: int) -> None:
    """Manifests, topics and nodes, as an installation has them before its first job."""
    await asyncio.to_thread(apply_base, info)
    await asyncio.to_thread(create_topics, info)
    await load.create_nodes([node_object(f"node-{n:05d}") for n in range(nodes)])


async def run(
    nodes: int, pods: int, *, against: str | None, runs: int, directory: Path | None, report: Report
) -> dict[str, Any]:
    """Measure; returns what `--json` prints."""
    with tempfile.TemporaryDirectory(prefix="drystone-bench-") as scratch:
        place = directory or Path(scratch)
        parts = ["etcd", "apiserver", "kafka", "redis", "prometheus"] + (["scheduler"] if against else [])
        stack = Stack(place / "stack", parts=parts)
        info = await asyncio.to_thread(stack.up)
        ours, theirs = Figures(), Figures()
        try:
            async with Load.of(info) as load:
                await prepare(info, load, nodes)
                if against:
                    await asyncio.to_thread(stack.stop_part, "scheduler")
                for n in range(runs):
                    await _round(stack, load, Drystone(info, place / f"fleet-{n}"), f"drystone-{n}", pods, ours, report)
                    if against:
                        await _round(stack, load, KubeScheduler(stack), f"kube-{n}", pods, theirs, report)
        finally:
            await asyncio.to_thread(stack.down)
        result: dict[str, Any] = {"nodes": nodes, "pods": pods, "runs": runs}
        result["drystone"] = {**ours.summary(), **await _count_writes(place, nodes, min(pods, 1000), report)}
        if against:
            result["kube_scheduler"] = theirs.summary()
            result["ratio"] = round(statistics.median(theirs.beforehand_s) / statistics.median(ours.beforehand_s), 2)
            result["ratio_live"] = round(statistics.median(theirs.live_s) / statistics.median(ours.live_s), 2)
        return result
