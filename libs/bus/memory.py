"""A bus inside one process, with Kafka's promises: partitions, groups with rebalances, committed offsets, tombstones.

Guarantees: order within a partition; at least once to every group from its committed offset; a reader from the start
sees the last record of every key of a compacted topic. Bounded: a partition of a log topic holds at most `limit`
records. A publisher waits while the slowest group is that far behind (and gets BusUnavailable at its deadline);
records that every group has committed, or that nobody reads in a group, fall off the far end. A compacted partition
drops superseded records instead, so it holds about one record per key.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from libs.bus.ids import event_id
from libs.bus.pack import MOST_BYTES, dropped, record_size
from libs.bus.port import BusUnavailable, Incoming, Outgoing, Rebalanced
from libs.contracts.topics import ALL, Topic
from libs.domain.jobs import partition_of
from libs.runtime.tasks import comes

Place = tuple[str, int]


class _Log:
    """One partition. Offsets of records rise; they have gaps after compaction."""

    __slots__ = ("compacted", "end", "limit", "next_compaction", "offsets", "records")

    def __init__(self, limit: int, compacted: bool) -> None:
        self.limit = limit
        self.compacted = compacted
        self.records: list[Incoming] = []
        self.offsets: list[int] = []
        self.end = 0
        self.next_compaction = limit

    def append(self, topic: str, partition: int, record: Outgoing, source: str) -> None:
        self.records.append(
            Incoming(
                topic,
                partition,
                self.end,
                record.key,
                record.value,
                record.type,
                record.id or event_id(),
                source,
                dict(record.headers),
            )
        )
        self.offsets.append(self.end)
        self.end += 1
        if self.compacted and len(self.records) >= self.next_compaction:
            self._compact()

    def read(self, offset: int, limit: int) -> list[Incoming]:
        at = bisect_left(self.offsets, offset)
        return self.records[at : at + limit]

    def trim(self, keep_from: int) -> None:
        """Drop what lies below `keep_from`, in large steps: cutting the front of a list costs its whole length."""
        at = bisect_left(self.offsets, keep_from)
        if at:
            del self.records[:at], self.offsets[:at]

    def _compact(self) -> None:
        last = {record.key: record.offset for record in self.records}
        # A tombstone is kept for one compaction more, so that a reader that is behind sees that the key went.
        kept = [r for r in self.records if last[r.key] == r.offset]
        if len(kept) == len(self.records):
            kept = [r for r in kept if r.value is not None]
        self.records = kept
        self.offsets = [record.offset for record in kept]
        self.next_compaction = max(self.limit, 2 * len(kept))


class MemoryBus:
    def __init__(
        self,
        topics: Sequence[Topic] = ALL,
        *,
        limit: int = 100_000,
        publish_s: float = 30.0,
        source: str = "drystone",
    ) -> None:
        self._topics = {topic.name: topic for topic in topics}
        self._limit = limit
        self._publish_s = publish_s
        self._source = source
        self._logs: dict[Place, _Log] = {}
        self._groups: dict[str, _Group] = {}
        self._wakes: dict[str, list[asyncio.Event]] = {}
        self._room = asyncio.Event()
        self._closed = False

    # -- port ---------------------------------------------------------------------------------------------------------
    def publisher(self) -> MemoryBus:
        return self

    def group(self, group: str, topics: Sequence[str], *, rebalanced: Rebalanced | None = None) -> MemoryGroupReader:
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = _Group(self)
        reader = MemoryGroupReader(self, found, topics, rebalanced)
        found.join(reader)
        return reader

    def follow(self, topics: Sequence[str], *, from_start: bool) -> MemoryFullReader:
        return MemoryFullReader(self, topics, from_start)

    def partitions(self, topic: str) -> int:
        known = self._topics.get(topic)
        return known.partitions if known is not None else 1

    @property
    def healthy(self) -> bool:
        return not self._closed

    async def open(self) -> None:
        self._closed = False

    async def close(self) -> None:
        """Readers find nothing more; publishing raises."""
        self._closed = True
        self._room.set()

    async def publish(self, records: Sequence[Outgoing]) -> None:
        deadline = time.monotonic() + self._publish_s
        for record in records:
            if record_size(record) > MOST_BYTES:
                dropped(record.topic, record.key, record_size(record))
                continue
            partition = self._partition(record)
            log = self.log((record.topic, partition))
            while not log.compacted and len(log.records) >= log.limit and not self._make_room(record.topic, partition):
                await self._wait_for_room(deadline)
            if self._closed:
                raise BusUnavailable("the bus is closed")
            log.append(record.topic, partition, record, self._source)
        for topic in {record.topic for record in records}:
            for wake in self._wakes.get(topic, ()):
                wake.set()

    # -- inside -------------------------------------------------------------------------------------------------------
    def log(self, place: Place) -> _Log:
        found = self._logs.get(place)
        if found is None:
            topic = self._topics.get(place[0])
            found = self._logs[place] = _Log(self._limit, topic.compacted if topic is not None else False)
        return found

    def places(self, topics: Sequence[str]) -> list[Place]:
        return [(topic, partition) for topic in topics for partition in range(self.partitions(topic))]

    def listen(self, topics: Sequence[str], wake: asyncio.Event) -> None:
        for topic in topics:
            self._wakes.setdefault(topic, []).append(wake)

    def unlisten(self, wake: asyncio.Event) -> None:
        for wakes in self._wakes.values():
            if wake in wakes:
                wakes.remove(wake)

    def committed(self) -> None:
        self._room.set()

    def _partition(self, record: Outgoing) -> int:
        count = self.partitions(record.topic)
        if record.partition is None:
            return partition_of(record.key, count)
        if not 0 <= record.partition < count:
            raise ValueError(f"{record.topic} has no partition {record.partition}")
        return record.partition

    def _make_room(self, topic: str, partition: int) -> bool:
        """Drop what nobody needs any more; at least a quarter at once, so that the cost per record stays small."""
        log = self._logs[topic, partition]
        place = (topic, partition)
        needed = [group.offsets.get(place, 0) for group in self._groups.values() if topic in group.topics]
        floor = log.offsets[len(log.offsets) // 4]
        keep_from = min([floor, *needed])
        before = len(log.records)
        log.trim(keep_from)
        return len(log.records) < before

    async def _wait_for_room(self, deadline: float) -> None:
        self._room.clear()
        if not await comes(self._room, max(0.0, deadline - time.monotonic())):
            raise BusUnavailable("the slowest reader is too far behind")


class _Group:
    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self.offsets: dict[Place, int] = {}
        self.members: list[MemoryGroupReader] = []
        self.topics: set[str] = set()

    def join(self, reader: MemoryGroupReader) -> None:
        self.members.append(reader)
        self.topics.update(reader.topics)
        self._assign()

    def leave(self, reader: MemoryGroupReader) -> None:
        if reader in self.members:
            self.members.remove(reader)
            reader.assigned(frozenset())
            self._assign()

    def _assign(self) -> None:
        """Round robin over members, by topic; what is taken away is told before it is given to another."""
        wanted: dict[MemoryGroupReader, set[Place]] = {member: set() for member in self.members}
        for topic in sorted(self.topics):
            members = [member for member in self.members if topic in member.topics]
            for partition in range(self._bus.partitions(topic) if members else 0):
                wanted[members[partition % len(members)]].add((topic, partition))
        for member, places in wanted.items():
            member.assigned(member.owned & places)
        for member, places in wanted.items():
            member.assigned(frozenset(places))


class _Reader:
    def __init__(self, bus: MemoryBus, topics: Sequence[str]) -> None:
        self._bus = bus
        self.topics = tuple(topics)
        self._position: dict[Place, int] = {}
        self._held: frozenset[str] = frozenset()
        self._turn = 0
        self._wake = asyncio.Event()
        bus.listen(topics, self._wake)

    async def batch(self, limit: int = 500, wait_s: float = 0.5) -> Sequence[Incoming]:
        self._wake.clear()
        found = self._ready(limit)
        if not found and wait_s > 0:
            try:
                async with asyncio.timeout(wait_s):
                    while not found:
                        await self._wake.wait()
                        self._wake.clear()
                        found = self._ready(limit)
            except TimeoutError:
                pass
        elif found:
            # A reader that always finds something must not starve the others of the loop.
            await asyncio.sleep(0)
        return found

    def _ready(self, limit: int) -> list[Incoming]:
        found: list[Incoming] = []
        places = list(self._position)
        # Start one place further each time: a busy partition must not starve those behind it.
        self._turn += 1
        for n in range(len(places)):
            place = places[(self._turn + n) % len(places)]
            if place[0] in self._held:
                continue
            log = self._bus.log(place)
            if self._position[place] >= log.end:
                continue
            records = log.read(self._position[place], limit - len(found))
            self._position[place] = records[-1].offset + 1 if records else log.end
            found.extend(records)
            if len(found) >= limit:
                break
        return found


class MemoryGroupReader(_Reader):
    def __init__(self, bus: MemoryBus, group: _Group, topics: Sequence[str], rebalanced: Rebalanced | None) -> None:
        super().__init__(bus, topics)
        self._group = group
        self._rebalanced = rebalanced
        self._owned: frozenset[Place] = frozenset()

    @property
    def owned(self) -> frozenset[Place]:
        return self._owned

    @property
    def seat(self) -> tuple[int, int] | None:
        """Nobody numbers them: partitions are dealt out in turn, which says as much."""
        return None

    async def done(self, offsets: Mapping[Place, int]) -> None:
        for place, offset in offsets.items():
            if place in self._owned and offset > self._group.offsets.get(place, 0):
                self._group.offsets[place] = offset
        self._bus.committed()

    def seek(self, topic: str, partition: int, offset: int) -> None:
        if (topic, partition) in self._owned:
            self._position[topic, partition] = offset
            self._wake.set()

    def hold(self, topics: Collection[str]) -> None:
        self._held = frozenset(topics)
        self._wake.set()

    def leave(self) -> None:
        """Leave the group, as a member does that stops: its partitions go to the others at once."""
        self._group.leave(self)
        self._bus.unlisten(self._wake)

    def assigned(self, places: Collection[Place]) -> None:
        places = frozenset(places)
        gained, lost = places - self._owned, self._owned - places
        if not gained and not lost:
            return
        self._owned = places
        for place in lost:
            self._position.pop(place, None)
        for place in sorted(gained):
            self._position[place] = self._group.offsets.get(place, 0)
        if self._rebalanced is not None:
            self._rebalanced(gained, lost)
        self._wake.set()


class MemoryFullReader(_Reader):
    def __init__(self, bus: MemoryBus, topics: Sequence[str], from_start: bool) -> None:
        super().__init__(bus, topics)
        places = bus.places(topics)
        self._position = {place: 0 if from_start else bus.log(place).end for place in places}
        self._goal = {place: bus.log(place).end for place in places}

    @property
    def caught_up(self) -> bool:
        return all(self._position.get(place, end) >= end for place, end in self._goal.items())

    def assign(self, partitions: Collection[Place], *, at_end: bool) -> None:
        position = {}
        for place in sorted(partitions):
            known = self._position.get(place)
            if known is None:
                known = self._bus.log(place).end if at_end else 0
            position[place] = known
        self._goal = {place: self._bus.log(place).end for place in position}
        self._position = position
        self._wake.set()
