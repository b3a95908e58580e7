"""One tenant's pods that fit nowhere, thousands of them and no two alike, beside another tenant's that fit at once.

The other tenant's pods are measured, from their first sight on a watch to bound, with the hopeless ones there and
without, in turns on the same cluster. Each node has a GPU taken for good, so a pod of eight might fit one day. Beside
the latencies: the longest by half second, which tells stalls from load, the CPU of every process, and how much the
hopeless ones are looked at and written about. What is told of the last run is also told of the time in which nothing
else happens (`quiet_s` long), when they should cost next to nothing.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.conflicts import values
from bench.pipeline import percentiles, prepare
from bench.usage import cpu
from libs.domain import keys
from libs.kube import writes
from tools.fleet import Fleet
from tools.load import Load, LoadError, pod_object
from tools.stack import Stack

#: What is asked of the median over the runs: P99 beside the hopeless ones against P99 without.
RATIO: Final = 1.5


@dataclass(slots=True)
class Measured:
    """Milliseconds from first sight to bound; and what it took."""

    ms: dict[str, float]
    longest_by_half_s: list[int]
    cores: dict[str, float]
    evaluations_per_s: float
    words_per_s: float


async def run(
    nodes: int,
    hopeless: int,
    pods: int,
    rate: float,
    runs: int,
    settle_s: float,
    *,
    quiet_s: float = 10.0,
    report: Callable[[str], None],
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="drystone-bench-") as scratch:
        place = Path(scratch)
        stack = Stack(place / "stack", parts=("etcd", "apiserver", "kafka", "redis", "prometheus"))
        info = await asyncio.to_thread(stack.up)
        alone: list[Measured] = []
        beside: list[Measured] = []
        idle: dict[str, Any] = {}
        try:
            async with Load.of(info) as load:
                await prepare(info, load, nodes)
                await _queues(load)
                async with Fleet(info, place / "fleet") as fleet:
                    await fleet.start()
                    await _one_taken_on_each(load, nodes)
                    meter = Meter(stack, fleet)
                    await _measure(load, meter, "warm", pods, rate, random.Random(0))
                    for n in range(runs):
                        alone.append(await _measure(load, meter, f"alone-{n}", pods, rate, random.Random(n)))
                        await load.create_pods([_hopeless(n, i) for i in range(hopeless)])
                        await asyncio.sleep(settle_s)
                        beside.append(await _measure(load, meter, f"beside-{n}", pods, rate, random.Random(n)))
                        without, there = alone[-1], beside[-1]
                        report(
                            f"run {n + 1}: P99 {without.ms['p99']} ms alone, {there.ms['p99']} ms beside {hopeless}; "
                            f"{there.evaluations_per_s} hopeless evaluations, {there.words_per_s} words a second"
                        )
                        if n == runs - 1 and quiet_s:
                            meter.begin()
                            await asyncio.sleep(quiet_s)
                            cores, evaluations, words = meter.end()
                            idle = {"cores": cores, "hopeless_evaluations_per_s": evaluations, "words_per_s": words}
                        await load.delete_pods(selector="run=hopeless")
                        await asyncio.sleep(2.0)
        finally:
            await asyncio.to_thread(stack.down)
    ratios = [round(b.ms["p99"] / a.ms["p99"], 2) for a, b in zip(alone, beside, strict=True)]
    p50s = [b.ms["p50"] / a.ms["p50"] for a, b in zip(alone, beside, strict=True)]
    return {
        "nodes": nodes,
        "hopeless": hopeless,
        "pods": pods,
        "settle_s": settle_s,
        "alone_ms": [one.ms for one in alone],
        "beside_ms": [one.ms for one in beside],
        "p99_ratios": ratios,
        "p99_ratio_median": statistics.median(ratios),
        "p50_ratio_median": round(statistics.median(p50s), 2),
        "longest_by_half_s": {
            "alone": [one.longest_by_half_s for one in alone],
            "beside": [one.longest_by_half_s for one in beside],
        },
        "hopeless_evaluations_per_s": [one.evaluations_per_s for one in beside],
        "words_per_s": [one.words_per_s for one in beside],
        "cores": {"alone": _median(alone), "beside": _median(beside), "nothing_else": idle.pop("cores", {})},
        "nothing_else": idle,
        "within": statistics.median(ratios) <= RATIO,
    }


class Meter:
    """What the processes and placement did between `begin` and `end`."""

    def __init__(self, stack: Stack, fleet: Fleet) -> None:
        self._stack = stack
        self._fleet = fleet
        self.begin()

    def begin(self) -> None:
        self._at, self._cpu, self._did = time.monotonic(), self._seconds(), self._counts()

    def end(self) -> tuple[dict[str, float], float, float]:
        """Cores by process; evaluations of hopeless pods and words about jobs written to the API server, a second."""
        took, now = time.monotonic() - self._at, self._counts()
        cores = {name: round((spent - self._cpu[name]) / took, 3) for name, spent in self._seconds().items()}
        looked, written = (round((after - before) / took, 1) for before, after in zip(self._did, now, strict=True))
        return cores, looked, written

    def _seconds(self) -> dict[str, float]:
        pids = {**self._stack.info.pids, **{m.service: m.process.pid for m in self._fleet.members}}
        return {name.removesuffix(" CPU s"): spent for name, spent in cpu(pids).items()}

    def _counts(self) -> tuple[float, float]:
        texts = [m.metrics() for m in self._fleet.members if m.service == "placement"]
        looked = sum(sum(values(text, "drystone_placement_hopeless_evaluations_total").values()) for text in texts)
        written = sum(sum(_every(text, "drystone_placement_status_writes_total")) for text in texts)
        return looked, written


def _every(metrics: str, name: str) -> list[float]:
    """A counter in Prometheus' text form, whatever its labels."""
    return [float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(name + "{")]


def _median(runs: Sequence[Measured]) -> dict[str, float]:
    return {name: round(statistics.median(one.cores[name] for one in runs), 3) for name in runs[0].cores}


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


async def _measure(load: Load, meter: Meter, name: str, pods: int, rate: float, draw: random.Random) -> Measured:
    meter.begin()
    begun = time.monotonic()
    async with load.count_bound(selector=f"run={name}") as bound:
        creating: list[asyncio.Task[None]] = []
        for n in range(pods):
            pod = pod_object(f"{name}-{n}", cpu="1", labels={"run": name}, annotations={keys.QUEUE: "b"})
            creating.append(asyncio.create_task(load.create_pods([pod]), name=f"create {name}-{n}"))
            await asyncio.sleep(draw.expovariate(rate))
        await asyncio.gather(*creating)
        await bound.reach(pods, 120)
    cores, evaluations, words = meter.end()
    waits = {pod: 1000 * (at - bound.created_at[pod]) for pod, at in bound.bound_at.items()}
    await load.delete_pods(selector=f"run={name}")
    await asyncio.sleep(1.0)
    longest = longest_by_half_s([(bound.created_at[pod] - begun, ms) for pod, ms in waits.items()])
    return Measured(percentiles(list(waits.values())), longest, cores, evaluations, words)


def longest_by_half_s(waits: Sequence[tuple[float, float]]) -> list[int]:
    """The longest wait of those that began in each half second; 0 where none did. `waits`: (second, milliseconds)."""
    longest: list[int] = []
    for at, ms in sorted(waits):
        slot = int(max(0.0, at) / 0.5)
        longest += [0] * (slot + 1 - len(longest))
        longest[slot] = max(longest[slot], round(ms))
    return longest
