"""What leaves the leader: the ledger first, then the topics.

Facts not yet acknowledged by the broker stay in a set, one per key, newest wins; they leave it by the acknowledgement
alone. So a broker that was away costs latency and never a fact.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import msgspec
import structlog

from libs.bus.port import BusUnavailable, Outgoing, Publisher
from libs.contracts.events import EventType, JobChanged, JobStatus, TasksBatch
from libs.contracts.topics import CLUSTER, STATUS, TASKS
from libs.domain.jobs import partition_of
from libs.store.port import Ledger
from services.watcher import metrics
from services.watcher.changes import Changes

log = structlog.get_logger()

_encode = msgspec.json.encode
BATCH = 256
#: Tasks in one record at the most: a gang of thousands must not exceed the topic's largest message.
TASKS_IN_RECORD = 1000


class Emitter:
    def __init__(self, ledger: Ledger, publisher: Publisher, partitions: int, term: int) -> None:
        self._ledger = ledger
        self._publisher = publisher
        self._partitions = partitions
        self._term = term
        self._dirty: dict[str, Outgoing] = {}
        self._hints: list[Outgoing] = []
        self._flushing = asyncio.Lock()
        #: Keys that the topic has, as far as acknowledgements tell.
        self.acknowledged: set[str] = set()

    async def report(self, changes: Changes, seen: str) -> None:
        """Raises LedgerUnavailable or StaleGeneration; the broker's absence is not raised, its part stays dirty."""
        await self._to_ledger(changes)
        for key, fact in changes.facts.items():
            value = _encode(fact) if fact is not None else None
            self._dirty[key] = Outgoing(CLUSTER.name, key, value, EventType.CLUSTER)
        self._hints += hint_records([h.event(seen) for h in changes.hints.values()], self._partitions)
        self._hints += status_records([v.event() for v in changes.victims.values()], self._partitions)
        await self.flush()

    async def flush(self) -> bool:
        """Publish what is dirty; whether all of it was acknowledged."""
        # One at a time: of two that publish the same things the second would take newer hints for acknowledged.
        async with self._flushing:
            await self._flush()
        metrics.DIRTY.set(len(self._dirty))
        return not self._dirty

    async def _flush(self) -> None:
        if self._dirty or self._hints:
            facts, hints = dict(self._dirty), list(self._hints)
            try:
                # Hints lead to decisions, facts do not wait for anybody: hints go first.
                await self._publisher.publish([*hints, *facts.values()])
            except BusUnavailable as fault:
                log.warning("facts not acknowledged", facts=len(facts), hints=len(hints), fault=str(fault))
            else:
                del self._hints[: len(hints)]
                for key, record in facts.items():
                    if self._dirty.get(key) is record:
                        del self._dirty[key]
                    (self.acknowledged.discard if record.value is None else self.acknowledged.add)(key)
            # Hints are worth nothing after a while: placement's slow pass finds what they were about.
            del self._hints[:-10_000]

    @property
    def dirty(self) -> bool:
        return bool(self._dirty)

    def owes(self, key: str) -> bool:
        """Whether something newer about `key` is on its way."""
        return key in self._dirty

    def tombstones(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._dirty.setdefault(key, Outgoing(CLUSTER.name, key, None, EventType.CLUSTER))

    async def _to_ledger(self, changes: Changes) -> None:
        ledger, term = self._ledger, self._term
        # Nodes and queues before tasks: what is bound is charged against something.
        for nodes in chunks(list(changes.nodes.values())):
            await ledger.nodes_seen(nodes, term)
        if changes.queues or changes.queues_gone:
            await ledger.queues_seen(list(changes.queues.values()), sorted(changes.queues_gone), term)
        # Room is freed before it is filled: a pod that replaced another must not be found beside it.
        for gone in chunks(sorted(changes.gone)):
            await ledger.tasks_gone(gone, term)
        for bound in chunks(list(changes.bound.values())):
            disputed = await ledger.tasks_seen(bound, term)
            if disputed:
                log.error("two pods on one device", uids=list(disputed)[:20])
        for names in chunks(sorted(changes.nodes_gone)):
            await ledger.nodes_gone(names, term)


T = TypeVar("T")


def chunks(items: Sequence[T], size: int = BATCH) -> list[Sequence[T]]:
    return [items[n : n + size] for n in range(0, len(items), size)]


def hint_records(hints: Sequence[JobChanged], partitions: int) -> list[Outgoing]:
    """One record per partition, more where a gang is large."""
    by_partition: defaultdict[int, list[JobChanged]] = defaultdict(list)
    for hint in hints:
        by_partition[partition_of(hint.head.key, partitions)].extend(_split(hint))
    records = []
    for partition, items in by_partition.items():
        part: list[JobChanged] = []
        size = 0
        for item in items:
            weight = max(1, len(item.tasks) + len(item.bound) + len(item.gone))
            if part and size + weight > TASKS_IN_RECORD:
                records.append(_record(part, partition))
                part, size = [], 0
            part.append(item)
            size += weight
        records.append(_record(part, partition))
    return records


def status_records(statuses: Sequence[JobStatus], partitions: int) -> list[Outgoing]:
    """What the world is told about jobs; its topic has as many partitions as that of the hints."""
    return [
        Outgoing(STATUS.name, s.id, _encode(s), EventType.STATUS, partition_of(s.job, partitions)) for s in statuses
    ]


def _split(hint: JobChanged) -> list[JobChanged]:
    if len(hint.tasks) <= TASKS_IN_RECORD:
        return [hint]
    first = msgspec.structs.replace(hint, tasks=hint.tasks[:TASKS_IN_RECORD])
    rest = [
        JobChanged(hint.head, hint.tasks[n : n + TASKS_IN_RECORD], cause=hint.cause, seen=hint.seen)
        for n in range(TASKS_IN_RECORD, len(hint.tasks), TASKS_IN_RECORD)
    ]
    return [first, *rest]


def _record(items: Sequence[JobChanged], partition: int) -> Outgoing:
    value = _encode(TasksBatch(tuple(items)))
    headers = {"cause": items[0].cause} if items[0].cause else {}
    return Outgoing(TASKS.name, items[0].head.key, value, EventType.TASKS, partition, headers=headers)
