"""`drystone run`: the services in one process, on a simulated cluster, fed with real tasks.

The bus is in memory, the ledger runs its own Lua under an embedded Redis, API server, kubelets and the GPUs' Prometheus
are simulated; everything else is the code of production. Time runs faster: a task of ten minutes takes seconds.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table

from cli import workload
from cli.errors import CommandError
from cli.gpus import Measured, SimulatedPrometheus
from cli.out import show
from libs.bus.memory import MemoryBus
from libs.domain import keys
from libs.host.parts import Parts
from libs.host.settings import WrongSettings, read_settings
from libs.kube.embedded import EmbeddedCluster
from libs.kube.sim.control import Controllers
from libs.kube.sim.kubelet import SimulatedKubelets
from libs.observe import logs
from libs.runtime.lifecycle import Service
from libs.store.embedded import embedded_ledger

#: Share of the replay's time in which tasks arrive; the rest is for those that still run.
ARRIVING = 0.5
LIMIT_FACTOR = 3.0


@dataclass(slots=True)
class Progress:
    """What the replay's own watch saw."""

    tasks: int
    gpus: int
    started_at: float
    created_at: dict[str, float] = field(default_factory=dict)
    bound_at: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    used_gpus: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    waited_because: dict[str, str] = field(default_factory=dict)
    gpu_seconds: float = 0.0
    _since: float = 0.0

    def __post_init__(self) -> None:
        self._since = self.started_at

    def advance(self, now: float) -> None:
        self.gpu_seconds += sum(self.used_gpus.values()) * (now - self._since)
        self._since = now

    def seen(self, pod: dict[str, Any]) -> None:
        now = time.monotonic()
        name, spec, status = pod["metadata"]["name"], pod["spec"], pod.get("status", {})
        self.created_at.setdefault(name, now)
        if spec.get("nodeName") and name not in self.bound_at:
            self.bound_at[name] = now
            self.reasons.pop(name, None)
            self.advance(now)
            self.used_gpus[name] = _gpus(pod)
        if status.get("phase") in ("Succeeded", "Failed") and name not in self.ended:
            self.ended.add(name)
            self.advance(now)
            self.used_gpus.pop(name, None)
        for condition in status.get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                self.reasons[name] = self.waited_because[name] = condition.get("message", "")


def _gpus(pod: dict[str, Any]) -> float:
    annotations = pod["metadata"].get("annotations", {})
    indices = [i for i in annotations.get(keys.GPUS, "").split(",") if i]
    return len(indices) * int(annotations.get(keys.GPU_MILLI, "1000")) / 1000


@asynccontextmanager
async def services(parts: Parts, prometheus_url: str) -> AsyncIterator[list[Service]]:
    """The five services of one installation, serving until the block ends, then stopped in order."""
    from services.binder.app import build as binder
    from services.binder.settings import BinderSettings
    from services.metrics_collector.app import build as collector
    from services.metrics_collector.settings import CollectorSettings
    from services.placement.app import build as placement
    from services.placement.settings import PlacementSettings
    from services.preemptor.app import build as preemptor
    from services.preemptor.settings import PreemptorSettings
    from services.watcher.app import build as watcher
    from services.watcher.settings import WatcherSettings

    measuring = read_settings(CollectorSettings).model_copy(update={"prometheus_url": prometheus_url})
    running: list[Service] = [
        watcher(read_settings(WatcherSettings), parts),
        collector(measuring, parts),
        placement(read_settings(PlacementSettings), parts),
        preemptor(read_settings(PreemptorSettings), parts),
        binder(read_settings(BinderSettings), parts),
    ]
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for service in running:
            group.create_task(service.serve(stop), name=service.name)
        try:
            async with asyncio.timeout(30):
                while not all(s.health().ready for s in running):  # noqa: ASYNC110 - health is asked, not told
                    await asyncio.sleep(0.02)
            yield running
        finally:
            stop.set()


def replay(*, seconds: float, tasks: int, as_json: bool) -> int:
    logs.configure(level="ERROR", format="console", service="run", replica="0")
    try:
        summary = asyncio.run(_replay(seconds, tasks, quiet=as_json))
    except WrongSettings as error:
        raise CommandError(str(error)) from None
    if as_json:
        show(summary)
    else:
        _print(summary)
    return 0 if summary["tasks placed"] == summary["tasks"] and not summary["refused by kubelets"] else 1


