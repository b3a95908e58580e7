"""A member of a consumer group: it starts where its group committed, or at the beginning.

A rebalance is told as a difference. A partition that stayed here through an ordinary rebalance was nobody else's
meanwhile (the protocol stops all members first). But a member that was put out and came back finds the same partitions
again that another may have owned in between: then everything is told as lost and gained anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata

from libs.bus import metrics
from libs.bus.consumer import Place, Reader, discard
from libs.bus.port import Incoming, Rebalanced
from libs.bus.seats import Seat, SeatedAssignor
from libs.bus.settings import KafkaSettings

log = structlog.get_logger()

_COMMIT_S: Final = 5.0
#: Commits gather for this long under load: one round trip for many batches. What a crash leaves uncommitted is read
#: again, which costs nothing but the reading. An idle reader commits at its next empty poll.
_COMMIT_EVERY_S: Final = 0.2


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
        self._assignor: type[SeatedAssignor] = type("Sticky", (SeatedAssignor,), {})
        self._seat: Seat | None = None
        self._held: frozenset[str] = frozenset()

    @property
    def owned(self) -> frozenset[Place]:
        return self._owned

    @property
    def seat(self) -> Seat | None:
        return self._seat

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

    def hold(self, topics: Collection[str]) -> None:
        self._held = frozenset(topics)
        self._apply_hold()

    def _apply_hold(self) -> None:
        """An assignment begins with everything flowing, so this is done again after each."""
        consumer = self._consumer
        if consumer is None:
            return
        assigned = consumer.assignment()
        held = {tp for tp in assigned if tp.topic in self._held}
        paused = consumer.paused()
        with contextlib.suppress(IllegalStateError):
            if held - paused:
                consumer.pause(*(held - paused))
            if paused - held:
                consumer.resume(*(paused - held))

    def _withheld(self, topic: str, partition: int, offset: int) -> bool:
        """What was fetched before the client heard that its topic is held, after a rebalance most of all, is read again
        when it no longer is."""
        if topic not in self._held:
            return False
        self.seek(topic, partition, offset)
        return True

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
        before, sat = self._owned, self._seat
        lost = before if fresh else before - places
        gained = places if fresh else places - before
        self._owned = places
        self._seat = self._assignor.seat if places else None
        for place in lost:
            self._to_commit.pop(place, None)
        if self._rebalanced is not None and (gained or lost or sat != self._seat):
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
            await discard(consumer)
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
        self._reader._apply_hold()
