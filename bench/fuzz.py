"""Hostile job events on real Kafka, API server and Redis, with all services at work: what becomes of each of them.

Every event that the broker took must be answered exactly once: accepted, a duplicate, a cancellation, or a dead letter
that names its partition and offset. Nothing may die, and the intake may not stand still: a *stall* is the longest time
in which events were without an answer and none was given. The same of single partitions is told beside it, and so are
canaries, a good job every half second on one partition after the other: both grow with the queue where events come
faster than this machine serves them.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import MessageSizeTooLargeError

from bench.answers import Tally
from bench.hostile import Generator, Hostile, headers_of
from bench.pipeline import percentiles, prepare
from libs.contracts.events import DeadLetter, JobStatus
from libs.contracts.topics import DEAD_LETTERS, JOBS, STATUS
from libs.domain.jobs import Phase
from libs.host.laws import violations
from libs.store.pages import all_holders
from libs.store.redis import RedisLedger
from tools.fleet import Fleet
from tools.load import Load
from tools.stack import Stack, StackInfo

Report = Callable[[str], None]

NODES: Final = 20
CANARY_S: Final = 0.5
#: A stall longer than this is one too many.
MOST_STALL_S: Final = 1.0
#: After the last event, this long without any answer ends the waiting.
SILENCE_S: Final = 20.0
_ANSWERS: Final = {
    "Accepted": "accepted",
    "Duplicate": "duplicates",
    "Cancelled": "cancelled",
    "NothingToCancel": "cancelled",
}
_GROUP: Final = "drystone-intake"
ANOTHER: Final[dict[str, Any]] = {
    "name": "team-b",
    "topic": "drystone.jobs.team-b",
    "namespaces": ["team-b"],
    "queue": "team-b",
}


def canary(id: str) -> bytes:
    role = {"template": {"image": "train:1", "resources": {"cpu": "1", "memory": "1Gi", "gpu": 1}}}
    return json.dumps({"id": id, "roles": [role]}).encode()


class Bombardment:
    """Events onto the job topic of a running system, at `rate` a second, and the answers to them."""

    def __init__(self, info: StackInfo, name: str, seed: int, rate: float) -> None:
        self._info = info
        self._name = name
        self._rate = rate
        self._events = Generator(name, seed, JOBS.partitions)
        self.tally = Tally()
        self.canaries = Tally()
        #: The longest that the bench itself was kept from working.
        self.late_s = 0.0

    async def run(self, count: int, report: Report = lambda _: None) -> None:
        """Returns when everything is answered, or nothing has been for a while."""
        async with self._listening(), self._producing() as producer:
            over = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._canaries(producer, over), name="canaries")
                tasks.create_task(self._own_pauses(over), name="own pauses")
                await self._send(producer, count, report)
                await self._answered()
                over.set()
            await self._answered()
            await self._told()

    async def _send(self, producer: AIOKafkaProducer, count: int, report: Report) -> None:
        began, step = time.monotonic(), max(1, int(self._rate / 20))
        for n in range(0, count, step):
            events = [self._events.next() for _ in range(min(step, count - n))]
            await asyncio.gather(*(self._publish(producer, event, self.tally) for event in events))
            if n // 1000 != (n + step) // 1000:
                report(f"{n + step} sent, {len(self.tally.unanswered)} without an answer")
            due = began + (n + step) / self._rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _publish(self, producer: AIOKafkaProducer, event: Hostile, tally: Tally) -> None:
        at = time.time()
        try:
            put = await producer.send_and_wait(
                JOBS.name,
                event.value,
                key=event.key,
                partition=event.partition,
                headers=event.headers,
                timestamp_ms=int(1000 * at),
            )
        except MessageSizeTooLargeError:
            tally.refused_by_broker += 1
        else:
            tally.took(event, (put.partition, put.offset), at)

    async def _canaries(self, producer: AIOKafkaProducer, over: asyncio.Event) -> None:
        number = 0
        while not over.is_set():
            id = f"{self._name}-canary-{number}"
            event = Hostile(id, "canary", id.encode(), canary(id), headers_of(id), number % JOBS.partitions)
            await self._publish(producer, event, self.canaries)
            number += 1
            await asyncio.sleep(CANARY_S)

    async def _own_pauses(self, over: asyncio.Event) -> None:
        """A control: a machine on which this waits as long does not let anybody work."""
        while not over.is_set():
            began = time.monotonic()
            await asyncio.sleep(0.02)
            self.late_s = max(self.late_s, time.monotonic() - began - 0.02)

    async def _answered(self) -> None:
        for tally in (self.tally, self.canaries):
            since = time.monotonic()
            while tally.unanswered and time.monotonic() - max(since, tally.heard_at) < SILENCE_S:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def _told(self) -> None:
        """A dead letter's sender is told by a status, which comes on another topic."""
        until = time.monotonic() + 3.0
        while self.tally.rejections < self.tally.counts()["dead_letters"] and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    # -- what is heard ------------------------------------------------------------------------------------------------

    def _hear(self, topic: str, value: bytes, at: float) -> None:
        """`at`: when the service sent it, which is not when a busy bench gets to read it."""
        if topic == STATUS.name:
            status = msgspec.json.decode(value, type=JobStatus)
            if status.phase is Phase.REJECTED:
                self.tally.rejections += 1
            elif status.reason in _ANSWERS and status.cause.startswith(self._name):
                of = self.canaries if status.cause.startswith(f"{self._name}-canary") else self.tally
                of.answer(status.cause, _ANSWERS[status.reason], at)
            return
        letter = msgspec.json.decode(value, type=DeadLetter)
        if letter.topic == JOBS.name:
            self.tally.answer((letter.partition, letter.offset), "dead_letters", at)
            if letter.reason.startswith("could not be served"):
                self.tally.ours.append(f"{letter.id}: {letter.reason}")

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self._info.kafka_bootstrap, group_id=None)
        await consumer.start()
        places = [TopicPartition(topic.name, n) for topic in (STATUS, DEAD_LETTERS) for n in range(topic.partitions)]
        consumer.assign(places)
        for place, end in (await consumer.end_offsets(places)).items():
            consumer.seek(place, end)

        async def follow() -> None:
            while True:
                for place, records in (await consumer.getmany(timeout_ms=200)).items():
                    for record in records:
                        if record.value is not None:
                            self._hear(place.topic, record.value, record.timestamp / 1000)

        task = asyncio.create_task(follow(), name="answers")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            await consumer.stop()

    @asynccontextmanager
    async def _producing(self) -> AsyncIterator[AIOKafkaProducer]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._info.kafka_bootstrap, acks="all", enable_idempotence=True, max_request_size=1 << 20
        )
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    # -- what is to be said of it -------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        tally = self.tally
        stall, of_a_partition = tally.stalls()
        waits = [1000 * (c.answers[0][1] - c.sent_at) for c in self.canaries.sent.values() if c.answers]
        return {
            "sent": len(tally.sent),
            "refused_by_broker": tally.refused_by_broker,
            **tally.counts(),
            "unanswered": len(tally.unanswered),
            "answered_twice": sum(len(one.answers) > 1 for one in tally.sent.values()),
            "longest_stall_s": round(stall, 3),
            "longest_stall_of_a_partition_s": round(of_a_partition, 3),
            "bench_kept_waiting_s": round(self.late_s, 3),
            "canaries": len(self.canaries.sent),
            "canary_ms": percentiles(waits) if waits else {},
            "by_kind": tally.by_kind(),
        }

    def broken(self, most_stall_s: float = MOST_STALL_S) -> list[str]:
        """What must not be so, in words."""
        tally, said = self.tally, self.summary()
        found = [f"unanswered: {o.event.id} ({o.event.kind}), partition {o.partition}" for o in tally.unanswered[:10]]
        found += [f"no answer to a good job: {one.event.id}" for one in self.canaries.unanswered[:10]]
        found += [
            f"answered {len(one.answers)} times: {one.event.id} ({one.event.kind}) {one.answers}"
            for one in tally.sent.values()
            if len(one.answers) > 1
        ][:10]
        found += [f"a fault of ours: {what}" for what in tally.ours[:10]]
        found += [f"not good enough: {one.event.id}" for one in self.canaries.sent.values()
                  if one.answers and one.answers[0][0] != "accepted"][:10]  # fmt: skip
        if tally.rejections != said["dead_letters"]:
            found.append(f"{said['dead_letters']} dead letters, and {tally.rejections} senders were told")
        if said["longest_stall_s"] > most_stall_s:
            found.append(f"the intake stood still for {said['longest_stall_s']} s")
        return found


