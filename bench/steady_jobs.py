"""Jobs at a steady rate on Kafka: their tasks are bound by whoever schedules, succeed, and go with their job.

The harness plays what a cluster has beside the scheduler: kubelets that say a pod has succeeded, and the garbage
collector that takes a job's pods once its object is gone. That the job has ended, and that its object goes, is left to
those who are measured: nothing here ever deletes a job.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from aiokafka import AIOKafkaProducer

from bench.jobs import headers
from bench.steady import NAMESPACE, Owners, Pod, Seen, follow
from libs.contracts import topics
from libs.domain import keys
from libs.kube import trainingjobs, writes
from libs.kube.port import Kube

_PARALLEL: Final = 64
_RETRY_S: Final = 0.1
_NOW: Final = b'{"gracePeriodSeconds":0}'
_SUCCEEDED: Final = b'{"status":{"phase":"Succeeded"}}'
_DELETE_S: Final = 30.0
_ENDED: Final = ("Succeeded", "Failed")


def event(name: str, tasks: int) -> bytes:
    """A job of `tasks` one-GPU tasks whose object may go as soon as it has ended."""
    template = {"image": "train:1", "resources": {"cpu": "4", "memory": "16Gi", "gpu": 1}}
    role = {"name": "worker", "replicas": tasks, "template": template}
    return json.dumps({"id": name, "namespace": NAMESPACE, "roles": [role], "ttlSecondsAfterFinished": 0}).encode()


@dataclass(slots=True)
class SteadyJobs:
    """`run()` until cancelled. `rate` tasks a second in jobs of `tasks`; each task succeeds `life_s` after it was seen
    bound. While more than `most` tasks of those that were submitted are not bound no job is submitted (0: always)."""

    kube: Kube
    bootstrap: str
    rate: float
    tasks: int = 10
    life_s: float = 1.0
    name: str = "steady"
    most: int = 0
    #: Every task by the name of its pod; forgotten by `forget`.
    pods: dict[str, Seen] = field(default_factory=dict)
    #: Tasks of jobs that were submitted, and those that were seen bound.
    made: int = 0
    bound: int = 0
    held_back: int = 0
    #: No more are submitted; what there is comes to its end.
    stopping: bool = False
    #: Jobs whose object is gone, and jobs that did not end well.
    finished: int = 0
    failed: list[str] = field(default_factory=list)
    owners: Owners = field(default_factory=Owners)
    #: When the broker acknowledged a job, by the name of its object, until the object is gone.
    _accepted: dict[str, float] = field(default_factory=dict)
    _leaving: deque[tuple[float, str]] = field(default_factory=deque)
    _width: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PARALLEL))
    _group: asyncio.TaskGroup = field(init=False)

    @property
    def unbound(self) -> int:
        return self.made - self.bound

    @property
    def left(self) -> int:
        """Jobs that were submitted and whose object is not gone yet."""
        return len(self._accepted)

    def forget(self, before: float) -> None:
        """Forget those that are gone and were bound before this time."""
        self.pods = {name: pod for name, pod in self.pods.items() if not (pod.gone and pod.bound < before)}

    async def run(self) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all", enable_idempotence=True)
        await producer.start()
        try:
            async with asyncio.TaskGroup() as self._group:
                follows = (
                    follow(self.kube, keys.JOB, self._look, self._gone),
                    follow(self.kube, "", self._look_at_job, self._job_gone, _jobs_path()),
                )
                for number, following in enumerate(follows):
                    self._group.create_task(following, name=f"follow {number}")
                self._group.create_task(self._end(), name="end")
                self._group.create_task(self._submit(producer), name="submit")
        finally:
            await producer.stop()

    async def _submit(self, producer: AIOKafkaProducer) -> None:
        due = time.monotonic()
        number = 0
        while not self.stopping:
            while due <= time.monotonic():
                due += self.tasks / self.rate
                if self.most and self.unbound >= self.most:
                    self.held_back += 1
                    continue
                number += 1
                self.made += self.tasks
                self._group.create_task(self._send(producer, f"{self.name}-{number}"), name=f"submit {number}")
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _send(self, producer: AIOKafkaProducer, name: str) -> None:
        job = trainingjobs.object_name(NAMESPACE, name)
        # The first task may be seen bound before the acknowledgement is.
        self._accepted[job] = time.monotonic()
        await producer.send_and_wait(
            topics.JOBS.name, event(name, self.tasks), key=name.encode(), headers=headers(name)
        )
        if job in self._accepted:
            self._accepted[job] = time.monotonic()

    # -- what a cluster does ------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        while True:
            while self._leaving and self._leaving[0][0] <= time.monotonic():
                name = self._leaving.popleft()[1]
                self._group.create_task(self._succeed(name), name=f"end {name}")
            await asyncio.sleep(0.05)

    async def _succeed(self, name: str) -> None:
        """As a kubelet whose container has done its work."""
        path = writes.pods_path(NAMESPACE, name, "status")
        while True:
            async with self._width:
                answer = await self.kube.call("PATCH", path, _SUCCEEDED, content_type=writes.MERGE)
            if answer.ok or answer.status == 404:
                return
            await asyncio.sleep(_RETRY_S)

    async def _collect(self, job: str) -> None:
        """As the garbage collector, whose owner is gone."""
        params = {"labelSelector": f"{keys.JOB}={job}"}
        while True:
            async with self._width:
                answer = await self.kube.call(
                    "DELETE", writes.pods_path(NAMESPACE), _NOW, params=params, timeout_s=_DELETE_S
                )
            if answer.ok:
                return
            await asyncio.sleep(_RETRY_S)

    # -- watching -----------------------------------------------------------------------------------------------------

    def _look(self, pod: Pod) -> None:
        name = pod.metadata.name
        if pod.status.phase in _ENDED:
            self.owners.gone(name)
            return
        if not pod.spec.nodeName or name in self.pods:
            return
        now = time.monotonic()
        self.pods[name] = Seen(self._accepted.get(pod.metadata.labels.get(keys.JOB, ""), now), now)
        self.bound += 1
        self._leaving.append((now + self.life_s, name))
        self.owners.promised(pod)

    def _gone(self, name: str) -> None:
        self.owners.gone(name)
        if name in self.pods:
            self.pods[name].gone = True

    def _look_at_job(self, job: Pod) -> None:
        if job.status.phase in ("Failed", "Rejected", "Cancelled"):
            self.failed.append(f"{job.metadata.name}: {job.status.phase}")

    def _job_gone(self, job: str) -> None:
        self._accepted.pop(job, None)
        self.finished += 1
        self._group.create_task(self._collect(job), name=f"collect {job}")


def _jobs_path() -> str:
    return f"/apis/{keys.API_VERSION}/namespaces/{NAMESPACE}/trainingjobs"
