"""Pods come and go for a long time, one replica of each service: does memory stay flat, and does the rate hold?

Each pod is created, bound, and deleted soon after. Sampled: resident memory of every service, the ledger's keys by
size, Redis' memory. Growth is a slope by least squares over what follows the first third, when caches have filled.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis.asyncio

from bench.failover import Ground, grounded
from bench.pipeline import percentiles
from bench.steady import Steady
from libs.host.laws import violations
from libs.store.redis import RedisLedger
from tools.fleet import TICKS
from tools.load import Load

Report = Callable[[str], None]

NODES: Final = 1000
SERVICES: Final = ("watcher", "metrics-collector", "placement", "preemptor", "binder")
SAMPLE_S: Final = 5.0
#: So many pods may wait: above it the creator is held back, and the rate is what the machine can do.
MOST_UNBOUND: Final = 1000
_WARM_S: Final = 10.0
_REPORT_EVERY: Final = 12


@dataclass(slots=True)
class Series:
    """One measure over time: (seconds, value)."""

    points: list[tuple[float, float]] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        values = [value for _, value in self.points]
        return {
            "first": round(values[0], 2),
            "last": round(values[-1], 2),
            "most": round(max(values), 2),
            "per_min": round(slope_per_min(self.points), 4),
        }


def slope_per_min(points: Sequence[tuple[float, float]]) -> float:
    """Least-squares slope a minute of what follows the first third of the time; 0 for fewer than three points."""
    if not points:
        return 0.0
    start, end = points[0][0], points[-1][0]
    later = [(t, v) for t, v in points if t >= start + (end - start) / 3]
    if len(later) < 3:
        return 0.0
    slope, _ = statistics.linear_regression([t for t, _ in later], [v for _, v in later])
    return 60 * slope


async def run(minutes: float, rate: float, *, keep: Path | None = None, report: Report) -> dict[str, Any]:
    async with grounded(keep, nodes=NODES, replicas=dict.fromkeys(SERVICES, 1)) as (ground, load):
        stream = Steady(load.kube, rate, life_s=0.5, most=MOST_UNBOUND)
        async with asyncio.TaskGroup() as tasks:
            streaming = tasks.create_task(stream.run(), name="stream")
            await asyncio.sleep(_WARM_S)
            result = await _sample(ground, stream, 60 * minutes, report)
            streaming.cancel()
        await load.delete_pods(limit_s=120.0)
        result["left"] = await _left(ground, load)
        return {"minutes": minutes, "rate_asked": rate, "nodes": NODES, **result}


async def _sample(ground: Ground, stream: Steady, seconds: float, report: Report) -> dict[str, Any]:
    series: dict[str, Series] = {}
    began, made, cpu = time.monotonic(), stream.made, _cpu(ground)
    waits: list[float] = []
    forgotten = began
    client = redis.asyncio.from_url(ground.stack.info.redis_url)
    try:
        samples = 0
        while (now := time.monotonic()) < began + seconds:
            for name, value in {**_memory(ground), **await _redis(client)}.items():
                series.setdefault(name, Series()).points.append((now - began, value))
            waits += [1000 * p.wait for p in stream.pods.values() if forgotten <= p.bound < now]
            stream.forget(now - 10.0)
            forgotten = now
            samples += 1
            if samples % _REPORT_EVERY == 0:
                held = (stream.made - made) / (now - began)
                mib = {name: round(s.points[-1][1], 1) for name, s in series.items() if name.endswith(" MiB")}
                report(f"{now - began:.0f} s: {held:.1f} pods/s, {stream.unbound} unbound, {mib}")
            await asyncio.sleep(max(0.0, now + SAMPLE_S - time.monotonic()))
    finally:
        await client.aclose()
    took = time.monotonic() - began
    pods = stream.made - made
    return {
        "pods": pods,
        "rate_held": round(pods / took, 1),
        "held_back": stream.held_back,
        "create_to_bound_ms": percentiles(waits),
        "cpu_ms_per_pod": {name: round(1000 * (s - cpu[name]) / pods, 3) for name, s in _cpu(ground).items()},
        "series": {name: s.summary() for name, s in sorted(series.items())},
    }


def _pids(ground: Ground) -> dict[str, int]:
    parts = ground.stack.info.pids
    return {**{m.service: m.process.pid for m in ground.fleet.members}, **{p: parts[p] for p in parts}}


def _memory(ground: Ground) -> dict[str, float]:
    """Resident memory by process, in MiB."""
    found = {}
    for name, pid in _pids(ground).items():
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                found[f"{name} MiB"] = int(line.split()[1]) / 1024
    return found


def _cpu(ground: Ground) -> dict[str, float]:
    def seconds(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    return {name: seconds(pid) for name, pid in _pids(ground).items()}


async def _redis(client: Any) -> Mapping[str, float]:
    """Elements of every key of the ledger."""
    found: dict[str, float] = {}
    sizes = {b"hash": "hlen", b"zset": "zcard", b"stream": "xlen", b"set": "scard", b"list": "llen"}
    async for key in client.scan_iter(count=1000):
        size = sizes.get(await client.type(key))
        if size is None:
            continue  # it went just now
        name = key.decode().removeprefix("{drystone}:")
        # Partitions come and go with what waits in them: together they are one number.
        group = "part:*" if name.startswith("part:") else name
        found[f"redis {group}"] = found.get(f"redis {group}", 0.0) + await getattr(client, size)(key)
    found["redis used MiB"] = (await client.info("memory"))["used_memory"] / 2**20
    return found


async def _left(ground: Ground, load: Load) -> dict[str, Any]:
    """With all pods gone, what the ledger still holds."""
    ledger = RedisLedger(ground.stack.info.redis_url)
    await ledger.open()
    try:
        holders: list[str] = []
        for _ in range(60):
            holders = [f"{h.state} {h.id}" async for h in ledger.all_holders()]
            if not holders:
                break
            await asyncio.sleep(0.5)
        broken = [f"{v.law}: {v.about}: {v.detail}" for v in await violations(load.kube, ledger)]
        return {"holders": len(holders), "some": holders[:5], "problems": broken}
    finally:
        await ledger.close()
