"""Reading from Kafka: a member of a group, and a reader of everything.

Guarantees: order within a partition; a group member starts where its group committed, or at the beginning; `batch`
never takes much longer than its `wait_s`, also while the broker is away or the group is being divided anew; faults of
the client end in a log line, a counter and a new consumer, never in an exception out of `batch`.

A rebalance is told as a difference. A partition that stayed here through an ordinary rebalance was nobody else's
meanwhile (the protocol stops all members first). But a member that was put out and came back finds the same partitions
again that another may have owned in between: then everything is told as lost and gained anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import CommitFailedError, GroupAuthorizationFailedError, IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata

from libs.bus import envelope, metrics
from libs.bus.entry import in_words
from libs.bus.port import Incoming, Rebalanced
from libs.bus.settings import KafkaSettings
from libs.runtime.backoff import Backoff
from libs.runtime.tasks import at_most, still_wanted

log = structlog.get_logger()

Place = tuple[str, int]

_COMMIT_S: Final = 5.0
#: Commits gather for this long under load: one round trip for many batches. What a crash leaves uncommitted is read
#: again, which costs nothing but the reading. An idle reader commits at its next empty poll.
_COMMIT_EVERY_S: Final = 0.2
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
                await _discard(starting.result())
        consumer, self._consumer = self._consumer, None
        await _discard(consumer)

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
        await _discard(consumer)

    async def _watch_over(self) -> None:
        """The client may stop fetching for good after a restart of the broker, without a word. Each answer of the
        broker stamps the partition it is about, so stamps that stand still while we poll are the sign."""
        now = time.monotonic()
        consumer = self._consumer
        if consumer is None:
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


class KafkaGroupReader(Reader):
    def __init__(
        self, group: str, settings: KafkaSettings, topics: Sequence[str], rebalanced: Rebalanced | None
    ) -> None:
        super().__init__(f"group {group}", settings, topics)
        self._group = group
        self._rebalanced = rebalanced
        self._owned: frozenset[Place] = frozenset()
        #: (generation, member) of the group in which `_owned` was received.
        self._membership: tuple[int, str] = (-1, "")
        self._to_commit: dict[Place, int] = {}
        self._committing = asyncio.Lock()
        self._committed_at = 0.0
        # The assignor keeps what it must remember in its class: each reader needs a class of its own.
        self._assignor = type("Sticky", (StickyPartitionAssignor,), {})

    @property
    def owned(self) -> frozenset[Place]:
        return self._owned

    async def done(self, offsets: Mapping[Place, int]) -> None:
        """A commit that fails is kept and goes with the next one: losing it costs reading again, nothing else."""
        for place, offset in offsets.items():
            if offset > self._to_commit.get(place, -1):
                self._to_commit[place] = offset
        if time.monotonic() - self._committed_at >= _COMMIT_EVERY_S:
            await self._commit()

    def seek(self, topic: str, partition: int, offset: int) -> None:
        if (topic, partition) in self._owned and self._consumer is not None:
            with contextlib.suppress(IllegalStateError):
                self._consumer.seek(TopicPartition(topic, partition), offset)

    async def close(self) -> None:
        if self._to_commit:
            await self._commit()
        await super().close()

    async def _commit(self) -> None:
        async with self._committing:
            due = {place: offset for place, offset in self._to_commit.items() if place in self._owned}
            consumer = self._consumer
            self._to_commit = {}
            self._committed_at = time.monotonic()
            if not due or consumer is None:
                return
            offsets = {TopicPartition(*place): OffsetAndMetadata(offset, "") for place, offset in due.items()}
            try:
                # The client tries again for ever, even when the topic has been deleted.
                async with asyncio.timeout(_COMMIT_S):
                    await consumer.commit(offsets)
            except (CommitFailedError, IllegalStateError):
                return  # divided anew meanwhile: the new owner reads again
            except (KafkaError, TimeoutError) as error:
                metrics.COMMIT_FAULTS.labels(self._group).inc()
                log.warning("commit failed", group=self._group, fault=repr(error))
                for place, offset in due.items():
                    self._to_commit[place] = max(offset, self._to_commit.get(place, -1))

    async def _after_poll(self, found: Sequence[Incoming]) -> None:
        if self._to_commit and not found and not self._committing.locked():
            await self._commit()

    async def _rebuild(self, why: str) -> None:
        await super()._rebuild(why)
        # Whatever we owned may be another's until we have joined again.
        self._tell(frozenset(), fresh=True)

    def _tell(self, places: frozenset[Place], *, fresh: bool) -> None:
        before = self._owned
        lost = before if fresh else before - places
        gained = places if fresh else places - before
        self._owned = places
        for place in lost:
            self._to_commit.pop(place, None)
        if self._rebalanced is not None and (gained or lost):
            self._rebalanced(gained, lost)

    def _assigned(self, assigned: Collection[TopicPartition], generation: int, member: str) -> None:
        fresh = bool(self._owned) and (generation, member) != (self._membership[0] + 1, self._membership[1])
        self._membership = (generation, member)
        metrics.REBALANCES.labels(self._group).inc()
        places = frozenset((tp.topic, tp.partition) for tp in assigned)
        log.info("assigned", group=self._group, partitions=len(places), generation=generation, anew=fresh)
        self._tell(places, fresh=fresh)

    async def _make(self) -> Any:
        arguments = self._arguments()
        if self._settings.static_member:
            arguments["group_instance_id"] = f"{self._settings.static_member}-{self._group}"
        consumer = AIOKafkaConsumer(
            group_id=self._group,
            partition_assignment_strategy=(self._assignor,),
            rebalance_timeout_ms=int(self._settings.session_s * 1000),
            **arguments,
        )
        consumer.subscribe(topics=list(self._topics), listener=_Listener(self, consumer))
        try:
            await consumer.start()
        except BaseException:
            await _discard(consumer)
            raise
        return consumer


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, reader: KafkaGroupReader, consumer: Any) -> None:
        self._reader = reader
        self._consumer = consumer

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Told with the next assignment: until then nothing is read, and nobody else reads either."""

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        coordinator = self._consumer._coordinator
        self._reader._assigned(assigned, coordinator.generation, coordinator.member_id)


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
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._given.wait()
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
            await _discard(consumer)
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


async def _discard(consumer: Any) -> None:
    """Stop a consumer that may hang. Its group notices by itself, at the latest after the session time."""
    if consumer is None:
        return
    if not await at_most(consumer.stop(), 2.0, "consumer stop"):
        await at_most(consumer._client.close(), 0.5, "consumer client close")
