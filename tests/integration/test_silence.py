"""Faults that nothing reports: a consumer that fetches no more, a producer whose sequence the broker refuses, a broker
or an API server that keeps the connection and says nothing. Each is noticed by its bound, counted, and got over without
loss; what cannot be got over makes the service unready."""

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import msgspec
import pytest
from aiokafka import TopicPartition

from libs.bus import metrics
from libs.bus.admin import ensure_topics
from libs.bus.consumer import Reader
from libs.bus.kafka import KafkaBus, KafkaSettings
from libs.bus.port import BusUnavailable, Incoming, Outgoing
from libs.contracts.topics import Topic
from libs.kube import writes
from libs.kube.client import KubeClient
from libs.kube.identity import from_kubeconfig
from libs.kube.pods import parse_pod
from libs.kube.reflector import Reflector
from tests.integration.relay import Relay, lead_kafka_through
from tools.stack import StackInfo

pytestmark = pytest.mark.real

#: The clients' own time limit is far beyond those under test: none of this may be owed to it.
CLIENT_S = 60.0
STUCK_S = 2.0
PUBLISH_S = 2.0
PARTITIONS = 4
RELAYED = "relayed"


@pytest.fixture
async def relay(info: StackInfo, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Relay]:
    """Between the broker and the clients with the id RELAYED."""
    async with Relay(info.kafka_bootstrap).serving() as serving:
        lead_kafka_through(serving, RELAYED, monkeypatch)
        yield serving


@pytest.fixture
async def topic(info: StackInfo) -> str:
    made = Topic(f"t-{uuid.uuid4().hex[:8]}", PARTITIONS)
    assert await ensure_topics(KafkaSettings(info.kafka_bootstrap), create=True, topics=[made], replicas=1) == []
    return made.name


@contextlib.asynccontextmanager
async def a_bus(info: StackInfo, topic: str, **settings: object) -> AsyncIterator[KafkaBus]:
    wanted = {"stuck_s": STUCK_S, "publish_s": PUBLISH_S, "request_s": CLIENT_S, "session_s": 2.0, "heartbeat_s": 0.3}
    settings = {**wanted, "fetch_wait_ms": 100, **settings}
    bus = KafkaBus(KafkaSettings(info.kafka_bootstrap, **settings), [Topic(topic, PARTITIONS)])  # type: ignore[arg-type]
    await bus.open()
    try:
        yield bus
    finally:
        await bus.close()


def records(topic: str, first: int, end: int) -> list[Outgoing]:
    """Numbered, in turn over the partitions."""
    return [Outgoing(topic, f"k{n}", f"{n}".encode(), "t", n % PARTITIONS) for n in range(first, end)]


def number(record: Incoming) -> int:
    return int(record.value or b"-1")


async def read(reader: Reader, numbers: set[int], within_s: float = 60.0) -> list[int]:
    """All that is read until these are there."""
    found: list[int] = []
    async with asyncio.timeout(within_s):
        while not numbers <= set(found):
            found += [number(record) for record in await reader.batch(500, 0.2)]
    return found


async def again_until_taken(bus: KafkaBus, wanted: list[Outgoing], within_s: float) -> int:
    """Publish as services do: what is not certain is published again. How often it was not."""
    failed = 0
    async with asyncio.timeout(within_s):
        while True:
            try:
                await bus.publisher().publish(wanted)
                return failed
            except BusUnavailable:
                failed += 1
                await asyncio.sleep(0.05)


def rebuilt(client: str) -> float:
    return float(metrics.REBUILDS.labels(client)._value.get())


# --- consumers ------------------------------------------------------------------------------------------------------


def its_fetching_ends(reader: Reader, _relay: Relay) -> None:
    """The client's tasks are over, its connections and its membership live on: what restarts of brokers have led to."""
    fetcher = reader._consumer._fetcher
    for task in (fetcher._fetch_task, *fetcher._pending_tasks):
        task.cancel()


def its_connections_go_silent(_reader: Reader, relay: Relay) -> None:
    relay.mute()


