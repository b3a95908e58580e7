"""A whole Drystone in one process and in leaping time, with pause points everywhere.

While it runs an observer checks the laws at every effect (`laws`); a law that breaks is a `BrokenLaw`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import fakeredis
import msgspec

from libs.bus.memory import MemoryBus, _Group
from libs.bus.port import Outgoing
from libs.contracts.events import EventType, JobStatus
from libs.contracts.topics import CLUSTER, DEAD_LETTERS, JOBS, STATUS
from libs.domain import keys
from libs.domain.jobs import partition_of
from libs.domain.usage import NodeUse, QueueUse
from libs.kube import trainingjobs, writes
from libs.kube.embedded import EmbeddedCluster
from libs.kube.pods import PodView, parse_pod
from libs.kube.sim.control import Controllers
from libs.kube.sim.kubelet import SimulatedKubelets
from libs.runtime.tasks import ended
from libs.store.embedded import embedded_ledger
from libs.store.pages import all_holders, all_use
from libs.store.port import Holder
from libs.testkit.pauses import PausedBus, Pauses
from libs.testkit.pauses_time import PROCESS, LeapingLoop, LoopClock
from services.binder.app import build as binder
from services.binder.settings import BinderSettings
from services.placement.app import build as placement
from services.placement.settings import PlacementSettings
from services.preemptor.app import build as preemptor
from services.preemptor.settings import PreemptorSettings
from services.watcher.app import build as watcher
from services.watcher.settings import WatcherSettings
from tests.interleavings.laws import BrokenLaw, Observer, law

NS = "default"
MIB = 40960
ENCODE = msgspec.json.encode
BUILD: dict[str, tuple[Any, Any]] = {
    "watcher": (watcher, WatcherSettings),
    "placement": (placement, PlacementSettings),
    "binder": (binder, BinderSettings),
    "preemptor": (preemptor, PreemptorSettings),
}


def of_replica(replica: int, prefix: str, kind: str = "pod") -> str:
    """A name of a pod (or a gang) whose job the given one of two placement replicas owns."""
    return next(f"{prefix}{n}" for n in range(99) if partition_of(f"{kind}/{NS}/{prefix}{n}", 12) % 2 == replica - 1)


class Running:
    """One replica of a service."""

    def __init__(self, world: World, actor: str, service: Any, bus: PausedBus) -> None:
        self.actor, self.service, self.bus = actor, service, bus
        self._world = world
        self._stop = asyncio.Event()
        token = PROCESS.set(actor)
        self._task = asyncio.create_task(service.serve(self._stop), name=actor)
        PROCESS.reset(token)
        self._expelled: list[Any] = []

    async def ready(self) -> None:
        await self._world.until(lambda: self.service.health().ready, f"{self.actor} becomes ready")

    def check(self) -> None:
        """A service that ends by itself is a fault of the service, and none of the laws'."""
        if self._task.done() and not self._task.cancelled() and (fault := self._task.exception()) is not None:
            raise RuntimeError(f"{self.actor} ended") from fault

    async def stop(self) -> None:
        self._stop.set()
        await self._task
        self.bus.left()

    async def kill(self, *, noticed: bool = True) -> None:
        """As SIGKILL; `noticed`: its group learns at once instead of by the session's end."""
        self._world.pauses.dead.add(self.actor)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, LeapingLoop)
        # Each by itself: a cancellation that one of them loses must not keep the others.
        while tasks := loop.tasks_of(self.actor):
            await ended(tasks)
        self._task.cancelled() or self._task.exception()
        if noticed:
            self.bus.left()

    def freeze(self) -> None:
        """As SIGSTOP, for longer than its session with the broker lasts."""
        self._world.pauses.freeze(self.actor)
        self._expelled = self.bus.expelled()

    def thaw(self) -> None:
        self._world.pauses.thaw(self.actor)
        self.bus.told(self._expelled)


