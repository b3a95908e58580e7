"""Publishing to Kafka: one idempotent producer, one open batch per partition, one task that sends.

Guarantees: `publish` returns when all its records are acknowledged by all in-sync replicas, or raises BusUnavailable
within its deadline. On an idle bus a batch leaves at once; while one is under way for its partition, what comes from
any caller gathers in the next one, so batches grow with load and no linger is needed. A record costs no coroutine and
no future of its own (the client's `send` makes both per record). A record that is larger than any topic takes is
dropped, logged and counted: whoever sends it must neither end nor try for ever.

The client never gives up on an idempotent batch and loops for ever on an out-of-order sequence: a batch without an
answer for `publish_s`, or any error that concerns more than the batch itself, gets the producer made anew. Callers of
the batches that were under way learn that nothing is certain, and publish again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
)

from libs.bus import metrics, murmur
from libs.bus.entry import in_words
from libs.bus.envelope import Writer
from libs.bus.pack import MOST_BYTES, dropped, record_size
from libs.bus.port import BusUnavailable, Outgoing
from libs.bus.settings import KafkaSettings
from libs.runtime.backoff import Backoff
from libs.runtime.tasks import at_most, comes

log = structlog.get_logger()

#: The client counts a batch's own overhead against it; a record above this goes alone.
BATCH_BYTES: Final = 256 * 1024
REQUEST_BYTES: Final = 4 * 1024 * 1024
#: Under load, partitions that become ready within this time share a request: the broker's cost is per request.
GATHER_S: Final = 0.003
#: Records waiting for all partitions together; more are refused.
MAX_PENDING: Final = 100_000

Place = tuple[str, int]
_TOO_LARGE = (MessageSizeTooLargeError, RecordTooLargeError)
#: Faults of a batch itself: another producer would get the same answer.
_OF_THE_BATCH = (*_TOO_LARGE, TopicAuthorizationFailedError, InvalidTopicError)


class _Batch:
    """Records of one partition that go together. `waiting` counts the calls of publish that wait for it."""

    __slots__ = ("builder", "done", "sent_at", "waiting")

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Nobody may be left to look at the result, which must not make noise then.
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.waiting = 0
        self.sent_at = 0.0


class KafkaPublisher:
    def __init__(self, settings: KafkaSettings, partitions: dict[str, int]) -> None:
        self._settings = settings
        self._partitions = partitions
        self._writer = Writer(settings.source)
        self._producer: Any = None
        self._open: dict[Place, deque[_Batch]] = {}
        self._under_way: dict[Place, _Batch] = {}
        self._pending = 0
        self._wake = asyncio.Event()
        self._broken = ""
        self._sender: asyncio.Task[None] | None = None
        self._closing = False

    async def open(self) -> None:
        """Raises KafkaError when no broker can be reached."""
        self._producer = await self._make()
        self._sender = asyncio.create_task(self._send(), name="bus sender")

    async def close(self, within_s: float = 5.0) -> None:
        """Send what waits, as far as the time allows."""
        self._closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._open or self._under_way:
                    waits = [batch.done for line in self._open.values() for batch in line]
                    waits += [batch.done for batch in self._under_way.values()]
                    await asyncio.wait(waits)
                    await asyncio.sleep(0)
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait({self._sender})
        await self._discard(self._producer)
        self._producer = None
        self._fail_all("the bus is closed", everything=True)

    @property
    def healthy(self) -> bool:
        if self._sender is not None and self._sender.done():
            return False
        oldest = min((batch.sent_at for batch in self._under_way.values()), default=None)
        return not self._broken and (oldest is None or time.monotonic() - oldest < self._settings.stuck_s)

    async def publish(self, records: Sequence[Outgoing]) -> None:
        if not records:
            return
        if self._closing or (self._producer is None and not self._broken):
            raise BusUnavailable("the bus is not open")
        if self._pending + len(records) > MAX_PENDING:
            raise BusUnavailable(f"{self._pending} records are waiting to be sent already")
        mine: set[_Batch] = set()
        now_ms = int(time.time() * 1000)
        for record in records:
            batch = self._put(record, now_ms)
            if batch is not None:
                mine.add(batch)
        if not mine:
            return
        for batch in mine:
            batch.waiting += 1
        self._pending += len(records)
        self._wake.set()
        try:
            async with asyncio.timeout(self._settings.publish_s):
                if len(mine) == 1:
                    (batch,) = mine
                    # Shielded: one caller that gives up must not cancel what others wait for.
                    await asyncio.shield(batch.done)
                else:
                    await asyncio.wait([batch.done for batch in mine])
                    for batch in mine:
                        batch.done.result()
        except TimeoutError:
            raise BusUnavailable(f"no acknowledgement within {self._settings.publish_s:g} s") from None
        finally:
            self._pending -= len(records)
            for batch in mine:
                batch.waiting -= 1

    # -- inside -------------------------------------------------------------------------------------------------------
    def _put(self, record: Outgoing, now_ms: int) -> _Batch | None:
        """The batch that the record goes with; None: it is too large to be ever taken."""
        place = (record.topic, self._partition(record))
        key = record.key.encode()
        headers = self._writer.headers(record)
        line = self._open.get(place)
        if line:
            batch = line[-1]
            if batch.builder.append(timestamp=now_ms, key=key, value=record.value, headers=headers) is not None:
                return batch
        size = record_size(record)
        if size > MOST_BYTES:
            dropped(record.topic, record.key, size)
            return None
        batch = _Batch(self._producer_or_last().create_batch())
        # The first record of a batch is always taken, however large.
        batch.builder.append(timestamp=now_ms, key=key, value=record.value, headers=headers)
        if line is None:
            line = self._open[place] = deque()
        line.append(batch)
        return batch

    def _producer_or_last(self) -> Any:
        if self._producer is None:
            raise BusUnavailable(f"the producer is being made anew: {self._broken}")
        return self._producer

    def _partition(self, record: Outgoing) -> int:
        count = self._partitions.get(record.topic)
        if count is None:
            raise ValueError(f"the topic {record.topic} is not known")
        if record.partition is not None:
            if not 0 <= record.partition < count:
                raise ValueError(f"{record.topic} has no partition {record.partition}")
            return record.partition
        return murmur.partition(record.key.encode(), count)

    async def _send(self) -> None:
        while True:
            pause: float | None = 1.0 if self._under_way else None
            await comes(self._wake, pause)
            if self._under_way:
                # Busy: what comes within this moment goes in one request. An idle bus does not wait.
                await asyncio.sleep(GATHER_S)
            self._wake.clear()
            self._notice_stuck()
            if self._broken:
                await self._rebuild()
            for place in [place for place in self._open if place not in self._under_way]:
                await self._submit(place)

    async def _submit(self, place: Place) -> None:
        line = self._open[place]
        batch = line.popleft()
        # Whoever wanted these has given up and will publish again: sending them now would only double them.
        while batch.waiting <= 0 and line:
            batch.done.cancel()
            batch = line.popleft()
        if not line:
            del self._open[place]
        if batch.waiting <= 0 and not self._closing:
            batch.done.cancel()
            return
        batch.builder.close()
        batch.sent_at = time.monotonic()
        self._under_way[place] = batch
        count = batch.builder.record_count()
        metrics.PENDING.set(self._pending)
        try:
            # Nothing of ours waits in the client for this partition, so this does not block.
            sent = await self._producer.send_batch(batch.builder, place[0], partition=place[1])
        except KafkaError as error:
            self._finished(place, batch, count, error)
            return
        sent.add_done_callback(
            lambda future: self._finished(
                place, batch, count, KafkaError("cancelled") if future.cancelled() else future.exception()
            )
        )

    def _finished(self, place: Place, batch: _Batch, count: int, error: BaseException | None) -> None:
        if self._under_way.get(place) is batch:
            del self._under_way[place]
        if count == 1 and isinstance(error, _TOO_LARGE):
            # A topic that takes less than ours are made with: the record would come back for ever.
            dropped(place[0], f"partition {place[1]}", batch.builder.size())
            error = None
        elif error is None:
            metrics.PUBLISHED.labels(place[0]).inc(count)
            metrics.PUBLISH_SECONDS.observe(time.monotonic() - batch.sent_at)
        else:
            metrics.PUBLISH_FAULTS.labels(type(error).__name__).inc()
            if not isinstance(error, _OF_THE_BATCH) and not self._broken:
                self._broken = repr(error)
        if not batch.done.done():
            if error is None:
                batch.done.set_result(None)
            else:
                why = in_words(error, self._settings, place[0])
                batch.done.set_exception(BusUnavailable(f"{place[0]}/{place[1]}: {why}"))
        self._wake.set()

    def _notice_stuck(self) -> None:
        if self._broken or not self._under_way:
            return
        oldest = min(batch.sent_at for batch in self._under_way.values())
        if time.monotonic() - oldest > self._settings.publish_s:
            self._broken = f"no acknowledgement within {self._settings.publish_s:g} s"

    async def _rebuild(self) -> None:
        log.warning("producer is made anew", why=self._broken)
        metrics.REBUILDS.labels("producer").inc()
        old, backoff = self._producer, Backoff(0.1, 2.0)
        self._fail_all(self._broken, everything=False)
        await self._discard(old)
        while True:
            try:
                self._producer = await self._make()
                break
            except (KafkaError, TimeoutError, OSError) as error:
                log.warning("no broker to publish to", fault=repr(error), tries=backoff.tries)
                await asyncio.sleep(backoff.next())
        self._broken = ""
        self._wake.set()

    def _fail_all(self, why: str, *, everything: bool) -> None:
        batches = list(self._under_way.values())
        self._under_way.clear()
        if everything:
            batches += [batch for line in self._open.values() for batch in line]
            self._open.clear()
        for batch in batches:
            if not batch.done.done():
                batch.done.set_exception(BusUnavailable(why))

    async def _make(self) -> Any:
        producer = AIOKafkaProducer(
            **self._settings.client(),
            acks="all",
            enable_idempotence=True,
            compression_type="lz4",
            linger_ms=0,
            max_batch_size=BATCH_BYTES,
            max_request_size=REQUEST_BYTES + 64 * 1024,
        )
        try:
            async with asyncio.timeout(self._settings.request_s):
                await producer.start()
        except BaseException:
            await self._discard(producer)
            raise
        return producer

    async def _discard(self, producer: Any) -> None:
        """Close a producer that may hang: its flush waits for batches that will never be acknowledged."""
        if producer is None:
            return
        if not await at_most(producer.stop(), 1.0, "producer stop"):
            await at_most(producer._sender.close(), 0.5, "producer sender close")
            await at_most(producer.client.close(), 0.5, "producer client close")
