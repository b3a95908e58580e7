"""A reader of everything: all partitions that it is given, outside of any group, from the start or from the end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from libs.bus.consumer import Place, Reader, discard
from libs.bus.port import Incoming
from libs.bus.settings import KafkaSettings
from libs.runtime.tasks import comes

log = structlog.get_logger()


class KafkaFullReader(Reader):
    def __init__(
        self, settings: KafkaSettings, topics: Sequence[str], partitions: Mapping[str, int], *, from_start: bool
    ) -> None:
        super().__init__(f"reader of {', '.join(topics)}", settings, topics)
        every = [(topic, partition) for topic in topics for partition in range(partitions[topic])]
        #: Next offset to read by partition; -1: from the beginning, -2: from the end as the broker has it.
        self._next: dict[Place, int] = dict.fromkeys(every, -1 if from_start else -2)
        self._goal: dict[Place, int] | None = None
        self._reached = False
        self._changed = False
        self._given = asyncio.Event()

    @property
    def caught_up(self) -> bool:
        return self._reached

    def assign(self, partitions: Collection[Place], *, at_end: bool) -> None:
        start = -2 if at_end else -1
        self._next = {place: self._next.get(place, start) for place in sorted(partitions)}
        self._goal = None
        self._reached = False
        self._changed = True
        self._given.set()

    async def batch(self, limit: int = 1000, wait_s: float = 0.5) -> Sequence[Incoming]:
        if not self._next:
            self._polled_at = time.monotonic()
            self._reached = True
            self._given.clear()
            await comes(self._given, wait_s)
            return ()
        if self._changed and self._consumer is not None:
            self._changed = False
            self._polled_at = time.monotonic()
            try:
                async with asyncio.timeout(self._settings.request_s):
                    await self._place(self._consumer)
            except (KafkaError, IllegalStateError, TimeoutError) as error:
                await self._failed(error)
                return ()
        return await super().batch(limit, wait_s)

    async def _make(self) -> Any:
        self._changed = False
        arguments = self._arguments()
        arguments["fetch_min_bytes"] = self._settings.follow_min_bytes
        arguments["fetch_max_wait_ms"] = self._settings.follow_wait_ms
        consumer = AIOKafkaConsumer(group_id=None, **arguments)
        try:
            consumer.assign([TopicPartition(*place) for place in self._next])
            await consumer.start()
            await self._place(consumer)
        except BaseException:
            await discard(consumer)
            raise
        return consumer

    async def _place(self, consumer: Any) -> None:
        """Assign what is wanted, at the positions that are wanted, and note the ends as they are now."""
        wanted = dict(self._next)
        places = {TopicPartition(*place): place for place in wanted}
        consumer.assign(list(places))
        ends = await consumer.end_offsets(list(places))
        starts = await consumer.beginning_offsets(list(places))
        for tp, place in places.items():
            offset = wanted[place]
            if offset == -1:
                offset = starts[tp]
            elif offset == -2:
                offset = ends[tp]
            # Retention or a topic made anew: what is not there cannot be asked for.
            offset = min(max(offset, starts[tp]), ends[tp])
            consumer.seek(tp, offset)
            # From here on it is a position like any other: a rebuilt consumer goes on from it.
            if self._next.get(place) == wanted[place]:
                self._next[place] = offset
        if self._goal is None:
            self._goal = {place: ends[tp] for tp, place in places.items()}
        await self._look()

    async def _after_poll(self, found: Sequence[Incoming]) -> None:
        for record in found:
            self._next[record.topic, record.partition] = record.offset + 1
        if not self._reached and self._consumer is not None:
            await self._look(self._consumer)

    async def _look(self, consumer: Any = None) -> None:
        """Whether the goal is reached. Positions are the consumer's: compaction may have taken the last records, so
        the last offset that was read is no measure."""
        if self._goal is None:
            return
        left = {place: end for place, end in self._goal.items() if self._next.get(place, end) < end}
        if consumer is not None:
            for place in list(left):
                with contextlib.suppress(KafkaError, IllegalStateError, TimeoutError):
                    async with asyncio.timeout(0.05):
                        if await consumer.position(TopicPartition(*place)) >= left[place]:
                            del left[place]
        self._reached = not left
