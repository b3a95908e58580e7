"""A consumer of Kafka that is kept alive: started in the background, watched over, rebuilt after faults.

Guarantees: order within a partition; `batch` never takes much longer than its `wait_s`, also while the broker is away
or the group is being divided anew; faults of the client end in a log line, a counter and a new consumer, never in an
exception out of `batch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, IllegalStateError, KafkaError

from libs.bus import envelope, metrics
from libs.bus.entry import in_words
from libs.bus.port import Incoming
from libs.bus.settings import KafkaSettings
from libs.runtime.backoff import Backoff
from libs.runtime.tasks import at_most, still_wanted

log = structlog.get_logger()

Place = tuple[str, int]

#: Beyond `wait_s`, what a call may take inside the client (a rebalance, a broken connection) before we come back empty.
_GRACE_S: Final = 0.25
#: How often the end of the partitions is compared with the position, for the lag gauge.
_LAG_EVERY_S: Final = 5.0


class Reader:
    """What both readers share: the consumer's life, polling, the watch over a consumer that has stopped."""

    def __init__(self, name: str, settings: KafkaSettings, topics: Sequence[str]) -> None:
        self._name = name
        self._settings = settings
        self._topics = tuple(topics)
        self._consumer: Any = None
        self._starting: asyncio.Task[Any] | None = None
        self._backoff = Backoff(0.1, 2.0)
        self._not_before = 0.0
        self._closed = False
        self._fault = ""
        #: When `batch` was last called (0: never), and since when the broker has been silent towards us.
        self._polled_at = 0.0
        self._silent_since = 0.0
        self._lag_at = 0.0

    def _withheld(self, topic: str, partition: int, offset: int) -> bool:  # noqa: ARG002
        """Whether what came, from this offset on, is not to be handed over now."""
        return False

    # -- port ---------------------------------------------------------------------------------------------------------
    async def batch(self, limit: int = 500, wait_s: float = 0.5) -> Sequence[Incoming]:
        now = self._polled_at = time.monotonic()
        if not await self._started(wait_s):
            return ()
        consumer = self._consumer
        left = max(0.0, wait_s - (time.monotonic() - now))
        try:
            async with asyncio.timeout(left + _GRACE_S):
                polled = await consumer.getmany(timeout_ms=int(left * 1000), max_records=limit)
        except TimeoutError:
            # The group is being divided anew: the client does not come back until that is over.
            polled = {}
        except (KafkaError, IllegalStateError) as error:
            await self._failed(error)
            return ()
        self._polled_at = time.monotonic()
        found: list[Incoming] = []
        read = envelope.read
        for (topic, partition), records in polled.items():
            if records and self._withheld(topic, partition, records[0].offset):
                continue
            found += [read(topic, partition, r.offset, r.key, r.value, r.headers) for r in records]
            metrics.READ.labels(topic).inc(len(records))
        if found:
            self._fault = ""
            self._backoff.reset()
            for record in found:
                if record.fault:
                    metrics.FAULTY.labels(record.topic).inc()
        await self._after_poll(found)
        await self._watch_over()
        still_wanted()
        return found

    @property
    def healthy(self) -> bool:
        """False when it is broken, or when its owner began to poll and stopped."""
        if self._closed or not self._polled_at:
            return True
        return not self._fault and time.monotonic() - self._polled_at < self._settings.stuck_s

    @property
    def left_s(self) -> float:
        """For how long its owner has not polled, although it could; 0 where it was not begun, or is broken itself."""
        if self._closed or not self._polled_at or self._fault:
            return 0.0
        return time.monotonic() - self._polled_at

    @property
    def fault(self) -> str:
        return self._fault or ("" if self.healthy else f"{self._name} has stopped polling")

    async def close(self) -> None:
        self._closed = True
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()
            await asyncio.wait({starting})
            # It may have been ready already, with nobody to take it.
            if not starting.cancelled() and starting.exception() is None:
                await discard(starting.result())
        consumer, self._consumer = self._consumer, None
        await discard(consumer)

    # -- what differs -------------------------------------------------------------------------------------------------
    @abstractmethod
    async def _make(self) -> Any:
        """A started consumer; cancelled when it takes too long."""

    @abstractmethod
    async def _after_poll(self, found: Sequence[Incoming]) -> None: ...

    # -- life of the consumer -----------------------------------------------------------------------------------------
    async def _started(self, wait_s: float) -> bool:
        """Whether there is a consumer. Its start goes on in the background when it takes longer than the caller's
        wait, because joining a group takes as long as the slowest member."""
        if self._consumer is not None:
            return True
        if self._closed:
            await asyncio.sleep(wait_s)
            return False
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name=f"start {self._name}")
        starting = self._starting
        done, _ = await asyncio.wait({starting}, timeout=max(wait_s, 0.001))
        if not done:
            return False
        if self._starting is not starting:  # another call of batch, or close, has taken the result
            return self._consumer is not None
        self._starting = None
        if starting.cancelled():
            return False
        error = starting.exception()
        if error is None:
            self._consumer = starting.result()
            self._silent_since = time.monotonic()
            return True
        self._fault = f"{self._name}: {self._told(error)}"
        log.warning("no consumer", reader=self._name, fault=self._told(error), tries=self._backoff.tries)
        return False

    async def _start(self) -> Any:
        pause = self._not_before - time.monotonic()
        if pause > 0:
            await asyncio.sleep(pause)
        self._not_before = time.monotonic() + self._backoff.next()
        # A group may need its whole session time to find that a member is dead before the others can be served.
        async with asyncio.timeout(self._settings.request_s + 2 * self._settings.session_s):
            return await self._make()

    async def _failed(self, error: Exception) -> None:
        log.warning("reading failed", reader=self._name, fault=self._told(error))
        await self._rebuild(self._told(error))

    def _told(self, error: BaseException) -> str:
        grouped = isinstance(error, GroupAuthorizationFailedError)
        return in_words(
            error, self._settings, self._name.removeprefix("group ") if grouped else ", ".join(self._topics)
        )

    async def _rebuild(self, why: str) -> None:
        self._fault = f"{self._name}: {why}"
        metrics.REBUILDS.labels("consumer").inc()
        consumer, self._consumer = self._consumer, None
        self._not_before = time.monotonic() + self._backoff.next()
        await discard(consumer)

    async def _watch_over(self) -> None:
        """The client may stop fetching for good after a restart of the broker, without a word. Each answer of the
        broker stamps the partition it is about, so stamps that stand still while we poll are the sign."""
        now = time.monotonic()
        consumer = self._consumer
        if consumer is None:
            return
        missing = [topic for topic in self._topics if not consumer.partitions_for_topic(topic)]
        if missing:
            self._fault = f"{self._name}: there is no topic {', '.join(missing)}"
            self._silent_since = now  # nothing is to be heard of it
            return
        places = [tp for tp in consumer.assignment() if tp not in consumer.paused()]
        wall_ms = time.time() * 1000
        newest = max((consumer.last_poll_timestamp(tp) or 0 for tp in places), default=wall_ms)
        if wall_ms - newest < self._settings.stuck_s * 1000 / 2:
            self._silent_since = now
            if self._fault:
                self._fault = ""
        elif now - self._silent_since > self._settings.stuck_s:
            await self._rebuild("the broker has been silent")
            return
        if now - self._lag_at >= _LAG_EVERY_S:
            self._lag_at = now
            await self._tell_lag(places)

    async def _tell_lag(self, places: Sequence[TopicPartition]) -> None:
        consumer = self._consumer
        for tp in places:
            with contextlib.suppress(AssertionError, KafkaError, IllegalStateError, TimeoutError):
                end = consumer.highwater(tp)
                if end is None:
                    continue
                async with asyncio.timeout(0.05):
                    position = await consumer.position(tp)
                metrics.LAG.labels(tp.topic, str(tp.partition)).set(max(0, end - position))

    def _arguments(self) -> dict[str, Any]:
        settings = self._settings
        return {
            **settings.client(),
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "fetch_min_bytes": 1,
            "fetch_max_wait_ms": settings.fetch_wait_ms,
            "fetch_max_bytes": 4 * settings.fetch_bytes,
            "max_partition_fetch_bytes": settings.fetch_bytes,
            "session_timeout_ms": int(settings.session_s * 1000),
            "heartbeat_interval_ms": int(settings.heartbeat_s * 1000),
            "max_poll_interval_ms": int(settings.max_poll_s * 1000),
            "retry_backoff_ms": 100,
            "check_crcs": True,
        }


async def discard(consumer: Any) -> None:
    """Stop a consumer that may hang. Its group notices by itself, at the latest after the session time."""
    if consumer is None:
        return
    if not await at_most(consumer.stop(), 2.0, "consumer stop"):
        await at_most(consumer._client.close(), 0.5, "consumer client close")