async def run(events: int, seed: int, rate: float, *, report: Report) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="drystone-fuzz-") as scratch:
        parts = ("etcd", "apiserver", "kafka", "redis", "prometheus")
        stack = Stack(Path(scratch) / "stack", parts=parts)
        info = await asyncio.to_thread(stack.up)
        try:
            async with Load.of(info) as load:
                await prepare(info, load, NODES)
                await _another_tenant(info, load)
                tenants = {"DRYSTONE_TENANTS": json.dumps([{"name": "default"}, ANOTHER])}
                async with Fleet(info, Path(scratch) / "fleet", environment=tenants) as fleet:
                    await fleet.start()
                    return await _measure(info, load, fleet, events, seed, rate, report)
        finally:
            await asyncio.to_thread(stack.down)


async def _another_tenant(info: StackInfo, load: Load) -> None:
    """What it has is not for the tenant whose topic is bombarded."""
    namespace: dict[str, object] = {"kind": "Namespace", "metadata": {"name": ANOTHER["namespaces"][0]}}
    await load.create_all("/api/v1/namespaces", [{"apiVersion": "v1", **namespace}])
    admin = AIOKafkaAdminClient(bootstrap_servers=info.kafka_bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(ANOTHER["topic"], JOBS.partitions, 1, topic_configs=JOBS.config(1))])
    finally:
        await admin.close()


