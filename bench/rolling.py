"""Every replica of every service is restarted, one after the other, under load: nothing may be lost, little delayed.

Two replicas of each service. Single pods and job events on Kafka stream in; each replica is asked to end (SIGTERM, its
phased shutdown), and a new one is started and waited for before the next follows, as a Deployment with `maxSurge: 0`
does. Compared: the time from create to bound before and during. With `before`, the services run from another revision
of this repository first, and the restart is the upgrade.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer

from bench.failover import Ground, ended, grounded
from bench.jobs import headers
from bench.pipeline import percentiles
from bench.steady import NAMESPACE, Owners, Pod, Seen, Steady, follow
from libs.contracts import topics
from libs.domain import keys
from libs.domain.jobs import Phase
from libs.host.laws import Violation, violations
from libs.kube import trainingjobs, writes
from libs.kube.port import Kube
from libs.kube.writes import list_all
from libs.store.redis import RedisLedger
from tools.load import Load

Report = Callable[[str], None]

SERVICES: Final = ("watcher", "placement", "binder", "preemptor", "metrics-collector")
NODES: Final = 100
BEFORE_S: Final = 30.0
#: What a restart may add to the longest wait.
LIMIT_S: Final = 10.0
_SETTLE_S: Final = 60.0
_LIFE_S: Final = 1.0
_READY_S: Final = 60.0


@dataclass(slots=True)
class Jobs:
    """Job events on Kafka at a steady rate: `tasks` one-GPU tasks each. Of every job: when the broker acknowledged it,
    and when its last task was seen bound."""

    kube: Kube
    bootstrap: str
    rate: float
    owners: Owners
    tasks: int = 2
    jobs: dict[str, Seen] = field(default_factory=dict)
    _bound: dict[str, set[str]] = field(default_factory=dict)
    _group: asyncio.TaskGroup = field(init=False)

    async def run(self, stop: asyncio.Event) -> None:
        """Submit until `stop`; end the tasks that are bound until cancelled."""
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all", enable_idempotence=True)
        await producer.start()
        try:
            async with asyncio.TaskGroup() as self._group:
                self._group.create_task(follow(self.kube, keys.JOB, self._look, self.owners.gone), name="job tasks")
                self._group.create_task(self._submit(producer, stop), name="submit")
        finally:
            await producer.stop()

    async def _submit(self, producer: AIOKafkaProducer, stop: asyncio.Event) -> None:
        while not stop.is_set():
            name = f"job-{len(self.jobs)}"
            seen = self.jobs[trainingjobs.object_name("default", name)] = Seen(time.monotonic())
            body = event(name, self.tasks)
            await producer.send_and_wait(topics.JOBS.name, body, key=name.encode(), headers=headers(name))
            seen.accepted = time.monotonic()
            await asyncio.sleep(1 / self.rate)

    def _look(self, pod: Pod) -> None:
        job, name = pod.metadata.labels.get(keys.JOB, ""), pod.metadata.name
        if pod.status.phase in ("Succeeded", "Failed"):
            self.owners.gone(name)
            return
        bound = self._bound.setdefault(job, set())
        if not pod.spec.nodeName or name in bound:
            return
        bound.add(name)
        self.owners.promised(pod)
        self._group.create_task(self._end(name), name=f"end {name}")
        seen = self.jobs.get(job)
        if len(bound) == self.tasks and seen is not None:
            seen.bound = time.monotonic()

    async def _end(self, name: str) -> None:
        """As a kubelet whose container has done its work."""
        await asyncio.sleep(_LIFE_S)
        path = writes.pods_path(NAMESPACE, name, "status")
        while True:
            answer = await self.kube.call("PATCH", path, b'{"status":{"phase":"Succeeded"}}', content_type=writes.MERGE)
            if answer.ok or answer.status == 404:
                return
            await asyncio.sleep(0.1)


def event(name: str, tasks: int) -> bytes:
    template = {"image": "train:1", "resources": {"cpu": "1", "memory": "1Gi", "gpu": 1}}
    role = {"name": "worker", "replicas": tasks, "template": template}
    return json.dumps({"id": name, "namespace": NAMESPACE, "roles": [role]}).encode()


def waits(seen: Sequence[Seen], since: float, until: float) -> dict[str, float]:
    """Percentiles of the milliseconds from accepted to bound, of what was accepted in between."""
    found = [1000 * s.wait for s in seen if since <= s.accepted < until and s.bound]
    return percentiles(found) if found else {}


async def run(
    rate: float, jobs_per_s: float, *, before: str = "", keep: Path | None = None, report: Report
) -> dict[str, Any]:
    """`before`: a revision that the services run from at first; empty: from the present files throughout."""
    old = await asyncio.to_thread(_worktree, before) if before else None
    try:
        usual = dict.fromkeys(SERVICES, 2)
        extra = {"metrics-collector": {"DRYSTONE_SHARDS": "2"}}
        async with grounded(keep, nodes=NODES, replicas=usual, extra=extra, source=old) as (ground, load):
            owners, stop = Owners(), asyncio.Event()
            pods = Steady(load.kube, rate, owners=owners)
            jobs = Jobs(load.kube, ground.stack.info.kafka_bootstrap, jobs_per_s, owners)
            async with asyncio.TaskGroup() as tasks:
                streams = [
                    tasks.create_task(pods.run(), name="pods"),
                    tasks.create_task(jobs.run(stop), name="jobs"),
                ]
                result = await _measure(ground, pods, jobs, report)
                stop.set()
                lost = await _left(load.kube, pods, jobs)
                streams[0].cancel()
                await asyncio.sleep(2.0)
                found = await _violations(ground, load)
                streams[1].cancel()
            result["problems"] = [*lost, *owners.twice, *(f"{v.law}: {v.about}: {v.detail}" for v in found)]
            result["before_revision"] = before
            return result
    finally:
        if old is not None:
            await asyncio.to_thread(_git, "worktree", "remove", "--force", str(old))


async def _measure(ground: Ground, pods: Steady, jobs: Jobs, report: Report) -> dict[str, Any]:
    await asyncio.sleep(5.0)  # the first of each kind are slow
    began = time.monotonic()
    await asyncio.sleep(BEFORE_S)
    rolling = time.monotonic()
    restarts: list[dict[str, Any]] = []
    ground.source = None
    for service in SERVICES:
        for member in list(ground.of(service)):
            since = time.monotonic()
            stop_s = await ended(ground.fleet, member)
            if member.process.returncode:
                raise RuntimeError(f"{member.name} ended with {member.process.returncode}")
            ground.spawn(service)
            await ground.fleet.wait_ready(_READY_S)
            restarts.append({"who": member.name, "stop_s": round(stop_s, 2), "_since": since})
            report(f"{member.name}: ended within {stop_s:.1f} s, back after {time.monotonic() - since:.1f} s")
    # What the last restart does shows only later.
    await asyncio.sleep(15.0)
    until = time.monotonic()
    await pods.quiet(2.0, 2.0, _SETTLE_S)
    seen = list(pods.pods.values())
    for n, row in enumerate(restarts):
        since = row.pop("_since")
        ends = restarts[n + 1]["_since"] if n + 1 < len(restarts) else until
        row["longest_wait_s"] = round(
            max((s.wait for s in seen if since <= s.accepted < ends and s.bound), default=0.0), 2
        )
    tables = {
        "pods_before_ms": waits(seen, began, rolling),
        "pods_during_ms": waits(seen, rolling, until),
        "jobs_before_ms": waits(list(jobs.jobs.values()), began, rolling),
        "jobs_during_ms": waits(list(jobs.jobs.values()), rolling, until),
    }
    added = {
        kind: round((tables[f"{kind}_during_ms"]["max"] - tables[f"{kind}_before_ms"]["max"]) / 1000, 2)
        for kind in ("pods", "jobs")
    }
    return {
        "rate": pods.rate,
        "jobs_per_s": jobs.rate,
        "nodes": NODES,
        "seconds": round(until - rolling, 1),
        **tables,
        "added_s": added,
        "limit_s": LIMIT_S,
        "within": max(added.values()) <= LIMIT_S,
        "restarts": restarts,
    }


async def _violations(ground: Ground, load: Load) -> list[Violation]:
    ledger = RedisLedger(ground.stack.info.redis_url)
    await ledger.open()
    try:
        return await violations(load.kube, ledger)
    finally:
        await ledger.close()


async def _left(kube: Kube, pods: Steady, jobs: Jobs) -> list[str]:
    """Accepted jobs and pods that have not run to their end within the time for it."""
    until = time.monotonic() + _SETTLE_S
    while True:
        listed = await list_all(kube, trainingjobs.path(NAMESPACE))
        phases = {view.name: view.status.phase for view in map(trainingjobs.parse, listed.items)}
        left = [f"job {name}: {phases.get(name, 'has no object')}" for name in jobs.jobs]
        left = [row for row in left if not row.endswith(Phase.SUCCEEDED)]
        if not left or time.monotonic() > until:
            break
        await asyncio.sleep(0.5)
    if not await pods.quiet(1.0, 2.0, _SETTLE_S):
        left.append(f"{pods.unbound} pods are not bound")
    return left


def _worktree(revision: str) -> Path:
    """The repository as of this revision, in a folder of its own."""
    # Not below the repository: what looks for tests or sources there would find them twice.
    target = Path(os.environ.get("TMPDIR", "/tmp")) / f"drystone-{revision.replace('~', '-')}-{os.getpid()}"
    _git("worktree", "add", "--detach", str(target), revision)
    return target


def _git(*arguments: str) -> None:
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"git {' '.join(arguments[:2])}: {done.stderr.strip()}")
