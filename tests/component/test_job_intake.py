"""Job events on an in-process bus and an embedded API server: what becomes of each, in which order, and who waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from libs.bus.memory import MemoryBus
from libs.bus.port import Incoming, Outgoing
from libs.contracts.events import DeadLetter, EventType, JobStatus, PriorityClassFact, QueueFact, TasksBatch
from libs.contracts.tenants import TenantPolicy
from libs.contracts.topics import CLUSTER, DEAD_LETTERS, JOBS, STATUS, TASKS
from libs.domain.jobs import JobHead, Phase
from libs.domain.queues import Queue
from libs.kube import trainingjobs
from libs.kube.embedded import EmbeddedCluster
from libs.kube.port import Answer
from libs.runtime.clock import SystemClock
from libs.testkit.faults import Fault, FaultyKube, answers, connection_lost, held_up
from services.watcher.intake import GROUP, Intake
from services.watcher.jobs import JobEvents
from services.watcher.knowledge import Knowledge
from services.watcher.settings import WatcherSettings

ENCODE = msgspec.json.encode
NO_SUCH_PATH = b"404 page not found\n"


def creation(method: str, path: str) -> bool:
    return method == "POST" and path.endswith("/trainingjobs")


def job(id: str = "train", **more: Any) -> dict[str, Any]:
    return {"id": id, "roles": [{"template": {"image": "repo/train:1", "resources": {"gpu": 1}}}], **more}


class Desk:
    """The intake of one replica, and everything it said so far."""

    def __init__(
        self, *faults: Fault, tenant: TenantPolicy | None = None, others: tuple[TenantPolicy, ...] = (), **settings: Any
    ) -> None:
        self.tenant = tenant or TenantPolicy()
        self.cluster = EmbeddedCluster()
        self.kube = FaultyKube(self.cluster, *faults)
        self.bus = MemoryBus()
        self.settings = WatcherSettings(longest_write_s=0, tenants=(self.tenant, *others), **settings)
        self.stop = asyncio.Event()
        self.sent = 0
        self.said: list[Incoming] = []
        self._reader = self.bus.follow([STATUS.name, DEAD_LETTERS.name, TASKS.name], from_start=True)
        self.intake = self.replica()

    def replica(self) -> Intake:
        return Intake(self.kube, self.bus, self.settings, SystemClock())

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Desk]:
        running = asyncio.create_task(self.intake.run(self.stop))
        try:
            yield self
        finally:
            self.stop.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def send(
        self,
        said: object,
        *,
        key: str = "k",
        type: str = EventType.JOB_SUBMIT,
        partition: int | None = None,
        topic: str = JOBS.name,
    ) -> None:
        self.sent += 1
        value = said if isinstance(said, bytes) else ENCODE(said)
        await self.bus.publish([Outgoing(topic, key, value, type, partition, id=f"event-{self.sent}")])

    async def cancel(self, id: str, key: str = "k", partition: int | None = None) -> None:
        await self.send({"id": id}, key=key, type=EventType.JOB_CANCEL, partition=partition)

    async def statuses(self, count: int) -> list[JobStatus]:
        """The next `count`, in the order in which they were published within a partition."""
        async with asyncio.timeout(30):
            while len(found := self.of(STATUS.name, JobStatus)) < count:
                self.said += await self._reader.batch(500, 0.1)
        return found

    def of(self, topic: str, kind: type[Any]) -> list[Any]:
        return [msgspec.json.decode(r.value or b"", type=kind) for r in self.said if r.topic == topic]

    @property
    def letters(self) -> list[DeadLetter]:
        return self.of(DEAD_LETTERS.name, DeadLetter)

    def objects(self) -> list[trainingjobs.TrainingJobView]:
        found = self.cluster.call_now("GET", trainingjobs.path(self.tenant.namespaces[0]))
        return [trainingjobs.parse(ENCODE(item)) for item in msgspec.json.decode(found.body)["items"]]

    def patch(self, view: trainingjobs.TrainingJobView, body: object, part: str = "") -> None:
        path = trainingjobs.path(view.namespace, view.name, part)
        answer = self.cluster.call_now("PATCH", path, ENCODE(body), content_type="application/merge-patch+json")
        assert answer.ok, answer

    def committed(self) -> int:
        """Events that will not be read again after a restart."""
        group = self.bus._groups[GROUP]
        return sum(group.offsets.values())

    async def until(self, done: Any) -> None:
        async with asyncio.timeout(30):
            while not done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_an_event_becomes_an_object_a_hint_and_a_status() -> None:
    async with Desk().open() as desk:
        await desk.send(job())
        (status,) = await desk.statuses(1)
        (view,) = desk.objects()
        assert (status.reason, status.id, status.job) == ("Accepted", "train", view.key)
        answer = next(record for record in desk.said if record.topic == STATUS.name)
        assert answer.headers["cause"] == status.cause == "event-1"
        (hint,) = [item for batch in desk.of(TASKS.name, TasksBatch) for item in batch.items]
        assert hint.head.uid == view.uid
        assert len(hint.tasks) == 1
        await desk.until(lambda: desk.committed() == 1)


async def test_the_same_event_twice_is_one_job_and_two_answers() -> None:
    async with Desk().open() as desk:
        await desk.send(job())
        await desk.send(job())
        assert [s.reason for s in await desk.statuses(2)] == ["Accepted", "Duplicate"]
        assert len(desk.objects()) == 1
        assert not desk.letters


async def test_an_id_used_for_another_job_is_a_dead_letter_and_the_first_job_stays() -> None:
    async with Desk().open() as desk:
        await desk.send(job())
        await desk.send(job(priority="high"))
        await desk.statuses(2)
        (letter,) = desk.letters
        assert "another job" in letter.reason
        assert [view.spec.priority for view in desk.objects()] == ["normal"]


async def test_a_resubmission_waits_until_the_cancelled_job_is_gone_and_is_then_a_new_job() -> None:
    async with Desk().open() as desk:
        await desk.send(job())
        await desk.statuses(1)
        (first,) = desk.objects()
        # Somebody still has to clean up after the first job, so its object stays for a while.
        desk.patch(first, {"metadata": {"finalizers": ["example.com/logs"]}})
        await desk.cancel("train")
        await desk.send(job())
        await desk.until(lambda: desk.intake.parked == 1)
        assert desk.objects()[0].uid == first.uid
        desk.patch(first, {"metadata": {"finalizers": None}})
        assert [s.reason for s in await desk.statuses(3)] == ["Accepted", "Cancelled", "Accepted"]
        (second,) = desk.objects()
        assert second.uid != first.uid


async def test_while_the_crd_is_missing_events_wait_and_none_is_refused() -> None:
    async with Desk(answers(creation, 404, NO_SUCH_PATH, times=2)).open() as desk:
        await desk.send(job())
        (status,) = await desk.statuses(1)
        assert status.reason == "Accepted"
        assert not desk.letters


async def test_a_cancellation_while_the_crd_is_missing_is_not_called_nothing_to_cancel() -> None:
    desk = Desk()
    async with desk.open():
        await desk.send(job())
        await desk.statuses(1)
        desk.kube.faults.append(answers(lambda m, p: m == "DELETE", 404, NO_SUCH_PATH, times=2))
        await desk.cancel("train")
        assert (await desk.statuses(2))[1].reason == "Cancelled"
        assert not desk.objects()


async def test_a_namespace_that_does_not_exist_is_permanent() -> None:
    tenant = TenantPolicy(name="vision", namespaces=("not-there",))
    async with Desk(tenant=tenant).open() as desk:
        await desk.send(job())
        (status,) = await desk.statuses(1)
        (letter,) = desk.letters
        assert status.phase is Phase.REJECTED
        assert "not-there" in letter.reason


async def test_an_account_that_may_not_create_is_the_operators_fault_and_the_event_waits() -> None:
    said = {"kind": "Status", "reason": "Forbidden", "message": 'User "w" cannot create resource "trainingjobs"'}
    async with Desk(answers(creation, 403, ENCODE(said), times=2)).open() as desk:
        await desk.send(job())
        assert (await desk.statuses(1))[0].reason == "Accepted"


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_answer_makes_neither_a_second_job_nor_none(applied: bool) -> None:
    async with Desk(connection_lost(creation, applied=applied)).open() as desk:
        await desk.send(job())
        assert (await desk.statuses(1))[0].reason == "Accepted"
        assert len(desk.objects()) == 1


async def test_a_fault_of_our_own_costs_the_event_that_brings_it_about_and_no_other() -> None:
    """The API server's answer breaks an assumption of ours: the event is a dead letter, the service lives."""

    async def broken(*_: object, **__: object) -> Answer:
        raise ZeroDivisionError

    desk = Desk()
    events = JobEvents(desk.kube, desk.bus, desk.settings, SystemClock())
    desk.kube.call = broken  # type: ignore[assignment]
    record = Incoming(JOBS.name, 0, 0, "k", ENCODE(job()), EventType.JOB_SUBMIT, "event-1")
    await events.serve(record)
    (status,) = await desk.statuses(1)
    assert status.phase is Phase.REJECTED
    assert "ZeroDivisionError" in desk.letters[0].reason


