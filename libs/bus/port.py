"""What services ask of a message bus. At least once, in order within a partition; nothing more is promised."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Outgoing:
    """`value` None is a tombstone. `partition` None: by Kafka's own hash of the key. `headers` are plain attributes
    beyond the envelope's (`cause`, `traceparent`, `seen`, ...)."""

    topic: str
    key: str
    value: bytes | None
    type: str
    partition: int | None = None
    id: str = ""  # CloudEvents id; made by the bus when empty
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Incoming:
    """One record. `type`, `id`, `source` and `headers` come from the envelope, binary or structured; a record whose
    envelope cannot be read arrives with `type` "" and `fault` saying what is wrong."""

    topic: str
    partition: int
    offset: int
    key: str
    value: bytes | None
    type: str
    id: str = ""
    source: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""


def onward(cause: str, traceparent: str) -> dict[str, str]:
    """Headers of what follows from an event: its id, and its trace context (valid, as `Incoming` has it)."""
    headers = {}
    if cause:
        headers["cause"] = cause
    if traceparent:
        headers["traceparent"] = traceparent
    return headers


class Publisher(Protocol):
    async def publish(self, records: Sequence[Outgoing]) -> None:
        """Return when the broker has acknowledged all records (acks=all, idempotent). Raises BusUnavailable. What is
        too large for any topic is dropped and counted; `libs.bus.pack` is how not to make such records."""
        ...


class GroupReader(Protocol):
    """A member of a consumer group. Offsets are committed by the caller, after the effects."""

    async def batch(self, limit: int = 500, wait_s: float = 0.5) -> Sequence[Incoming]:
        """What has arrived, at most `limit` records; returns as soon as there is something, empty after `wait_s`."""
        ...

    async def done(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit next offsets to read, by (topic, partition). Partitions that are no longer owned are skipped."""
        ...

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read again from `offset`: a passing fault stopped this record."""
        ...

    def hold(self, topics: Collection[str]) -> None:
        """Read nothing of these topics until told otherwise, and of all others; the group is stayed in."""
        ...

    @property
    def owned(self) -> frozenset[tuple[str, int]]: ...

    @property
    def seat(self) -> tuple[int, int] | None:
        """Which of the group's members that own something this is, from 0, and how many they are; None where it owns
        nothing or nobody says."""
        ...


class FullReader(Protocol):
    """Reads every partition of its topics from a start point, in no group. Commits nothing."""

    async def batch(self, limit: int = 1000, wait_s: float = 0.5) -> Sequence[Incoming]: ...

    @property
    def caught_up(self) -> bool:
        """Whether the end offsets seen at start have been reached."""
        ...

    def assign(self, partitions: Collection[tuple[str, int]], *, at_end: bool) -> None:
        """Follow exactly these partitions from now on (used for outcomes of owned partitions). Without a call, all."""
        ...


#: Called on a rebalance, before reading goes on: (gained, lost) partitions of the group's topics. Both are empty where
#: only the seat is another.
Rebalanced = Callable[[frozenset[tuple[str, int]], frozenset[tuple[str, int]]], None]


class Bus(Protocol):
    def publisher(self) -> Publisher: ...

    def group(self, group: str, topics: Sequence[str], *, rebalanced: Rebalanced | None = None) -> GroupReader: ...

    def follow(self, topics: Sequence[str], *, from_start: bool) -> FullReader: ...

    def partitions(self, topic: str) -> int: ...

    @property
    def healthy(self) -> bool:
        """False when a consumer stopped polling, a producer is stuck or the broker has been away for too long."""
        ...

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Flush what was published, leave groups, close. Bounded by its own deadline."""
        ...


class BusUnavailable(Exception):
    """The broker did not acknowledge within the deadline. The caller may publish again: readers are idempotent."""


class BusMisconfigured(Exception):
    """The broker or its topics cannot serve us and waiting does not help. One sentence for the operator."""


async def forever(reader: GroupReader | FullReader, limit: int = 500) -> AsyncIterator[Sequence[Incoming]]:
    """Batches as they come, empty ones left out. Ends only by cancellation."""
    while True:
        batch = await reader.batch(limit)
        if batch:
            yield batch
