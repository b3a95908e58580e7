"""The bus on a real broker: hand-over between members, faults of the broker, drift."""

import asyncio
import random
import statistics
import time
import uuid
from collections.abc import Callable

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from libs.bus.admin import _configs, check_topics, ensure_topics
from libs.bus.group_reader import KafkaGroupReader
from libs.bus.kafka import KafkaBus, KafkaSettings
from libs.bus.pack import MOST_BYTES
from libs.bus.port import BusMisconfigured, BusUnavailable, Incoming, Outgoing
from libs.contracts.topics import Topic
from tools.stack import Stack, StackInfo

pytestmark = pytest.mark.real


async def a_bus(info: StackInfo, **kind: object) -> tuple[KafkaBus, str]:
    """An open bus with one topic of its own."""
    topic = Topic(f"t-{uuid.uuid4().hex[:8]}", 4, **kind)  # type: ignore[arg-type]
    settings = KafkaSettings(info.kafka_bootstrap, publish_s=5.0)
    assert await ensure_topics(settings, create=True, topics=[topic], replicas=1) == []
    bus = KafkaBus(settings, [topic])
    await bus.open()
    return bus, topic.name


def records(topic: str, count: int, partition: int | None = None) -> list[Outgoing]:
    return [Outgoing(topic, f"k{n}", f"{n}".encode(), "t", partition, headers={"cause": "c"}) for n in range(count)]


async def read(reader: KafkaGroupReader, count: int, within_s: float = 60.0) -> list[Incoming]:
    found: list[Incoming] = []
    async with asyncio.timeout(within_s):
        while len(found) < count:
            found += await reader.batch(500, 0.2)
    return found


async def joined(*readers: KafkaGroupReader, places: int) -> None:
    """Polling until the members own everything between them, each some of it."""
    async with asyncio.timeout(30):
        while sum(len(r.owned) for r in readers) != places or not all(r.owned for r in readers):
            await asyncio.gather(*(reader.batch(1, 0.05) for reader in readers))


async def test_what_was_not_committed_goes_to_the_member_that_is_left(info: StackInfo) -> None:
    bus, topic = await a_bus(info)
    moves: list[tuple[int, int]] = []
    first = bus.group(topic, [topic])
    second = bus.group(topic, [topic], rebalanced=lambda gained, lost: moves.append((len(gained), len(lost))))
    try:
        await joined(first, second, places=4)
        assert not first.owned & second.owned
        assert {first.seat, second.seat} == {(0, 2), (1, 2)}
        await bus.publisher().publish(records(topic, 100))
        committed = {(r.topic, r.partition): r.offset + 1 for r in await first.batch(10, 2)}
        assert committed
        await first.batch(500, 1)  # in hand, never finished
        await first.done(committed)
        done = sum(committed.values())
        await first.close()
        rest: list[Incoming] = []
        async with asyncio.timeout(20):
            while len({(r.partition, r.offset) for r in rest}) < 100 - done:
                rest += await second.batch(500, 0.2)
        assert second.owned == {(topic, partition) for partition in range(4)}
        assert second.seat == (0, 1)
        assert sum(gained - lost for gained, lost in moves) == 4
        assert not {(r.partition, r.offset) for r in rest} & {
            (place[1], offset) for place, end in committed.items() for offset in range(end)
        }
    finally:
        await bus.close()


async def test_seek_reads_again_and_explicit_partitions_are_kept(info: StackInfo) -> None:
    bus, topic = await a_bus(info)
    try:
        reader = bus.group(topic, [topic])
        await joined(reader, places=4)
        await bus.publisher().publish(records(topic, 5, partition=3))
        assert {r.partition for r in await read(reader, 5)} == {3}
        reader.seek(topic, 3, 2)
        assert [r.offset for r in await read(reader, 3)] == [2, 3, 4]
    finally:
        await bus.close()


