"""Queues and priority classes as every replica knows them, whoever leads: read off `drystone.cluster`.

Only the leader watches the cluster. A replica that stands by takes job events too, and its hints carry a job's queue
and priority; with nothing known they would name the default queue and a priority of 0. While this replica leads, its
own picture is newer, and the topic is not read (it carries every bound pod).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from libs.bus.port import Bus, FullReader, Incoming
from libs.contracts.events import ClusterFact, NodeFact, PriorityClassFact, QueueFact
from libs.contracts.topics import CLUSTER
from libs.domain.bounds import MOST_TASKS
from libs.domain.nodes import newer
from libs.domain.queues import Queue
from libs.kube.grouping import Known
from libs.kube.queues import of_namespaces, spaces_of
from libs.runtime.clock import Clock
from services.watcher.leaving import leave

_decoder = msgspec.json.Decoder(ClusterFact)
_READ = ("queue/", "priorityclass/", "node/")


class Knowledge:
    """`known` and `seen` for hints; `ready` once the topic's content at start has been read."""

    def __init__(self, tenants: Mapping[str, str], most_tasks: int = MOST_TASKS) -> None:
        self.ready = asyncio.Event()
        self.seen = ""
        self._tenants = dict(tenants)
        self._queues: dict[str, tuple[int, Queue]] = {}
        self._priorities: dict[str, tuple[int, int]] = {}
        self._most_tasks = most_tasks
        self._known = Known(tenants=self._tenants, most_tasks=most_tasks)

    @property
    def known(self) -> Known:
        return self._known

    async def follow(self, bus: Bus, clock: Clock, leading: Callable[[], bool]) -> None:
        """For ever; sleeps while this replica leads."""
        while True:
            reader = bus.follow([CLUSTER.name], from_start=True)
            try:
                await self._read(reader, leading)
            finally:
                await leave(reader)
            while leading():
                await clock.sleep(0.5)

    async def _read(self, reader: FullReader, leading: Callable[[], bool]) -> None:
        while not (leading() and self.ready.is_set()):
            self.take(await reader.batch(5000, 0.5))
            if reader.caught_up:
                self.ready.set()

    def take(self, records: Sequence[Incoming]) -> None:
        changed = False
        for record in records:
            if record.key.startswith(_READ):
                changed |= self._one(record)
        if changed:
            self._learn()

    def _one(self, record: Incoming) -> bool:
        kind, _, name = record.key.partition("/")
        if record.value is None:
            self._queues.pop(name, None) if kind == "queue" else None
            self._priorities.pop(name, None) if kind == "priorityclass" else None
            return kind != "node"
        try:
            fact = _decoder.decode(record.value)
        except msgspec.MsgspecError:
            return False
        match fact:
            case NodeFact():
                self._saw(fact.node.version)
            case QueueFact():
                old = self._queues.get(fact.queue.path)
                # What a deposed leader still had in flight is older by its term.
                if old is None or fact.term >= old[0]:
                    self._queues[fact.queue.path] = (fact.term, fact.queue)
                self._saw(fact.queue.version)
                return True
            case PriorityClassFact():
                before = self._priorities.get(fact.name)
                if before is None or fact.term >= before[0]:
                    self._priorities[fact.name] = (fact.term, fact.value)
                return True
            case _:
                pass
        return False

    def _saw(self, version: str) -> None:
        if newer(version, self.seen):
            self.seen = version

    def _learn(self) -> None:
        queues = [queue for _, queue in self._queues.values()]
        self._known = Known(
            tenants=self._tenants,
            namespace_queues=of_namespaces(queues),
            queue_namespaces=spaces_of(queues),
            queue_paths={queue.path.rsplit("/", 1)[-1]: queue.path for queue in queues},
            priorities={name: value for name, (_, value) in self._priorities.items()},
            most_tasks=self._most_tasks,
        )
