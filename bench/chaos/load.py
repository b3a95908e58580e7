"""Work that streams in while things break: single pods, gangs, job events, cancels, deletions, node changes.

Some single pods ask for a part of a device's memory. Nodes are cordoned, opened, deleted and registered anew.

Whoever submits does what a careful user does: tries again until the API server or the broker has said yes, with the
same name or id each time. What was accepted must not be lost: a pod that others took away is made anew under its name,
as the controller that owns it would.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Final, NoReturn

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from bench.chaos.kubelet import SECONDS
from bench.chaos.machines import Machines
from libs.contracts import topics
from libs.contracts.events import EventType
from libs.domain import keys
from libs.kube import trainingjobs, writes
from libs.kube.pods import PodView
from libs.kube.port import Answer, Kube
from tools.load import pod_object

NAMESPACE: Final = "default"
_PERIOD_S: Final = 0.2


@dataclass(slots=True)
class Told:
    """What was accepted, so that its end can be asked for."""

    pods: set[str] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    cordoned: set[str] = field(default_factory=set)


class Stream:
    def __init__(self, kube: Kube, bootstrap: str, machines: Machines, rng: random.Random) -> None:
        self._kube = kube
        self._bootstrap = bootstrap
        self._machines = machines
        self._rng = rng
        self._number = 0
        self.made_anew = 0
        self._gangs: dict[str, list[str]] = {}
        self._bodies: dict[str, bytes] = {}
        self._owner = asyncio.Lock()
        self._evicted: set[str] = set()
        self.told = Told()

    async def run(self, name: str, seconds: float) -> None:
        """Submit for so long; returns when everything begun was accepted."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        async with asyncio.TaskGroup() as tasks:
            while loop.time() < until:
                self._number += 1
                tasks.create_task(self._one(f"{name}-{self._number}"), name=f"submit {self._number}")
                await asyncio.sleep(_PERIOD_S)

    async def _one(self, name: str) -> None:
        kinds = {"pod": 45, "gang": 12, "job": 18, "cancel": 6, "delete": 12, "cordon": 7, "node": 2}
        kind = self._rng.choices(list(kinds), weights=list(kinds.values()))[0]
        match kind:
            case "pod":
                await self._pods(name, 1)
            case "gang":
                await self._pods(name, self._rng.randint(2, 10))
            case "job":
                await self._job(name)
            case "cancel":
                await self._cancel()
            case "delete":
                await self._delete()
            case "cordon":
                await self._cordon()
            case "node":
                await self._machines.register_anew(self._rng, 3.0)

    # -- kinds of work ------------------------------------------------------------------------------------------------

    async def _pods(self, name: str, size: int) -> None:
        notes = {SECONDS: f"{self._rng.uniform(0.5, 6.0):.1f}"}
        if size > 1:
            notes |= {keys.JOB: name, keys.GANG_MIN: str(size)}
        gpus = self._rng.choice((0, 1, 1, 1, 2, 4)) if size == 1 else 1
        if not gpus:
            notes[keys.GPU_MEMORY] = self._rng.choice(("16384", "40960"))
        labels = {keys.PRIORITY_LABEL: self._rng.choice(("low", "normal", "normal", "high"))}
        names = [f"{name}-{n}" for n in range(size)]
        for each in names:
            pod = pod_object(each, gpus=gpus, annotations=notes, labels=labels, namespace=NAMESPACE)
            body = self._bodies[each] = json.dumps(pod).encode()
            await self._surely("POST", writes.pods_path(NAMESPACE), body)
            self.told.pods.add(each)
        # Only now may it be deleted: a gang that was deleted while it was being made would wait for the rest for ever.
        self._gangs[name] = names

    async def _job(self, name: str) -> None:
        role = {
            "name": "worker",
            "replicas": self._rng.randint(1, 4),
            "template": {"image": "train:1", "resources": {"cpu": "1", "memory": "1Gi", "gpu": 1}},
        }
        body = json.dumps({"id": name, "namespace": NAMESPACE, "roles": [role]}).encode()
        for _ in range(self._rng.choice((1, 1, 2))):  # sent twice by some: one job
            await self._publish(name, body, EventType.JOB_SUBMIT)
        self.told.jobs.add(name)

    async def _cancel(self) -> None:
        open_jobs = sorted(self.told.jobs - self.told.cancelled)
        if open_jobs:
            name = self._rng.choice(open_jobs)
            self.told.cancelled.add(name)
            await self._publish(name, json.dumps({"id": name, "namespace": NAMESPACE}).encode(), EventType.JOB_CANCEL)

    async def _delete(self) -> None:
        """A single pod, or a gang as a whole: a gang that lost one member for ever waits for ever, by design."""
        if self._gangs:
            pods = self._gangs.pop(self._rng.choice(sorted(self._gangs)))
            async with self._owner:
                for pod in pods:
                    self._bodies.pop(pod, None)
                for pod in pods:
                    await self._surely("DELETE", writes.pods_path(NAMESPACE, pod), b"{}")

    async def _cordon(self) -> None:
        node = self._rng.choice(self._machines.names)
        await self.set_cordon(node, node not in self.told.cordoned)

    async def set_cordon(self, node: str, closed: bool) -> None:
        (self.told.cordoned.add if closed else self.told.cordoned.discard)(node)
        body = msgspec.json.encode({"spec": {"unschedulable": closed}})
        await self._surely("PATCH", f"{writes.NODES}/{node}", body, writes.MERGE)

    async def open_all_nodes(self) -> None:
        for node in sorted(self.told.cordoned):
            await self.set_cordon(node, False)

    def left(self, pod: PodView) -> None:
        """A pod is gone: whether it is made anew depends on who wanted it gone. (One that ended as it was being evicted
        is gone with its result.)"""
        if pod.name in self._bodies:
            self._evicted.add(pod.name)

    async def own(self) -> NoReturn:
        """For ever: what had to leave is made anew."""
        while True:
            for name in sorted(self._evicted):
                async with self._owner:
                    if (body := self._bodies.get(name)) is not None:
                        await self._surely("POST", writes.pods_path(NAMESPACE), body)
                        self.made_anew += 1
                    self._evicted.discard(name)
            await asyncio.sleep(0.1)

    @property
    def owes(self) -> bool:
        """Whether something is to be made anew at this moment."""
        return bool(self._evicted)

    async def remove_all(self) -> None:
        """Every job and pod, as a user would delete them."""
        async with self._owner:
            self._bodies.clear()
            self._evicted.clear()
            await self._surely("DELETE", trainingjobs.path(NAMESPACE), b"{}")
            await self._surely("DELETE", writes.pods_path(NAMESPACE), b"{}")
        self._gangs.clear()
        self.told = Told()

    # -- surely -------------------------------------------------------------------------------------------------------

    async def _surely(self, method: str, path: str, body: bytes, content_type: str = "application/json") -> Answer:
        for _ in range(400):
            answer = await self._kube.call(method, path, body, content_type=content_type, timeout_s=10.0)
            if answer.ok or answer.status in (404, 409):
                return answer
            await asyncio.sleep(0.25)
        raise RuntimeError(f"{method} {path}: {answer.status} {answer.body[:200]!r}")

    async def _publish(self, name: str, body: bytes, kind: str) -> None:
        headers = [
            ("ce_specversion", b"1.0"),
            ("ce_type", kind.encode()),
            ("ce_id", f"{name}-{kind}".encode()),
            ("ce_source", b"chaos"),
            ("content-type", b"application/json"),
        ]
        for _ in range(60):
            producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, acks="all", request_timeout_ms=5000)
            try:
                async with asyncio.timeout(10):
                    await producer.start()
                    await producer.send_and_wait(topics.JOBS.name, body, key=name.encode(), headers=headers)
                return
            except (KafkaError, TimeoutError):
                await asyncio.sleep(0.5)
            finally:
                await _stop(producer)
        raise RuntimeError(f"the event of {name} was never acknowledged")


async def _stop(producer: AIOKafkaProducer) -> None:
    try:
        async with asyncio.timeout(2):
            await producer.stop()
    except (KafkaError, TimeoutError):
        return