async def test_a_follower_catches_up_and_follows_given_partitions_from_their_end(info: StackInfo) -> None:
    bus, topic = await a_bus(info, compacted=True)
    try:
        await bus.publisher().publish(records(topic, 40))
        everything = bus.follow([topic], from_start=True)
        seen = 0
        async with asyncio.timeout(20):
            while not everything.caught_up:
                seen += len(await everything.batch(7, 0.2))
        assert seen == 40
        some = bus.follow([topic], from_start=False)
        some.assign({(topic, 1)}, at_end=True)
        async with asyncio.timeout(20):
            while not some.caught_up:
                assert not await some.batch(10, 0.1)
        await bus.publisher().publish([*records(topic, 3, partition=1), *records(topic, 3, partition=2)])
        got: list[Incoming] = []
        async with asyncio.timeout(30):
            while len(got) < 3:
                got += await some.batch(10, 0.2)
        assert {r.partition for r in got} == {1}
    finally:
        await bus.close()


async def test_a_record_on_an_idle_bus_reaches_its_reader_within_milliseconds(info: StackInfo) -> None:
    bus, topic = await a_bus(info)
    try:
        reader = bus.group(topic, [topic])
        await joined(reader, places=4)
        took: list[float] = []

        async def reading() -> None:
            while len(took) < 40:
                batch = await reader.batch(10, 1.0)
                took.extend(time.perf_counter() - float(record.value or b"0") for record in batch)

        task = asyncio.create_task(reading())
        for n in range(40):
            await asyncio.sleep(0.03)
            now = str(time.perf_counter()).encode()
            await bus.publisher().publish([Outgoing(topic, "k", now, "t", n % 4)])
        async with asyncio.timeout(30):
            await task
        assert statistics.median(took) < 0.025
    finally:
        await bus.close()


async def test_a_broker_that_pauses_costs_time_and_loses_nothing(info: StackInfo, stack: Stack) -> None:
    bus, topic = await a_bus(info)
    try:
        reader = bus.group(topic, [topic])
        await joined(reader, places=4)
        await bus.publisher().publish(records(topic, 1, partition=0))
        await asyncio.to_thread(stack.kill_part, "kafka")
        with pytest.raises(BusUnavailable):
            await bus.publisher().publish(records(topic, 1, partition=1))
        await asyncio.to_thread(stack.start_part, "kafka")
        async with asyncio.timeout(60):
            while True:
                try:
                    await bus.publisher().publish(records(topic, 1, partition=2))
                    break
                except BusUnavailable:
                    await asyncio.sleep(0.2)
        got: set[int] = set()
        async with asyncio.timeout(60):
            while not {0, 2} <= got:
                got |= {r.partition for r in await reader.batch(10, 0.5)}
        async with asyncio.timeout(30):
            while not bus.healthy:
                await reader.batch(10, 0.5)
    finally:
        await bus.close()


async def test_a_record_that_is_too_large_for_us_or_for_its_topic_is_dropped_alone(info: StackInfo) -> None:
    """Its sender would try it for ever, or end for it. The broker's own limit is that of the topic as it is now."""
    bus, topic = await a_bus(info, max_message_bytes=1024 * 1024)
    try:
        for size in (MOST_BYTES + 1, 2 * 1024 * 1024):
            await bus.publisher().publish([Outgoing(topic, "k", random.randbytes(size), "t", 0)])
        await bus.publisher().publish(records(topic, 4, partition=0))
        reader = bus.follow([topic], from_start=True)
        got: list[Incoming] = []
        async with asyncio.timeout(30):
            while len(got) < 4:
                got += await reader.batch(10, 0.2)
        assert [record.value for record in got] == [b"0", b"1", b"2", b"3"]
        assert bus.healthy
    finally:
        await bus.close()


async def test_a_topic_that_is_deleted_is_told_and_read_again_once_it_is_made_anew(info: StackInfo) -> None:
    """Its readers owned nothing and said that they were ready, for as long as anybody looked."""
    bus, topic = await a_bus(info)
    settings = KafkaSettings(info.kafka_bootstrap)
    readers = [bus.group(topic, [topic]), bus.follow([topic], from_start=True)]
    admin = AIOKafkaAdminClient(**settings.client())
    await admin.start()

    async def until(done: Callable[[], bool]) -> list[Incoming]:
        found: list[Incoming] = []
        async with asyncio.timeout(60):
            while not done():
                for reader in readers:
                    found += await reader.batch(100, 0.1)
        return found

    try:
        await bus.publisher().publish(records(topic, 8))
        assert len(await read(readers[0], 8)) == len(await read(readers[1], 8)) == 8  # type: ignore[arg-type]
        await admin.delete_topics([topic])
        await until(lambda: all(f"there is no topic {topic}" in reader.fault for reader in readers))
        assert not bus.healthy
        made = [Topic(topic, 4)]
        assert await ensure_topics(settings, create=True, topics=made, replicas=1) == []
        await until(lambda: bus.healthy and len(readers[0].owned) == 4)  # type: ignore[union-attr]
        await bus.publisher().publish(records(topic, 3))
        found: list[Incoming] = []
        async with asyncio.timeout(60):
            while len(found) < 6:
                for reader in readers:
                    found += await reader.batch(100, 0.1)
        assert sorted(record.value for record in found) == [b"0", b"0", b"1", b"1", b"2", b"2"]
    finally:
        await admin.close()
        await bus.close()


