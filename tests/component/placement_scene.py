"""The world around placement, for tests: an in-process bus, the embedded API server, the ledger, and what a watcher
would say."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from libs.bus.memory import MemoryBus
from libs.bus.port import FullReader, Outgoing
from libs.contracts.events import (
    EventType,
    JobChanged,
    JobStatus,
    Landed,
    NodeFact,
    OutcomesBatch,
    PlanOutcome,
    PlansBatch,
    PodFact,
    QueueFact,
    TaskOutcome,
    TasksBatch,
    cluster_key,
)
from libs.domain import keys
from libs.domain.jobs import JobHead, partition_of
from libs.domain.nodes import Node
from libs.domain.plans import EvictionPlan
from libs.domain.queues import Queue
from libs.host.parts import Parts
from libs.kube import trainingjobs, writes
from libs.kube.embedded import EmbeddedCluster
from libs.kube.grouping import job_of
from libs.kube.nodes import parse_node
from libs.kube.pods import PodView, parse_pod
from libs.store.embedded import embedded_ledger
from libs.store.pages import all_holders
from libs.store.port import TaskSeen
from services.binder.app import Binder
from services.binder.settings import BinderSettings
from services.placement.app import Placement
from services.placement.settings import PlacementSettings

NS = "default"
PARTITIONS = 12


class Scene:
    """The world around placement, and what a watcher would say about it."""

    def __init__(self, bus: MemoryBus, ledger: Any, kube: EmbeddedCluster) -> None:
        self.bus, self.ledger, self.kube = bus, ledger, kube
        self.parts = Parts(bus=bus, ledger=ledger, kube=kube)
        self._statuses = bus.follow(["drystone.status"], from_start=True)
        self._plans = bus.follow(["drystone.plans"], from_start=True)
        self.statuses: list[JobStatus] = []
        self.plans: list[Any] = []

    def node(self, name: str, gpus: int = 8) -> Node:
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {keys.NODE_GPU_MODEL: "A100", keys.NODE_GPU_MEMORY: "40960"}},
            "status": {
                "allocatable": {"cpu": "96", "memory": "512Gi", "pods": "110", keys.GPU_RESOURCE: str(gpus)},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        answer = self.kube.call_now("POST", "/api/v1/nodes", msgspec.json.encode(body))
        assert answer.ok, answer.body
        return parse_node(answer.body)

    async def facts(self, *nodes: Node, queues: tuple[Queue, ...] = ()) -> None:
        await self.ledger.nodes_seen(nodes, 1)
        await self.ledger.queues_seen(queues, (), 1)
        facts = [NodeFact(node) for node in nodes] + [QueueFact(queue) for queue in queues]
        await self.publish_facts(*facts)

    async def publish_facts(self, *facts: Any) -> None:
        await self.bus.publish(
            [Outgoing("drystone.cluster", cluster_key(f), msgspec.json.encode(f), EventType.CLUSTER) for f in facts]
        )

    def pod_of_group(self, name: str, group: str, gpus: int = 1, mark: str = keys.POD_GROUP_LABELS[0]) -> PodView:
        """A pod that names a PodGroup and says no minimum itself."""
        return self._create_pod(name, gpus, {}, {mark: group})

    def pod(self, name: str, gpus: int = 1, gang: str = "", gang_min: int = 0, priority: str = "") -> PodView:
        annotations = {keys.JOB: gang, keys.GANG_MIN: str(gang_min)} if gang else {}
        labels = {keys.PRIORITY_LABEL: priority} if priority else {}
        return self._create_pod(name, gpus, annotations, labels)

    def _create_pod(self, name: str, gpus: int, annotations: dict[str, str], labels: dict[str, str]) -> PodView:
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NS, "annotations": annotations, "labels": labels},
            "spec": {
                "schedulerName": keys.SCHEDULER_NAME,
                "containers": [{"name": "c", "image": "i", "resources": {"limits": {keys.GPU_RESOURCE: str(gpus)}}}],
            },
        }
        answer = self.kube.call_now("POST", writes.pods_path(NS), msgspec.json.encode(body))
        assert answer.ok, answer.body
        return parse_pod(answer.body)

    async def hint(self, *pods: PodView, head: JobHead | None = None, seen: str = "") -> None:
        head = head or job_of(pods[0])
        await self.change(JobChanged(head=head, tasks=tuple(p.to_task() for p in pods), cause="test", seen=seen))

    async def change(self, *changes: JobChanged) -> None:
        for c in changes:
            await self.change_at_once(c)

    async def change_at_once(self, *changes: JobChanged) -> None:
        """In one record: these jobs are of one partition."""
        key = changes[0].head.key
        batch = msgspec.json.encode(TasksBatch(changes))
        await self.bus.publish([Outgoing("drystone.tasks", key, batch, EventType.TASKS, partition_of(key, PARTITIONS))])

    def job(self, name: str, replicas: int, gpus: int = 1, **spec: Any) -> trainingjobs.TrainingJobView:
        template = {
            "spec": {
                "containers": [{"name": "c", "image": "i", "resources": {"limits": {keys.GPU_RESOURCE: str(gpus)}}}]
            }
        }
        body = trainingjobs.manifest(
            NS, name, {"roles": [{"name": "worker", "replicas": replicas, "template": template}], **spec}, {}, {}
        )
        answer = self.kube.call_now("POST", trainingjobs.path(NS), body)
        assert answer.ok, answer.body
        return trainingjobs.parse(answer.body)

    async def hint_job(self, view: trainingjobs.TrainingJobView) -> None:
        head, tasks = trainingjobs.expand(view, view.status.attempt)
        await self.change(JobChanged(head=head, tasks=tuple(tasks), cause="test"))

    def read_pods(self) -> list[PodView]:
        answer = self.kube.call_now("GET", writes.pods_path())
        return [parse_pod(msgspec.json.encode(item)) for item in msgspec.json.decode(answer.body)["items"]]

    async def earmarks(self, job: str = "") -> int:
        """Of one job, or of all."""
        holders = await all_holders(self.ledger)
        return sum(h.state == "earmark" and job in ("", h.job) for h in holders)

    def bound(self) -> dict[str, str]:
        return {p.name: p.node for p in self.read_pods() if p.node and not p.ended}

    def condition(self, name: str) -> dict[str, Any] | None:
        answer = self.kube.call_now("GET", writes.pods_path(NS, name))
        conditions = msgspec.json.decode(answer.body)["status"].get("conditions") or []
        return next((c for c in conditions if c["type"] == "PodScheduled"), None)

    def read_job(self, name: str) -> trainingjobs.TrainingJobView:
        return trainingjobs.parse(self.kube.call_now("GET", trainingjobs.path(NS, name)).body)

    def end_pod(self, name: str, phase: str) -> None:
        body = msgspec.json.encode({"status": {"phase": phase}})
        answer = self.kube.call_now("PATCH", writes.pods_path(NS, name, "status"), body, content_type=writes.MERGE)
        assert answer.ok, answer.body

    async def pump(self) -> None:
        for record in await self._statuses.batch(10_000, 0):
            assert record.value is not None
            self.statuses.append(msgspec.json.decode(record.value, type=JobStatus))
        for record in await self._plans.batch(10_000, 0):
            assert record.value is not None
            self.plans.extend(msgspec.json.decode(record.value, type=PlansBatch).items)

    async def until(self, true: Callable[[], object], within_s: float = 30.0) -> float:
        began = time.monotonic()
        while True:
            await self.pump()
            if true():
                return time.monotonic() - began
            assert time.monotonic() - began < within_s, "it did not come about in time"
            await asyncio.sleep(0.005)

    def told(self, job: str) -> list[JobStatus]:
        return [s for s in self.statuses if s.job == job]

    async def outcome(self, plan: Any, landed: Landed) -> None:
        outcome = PlanOutcome(
            plan=plan.id,
            job=plan.job,
            partition=plan.partition,
            tasks=tuple(TaskOutcome(task=a.task, landed=landed) for a in plan.assignments),
        )
        await self.bus.publish(
            [
                Outgoing(
                    "drystone.outcomes",
                    plan.job,
                    msgspec.json.encode(OutcomesBatch((outcome,))),
                    EventType.OUTCOMES,
                    plan.partition,
                )
            ]
        )


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    made = embedded_ledger()
    ledger = await made if inspect.isawaitable(made) else made
    await ledger.open()
    state = await ledger.state()
    if not state.whole:
        await ledger.begin_rebuild(1)
        await ledger.whole(1)
        await ledger.open()
    kube = EmbeddedCluster()
    bus = MemoryBus()
    await bus.open()
    try:
        yield Scene(bus, ledger, kube)
    finally:
        await bus.close()
        await kube.close()
        await ledger.close()


@asynccontextmanager
async def running(*services: Any) -> AsyncIterator[None]:
    stop = asyncio.Event()
    tasks = [asyncio.create_task(s.serve(stop), name=s.name) for s in services]
    try:
        yield
    finally:
        stop.set()
        _, late = await asyncio.wait(tasks, timeout=10)
        left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        assert not late, f"not stopped: {[(t.get_name(), t.get_stack(limit=3)) for t in left]}"
        await asyncio.gather(*tasks)


def placement(s: Scene, **settings: Any) -> Placement:
    return Placement(PlacementSettings(**settings), s.parts)


def binder(s: Scene) -> Binder:
    return Binder(BinderSettings(), s.parts)


def seen(pod: PodView) -> TaskSeen:
    return TaskSeen(
        uid=pod.uid,
        version=pod.version,
        node=pod.node,
        charge=pod.charge(),
        queue="default",
        job=job_of(pod).key,
        claim=pod.claim,
        namespace=pod.namespace,
        name=pod.name,
    )


def fact(pod: PodView) -> PodFact:
    head = job_of(pod)
    return PodFact(
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        version=pod.version,
        node=pod.node,
        charge=pod.charge(),
        job=head.key,
        queue=head.queue,
        priority=head.priority,
        ours=True,
        started=pod.created,
    )


async def settle_facts(s: Scene, **changes: Any) -> None:
    """What the watcher would say about every bound pod."""
    for pod in s.read_pods():
        if pod.node and not pod.ended:
            await s.ledger.tasks_seen([seen(pod)], 1)
            await s.publish_facts(msgspec.structs.replace(fact(pod), gang_min=job_of(pod).gang_min, **changes))


async def fill(s: Scene, *pods: PodView) -> None:
    for pod in pods:
        await s.hint(pod)
    await s.until(lambda: all(p.name in s.bound() for p in pods))
    await settle_facts(s)


async def leave(s: Scene, pod: PodView) -> None:
    s.kube.call_now("DELETE", writes.pods_path(NS, pod.name), b'{"gracePeriodSeconds":0}')
    await gone(s, pod)


async def gone(s: Scene, pod: PodView) -> None:
    await s.ledger.tasks_gone([pod.uid], 1)
    await s.bus.publish([Outgoing("drystone.cluster", "pod/" + pod.uid, None, EventType.CLUSTER)])


async def next_plans(reader: FullReader, wait_s: float = 20.0) -> list[EvictionPlan]:
    plans: list[EvictionPlan] = []
    for record in await reader.batch(10, wait_s):
        assert record.value is not None
        items = msgspec.json.decode(record.value)["items"]
        plans += [msgspec.convert(item, EvictionPlan) for item in items]
    return plans


async def all_run(s: Scene, service: Placement, count: int) -> None:
    """So many are bound, and placement has read of it."""
    await s.until(lambda: len(s.bound()) == count)
    await settle_facts(s)
    await s.until(lambda: len(service.state.view.pods) == count)