async def _replay(seconds: float, limit: int, *, quiet: bool) -> dict[str, Any]:
    jobs, nodes = workload.arrivals(limit), workload.nodes()
    capacity = sum(int(n["status"]["allocatable"][keys.GPU_RESOURCE]) for n in nodes)
    # As fast as makes the work that is asked for fit into the time, at about 85 % of all GPUs.
    work = sum(j.gpus * j.seconds for j in jobs)
    speed = max(work / (0.85 * capacity * seconds), max(j.seconds for j in jobs) / (0.4 * seconds))
    cluster = EmbeddedCluster()
    kubelets = SimulatedKubelets(cluster, speed=speed)
    controllers = Controllers(cluster)
    for node in nodes:
        cluster.call_now("POST", "/api/v1/nodes", json.dumps(node).encode())
    bus = MemoryBus()
    await bus.open()
    ledger = embedded_ledger()
    await ledger.open()
    begun = time.monotonic()
    progress = Progress(sum(len(j.pods) for j in jobs), capacity, begun)
    measured = Measured()
    try:
        async with (
            SimulatedPrometheus(cluster).serving() as prometheus,
            services(Parts(bus, ledger, cluster), prometheus),
        ):
            watches = [
                asyncio.create_task(_watch(cluster, progress), name="replay watch"),
                asyncio.create_task(measured.follow(bus), name="GPU facts"),
            ]
            try:
                with _Drawing(speed, quiet) as show:
                    await _feed(cluster, jobs, seconds * ARRIVING, progress, show)
                    await _finish(progress, seconds * LIMIT_FACTOR, show)
                measured.until(time.monotonic())
            finally:
                for watch in watches:
                    watch.cancel()
                await asyncio.gather(*watches, return_exceptions=True)
    finally:
        controllers.stop()
        kubelets.stop()
        await bus.close()
        await ledger.close()
        await cluster.close()
    summary = _summary(progress, kubelets, cluster, len(jobs), len(nodes), speed, time.monotonic() - begun)
    return {**summary, "GPUs as measured": measured.summary()}


async def _watch(cluster: EmbeddedCluster, progress: Progress) -> None:
    async for kind, raw in cluster.watch("/api/v1/pods", params={"resourceVersion": "0"}, silence_s=600):
        if kind in ("ADDED", "MODIFIED"):
            progress.seen(msgspec.json.decode(raw))


async def _feed(
    cluster: EmbeddedCluster, jobs: Sequence[workload.Arrival], seconds: float, progress: Progress, show: Show
) -> None:
    """The jobs in the trace's order, evenly over the time: the trace's own arrivals span months."""
    begun = time.monotonic()
    for n, job in enumerate(jobs):
        pause = begun + seconds * n / len(jobs) - time.monotonic()
        if pause > 0:
            show(progress)
            await asyncio.sleep(pause)
        for pod in job.pods:
            await cluster.call("POST", "/api/v1/namespaces/default/pods", json.dumps(pod).encode())


async def _finish(progress: Progress, limit_s: float, show: Show) -> None:
    deadline = time.monotonic() + limit_s
    while len(progress.ended) < progress.tasks and time.monotonic() < deadline:
        show(progress)
        await asyncio.sleep(0.1)


class Show:
    """Draws the progress at most five times a second."""

    def __init__(self, live: Live | None, speed: float) -> None:
        self._live, self._speed, self._last = live, speed, 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._live is None or now - self._last < 0.2:
            return
        self._last = now
        table = Table.grid(padding=(0, 2))
        used = sum(progress.used_gpus.values())
        waiting = len(progress.created_at) - len(progress.bound_at)
        table.add_row("time", f"{now - progress.started_at:5.1f} s, {self._speed:.0f} times as fast as the trace")
        table.add_row("tasks", f"{len(progress.created_at)} arrived, {len(progress.bound_at)} placed, {waiting} wait")
        table.add_row("GPUs", f"{used:.1f} of {progress.gpus} in use ({100 * used / progress.gpus:.0f} %)")
        bar = int(40 * used / progress.gpus)
        table.add_row("", "█" * bar + "░" * (40 - bar))
        self._live.update(table)


