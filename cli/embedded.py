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
from typing import Any

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table

from cli import workload
from cli.errors import CommandError
from cli.gpus import Measured, SimulatedPrometheus
from cli.out import show
from cli.progress import Progress, summarise
from libs.bus.memory import MemoryBus
from libs.contracts.events import JobStatus
from libs.contracts.topics import STATUS
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

    # Who waits is told at once, so that what is measured of the others is no wait for room.
    deciding = read_settings(PlacementSettings).model_copy(update={"placement_words_s": 0.0})
    measuring = read_settings(CollectorSettings).model_copy(update={"prometheus_url": prometheus_url})
    running: list[Service] = [
        watcher(read_settings(WatcherSettings), parts),
        collector(measuring, parts),
        placement(deciding, parts),
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
    names = {job.name: tuple(pod["metadata"]["name"] for pod in job.pods) for job in jobs}
    progress = Progress(names, capacity, begun)
    measured = Measured()
    try:
        async with (
            SimulatedPrometheus(cluster).serving() as prometheus,
            services(Parts(bus, ledger, cluster), prometheus),
        ):
            watches = [
                asyncio.create_task(_watch(cluster, progress), name="replay watch"),
                asyncio.create_task(_listen(bus, progress), name="status events"),
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
    summary = summarise(progress, time.monotonic())
    return {
        "nodes": len(nodes),
        **summary,
        "speed": round(speed, 1),
        "GPUs as measured": measured.summary(),
        "refused by kubelets": len(kubelets.refusals),
        **_written(cluster, summary["tasks placed"]),
    }


def _written(cluster: EmbeddedCluster, placed: int) -> dict[str, Any]:
    """Writes of the services: not those that created pods and nodes, not leases."""
    ours = {
        what: count
        for what, count in cluster.writes.items()
        if what not in ("POST pods", "POST nodes") and not what.endswith(" leases")
    }
    return {"writes per task": round(sum(ours.values()) / max(placed, 1), 3), "writes": dict(sorted(ours.items()))}


async def _watch(cluster: EmbeddedCluster, progress: Progress) -> None:
    async for kind, raw in cluster.watch("/api/v1/pods", params={"resourceVersion": "0"}, silence_s=600):
        if kind in ("ADDED", "MODIFIED"):
            progress.seen(msgspec.json.decode(raw))


async def _listen(bus: MemoryBus, progress: Progress) -> None:
    reader, decode = bus.follow([STATUS.name], from_start=True), msgspec.json.Decoder(JobStatus).decode
    while True:
        for record in await reader.batch():
            if record.value is not None:
                progress.told(decode(record.value))


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