async def test_a_parked_job_does_not_hold_up_its_partition() -> None:
    until = asyncio.Event()
    stuck = held_up(lambda m, p: creation(m, p), until)
    async with Desk(stuck).open() as desk:
        await desk.send(job("stuck"), partition=3)
        await stuck.held.wait()
        for n in range(20):
            await desk.send(job(f"next-{n}"), partition=3)
        assert {s.id for s in await desk.statuses(20)} == {f"next-{n}" for n in range(20)}
        # Nothing behind the parked one is committed: a restart must read it again.
        assert desk.committed() == 0
        until.set()
        await desk.statuses(21)
        await desk.until(lambda: desk.committed() == 21)


async def test_a_cancellation_does_not_overtake_its_submission_under_another_record_key() -> None:
    until = asyncio.Event()
    slow = held_up(creation, until)
    async with Desk(slow).open() as desk:
        await desk.send(job(), key="submit-key", partition=0)
        await slow.held.wait()
        await desk.cancel("train", key="cancel-key", partition=0)
        await asyncio.sleep(0.1)
        until.set()
        assert [s.reason for s in await desk.statuses(2)] == ["Accepted", "Cancelled"]
        assert not desk.objects()


async def test_a_tenants_jobs_beyond_its_limit_are_refused_with_a_status_until_one_ends() -> None:
    tenant = TenantPolicy(max_pending_jobs=2)
    async with Desk(tenant=tenant, intake_width=8).open() as desk:
        for n in range(3):
            await desk.send(job(f"job-{n}"), key="same")
        refused = [s for s in await desk.statuses(3) if s.phase is Phase.REJECTED]
        assert [s.reason for s in refused] == ["TooManyPending"]
        assert len(desk.objects()) == len(desk.letters) + 1 == 2
        taken = desk.objects()
        await desk.send(job(taken[0].spec.id))
        assert "Duplicate" in [s.reason for s in await desk.statuses(4)]

        desk.patch(taken[0], {"status": {"phase": "Succeeded"}}, "status")
        await asyncio.sleep(0.3)
        await desk.send(job("after-one-ended"))
        await desk.statuses(5)
        assert "after-one-ended" in {view.spec.id for view in desk.objects()}