class _Drawing:
    def __init__(self, speed: float, quiet: bool) -> None:
        self._live = None if quiet else Live(console=Console(), refresh_per_second=5, transient=True)
        self._speed = speed

    def __enter__(self) -> Show:
        if self._live:
            self._live.start()
        return Show(self._live, self._speed)

    def __exit__(self, *exc: object) -> None:
        if self._live:
            self._live.stop()


def _summary(
    progress: Progress,
    kubelets: SimulatedKubelets,
    cluster: EmbeddedCluster,
    jobs: int,
    nodes: int,
    speed: float,
    seconds: float,
) -> dict[str, Any]:
    waits = sorted(progress.bound_at[n] - progress.created_at[n] for n in progress.bound_at)
    at_once = [w for n, w in ((n, progress.bound_at[n] - progress.created_at[n]) for n in progress.bound_at)
               if n not in progress.waited_because]  # fmt: skip
    at_once.sort()
    placed = len(waits)
    progress.advance(time.monotonic())
    last = max(progress.bound_at.values(), default=progress.started_at) - progress.started_at
    writes = {k: v for k, v in cluster.writes.items() if (not k.endswith(" leases") and not k.startswith("POST pods"))
              or k.startswith("POST pods/")}  # fmt: skip
    writes.pop("POST nodes", None)
    explained = max(
        progress.waited_because,
        key=lambda n: progress.bound_at.get(n, time.monotonic()) - progress.created_at[n],
        default="",
    )
    return {
        "nodes": nodes,
        "GPUs": progress.gpus,
        "jobs": jobs,
        "tasks": progress.tasks,
        "tasks placed": placed,
        "tasks finished": len(progress.ended),
        "refused by kubelets": len(kubelets.refusals),
        "speed": round(speed, 1),
        "seconds": round(seconds, 1),
        "GPU allocation %": round(100 * progress.gpu_seconds / (progress.gpus * max(seconds, 1e-9)), 1),
        "last task placed after s": round(last, 1),
        "wait ms": {"p50": _at(waits, 0.5), "p90": _at(waits, 0.9), "p99": _at(waits, 0.99), "max": _at(waits, 1.0)},
        "decision latency ms": {"p50": _at(at_once, 0.5), "p99": _at(at_once, 0.99)},
        "writes per task": round(sum(writes.values()) / max(placed, 1), 3),
        "writes": dict(sorted(writes.items())),
        "explained": {"task": explained, "why it waited": progress.waited_because.get(explained, "")},
    }


def _at(ordered: Sequence[float], share: float) -> float:
    """Milliseconds at a share of the ordered seconds."""
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1) if ordered else 0.0


def _print(summary: dict[str, Any]) -> None:
    console = Console()
    table = Table(title="Drystone: a slice of the openb trace, replayed", show_header=False)
    wait, latency = summary["wait ms"], summary["decision latency ms"]
    table.add_row("cluster", f"{summary['nodes']} nodes, {summary['GPUs']} GPUs (simulated)")
    table.add_row("asked", f"{summary['jobs']} jobs, {summary['tasks']} tasks")
    table.add_row("placed", f"{summary['tasks placed']}, finished {summary['tasks finished']}")
    table.add_row("time", f"{summary['seconds']} s, {summary['speed']:.0f} times as fast as the trace")
    table.add_row("GPUs allocated", f"{summary['GPU allocation %']} % of all, over the whole replay")
    measured = summary["GPUs as measured"]
    table.add_row(
        "GPUs as measured", f"{measured['utilisation %']} % busy, {measured['memory %']} % of memory used (Prometheus)"
    )
    table.add_row("waits", f"median {wait['p50']} ms, 90 % under {wait['p90']} ms, longest {wait['max']} ms")
    table.add_row(
        "decision latency", f"median {latency['p50']} ms, 99 % under {latency['p99']} ms (tasks that had room)"
    )
    table.add_row("writes per task", f"{summary['writes per task']}")
    table.add_row("refused by kubelets", str(summary["refused by kubelets"]))
    console.print(table)
    explained = summary["explained"]
    if explained["task"]:
        console.print(f"The task that waited longest, {explained['task']}, was told:\n  {explained['why it waited']}")
    else:
        console.print("No task had to wait for room.")