class World:
    def __init__(self, clock: LoopClock) -> None:
        self.clock = clock
        self.redis_clock = LoopClock()
        self.pauses = Pauses()
        self.redis = fakeredis.FakeServer(version=(7,))
        self.ledger_settings: dict[str, Any] = {}
        self.replicas: list[Running] = []
        self.seen = Observer(fakeredis.FakeRedis(server=self.redis, version=(7,)))
        #: A foreign writer has raced us inside W: kubelet refuses somebody.
        self.raced = False
        self._listed: tuple[int, list[PodView]] = (-1, [])
        self._kubelets_stopped = False
        self._statuses: list[JobStatus] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        self.cluster = EmbeddedCluster(now=lambda: datetime.fromtimestamp(self.clock.wall(), UTC))
        self.kubelets = SimulatedKubelets(self.cluster)
        self.controllers = Controllers(self.cluster)
        self.bus = MemoryBus()
        self.ledger = embedded_ledger(server=self.redis)
        self._raw = fakeredis.FakeRedis(server=self.redis, version=(7,))
        await self.ledger.open()
        self.cluster.store.observers.append(self.seen.pod_changed)
        self.pauses.after = self.seen.after
        self._status_reader = self.bus.follow([STATUS.name], from_start=True)
        try:
            yield
        finally:
            for replica in self.replicas:
                await replica.kill()
            self.controllers.stop()
            if not self._kubelets_stopped:
                self.kubelets.stop()
            await self.ledger.close()

    # -- replicas -----------------------------------------------------------------------------------------------------

    async def start(self, service: str, name: str = "", *, wait: bool = True, **settings: Any) -> Running:
        actor = f"{service}{name}"
        build, kind = BUILD[service]
        ledger = embedded_ledger(server=self.redis, **self.ledger_settings)
        await ledger.open()
        parts = self.pauses.parts(actor, self.bus, ledger, self.cluster, self.clock)
        made = build(kind(replica_id=actor, **settings), parts)
        if service == "watcher":
            made._lease._monotonic = self.clock.monotonic
        replica = Running(self, actor, made, parts.bus)  # type: ignore[arg-type]
        self.replicas.append(replica)
        if wait:
            await replica.ready()
        return replica

    async def restart(self, actor: str, *, killed: bool) -> None:
        """The replica ends, one way or the other, and another takes its place under a new name."""
        (old,) = [r for r in self.replicas if r.actor == actor]
        if killed:
            await old.kill()
        else:
            await self.stops(old)
        service, _, number = actor.partition("-")
        await self.start(service, f"-{number or 0}-again", wait=False)

    async def stops(self, replica: Running, within_s: float = 60.0) -> None:
        stopping = asyncio.create_task(replica.stop())
        await asyncio.wait({stopping}, timeout=within_s)
        law(stopping.done(), f"{replica.actor} stops within {within_s:g} s of being told to")
        stopping.result()

    async def spine(self, *services: str, **settings: Any) -> list[Running]:
        """The watcher first, then the others: one replica each."""
        return [await self.start(s) for s in ("watcher", *(services or ("placement", "binder", "preemptor")))]

    # -- the cluster --------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        raw = ENCODE(body) if body is not None else None
        answer = self.cluster.call_now(method, path, raw, content_type=content_type)
        assert answer.ok, answer
        return msgspec.json.decode(answer.body)

    def node(self, name: str = "n1", gpus: int = 1) -> None:
        self._ask("POST", "/api/v1/nodes", {
            "metadata": {"name": name, "labels": {keys.NODE_GPU_MODEL: "A100", keys.NODE_GPU_MEMORY: str(MIB),
                                                     "pick": name}},
            "status": {
                "allocatable": {"cpu": "96", "memory": "512Gi", "pods": "110", keys.GPU_RESOURCE: str(gpus)},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        })  # fmt: skip

    def heartbeat(self, name: str = "n1") -> None:
        beat = {"metadata": {"annotations": {"beat": str(self.cluster.store.version)}}}
        self._ask("PATCH", f"/api/v1/nodes/{name}", beat, writes.MERGE)

    def remove_node(self, name: str) -> None:
        self._ask("DELETE", f"/api/v1/nodes/{name}")

    def collect(self, node: str, *, then_delete: bool = True) -> list[PodView]:
        """As the pod garbage collector does with pods of a node that is no more: each is Failed by a disruption, then
        deleted at once. Returns them."""
        taken = [p for p in self.pods() if p.node == node]
        why = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
        for pod in taken:
            if not pod.ended:
                status = {"status": {"phase": "Failed", "conditions": [why]}}
                self._ask("PATCH", writes.pods_path(NS, pod.name, "status"), status, writes.MERGE)
        for pod in taken if then_delete else ():
            self.delete(pod.name)
        return taken

    def start_bound(self, node: str) -> None:
        """A kubelet that comes up looks at all pods that are bound to it."""
        for pod in self.pods():
            if pod.node == node and not pod.ended:
                self.annotate(pod.name, seen=str(self.cluster.store.version))

    def budget(self, app: str, *, least: int) -> None:
        spec = {"minAvailable": least, "selector": {"matchLabels": {"app": app}}}
        path = f"/apis/policy/v1/namespaces/{NS}/poddisruptionbudgets"
        self._ask("POST", path, {"metadata": {"name": app}, "spec": spec})

    def no_kubelets(self) -> None:
        self.kubelets.stop()
        self._kubelets_stopped = True

    def cordon(self, name: str = "n1", *, closed: bool = True) -> None:
        self._ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": closed}}, writes.MERGE)

    def pod(self, name: str, gpus: int = 1, *, priority: str = "", gang: str = "", gang_min: int = 0, queue: str = "",
            on: str = "", device: str = "", app: str = "", scheduler: str = keys.SCHEDULER_NAME,
            selector: dict[str, str] | None = None) -> str:  # fmt: skip
        """Its uid. `on` and `device`: somebody bound it already, and says to which device."""
        notes = {keys.JOB: gang, keys.GANG_MIN: str(gang_min)} if gang else {}
        if queue:
            notes[keys.QUEUE] = queue
        if device:
            notes |= {keys.GPUS: device, keys.GPU_MIB: str(MIB), keys.GPU_MILLI: "1000"}
        labels = ({keys.PRIORITY_LABEL: priority} if priority else {}) | ({"app": app} if app else {})
        limits = {"cpu": "1", "memory": "1Gi", keys.GPU_RESOURCE: str(gpus)}
        found = self._ask("POST", writes.pods_path(NS), {
            "metadata": {"name": name, "annotations": notes, "labels": labels},
            "spec": {
                "schedulerName": scheduler,
                "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}],
                **({"nodeName": on} if on else {}),
                **({"nodeSelector": selector} if selector else {}),
            },
        })  # fmt: skip
        return str(found["metadata"]["uid"])

    def gang(self, name: str, size: int, *, priority: str = "") -> list[str]:
        return [self.pod(f"{name}{i}", gang=name, gang_min=size, priority=priority) for i in range(size)]

    def job(self, name: str, replicas: int, **spec: Any) -> None:
        limits = {keys.GPU_RESOURCE: "1"}
        template = {"spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]}}
        roles = [{"name": "worker", "replicas": replicas, "template": template}]
        body = trainingjobs.manifest(NS, name, {"roles": roles, **spec}, {}, {})
        assert self.cluster.call_now("POST", trainingjobs.path(NS), body).ok

    def read_job(self, name: str) -> trainingjobs.TrainingJobView:
        return trainingjobs.parse(self.cluster.call_now("GET", trainingjobs.path(NS, name)).body)

    def delete_job(self, name: str) -> None:
        self._ask("DELETE", trainingjobs.path(NS, name))

    def queue(self, name: str, gpus: int) -> None:
        self._ask(
            "POST", writes.QUEUES, {"metadata": {"name": name}, "spec": {"limits": {keys.GPU_RESOURCE: str(gpus)}}}
        )

    def pods(self) -> list[PodView]:
        version = self.cluster.store.version
        if version != self._listed[0]:
            items = self._ask("GET", writes.pods_path())["items"]
            self._listed = version, [parse_pod(ENCODE(item)) for item in items]
        return self._listed[1]

    def read(self, name: str) -> PodView | None:
        return next((p for p in self.pods() if p.name == name), None)

    def bound(self) -> dict[str, str]:
        return {p.name: p.node for p in self.pods() if p.holds and not p.terminating}

    def delete(self, name: str, grace: int | None = 0) -> None:
        body = {"gracePeriodSeconds": grace} if grace is not None else {}
        self._ask("DELETE", writes.pods_path(NS, name), body)

    def end(self, name: str, phase: str = "Succeeded") -> None:
        self._ask("PATCH", writes.pods_path(NS, name, "status"), {"status": {"phase": phase}}, writes.MERGE)

    def annotate(self, name: str, **notes: str) -> None:
        self._ask("PATCH", writes.pods_path(NS, name), {"metadata": {"annotations": notes}}, writes.MERGE)

    async def event(
        self, id: str, *, cancel: bool = False, key: str = "", partition: int = 0, raw: bytes = b""
    ) -> None:
        said = (
            {"id": id} if cancel else {"id": id, "roles": [{"template": {"image": "r/t:1", "resources": {"gpu": 1}}}]}
        )
        kind = EventType.JOB_CANCEL if cancel else EventType.JOB_SUBMIT
        await self.bus.publish([Outgoing(JOBS.name, key or id, raw or ENCODE(said), kind, partition)])

    def jobs(self) -> list[str]:
        """Ids of job objects, as their submitters gave them."""
        items = self._ask("GET", trainingjobs.path())["items"]
        return sorted(trainingjobs.parse(ENCODE(item)).spec.id for item in items)

    async def letters(self) -> int:
        return len(await self.bus.follow([DEAD_LETTERS.name], from_start=True).batch(1000, 0))

    async def topic(self) -> set[str]:
        """Keys that the compacted topic of facts has, but for namespaces."""
        there: set[str] = set()
        for record in await self.bus.follow([CLUSTER.name], from_start=True).batch(100_000, 0):
            (there.discard if record.value is None else there.add)(record.key)
        return {key for key in there if not key.startswith("namespace/")}

    def forget_plans(self) -> None:
        """The broker lost what the binder has not finished (or had the offsets, and not the reports)."""
        places = self.bus.places(["drystone.plans"])
        group = self.bus._groups.setdefault("drystone-binder", _Group(self.bus))
        group.offsets.update({place: self.bus.log(place).end for place in places})

    async def statuses(self) -> list[JobStatus]:
        for record in await self._status_reader.batch(10_000, 0):
            self._statuses.append(msgspec.json.decode(record.value or b"", type=JobStatus))
        return self._statuses

    def pod_keys(self, *, same_partition: int = 2) -> list[str]:
        """Names of pods whose jobs travel on one partition."""
        by_partition: defaultdict[int, list[str]] = defaultdict(list)
        for n in range(1000):
            found = by_partition[partition_of(f"pod/{NS}/p{n}", 12)]
            found.append(f"p{n}")
            if len(found) == same_partition:
                return found
        raise AssertionError

    # -- time ---------------------------------------------------------------------------------------------------------

    async def until(self, true: Callable[[], object], text: str, within_s: float = 30.0) -> None:
        """The law that it comes about in time."""
        began = self.clock.monotonic()
        while not true():
            self.check()
            law(self.clock.monotonic() - began <= within_s, f"{text}, within {within_s:g} s")
            await asyncio.sleep(0.02 if self.clock.monotonic() - began < 2.0 else 0.25)

    async def until_asked(self, true: Callable[[], Awaitable[object]], text: str, within_s: float = 30.0) -> None:
        began = self.clock.monotonic()
        while not await true():
            self.check()
            law(self.clock.monotonic() - began <= within_s, f"{text}, within {within_s:g} s")
            await asyncio.sleep(0.05 if self.clock.monotonic() - began < 2.0 else 0.5)

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.check()

    # -- laws ---------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        for replica in self.replicas:
            replica.check()
        for text in self.seen.broken:
            raise BrokenLaw(text)
        law(self.raced or not self.kubelets.refusals, f"no kubelet refuses what we bound: {self.kubelets.refusals}")

    # -- the ledger ---------------------------------------------------------------------------------------------------

    async def holders(self) -> list[Holder]:
        await self.ledger.state()
        return await all_holders(self.ledger)

    async def use(self) -> tuple[dict[str, NodeUse], dict[str, QueueUse]]:
        return await all_use(self.ledger)

    async def nothing_left(self, within_s: float = 90.0) -> None:
        """After all jobs and pods are gone the ledger holds nothing, and nothing of it ever times out by itself."""

        async def empty() -> bool:
            nodes, queues = await self.use()
            used = any(n.pods or n.cpu or n.mem or any(m for m, _ in n.gpus) for n in nodes.values())
            return not await self.holders() and not used and not any(q.gpu_milli or q.cpu for q in queues.values())

        await self.until_asked(empty, "the ledger holds nothing when nothing is left", within_s)
        law(not self._raw.hlen("{drystone}:work"), "no claim, plan or earmark is left in the ledger")

    def held_by(self, name: str) -> bool:
        pod = self.read(name)
        return pod is not None and bool(self._raw.hexists("{drystone}:tasks", pod.uid))

    def timed_keys(self) -> list[str]:
        return [key.decode() for key in self._raw.keys("*") if self._raw.pttl(key) >= 0]

    def empty_redis(self) -> None:
        self._raw.flushall()
