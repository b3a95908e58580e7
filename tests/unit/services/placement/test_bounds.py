"""What placement keeps is bounded, however long something is away or stays as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from libs.bus.pack import BATCH_BYTES, in_batches
from libs.bus.port import BusUnavailable, Outgoing
from libs.domain.jobs import JobHead, Task
from libs.domain.resources import GpuRequest, Request
from libs.domain.verdicts import Kind, Reason, Verdict, Wake
from services.placement.emit import Sender
from services.placement.jobs import Job
from services.placement.wake import Waiting

NO_ROOM = Verdict(Kind.NOT_NOW, Reason.GPU_COUNT, wakes_on=(Wake.ROOM_FREED,))


def job(key: str, created: float) -> Job:
    head = JobHead(key=key, tenant="t", namespace="ns", queue="default", created=created)
    task = Task(id=key, name=key, namespace="ns", version="1", request=Request(gpu=GpuRequest(1)))
    return Job(head=head, partition=0, since=0.0, tasks={key: task})


def test_behind_a_job_that_waits_for_ever_others_come_and_go_without_a_trace():
    """A thousand users give up, one after the other, while the head of the line stays."""
    waiting = Waiting()
    waiting.hold(job("pod/ns/head", 0.0), "alike", NO_ROOM)
    for n in range(5000):
        waiting.join(job(f"pod/ns/{n}", 1.0 + n), "alike")
        waiting.leave(f"pod/ns/{n}")
    (group,) = waiting._groups.values()
    assert len(group.members) < 200
    assert len(waiting._rings["default"].line) < 200
    last = job("pod/ns/last", 9999.0)
    waiting.join(last, "alike")
    assert waiting.ahead(last) == 1
    assert waiting._first(group, 2) == ["pod/ns/head", "pod/ns/last"]


class Away:
    """A broker that answers nobody until `back`."""

    def __init__(self) -> None:
        self.back = False
        self.acknowledged: list[str] = []
        self.tried = asyncio.Event()

    async def publish(self, records: Sequence[Outgoing]) -> None:
        self.tried.set()
        await asyncio.sleep(0.01)
        if not self.back:
            raise BusUnavailable("no broker")
        self.acknowledged += [record.key for record in records]


class Short:
    def next(self) -> float:
        return 0.01

    def reset(self) -> None: ...


def record(key: str) -> Outgoing:
    return Outgoing(topic="t", key=key, value=b"", type="x")


@pytest.mark.parametrize("under_way", [False, True])
async def test_words_for_a_broker_that_is_away_are_bounded_and_the_newest_stay(under_way: bool):
    broker = Away()
    sender = Sender(broker, Short(), "status", most=10, limit=100)
    running = asyncio.create_task(sender.run())
    try:
        for n in range(1000):
            sender.put([record(str(n))])
            if under_way and n == 10:
                await broker.tried.wait()
        assert len(sender) == 100
        broker.back = True
        async with asyncio.timeout(30):
            await sender.drained()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    told = [int(key) for key in broker.acknowledged]
    assert told == sorted(set(told)), "each once and in order"
    assert told[-90:] == list(range(910, 1000))


async def test_words_are_bounded_by_their_bytes_and_passes_wait_while_plans_fill_the_memory():
    large = [Outgoing("t", str(n), b"x" * 100_000, "x") for n in range(100)]
    words = Sender(Away(), Short(), "status", most=512, limit=50_000, most_bytes=1_000_000)
    words.put(large)
    assert len(words) <= 10
    assert words._queue[-1].key == "99"
    broker = Away()
    plans = Sender(broker, Short(), "plans", most=256, most_bytes=1_000_000)
    plans.put(large[:9])
    async with asyncio.timeout(5):
        await plans.room()
    plans.put(large[9:20])
    held = asyncio.create_task(plans.room())
    running = asyncio.create_task(plans.run())
    await broker.tried.wait()
    assert not held.done()
    assert len(plans) == 20, "nothing of it is dropped"
    broker.back = True
    async with asyncio.timeout(30):
        await held
        await plans.drained()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert broker.acknowledged == [str(n) for n in range(20)]


def test_one_publication_is_bounded_by_records_and_by_bytes_and_a_large_record_goes_alone():
    records = [record(str(n)) for n in range(5)] + [Outgoing("t", "big", b"x" * BATCH_BYTES, "x"), record("last")]
    assert [[r.key for r in some] for some in in_batches(records, 3)] == [
        ["0", "1", "2"],
        ["3", "4"],
        ["big"],
        ["last"],
    ]
    assert list(in_batches([], 3)) == []
