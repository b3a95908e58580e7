"""Pods come and go for a long time, one replica of each service: does memory stay flat, and does the rate hold?

From one of two sources. *pods*: each pod is created, bound, and deleted soon after with those made beside it. *kafka*:
jobs of ten tasks are submitted on Kafka, their pods are created bound, succeed, and go with their job. Sampled:
resident memory of every process, the ledger's keys by size, Redis' memory; and what each process took before the first
pod came, to tell the cost of a pod from that of being there. Growth is a slope by least squares over what follows the
first third, when caches have filled.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import redis.asyncio

from bench.failover import Ground, grounded
from bench.pipeline import percentiles
from bench.steady import Steady
from bench.steady_jobs import SteadyJobs
from bench.usage import Series, cpu, ledger, memory
from libs.host.laws import violations
from libs.store.pages import all_holders
from libs.store.redis import RedisLedger
from tools.load import Load

Report = Callable[[str], None]
Stream = Steady | SteadyJobs

NODES: Final = 1000
SERVICES: Final = ("watcher", "metrics-collector", "placement", "preemptor", "binder")
SOURCES: Final = ("pods", "kafka")
TASKS_OF_A_JOB: Final = 10
SAMPLE_S: Final = 5.0
#: So many pods may wait: above it the creator is held back, and the rate is what the machine can do.
MOST_UNBOUND: Final = 1000
LIFE_S: Final = 0.5
TOGETHER_S: Final = 0.5
_IDLE_S: Final = 10.0
_WARM_S: Final = 10.0
_REPORT_EVERY: Final = 12
_SETTLE_S: Final = 60.0


async def run(
    minutes: float, rate: float, *, source: str = "pods", keep: Path | None = None, report: Report
) -> dict[str, Any]:
    async with grounded(keep, nodes=NODES, replicas=dict.fromkeys(SERVICES, 1)) as (ground, load):
        await asyncio.sleep(_IDLE_S)
        idle = await _idle(ground)
        stream = _stream(source, rate, ground, load)
        async with asyncio.TaskGroup() as tasks:
            streaming = tasks.create_task(stream.run(), name="stream")
            await asyncio.sleep(_WARM_S)
            result = await _sample(ground, stream, 60 * minutes, idle, report)
            stream.stopping = True
            await _settle(stream)
            result["unfinished"] = stream.left
            streaming.cancel()
        await load.delete_pods(limit_s=120.0)
        result["left"] = await _left(ground, load)
        result["left"]["problems"] += [*stream.owners.twice, *stream.failed]
        return {"minutes": minutes, "source": source, "rate_asked": rate, "nodes": NODES, **result}


def _stream(source: str, rate: float, ground: Ground, load: Load) -> Stream:
    if source == "kafka":
        return SteadyJobs(load.kube, ground.stack.info.kafka_bootstrap, rate, TASKS_OF_A_JOB, LIFE_S, most=MOST_UNBOUND)
    return Steady(load.kube, rate, life_s=LIFE_S, most=MOST_UNBOUND, together_s=TOGETHER_S)


async def _idle(ground: Ground) -> dict[str, float]:
    """Milliseconds of CPU a second by process, with nothing to do."""
    began, before = time.monotonic(), cpu(_pids(ground))
    await asyncio.sleep(_IDLE_S)
    took = time.monotonic() - began
    return {name: 1000 * (s - before[name]) / took for name, s in cpu(_pids(ground)).items()}


async def _sample(
    ground: Ground, stream: Stream, seconds: float, idle: Mapping[str, float], report: Report
) -> dict[str, Any]:
    series: dict[str, Series] = {}
    pids = _pids(ground)
    began, bound, held_back, before = time.monotonic(), stream.bound, stream.held_back, cpu(pids)
    waits: list[float] = []
    forgotten = began
    client = redis.asyncio.from_url(ground.stack.info.redis_url)
    try:
        samples = 0
        while (now := time.monotonic()) < began + seconds:
            for name, value in {**memory(pids), **await ledger(client)}.items():
                series.setdefault(name, Series()).points.append((now - began, value))
            waits += [1000 * p.wait for p in stream.pods.values() if forgotten <= p.bound < now]
            stream.forget(now - 10.0)
            forgotten = now
            samples += 1
            if samples % _REPORT_EVERY == 0:
                held = (stream.bound - bound) / (now - began)
                mib = {name: round(s.points[-1][1], 1) for name, s in series.items() if name.endswith(" MiB")}
                report(f"{now - began:.0f} s: {held:.1f} pods/s, {stream.unbound} unbound, {mib}")
            await asyncio.sleep(max(0.0, now + SAMPLE_S - time.monotonic()))
    finally:
        await client.aclose()
    took = time.monotonic() - began
    pods = stream.bound - bound
    spent = {name: 1000 * (s - before[name]) for name, s in cpu(pids).items()}
    return {
        "pods": pods,
        "rate_held": round(pods / took, 1),
        "held_back": stream.held_back - held_back,
        "create_to_bound_ms": percentiles(waits),
        "cpu_ms_per_pod": {name: round(ms / pods, 3) for name, ms in spent.items()},
        "cpu_ms_per_pod_in_all": round(sum(spent.values()) / pods, 3),
        "cpus_busy": round(sum(spent.values()) / 1000 / took, 2),
        "idle_cpu_ms_per_s": {name: round(ms, 1) for name, ms in idle.items()},
        "series": {name: s.summary() for name, s in sorted(series.items())},
    }


def _pids(ground: Ground) -> dict[str, int]:
    """Services, the parts under them, and what we take ourselves."""
    services = {m.service: m.process.pid for m in ground.fleet.members}
    return {**services, **ground.stack.info.pids, "harness": os.getpid()}


async def _settle(stream: Stream) -> None:
    deadline = time.monotonic() + _SETTLE_S
    while stream.left and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.2)


async def _left(ground: Ground, load: Load) -> dict[str, Any]:
    """With all pods gone, what the ledger still holds."""
    held = RedisLedger(ground.stack.info.redis_url)
    await held.open()
    try:
        holders: list[str] = []
        for _ in range(60):
            holders = [f"{h.state} {h.id}" for h in await all_holders(held)]
            if not holders:
                break
            await asyncio.sleep(0.5)
        broken = [f"{v.law}: {v.about}: {v.detail}" for v in await violations(load.kube, held)]
        return {"holders": len(holders), "some": holders[:5], "problems": broken}
    finally:
        await held.close()
