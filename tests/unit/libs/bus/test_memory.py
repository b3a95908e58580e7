"""The in-process bus keeps Kafka's promises."""

import asyncio

import pytest

from libs.bus.memory import MemoryBus
from libs.bus.port import BusUnavailable, Incoming, Outgoing
from libs.contracts.topics import CLUSTER, TASKS, Topic
from libs.domain.jobs import partition_of

LOG = Topic("log", 4)
TABLE = Topic("table", 1, compacted=True)


def a_bus(limit: int = 1000, publish_s: float = 0.2) -> MemoryBus:
    return MemoryBus((LOG, TABLE), limit=limit, publish_s=publish_s)


def record(key: str, value: str | None = "v", topic: str = "log", partition: int | None = None) -> Outgoing:
    return Outgoing(topic, key, value.encode() if value is not None else None, "t", partition, headers={"cause": key})


def values(records: list[Incoming] | tuple[Incoming, ...]) -> list[str]:
    return [(r.value or b"-").decode() for r in records]


async def test_a_group_reads_each_record_once_in_order_of_its_partition() -> None:
    bus = a_bus()
    first, second = bus.group("g", ["log"]), bus.group("g", ["log"])
    await bus.publisher().publish([record(f"k{n}", f"{n}", partition=n % 4) for n in range(40)])
    got = [await first.batch(100, 0), await second.batch(100, 0)]
    assert sorted(int(r.value or b"") for batch in got for r in batch) == list(range(40))
    for batch in got:
        for partition in {r.partition for r in batch}:
            offsets = [r.offset for r in batch if r.partition == partition]
            assert offsets == sorted(offsets)
    assert first.owned | second.owned == {("log", p) for p in range(4)}
    assert not first.owned & second.owned


async def test_the_key_chooses_the_partition_and_envelope_fields_arrive() -> None:
    bus = a_bus()
    reader = bus.follow(["log"], from_start=True)
    await bus.publish([record("job/a/b")])
    (got,) = await reader.batch()
    assert got.partition == partition_of("job/a/b", 4)
    assert got.headers == {"cause": "job/a/b"}
    assert got.id
    assert got.source == "drystone"


async def test_what_was_not_committed_goes_to_the_member_that_takes_over() -> None:
    bus = a_bus()
    moves: list[tuple[str, int, int]] = []
    first = bus.group("g", ["log"], rebalanced=lambda gained, lost: moves.append(("first", len(gained), len(lost))))
    await bus.publish([record("k", f"{n}", partition=0) for n in range(10)])
    batch = await first.batch(10, 0)
    await first.done({("log", 0): batch[3].offset + 1})
    second = bus.group("g", ["log"], rebalanced=lambda gained, lost: moves.append(("second", len(gained), len(lost))))
    first.leave()
    assert values(list(await second.batch(100, 0))) == [str(n) for n in range(4, 10)]
    assert moves == [("first", 4, 0), ("first", 0, 2), ("second", 2, 0), ("first", 0, 2), ("second", 2, 0)]
    await first.done({("log", 0): 10})  # no longer owned: must not move the new owner's offset
    third = bus.group("g", ["log"])
    second.leave()
    assert values(list(await third.batch(100, 0))) == [str(n) for n in range(4, 10)]


async def test_seek_reads_a_record_again() -> None:
    bus = a_bus()
    reader = bus.group("g", ["log"])
    await bus.publish([record("k", f"{n}", partition=2) for n in range(3)])
    assert len(await reader.batch(10, 0)) == 3
    reader.seek("log", 2, 1)
    assert values(list(await reader.batch(10, 0))) == ["1", "2"]


async def test_a_waiting_reader_wakes_at_once() -> None:
    bus = a_bus()
    reader = bus.group("g", ["log"])
    waiting = asyncio.create_task(reader.batch(10, 5.0))
    await asyncio.sleep(0)
    await bus.publish([record("k")])
    async with asyncio.timeout(0.5):
        assert len(await waiting) == 1


async def test_an_empty_wait_ends_in_time() -> None:
    assert list(await a_bus().group("g", ["log"]).batch(10, 0.01)) == []


async def test_a_follower_of_outcomes_reads_only_its_partitions_from_their_end() -> None:
    bus = a_bus()
    reader = bus.follow(["log"], from_start=False)
    await bus.publish([record("old", partition=1)])
    reader.assign({("log", 1)}, at_end=True)
    # The partition was followed before: what came between construction and this call is not lost.
    assert values(list(await reader.batch(10, 0))) == ["v"]
    await bus.publish([record("a", "mine", partition=1), record("b", "not mine", partition=2)])
    assert values(list(await reader.batch(10, 0))) == ["mine"]
    reader.assign({("log", 2)}, at_end=True)
    assert list(await reader.batch(10, 0)) == []


async def test_a_follower_is_caught_up_when_it_reached_the_end_that_it_saw() -> None:
    bus = a_bus()
    await bus.publish([record("n1", "a", "table"), record("n2", "b", "table")])
    reader = bus.follow(["table"], from_start=True)
    await bus.publish([record("n3", "c", "table")])
    assert not reader.caught_up
    await reader.batch(2, 0)
    assert reader.caught_up


async def test_a_compacted_topic_keeps_the_last_of_every_key_and_stays_small() -> None:
    bus = a_bus(limit=50)
    for n in range(1000):
        await bus.publish([record(f"n{n % 10}", f"{n}", "table")])
    await bus.publish([record("n3", None, "table")])
    late = bus.follow(["table"], from_start=True)
    state: dict[str, bytes | None] = {}
    while batch := await late.batch(17, 0):
        state |= {r.key: r.value for r in batch}
    assert state.pop("n3") is None
    assert state == {f"n{n}": str(990 + n).encode() for n in range(10) if n != 3}
    assert len(bus.log(("table", 0)).records) <= 100


async def test_a_publisher_waits_for_the_slowest_group_and_then_says_so() -> None:
    bus = a_bus(limit=8, publish_s=0.05)
    reader = bus.group("g", ["log"])
    with pytest.raises(BusUnavailable):
        await bus.publish([record("k", f"{n}", partition=0) for n in range(20)])
    publishing = asyncio.create_task(bus.publish([record("k", "late", partition=0)]))
    await asyncio.sleep(0)
    batch = await reader.batch(100, 0)
    await reader.done({("log", 0): batch[-1].offset + 1})
    await publishing
    assert values(list(await reader.batch(100, 0))) == ["late"]


async def test_a_log_that_nobody_reads_stays_bounded() -> None:
    bus = a_bus(limit=100)
    for n in range(1000):
        await bus.publish([record("k", f"{n}", partition=0)])
    assert len(bus.log(("log", 0)).records) <= 100


def test_partition_counts_are_those_of_the_topic_table() -> None:
    bus = MemoryBus()
    assert bus.partitions(TASKS.name) == TASKS.partitions
    assert bus.partitions(CLUSTER.name) == CLUSTER.partitions