async def test_drift_is_told_and_refused_at_start(info: StackInfo) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    settings = KafkaSettings(info.kafka_bootstrap)
    await ensure_topics(settings, create=True, topics=[Topic(name, 2)], replicas=1)
    wanted = Topic(name, 3, compacted=True)
    drift = await ensure_topics(settings, create=True, topics=[wanted], replicas=1)
    assert {(d.what, d.found, d.wanted) for d in drift} == {
        ("partitions", "2", "3"),
        ("cleanup.policy", "delete", "compact"),
    }
    with pytest.raises(BusMisconfigured, match=f"topic {name}: partitions is 2, must be 3"):
        await KafkaBus(settings, [wanted]).open()
    with pytest.raises(BusMisconfigured, match="is missing"):
        await check_topics(settings, [Topic("never-made", 1)])


async def test_a_compacted_topic_is_compacted_while_it_is_in_use_and_may_be_tuned_otherwise(info: StackInfo) -> None:
    """Who starts reads all of it: by itself the broker would keep a gigabyte of what is over in every partition."""
    tuned, plain = Topic(f"t-{uuid.uuid4().hex[:8]}", 1, compacted=True), Topic(f"t-{uuid.uuid4().hex[:8]}", 1)
    settings = KafkaSettings(info.kafka_bootstrap)
    assert await ensure_topics(settings, create=True, topics=[tuned, plain], replicas=1) == []
    admin = AIOKafkaAdminClient(**settings.client())
    await admin.start()
    try:
        found = await _configs(admin, [tuned.name, plain.name])
        assert {name: found[tuned.name][name] for name in tuned.tuning()} == tuned.tuning()
        assert int(found[plain.name]["segment.bytes"]) > int(found[tuned.name]["segment.bytes"])
        resource = ConfigResource(ConfigResourceType.TOPIC, tuned.name, {"segment.ms": "3600000"})
        await admin.alter_configs([resource])
    finally:
        await admin.close()
    drift = await ensure_topics(settings, create=False, topics=[tuned], replicas=1)
    assert not [one for one in drift if one.what in tuned.tuning()], "an operator may have reasons"


async def test_a_topic_that_is_held_is_not_read_and_the_others_are_through_a_rebalance(info: StackInfo) -> None:
    """One tenant's events wait on their topic while the others' are taken; the member stays in its group."""
    bus, held = await a_bus(info)
    other = Topic(f"t-{uuid.uuid4().hex[:8]}", 4)
    settings = KafkaSettings(info.kafka_bootstrap, publish_s=5.0)
    assert await ensure_topics(settings, create=True, topics=[other], replicas=1) == []
    both = KafkaBus(settings, [other])
    await both.open()
    first, second = (bus.group(held, [held, other.name]) for _ in range(2))
    try:
        await joined(first, places=8)
        first.hold([held])
        second.hold([held])
        await bus.publisher().publish(records(held, 20))
        await both.publisher().publish(records(other.name, 20))
        assert {r.topic for r in await read(first, 20)} == {other.name}
        await joined(first, second, places=8)
        seen = [r for _ in range(5) for reader in (first, second) for r in await reader.batch(500, 0.1)]
        assert {r.topic for r in seen} <= {other.name}
        assert first.healthy
        assert second.healthy
        for reader in (first, second):
            reader.hold([])
        got: set[tuple[int, int]] = set()
        async with asyncio.timeout(20):
            while len(got) < 20:
                for reader in (first, second):
                    got |= {(r.partition, r.offset) for r in await reader.batch(500, 0.1) if r.topic == held}
    finally:
        await both.close()
        await bus.close()