async def _measure(
    info: StackInfo, load: Load, fleet: Fleet, events: int, seed: int, rate: float, report: Report
) -> dict[str, Any]:
    attack = Bombardment(info, f"fuzz-{seed}", seed, rate)
    await attack.run(events, report)
    said = attack.summary()
    report(f"{said['sent']} sent, {said['unanswered']} without an answer, longest stall {said['longest_stall_s']} s")
    broken = attack.broken() + dead(fleet)
    behind = await lag(info)
    if behind:
        broken.append(f"{behind} events are not committed")
    ledger = RedisLedger(info.redis_url)
    await ledger.open()
    try:
        broken += [f"{v.law}: {v.about}: {v.detail}" for v in await violations(load.kube, ledger)]
        await load.delete_jobs()
        await load.delete_pods()
        broken += [f"leaked: {what}" for what in await _left(ledger)]
    finally:
        await ledger.close()
    broken += dead(fleet)
    usage = fleet.usage()
    return {"events": events, "seed": seed, "rate": rate, **said, "broken": broken, "usage": usage}


def dead(fleet: Fleet) -> list[str]:
    """Services that have ended. Nothing starts them again here, so one that lives has lived all the time."""
    return [f"{m.name} ended with {m.process.returncode}" for m in fleet.members if m.process.poll() is not None]


async def lag(info: StackInfo) -> int:
    """Events of the job topic that the intake has not committed; waited for a moment, as it commits now and then."""
    consumer = AIOKafkaConsumer(bootstrap_servers=info.kafka_bootstrap, group_id=_GROUP, enable_auto_commit=False)
    await consumer.start()
    try:
        places = [TopicPartition(JOBS.name, n) for n in range(JOBS.partitions)]
        behind = 0
        for _ in range(20):
            ends = await consumer.end_offsets(places)
            behind = sum([end - (await consumer.committed(place) or 0) for place, end in ends.items()])
            if not behind:
                break
            await asyncio.sleep(0.25)
        return behind
    finally:
        await consumer.stop()


async def _left(ledger: RedisLedger, limit_s: float = 30.0) -> list[str]:
    until = time.monotonic() + limit_s
    while True:
        left = [f"{h.state} {h.id} on {h.node}" for h in await all_holders(ledger)]
        if not left or time.monotonic() > until:
            return left[:10]
        await asyncio.sleep(0.25)
