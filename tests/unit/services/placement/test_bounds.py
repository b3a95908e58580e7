"""What placement keeps is bounded, however long something is away or stays as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

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