@pytest.mark.parametrize("fault", [its_fetching_ends, its_connections_go_silent])
@pytest.mark.parametrize("kind", ["group", "follower"])
async def test_a_reader_that_gets_nothing_any_more_is_made_anew_and_reads_on_without_loss(
    info: StackInfo, topic: str, relay: Relay, kind: str, fault: Callable[[Reader, Relay], None]
) -> None:
    async with a_bus(info, topic) as direct, a_bus(info, topic, client_id=RELAYED) as bus:
        moves: list[tuple[int, int]] = []
        reader: Reader
        if kind == "group":
            reader = group = bus.group(topic, [topic], rebalanced=lambda new, old: moves.append((len(new), len(old))))
        else:
            reader = bus.follow([topic], from_start=True)
        await direct.publisher().publish(records(topic, 0, 40))
        assert sorted(await read(reader, set(range(40)))) == list(range(40))
        if kind == "group":
            await group.done({(topic, partition): 10 for partition in range(PARTITIONS)})
        before = rebuilt("consumer")
        fault(reader, relay)
        began = time.monotonic()
        await direct.publisher().publish(records(topic, 40, 80))
        async with asyncio.timeout(20):
            while rebuilt("consumer") == before:
                assert not await reader.batch(500, 0.2)
        assert time.monotonic() - began > STUCK_S / 2, "patient with a broker that is only slow"
        assert not reader.healthy
        assert "the broker has been silent" in reader.fault
        assert not bus.healthy
        assert sorted(await read(reader, set(range(40, 80)))) == list(range(40, 80)), "none is lost, none comes again"
        assert rebuilt("consumer") == before + 1
        if kind == "group":
            assert (0, PARTITIONS) in moves, "what was in hand may have been another's meanwhile"
            assert moves[-1] == (PARTITIONS, 0)
        await direct.publisher().publish(records(topic, 80, 90))
        assert sorted(await read(reader, set(range(80, 90)))) == list(range(80, 90))
        async with asyncio.timeout(30):
            while not bus.healthy:
                await reader.batch(1, 0.1)


async def test_a_reader_whose_owner_polls_no_more_is_told_of_and_is_well_when_it_does(
    info: StackInfo, topic: str
) -> None:
    async with a_bus(info, topic, stuck_s=1.0) as bus:
        reader = bus.follow([topic], from_start=True)
        await bus.publisher().publish(records(topic, 0, 4))
        await read(reader, set(range(4)))
        assert bus.healthy
        await asyncio.sleep(1.2)
        assert not bus.healthy
        assert [fault for fault in bus.faults if "has stopped polling" in fault] == bus.faults
        await bus.publisher().publish(records(topic, 4, 8))
        assert await read(reader, {4, 5, 6, 7})
        assert bus.healthy


# --- producers ------------------------------------------------------------------------------------------------------


async def written(direct: KafkaBus, topic: str, numbers: set[int]) -> Counter[int]:
    """How often each number is in the topic."""
    reader = direct.follow([topic], from_start=True)
    found = Counter(await read(reader, numbers))
    async with asyncio.timeout(30):
        while batch := await reader.batch(500, 0.3):
            found.update(number(record) for record in batch)
    return found


async def test_a_producer_that_the_broker_finds_out_of_sequence_is_made_anew_and_nothing_is_lost(
    info: StackInfo, topic: str
) -> None:
    """Every later batch of that partition would be refused as well, for ever."""
    async with a_bus(info, topic) as bus:
        await bus.publisher().publish(records(topic, 0, 40))
        client = bus.publisher()._producer
        faults = metrics.PUBLISH_FAULTS.labels("OutOfOrderSequenceNumber")
        before, refused = rebuilt("producer"), faults._value.get()
        client._txn_manager.increment_sequence_number(TopicPartition(topic, 0), 7)
        with pytest.raises(BusUnavailable, match=f"{topic}/0: .*OutOfOrderSequence"):
            await bus.publisher().publish(records(topic, 40, 80))
        assert faults._value.get() == refused + 1
        assert not bus.healthy
        await again_until_taken(bus, records(topic, 40, 80), within_s=PUBLISH_S + 5)
        assert rebuilt("producer") == before + 1
        assert bus.publisher()._producer is not client
        assert bus.healthy
        await bus.publisher().publish(records(topic, 80, 120))
        found = await written(bus, topic, set(range(120)))
        assert found.keys() == set(range(120))
        assert {n: times for n, times in found.items() if times > 1 and n % PARTITIONS == 0} == {}, "it was refused"
        assert max(found.values()) <= 2, "on the others it had been taken, and was published again"


