"""One test's corner of the running system: its namespace, its nodes, and words to speak about them.

Nodes carry a label of the test's own and its pods select it, so tests do not meet. Waiting is by watch: a condition is
looked at again whenever something changed, and a limit says what was seen instead.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.chaos.kubelet import HonestKubelets
from libs.bus.kafka import KafkaBus
from libs.bus.port import Incoming, Outgoing
from libs.bus.settings import KafkaSettings
from libs.contracts.events import DeadLetter, EventType, JobStatus
from libs.contracts.topics import DEAD_LETTERS, JOBS, STATUS
from libs.domain import keys
from libs.host.laws import violations
from libs.kube import trainingjobs, writes
from libs.kube.objects import Condition, bare_decoder, pod_decoder
from libs.kube.pods import PodView, pod_of
from libs.store.port import Holder
from libs.store.redis import RedisLedger
from tools.fleet import Fleet
from tools.listen import listening
from tools.load import Load, node_object, pod_object
from tools.stack import StackInfo

LABEL = "drystone-test"
OURS = "system:serviceaccount:drystone-system:"


@dataclass(frozen=True)
class SeenPod:
    """A pod and its condition PodScheduled."""

    view: PodView
    condition: Condition | None

    @property
    def reason(self) -> str:
        return (self.condition.reason or "") if self.condition and self.condition.status == "False" else ""

    @property
    def gpus(self) -> str:
        return self.view.annotations.get(keys.GPUS, "")


Pods = dict[str, SeenPod]


@dataclass
class Heard:
    """What came on the topics that the world listens to."""

    statuses: list[JobStatus] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, record: Incoming) -> None:
        if record.value is None:
            return
        if record.topic == STATUS.name:
            self.statuses.append(msgspec.json.decode(record.value, type=JobStatus))
        else:
            self.letters.append(msgspec.json.decode(record.value, type=DeadLetter))
        self.came.set()

    async def until(self, fits: Callable[[Heard], bool], *, within_s: float = 60.0) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not fits(self):
                    self.came.clear()
                    await self.came.wait()
        except TimeoutError:
            raise AssertionError(f"not heard in {within_s:g} s; heard {self.statuses} {self.letters}") from None

    def about(self, id: str) -> list[JobStatus]:
        return [s for s in self.statuses if s.id == id]


@dataclass
class World:
    info: StackInfo
    fleet: Fleet
    namespace: str
    load: Load
    ledger: RedisLedger
    #: Name of the queue that this test made, if it made one; node names begin with the namespace.
    queues: list[str] = field(default_factory=list)
    node_names: list[str] = field(default_factory=list)
    job_namespace: str = "default"
    #: Pods that the test put where no kubelet would have them.
    misplaced: set[str] = field(default_factory=set)

    @classmethod
    @asynccontextmanager
    async def of(cls, info: StackInfo, fleet: Fleet, namespace: str) -> AsyncIterator[World]:
        ledger = RedisLedger(info.redis_url)
        async with Load.of(info) as load:
            await ledger.open()
            world = cls(info, fleet, namespace, load, ledger)
            # The stack's kubelets admit anything: this one says what a real one would have refused.
            kubelets = HonestKubelets(load.kube, only_looks=True)
            looking = asyncio.create_task(kubelets.run(), name="honest kubelets")
            try:
                yield world
                refused = {one for _, one in kubelets.refusals if one.node in world.node_names}
                refused = {one for one in refused if one.pod.partition("/")[2] not in world.misplaced}
                assert not refused, f"kubelets would have refused: {refused}"
            finally:
                looking.cancel()
                await asyncio.wait({looking})
                fleet.resume()
                await world._leave()
                await ledger.close()

    # -- what is given ------------------------------------------------------------------------------------------------

    async def nodes(self, count: int, **what: Any) -> list[str]:
        names = [f"{self.namespace}-n{len(self.node_names) + n}" for n in range(count)]
        labels = {LABEL: self.namespace}
        await self.load.create_nodes([node_object(n, labels=labels, fake_kubelet=True, **what) for n in names])
        self.node_names += names
        return names

    def pod(self, name: str, **what: Any) -> dict[str, object]:
        what.setdefault("nodeSelector", {LABEL: self.namespace})
        return pod_object(name, namespace=self.namespace, **what)

    async def create(self, *pods: dict[str, object]) -> None:
        await self.load.create_pods(pods, self.namespace)

    def gang(self, name: str, size: int, **what: Any) -> list[dict[str, object]]:
        marks = {keys.JOB: name, keys.GANG_MIN: str(size), **what.pop("annotations", {})}
        return [self.pod(f"{name}-{n}", annotations=marks, **what) for n in range(size)]

    async def queue(self, limit_gpus: int) -> str:
        name = f"q-{self.namespace}"
        body = {
            "apiVersion": keys.API_VERSION,
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {"limits": {keys.GPU_RESOURCE: str(limit_gpus)}},
        }
        await self.load.create_all(writes.QUEUES, [body])
        self.queues.append(name)
        return name

    async def delete(self, name: str) -> None:
        """Delete a pod at once and wait until the API server has none of that name."""
        path = writes.pods_path(self.namespace, name)
        answer = await self.load.kube.call("DELETE", path, b'{"gracePeriodSeconds":0}')
        assert answer.ok, answer.body
        await self.until(lambda pods: name not in pods)

    async def cordon(self, node: str) -> None:
        answer = await self.load.kube.call(
            "PATCH", f"{writes.NODES}/{node}", b'{"spec":{"unschedulable":true}}', content_type=writes.MERGE
        )
        assert answer.ok, answer.body

    def job(self, id: str, tasks: int, **what: Any) -> dict[str, Any]:
        """A submission whose pods run on this test's nodes, held to the restricted profile as the default tenant's."""
        amounts = {"cpu": "1", "memory": "1Gi", keys.GPU_RESOURCE: "1"}
        container = {
            "name": "main",
            "image": "train:1",
            "resources": {"requests": amounts, "limits": amounts},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        spec = {
            "nodeSelector": {LABEL: self.namespace},
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        }
        return {"id": id, "roles": [{"name": "worker", "replicas": tasks, "template": {"spec": spec}}], **what}

    def object_name(self, id: str) -> str:
        return trainingjobs.object_name("default", id)

    # -- services -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def paused(self, service: str) -> AsyncIterator[None]:
        """The service stands still. Not for long: its Kafka session is 10 s."""
        self.fleet.signal(signal.SIGSTOP, [service])
        try:
            yield
        finally:
            self.fleet.signal(signal.SIGCONT, [service])

    # -- topics -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Heard]:
        """Status events and dead letters from now on."""
        heard = Heard()
        settings = KafkaSettings(self.info.kafka_bootstrap, client_id="listener", check_topics=False)
        async with listening(settings, [STATUS.name, DEAD_LETTERS.name], heard.take):
            yield heard

    async def publish(self, *events: tuple[str, bytes], type: str = EventType.JOB_SUBMIT, partition: int = 0) -> None:
        """Records (key, value) on one partition of the job topic, in this order."""
        bus = KafkaBus(KafkaSettings(self.info.kafka_bootstrap, client_id="other-system", source="test"), [JOBS])
        await bus.open()
        try:
            for key, value in events:
                await bus.publisher().publish([Outgoing(JOBS.name, key, value, type, partition)])
        finally:
            await bus.close()

    # -- what is seen -------------------------------------------------------------------------------------------------

    async def until(
        self, fits: Callable[[Pods], bool], *, within_s: float = 60.0, namespace: str = "", selector: str = ""
    ) -> Pods:
        """The pods as soon as they fit, looked at after every change."""
        path = writes.pods_path(namespace or self.namespace)
        pods: Pods = {}
        try:
            async with asyncio.timeout(within_s):
                async for _ in self._follow(path, selector, pods):
                    if fits(pods):
                        return pods
        except TimeoutError:
            seen = {n: (p.view.node, p.view.phase, p.reason, p.view.terminating) for n, p in sorted(pods.items())}
            raise AssertionError(f"not seen in {within_s:g} s: {seen}") from None
        raise AssertionError("the watch ended")

    async def _follow(self, path: str, selector: str, pods: Pods) -> AsyncIterator[None]:
        listed = await writes.list_all(self.load.kube, path, label_selector=selector)
        pods.update((p.view.name, p) for p in map(_seen, listed.items))
        yield
        params = {"resourceVersion": listed.version, **({"labelSelector": selector} if selector else {})}
        async for kind, raw in self.load.kube.watch(path, params=params, silence_s=120):
            pod = _seen(raw)
            if kind == "DELETED":
                if pods.get(pod.view.name, pod).view.uid == pod.view.uid:
                    pods.pop(pod.view.name, None)
            else:
                pods[pod.view.name] = pod
            yield

    async def holders(self) -> list[Holder]:
        """What the ledger has on this test's nodes."""
        found: list[Holder] = []
        cursor = ""
        while True:
            cursor, page = await self.ledger.holders(cursor)
            found += [h for h in page if h.node in self.node_names]
            if not cursor:
                return found

    async def until_held(self, fits: Callable[[list[Holder]], bool], *, within_s: float = 45.0) -> list[Holder]:
        deadline = time.monotonic() + within_s
        while True:
            found = await self.holders()
            if fits(found):
                return found
            assert time.monotonic() < deadline, f"the ledger does not get there in {within_s:g} s: {found}"
            await asyncio.sleep(0.02)

    async def planned(self) -> Holder:
        """The claim that placement has made and the (paused) binder has not begun."""
        found = await self.until_held(lambda held: any(h.state == "planned" for h in held))
        return next(h for h in found if h.state == "planned")

    async def job_object(self, id: str) -> trainingjobs.TrainingJobView:
        answer = await writes.get_trainingjob(self.load.kube, self.job_namespace, self.object_name(id))
        assert answer.ok, answer.body
        return trainingjobs.parse(answer.body)

    async def until_job(
        self,
        name: str,
        fits: Callable[[trainingjobs.TrainingJobView], bool],
        *,
        namespace: str = "",
        within_s: float = 45.0,
    ) -> trainingjobs.TrainingJobView:
        """The job object as soon as it fits: of a test's own namespace by its name, else by the event's id."""
        path = trainingjobs.path(namespace or self.job_namespace)
        name = name if namespace else self.object_name(name)
        listed = await writes.list_all(self.load.kube, path)
        view = next((v for v in map(trainingjobs.parse, listed.items) if v.name == name), None)
        if view is not None and fits(view):
            return view
        try:
            async with asyncio.timeout(within_s):
                params = {"resourceVersion": listed.version}
                async for _, raw in self.load.kube.watch(path, params=params, silence_s=120):
                    view = trainingjobs.parse(raw)
                    if view.name == name and fits(view):
                        return view
        except TimeoutError:
            pass
        raise AssertionError(f"not seen in {within_s:g} s: {name} is {view.status if view else 'not there'}")

    async def holds(self) -> None:
        """`drystone check` on the live system."""
        broken = await violations(self.load.kube, self.ledger)
        assert not broken, broken

    # -- the audit log ------------------------------------------------------------------------------------------------

    def audited(self) -> int:
        """A place in the API server's audit log, to count from."""
        assert self.info.audit_log is not None
        return Path(self.info.audit_log).stat().st_size

    def our_writes(self, since: int, name: str) -> list[str]:
        """Writes of the services' accounts about objects whose names begin with `name`."""
        assert self.info.audit_log is not None
        found: list[str] = []
        with Path(self.info.audit_log).open("rb") as log:
            log.seek(since)
            for line in log:
                event = json.loads(line)
                what = event.get("objectRef", {})
                about = what.get("name") or (event.get("responseObject") or {}).get("metadata", {}).get("name") or ""
                if (
                    event["stage"] == "ResponseComplete"
                    and event["user"]["username"].startswith(OURS)
                    and event["verb"] in ("create", "update", "patch", "delete", "deletecollection")
                    and what.get("resource") != "leases"
                    and (about.startswith(name) or (not about and what.get("namespace") == self.job_namespace))
                ):
                    account = event["user"]["username"].removeprefix(OURS)
                    found.append(f"{account} {event['verb']} {what.get('resource')}/{what.get('subresource', '')}")
        return found

    # -- leaving ------------------------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        for namespace in {self.namespace, self.job_namespace}:
            await self.load.delete_jobs(namespace)
            await self.load.delete_pods(namespace)
        for queue in self.queues:
            await self.load.kube.call("DELETE", f"{writes.QUEUES}/{queue}")
        await self.until_held(lambda held: not held, within_s=30.0)
        for node in self.node_names:
            await self.load.kube.call("DELETE", f"{writes.NODES}/{node}")


def bound(pods: Pods, names: Collection[str] | None = None) -> list[str]:
    return [n for n, p in pods.items() if p.view.node and (names is None or n in names)]


def _seen(raw: bytes) -> SeenPod:
    pod = pod_decoder.decode(raw)
    condition = next((c for c in pod.status.conditions or () if c.type == "PodScheduled"), None)
    return SeenPod(pod_of(pod), condition)


def uid_of(raw: bytes) -> str:
    return bare_decoder.decode(raw).metadata.uid
