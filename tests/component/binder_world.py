"""Where binders are tested: an embedded API server, bus and ledger, and a test that plays all the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from libs.bus.memory import MemoryBus
from libs.bus.port import Outgoing
from libs.contracts.events import (
    EventType,
    Landed,
    NodeFact,
    OutcomesBatch,
    PlansBatch,
    cluster_key,
)
from libs.contracts.topics import CLUSTER, OUTCOMES, PLANS
from libs.domain import keys
from libs.domain.jobs import partition_of
from libs.domain.plans import Assignment, Plan
from libs.domain.resources import Charge, GpuGrant
from libs.host.parts import Parts
from libs.kube.embedded import EmbeddedCluster
from libs.kube.nodes import parse_node
from libs.kube.pods import parse_pod
from libs.store.embedded import embedded_ledger
from libs.testkit.faults import FaultyKube
from services.binder.app import build
from services.binder.settings import BinderSettings

TEAM = "default"
MIB = 80000


class World:
    """A cluster, a ledger that knows it, and a bus on which this test is watcher and placement."""

    def __init__(self, **ledger) -> None:
        self.cluster = EmbeddedCluster()
        self.kube = FaultyKube(self.cluster)
        self.bus = MemoryBus()
        self.ledger = embedded_ledger(**ledger)
        self.generation = 0
        self.epochs: dict[int, int] = {}
        self.plans = 0
        self.nodes = {}
        self.bindings: list[tuple[str, str]] = []
        self.cluster.store.observers.append(self._observe)

    def _observe(self, change) -> None:
        if change.place.resource != "/pods" or change.new is None:
            return
        node = change.new["spec"].get("nodeName")
        if node and not (change.old or {"spec": {}})["spec"].get("nodeName"):
            self.bindings.append((change.place.name, node))

    async def open(self, nodes: int = 2, gpus: int = 8) -> World:
        await self.ledger.open()
        self.generation = (await self.ledger.begin_rebuild(1)).generation
        for n in range(1, nodes + 1):
            await self.node(f"n{n}", gpus)
        await self.ledger.whole(1)
        self.outcomes = self.bus.follow([OUTCOMES.name], from_start=True)
        return self

    async def node(self, name: str, gpus: int = 8, *, published: bool = True, **spec) -> None:
        item = {
            "metadata": {
                "name": name,
                "labels": {keys.NODE_GPU_MEMORY: str(MIB), keys.NODE_GPU_MODEL: "A100"},
            },
            "spec": spec,
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", keys.GPU_RESOURCE: str(gpus)},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        answer = self.cluster.call_now("POST", "/api/v1/nodes", msgspec.json.encode(item))
        assert answer.ok, answer.body
        await self.tell(answer.body, published=published)

    async def cordon(self, name: str) -> None:
        patch = msgspec.json.encode({"spec": {"unschedulable": True}})
        path = f"/api/v1/nodes/{name}"
        answer = self.cluster.call_now("PATCH", path, patch, content_type="application/merge-patch+json")
        await self.tell(answer.body)

    async def tell(self, raw: bytes, *, published: bool = True) -> None:
        node = parse_node(raw)
        self.nodes[node.name] = node
        await self.ledger.nodes_seen([node], 1)
        if published:
            await self.publish(node)

    async def publish(self, node) -> None:
        fact = NodeFact(node, 1)
        await self.bus.publish(
            [Outgoing(CLUSTER.name, cluster_key(fact), msgspec.json.encode(fact), EventType.CLUSTER)]
        )

    def pod(self, name: str, gpus: int = 1):
        limits = {"cpu": "1", "memory": "1Gi", **({keys.GPU_RESOURCE: str(gpus)} if gpus else {})}
        item = {
            "metadata": {"name": name},
            "spec": {"schedulerName": "drystone", "containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
        answer = self.cluster.call_now("POST", f"/api/v1/namespaces/{TEAM}/pods", msgspec.json.encode(item))
        assert answer.ok, answer.body
        return parse_pod(answer.body)

    def read(self, name: str):
        answer = self.cluster.call_now("GET", f"/api/v1/namespaces/{TEAM}/pods/{name}")
        return parse_pod(answer.body) if answer.ok else None

    def remove(self, name: str) -> None:
        assert self.cluster.call_now("DELETE", f"/api/v1/namespaces/{TEAM}/pods/{name}").ok

    async def plan(self, *pods, on: str | list[str] = "n1", gang: bool = False, job: str = "", first: int = 0) -> Plan:
        """Decide and commit: one GPU for each pod, from index `first` on."""
        job = job or f"pod/{TEAM}/{pods[0].name}"
        partition = partition_of(job, PLANS.partitions)
        if partition not in self.epochs:
            self.epochs[partition] = (await self.ledger.take(partition)).epoch
        self.plans += 1
        ident = f"{self.generation}.{partition}.{self.epochs[partition]}.{self.plans}"
        where = [on] * len(pods) if isinstance(on, str) else on
        used: dict[str, int] = {}
        assignments = []
        for n, (pod, node) in enumerate(zip(pods, where, strict=True)):
            index = first + used.get(node, 0)
            used[node] = used.get(node, 0) + 1
            grants = tuple(GpuGrant(index + i, 1000, MIB) for i in range(pod.request.gpu.count))
            assignments.append(
                Assignment(
                    claim=f"{ident}.{n}",
                    task=pod.uid,
                    name=pod.name,
                    node=node,
                    node_spec=self.nodes[node].spec,
                    charge=Charge(pod.request.cpu, pod.request.mem, grants),
                    version=pod.version,
                )
            )
        return await self.commit(self._plan(ident, job, partition, assignments, gang))

    def _plan(self, ident, job, partition, assignments, gang, **more) -> Plan:
        return Plan(
            id=ident,
            job=job,
            job_uid=more.pop("job_uid", ""),
            namespace=TEAM,
            queue="default",
            partition=partition,
            epoch=self.epochs[partition],
            generation=self.generation,
            gang=gang,
            assignments=tuple(assignments),
            cause="test",
            **more,
        )

    async def commit(self, plan: Plan) -> Plan:
        (answer,) = await self.ledger.commit([plan])
        assert not answer.refused, answer
        return plan

    async def send(self, *plans: Plan) -> None:
        await self.bus.publish(
            [
                Outgoing(PLANS.name, p.job, msgspec.json.encode(PlansBatch((p,))), EventType.PLANS, p.partition)
                for p in plans
            ]
        )

    async def landed(self, tasks: int, within_s: float = 30.0) -> dict[str, tuple[Landed, str]]:
        """What became of the next `tasks` tasks, by task id."""
        found: dict[str, tuple[Landed, str]] = {}
        seen = 0
        async with asyncio.timeout(within_s):
            while seen < tasks:
                for record in await self.outcomes.batch(100, 0.2):
                    for outcome in msgspec.json.decode(record.value, type=OutcomesBatch).items:
                        assert record.partition == outcome.partition
                        for task in outcome.tasks:
                            seen += 1
                            found[task.task] = (task.landed, task.why)
        return found

    async def held(self) -> dict[str, str]:
        """Every charge in the ledger: its state by holder."""
        found: dict[str, str] = {}
        cursor = ""
        while True:
            cursor, page = await self.ledger.holders(cursor)
            found.update({holder.id: holder.state for holder in page})
            if not cursor:
                return found

    @asynccontextmanager
    async def binder(self, replicas: int = 1, kube=None, **settings):
        said = {
            "backoff_base_s": 0.01,
            "backoff_cap_s": 0.1,
            "write_timeout_s": 0.5,
            "settle_s": 0.05,
            "give_up_s": 1.0,
            "expire_every_s": 0.1,
            "finish_s": 2.0,
            **settings,
        }
        stop = asyncio.Event()
        parts = Parts(self.bus, self.ledger, kube or self.kube)
        binders = [build(BinderSettings(**said), parts) for _ in range(replicas)]
        async with asyncio.TaskGroup() as tasks:
            for binder in binders:
                tasks.create_task(binder.serve(stop))
            try:
                async with asyncio.timeout(30):
                    while not all(b.health().ready for b in binders):  # noqa: ASYNC110 - seen from outside
                        await asyncio.sleep(0.01)
                yield binders[0] if replicas == 1 else binders
            finally:
                stop.set()

    def committed(self) -> int:
        """How many messages of `drystone.plans` the group is done with."""
        return sum(self.bus._groups["drystone-binder"].offsets.values())

    async def settled(self, records: int) -> None:
        async with asyncio.timeout(30):
            while self.committed() < records:  # noqa: ASYNC110 - the bus tells nobody
                await asyncio.sleep(0.01)


@asynccontextmanager
async def binders(**ledger) -> AsyncIterator[World]:
    """A world for binders; `ledger` are settings of its ledger."""
    world = await World(**ledger).open()
    try:
        yield world
    finally:
        await world.ledger.close()