async def test_a_producer_whose_batches_are_never_acknowledged_is_made_anew_within_its_bound(
    info: StackInfo, topic: str, relay: Relay
) -> None:
    async with a_bus(info, topic) as direct, a_bus(info, topic, client_id=RELAYED) as bus:
        await bus.publisher().publish(records(topic, 0, 40))
        before = rebuilt("producer")
        relay.mute()
        began = time.monotonic()
        with pytest.raises(BusUnavailable, match="no acknowledgement within 2 s"):
            await bus.publisher().publish(records(topic, 40, 80))
        assert time.monotonic() - began < PUBLISH_S + 1
        assert relay.swallowed
        await again_until_taken(bus, records(topic, 40, 80), within_s=2 * PUBLISH_S + 5)
        assert rebuilt("producer") == before + 1
        assert bus.healthy
        found = await written(direct, topic, set(range(80)))
        assert found == Counter(range(80)), "what was swallowed had not reached the broker"


# --- both -----------------------------------------------------------------------------------------------------------


async def test_a_broker_that_is_silent_to_newcomers_too_makes_us_unready_until_it_speaks(
    info: StackInfo, topic: str, relay: Relay
) -> None:
    async with a_bus(info, topic) as direct, a_bus(info, topic, client_id=RELAYED, request_s=1.0) as bus:
        reader = bus.group(topic, [topic])
        await bus.publisher().publish(records(topic, 0, 40))
        await read(reader, set(range(40)))
        await reader.done({(topic, partition): 10 for partition in range(PARTITIONS)})
        assert bus.healthy
        relay.mute(newcomers=True)
        await direct.publisher().publish(records(topic, 40, 80))
        publishing = asyncio.create_task(again_until_taken(bus, records(topic, 80, 120), within_s=60))
        ill_since = 0.0
        async with asyncio.timeout(30):
            # It stays unready, over the attempts of both to be made anew.
            while not ill_since or time.monotonic() - ill_since < 3:
                assert not await reader.batch(500, 0.2)
                if ill_since:
                    assert not bus.healthy
                elif reader.fault and "the producer is stuck or has no broker" in bus.faults:
                    ill_since = time.monotonic()
        relay.speak()
        got = await read(reader, set(range(40, 120)), within_s=30)
        assert await publishing > 0
        assert set(got) == set(range(40, 120)), "the finished ones do not come again"
        async with asyncio.timeout(30):
            while not bus.healthy:
                await reader.batch(1, 0.1)


# --- watches --------------------------------------------------------------------------------------------------------


async def test_a_watch_that_goes_silent_is_begun_anew_where_it_was(info: StackInfo, namespace: str) -> None:
    """Neither an end nor an error comes; the silence alone tells."""
    identity = from_kubeconfig(info.kubeconfig)
    direct = KubeClient(identity)
    path = writes.pods_path(namespace)
    seen: list[str] = []

    async def pod(name: str) -> None:
        spec = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "train:1"}]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        answer = await writes.create_pod(direct, namespace, msgspec.json.encode(body))
        assert answer.ok, answer.body

    async def on_list(items: list[bytes], _version: str) -> None:
        seen.extend(parse_pod(raw).name for raw in items)

    async def on_events(events: list[tuple[str, bytes]]) -> None:
        seen.extend(parse_pod(raw).name for _, raw in events)

    async def sees(name: str) -> None:
        async with asyncio.timeout(15):
            while name not in seen:  # noqa: ASYNC110 - the other side is a server
                await asyncio.sleep(0.02)

    async with Relay(info.address("apiserver")).serving() as relay:
        kube = KubeClient(replace(identity, server=f"https://127.0.0.1:{relay.port}"))
        reflector = Reflector(kube, path, on_list=on_list, on_events=on_events, silence_s=STUCK_S)
        running = asyncio.create_task(reflector.run())
        try:
            await pod("before")
            await sees("before")
            # Said of a watch that has just spoken: the silence begins here.
            await pod("just-before")
            await sees("just-before")
            before = reflector.health()
            assert before.watching
            relay.mute()
            began = time.monotonic()
            await pod("meanwhile")
            await sees("meanwhile")
            assert time.monotonic() - began > STUCK_S / 2, "nothing else than the silence has told"
            assert relay.swallowed
            after = reflector.health()
            assert after.failures > before.failures
            assert after.watches > before.watches
            assert after.lists == before.lists, "it goes on from the version that it had"
            await pod("after")
            await sees("after")
            assert Counter(seen) == Counter(["before", "just-before", "meanwhile", "after"])
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await kube.close()
            await direct.close()
