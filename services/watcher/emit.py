"""What leaves the leader: the ledger first, then the topics.

Facts not yet acknowledged by the broker stay in a set, one per key, newest wins; they leave it by the acknowledgement
alone. So a broker that was away costs latency and never a fact.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
import structlog

from libs.bus.letters import status_value
from libs.bus.pack import cut, encoded_size, halved, in_batches, packed, record_size
from libs.bus.port import BusUnavailable, Outgoing, Publisher, onward
from libs.contracts.events import EventType, JobChanged, JobStatus
from libs.contracts.topics import CLUSTER, STATUS, TASKS
from libs.domain.jobs import partition_of
from libs.store.port import Ledger
from services.watcher import metrics
from services.watcher.changes import Changes

log = structlog.get_logger()

_encode = msgspec.json.encode
BATCH = 256
#: Records of one publication.
RECORDS_AT_ONCE: Final = 10_000
#: Hints that wait for a broker, in records and in bytes.
HINTS_MOST: Final = 10_000
HINT_BYTES_MOST: Final = 32 * 1024 * 1024
#: Of a job object's tasks, when they are told of. Beyond it placement reads the object instead, which says the same
#: once: the same labels under each of ten thousand tasks may be gigabytes.
OBJECT_BYTES: Final = 8 * 1024 * 1024
#: How many tasks are looked at to know how large all are.
_LOOKED_AT: Final = 16


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
            # Hints lead to decisions, facts do not wait for anybody: hints go first.
            hints, facts = list(self._hints), list(self._dirty.values())
            left = len(hints)
            try:
                for some in in_batches([*hints, *facts], RECORDS_AT_ONCE):
                    await self._publisher.publish(some)
                    of_hints = min(left, len(some))
                    del self._hints[:of_hints]
                    self._told(some[of_hints:])
                    left -= of_hints
            except BusUnavailable as fault:
                log.warning("facts not acknowledged", facts=len(facts), hints=len(hints), fault=str(fault))
            # Hints are worth nothing after a while: placement's slow pass finds what they were about.
            del self._hints[: _too_many(self._hints)]

    def _told(self, facts: Sequence[Outgoing]) -> None:
        for record in facts:
            if self._dirty.get(record.key) is record:
                del self._dirty[record.key]
            (self.acknowledged.discard if record.value is None else self.acknowledged.add)(record.key)

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
    """Records by partition, each of a size that the topic takes: small hints share one, a large gang has several."""
    by_partition: defaultdict[int, list[JobChanged]] = defaultdict(list)
    for hint in hints:
        by_partition[partition_of(hint.head.key, partitions)].append(_told(hint))
    return [
        Outgoing(
            TASKS.name, items[0].head.key, value, EventType.TASKS, partition,
            headers=onward(items[0].cause, items[0].traceparent),
        )
        for partition, some in by_partition.items()
        for items, value in packed(some, _halves)
    ]  # fmt: skip


def status_records(statuses: Sequence[JobStatus], partitions: int) -> list[Outgoing]:
    """What the world is told about jobs; its topic has as many partitions as that of the hints."""
    return [
        Outgoing(
            STATUS.name, cut(s.id), status_value(s), EventType.STATUS, partition_of(s.job, partitions),
            headers=onward(s.cause, s.traceparent),
        )
        for s in statuses
    ]  # fmt: skip


def _told(hint: JobChanged) -> JobChanged:
    """As it is, or without tasks where it is about an object and says too much: placement reads that then."""
    tasks = hint.tasks
    if not hint.head.uid or len(tasks) < 2:
        return hint
    step = -(-len(tasks) // _LOOKED_AT)
    if step * sum(encoded_size(task) for task in tasks[::step]) <= OBJECT_BYTES:
        return hint
    log.info("a job is told of without its tasks", job=hint.head.key, tasks=len(tasks), cause=hint.cause)
    return msgspec.structs.replace(hint, tasks=())


def _halves(hint: JobChanged) -> list[JobChanged]:
    """The first has besides what is not divided."""
    bare = JobChanged(hint.head, cause=hint.cause, traceparent=hint.traceparent, seen=hint.seen)
    for name in ("tasks", "bound", "gone"):
        if len(parts := getattr(hint, name)) > 1:
            first, second = halved(parts)
            return [msgspec.structs.replace(one, **{name: half}) for one, half in ((hint, first), (bare, second))]
    return [hint]


def _too_many(records: Sequence[Outgoing]) -> int:
    """How many of the oldest are to go."""
    size = 0
    for kept, record in enumerate(reversed(records)):
        size += record_size(record)
        if kept >= HINTS_MOST or size > HINT_BYTES_MOST:
            return len(records) - kept
    return 0