async def test_a_tenant_far_below_its_limit_is_counted_once_and_its_submissions_do_not_take_turns() -> None:
    until = asyncio.Event()
    async with Desk(intake_width=8).open() as desk:
        await desk.send(job("first"))
        await desk.statuses(1)
        slow = held_up(creation, until)
        desk.kube.faults.append(slow)
        await desk.send(job("held-up"), partition=1)
        await slow.held.wait()
        await desk.send(job("meanwhile"), partition=2)
        async with asyncio.timeout(30):
            while "meanwhile" not in {view.spec.id for view in desk.objects()}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert "held-up" not in {view.spec.id for view in desk.objects()}
        until.set()
        assert [s.reason for s in await desk.statuses(3)] == ["Accepted"] * 3


async def test_a_replica_that_stops_hands_its_partitions_over_at_once() -> None:
    async with Desk().open() as desk:
        other, stop = desk.replica(), asyncio.Event()
        running = asyncio.create_task(other.run(stop))
        await asyncio.sleep(0.05)
        stop.set()
        await running
        for partition in range(JOBS.partitions):
            await desk.send(job(f"job-{partition}"), partition=partition)
        assert len(await desk.statuses(JOBS.partitions)) == JOBS.partitions


async def test_a_replica_that_stands_by_knows_the_namespaces_queue_and_the_priority_classes() -> None:
    desk = Desk()
    queue = Queue("org/vision", gpu_milli=None, cpu=None, mem=None, namespaces=("default",), version="41")
    facts = [QueueFact(queue, 3), PriorityClassFact("urgent", 5000, "42", term=3)]
    await desk.bus.publish(
        [
            Outgoing(CLUSTER.name, "queue/org/vision", ENCODE(facts[0]), EventType.CLUSTER),
            Outgoing(CLUSTER.name, "priorityclass/urgent", ENCODE(facts[1]), EventType.CLUSTER),
            Outgoing(CLUSTER.name, "priorityclass/gone", ENCODE(facts[1]), EventType.CLUSTER),
            Outgoing(CLUSTER.name, "priorityclass/gone", None, EventType.CLUSTER),
        ]
    )
    knowledge = Knowledge({"default": "team-vision"})
    following = asyncio.create_task(knowledge.follow(desk.bus, SystemClock(), lambda: False))
    async with asyncio.timeout(30):
        await knowledge.ready.wait()
    desk.intake = Intake(desk.kube, desk.bus, desk.settings, SystemClock(), lambda: (knowledge.known, knowledge.seen))
    async with desk.open():
        await desk.send(job(priority="urgent"))
        await desk.statuses(1)
    (hint,) = [item for batch in desk.of(TASKS.name, TasksBatch) for item in batch.items]
    head: JobHead = hint.head
    assert (head.queue, head.priority, head.tenant, hint.seen) == ("org/vision", 5000, "team-vision", "41")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
