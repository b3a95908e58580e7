"""What leaves: plans and evictions at once, words about jobs when nothing more urgent waits.

Two queues, one sender each, so that a slow status record never holds up a plan. Nothing is dropped: records stay queued
until the broker has acknowledged them (readers are idempotent), and `room` holds the passes back while too many wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NoReturn, Protocol

import msgspec
import structlog

from libs.bus.letters import status_value
from libs.bus.pack import ALONE, cut, halved, in_batches, packed, record_size
from libs.bus.port import BusUnavailable, Outgoing, Publisher, onward
from libs.contracts.events import EventType, JobStatus
from libs.contracts.topics import EVICTIONS, PLANS, STATUS
from libs.domain.jobs import partition_of
from libs.domain.plans import EvictionPlan, Plan

log = structlog.get_logger()
_encode: Final = msgspec.json.Encoder().encode
#: Words about jobs that wait for a broker; beyond it the oldest go. What a job amounts to is on its object and pods.
WORDS_MOST: Final = 50_000


#: The same in bytes, of each of the two queues.
BYTES_MOST: Final = 32 * 1024 * 1024


class Pause(Protocol):
    """A growing pause between tries."""

    def next(self) -> float: ...

    def reset(self) -> None: ...


class Sender:
    """One queue of records and the task that publishes them, in order, until acknowledged. Beyond `limit` (None:
    whoever puts waits for `room`) the oldest are dropped."""

    def __init__(
        self,
        publisher: Publisher,
        pause: Pause,
        name: str,
        most: int,
        *,
        limit: int | None = None,
        most_bytes: int = BYTES_MOST,
    ) -> None:
        self._publisher = publisher
        self._pause = pause
        self._name = name
        self._most = most
        self._most_bytes = most_bytes
        self._limit = limit
        self._bytes = 0
        #: Records under way: they are acknowledged or sent again, never dropped.
        self._sending = 0
        self._queue: list[Outgoing] = []
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, records: Iterable[Outgoing]) -> None:
        for record in records:
            self._queue.append(record)
            self._bytes += record_size(record)
        if self._limit is not None and (len(self._queue) > self._limit or self._bytes > self._most_bytes):
            self._drop(self._limit)
        if self._queue:
            self._some.set()
            self._idle.clear()
            if self._full:
                self._room.clear()

    @property
    def _full(self) -> bool:
        return len(self._queue) >= self._most or self._bytes >= self._most_bytes

    def _drop(self, limit: int) -> None:
        over, size = 0, 0
        for record in islice(self._queue, self._sending, None):
            if len(self._queue) - over <= limit and self._bytes - size <= self._most_bytes:
                break
            over, size = over + 1, size + record_size(record)
        del self._queue[self._sending : self._sending + over]
        self._bytes -= size
        log.warning("records dropped", queue=self._name, records=over)

    async def room(self) -> None:
        """Until fewer than `most` records wait, of fewer than `most_bytes`."""
        await self._room.wait()

    async def drained(self) -> None:
        await self._idle.wait()

    async def run(self) -> NoReturn:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._queue:
                batch = next(in_batches(self._queue, self._most))
                self._sending = len(batch)
                try:
                    await self._publisher.publish(batch)
                except BusUnavailable as error:
                    self._sending = 0
                    pause = self._pause.next()
                    log.warning("publish failed", queue=self._name, records=len(self._queue), error=str(error))
                    await asyncio.sleep(pause)
                    continue
                self._pause.reset()
                self._sending = 0
                del self._queue[: len(batch)]
                self._bytes -= sum(map(record_size, batch))
                if not self._full:
                    self._room.set()
            self._idle.set()


class Emitter:
    def __init__(self, publisher: Publisher, pauses: tuple[Pause, Pause], partitions: int) -> None:
        self.urgent = Sender(publisher, pauses[0], "plans", most=256)
        self.words = Sender(publisher, pauses[1], "status", most=512, limit=WORDS_MOST)
        self._partitions = partitions

    def plans(self, plans: Iterable[Plan]) -> None:
        by_partition: dict[int, list[Plan]] = {}
        for plan in plans:
            by_partition.setdefault(plan.partition, []).append(plan)
        self.urgent.put(
            Outgoing(
                topic=PLANS.name,
                key=items[0].job,
                value=value,
                type=EventType.PLANS,
                partition=partition,
                headers=onward(items[0].cause, items[0].traceparent),
            )
            for partition, some in by_partition.items()
            for items, value in packed(some, _halves, most=ALONE)
        )

    def evictions(self, plans: Iterable[EvictionPlan]) -> None:
        by_partition: dict[int, list[EvictionPlan]] = {}
        for plan in plans:
            by_partition.setdefault(plan.partition, []).append(plan)
        self.urgent.put(
            Outgoing(
                topic=EVICTIONS.name,
                key=items[0].job,
                value=value,
                type=EventType.EVICTIONS,
                partition=partition,
                headers=onward(items[0].cause, items[0].traceparent),
            )
            for partition, some in by_partition.items()
            for items, value in packed(some, lambda plan: (plan,), most=ALONE)
        )

    def statuses(self, statuses: Sequence[JobStatus]) -> None:
        """One record per job: outsiders read this topic, by job id."""
        self.words.put(
            Outgoing(
                topic=STATUS.name,
                key=cut(status.id),
                value=status_value(status),
                type=EventType.STATUS,
                partition=partition_of(status.job, self._partitions),
                headers=onward(status.cause, status.traceparent),
            )
            for status in statuses
        )


def _halves(plan: Plan) -> list[Plan]:
    """The same plan in parts: each claim has a name of its own, and the binder carries out what it has of a plan."""
    return [msgspec.structs.replace(plan, assignments=some) for some in halved(plan.assignments) if some]
