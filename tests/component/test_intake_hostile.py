"""Job events that mean harm, or that nothing can be done about: each is answered once, its offset moves on, and nobody
else waits for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import msgspec
import pytest

from libs.bus.envelope import MAX_ID_BYTES, read
from libs.bus.memory import MemoryBus
from libs.bus.pack import MOST_BYTES, RECORD_BYTES
from libs.bus.port import Incoming, Outgoing
from libs.contracts.events import DeadLetter, EventType, JobChanged, JobStatus, TasksBatch
from libs.contracts.tenants import TenantPolicy
from libs.contracts.topics import DEAD_LETTERS, JOBS, STATUS, TASKS
from libs.domain.jobs import Phase
from libs.kube import trainingjobs
from libs.runtime.clock import SystemClock
from libs.testkit.faults import Fault, answers
from services.watcher.intake import MOST_OF_A_JOB
from services.watcher.jobs import JobEvents, PassingFault
from tests.component.test_job_intake import ENCODE, Desk, creation, job

OTHER = TenantPolicy(name="other", topic="other.jobs", namespaces=("other",))
SPEC = {"containers": [{"name": "m", "image": "i"}]}
TOO_LARGE = ENCODE({"kind": "Status", "reason": "", "message": "etcdserver: request is too large", "code": 500})


def refused_by_the_store(name: str) -> Fault:
    """A creation that can never be done, and that the server calls a fault of its own."""
    return answers(creation, 500, TOO_LARGE, times=10**6)


async def test_an_event_that_alone_is_not_served_is_given_up_and_its_partition_goes_on() -> None:
    """An object that the API server's store does not take is answered with 500 each time, and is not there."""
    async with Desk(refused_by_the_store("big"), intake_park_s=0.3).open() as desk:
        await desk.send(job("big"), partition=2)
        (status,) = await desk.statuses(1)
        (letter,) = desk.letters
        assert (status.phase, status.reason, status.id) == (Phase.REJECTED, "NotServed", "big")
        assert "request is too large" in letter.reason
        assert "submit it again" in status.message
        await desk.until(lambda: desk.committed() == 1)
        assert desk.intake.parked == desk.intake.in_hand == 0


async def test_while_the_api_server_serves_nobody_no_event_is_given_up() -> None:
    away = answers(lambda _method, _path: True, 503, times=10**6)
    async with Desk(away, intake_park_s=0.2).open() as desk:
        await desk.send(job("waits"))
        await desk.until(lambda: away.seen >= 8)
        await asyncio.sleep(0.3)
        assert desk.intake.parked == 1
        assert not desk.letters
        desk.kube.faults.clear()
        assert (await desk.statuses(1))[0].reason == "Accepted"


async def test_an_event_that_is_given_up_although_its_object_came_to_be_is_accepted() -> None:
    """The creation was answered with a fault and landed after the object was looked for last."""
    desk = Desk(answers(creation, 500, TOO_LARGE, applied=True))
    events = JobEvents(desk.kube, desk.bus, desk.settings, SystemClock())
    record = Incoming(JOBS.name, 0, 0, "k", ENCODE(job("late")), EventType.JOB_SUBMIT, "event-1")
    absent = answers(lambda m, p: m == "GET" and "/trainingjobs/" in p, 404, NOT_THERE)
    desk.kube.faults.append(absent)
    with pytest.raises(PassingFault, match="request is too large"):
        await events.serve(record)
    await events.give_up(record, "too large", 300.0)
    assert [s.reason for s in await desk.statuses(1)] == ["Accepted"]
    assert (len(desk.objects()), absent.seen) == (1, 1)
    assert not desk.letters


NOT_THERE = ENCODE({"kind": "Status", "reason": "NotFound", "message": 'trainingjobs "late" not found', "code": 404})


async def stuck(desk: Desk, id: str) -> None:
    """An object under the name that the event's will have, on its way out and never gone: whoever may edit job objects
    can make one."""
    name = trainingjobs.object_name(desk.tenant.name, id)
    spec = {"roles": [{"name": "worker", "template": {"spec": SPEC}}]}
    body = trainingjobs.manifest(desk.tenant.namespaces[0], name, spec, {}, {})
    held = {**json.loads(body)}
    held["metadata"]["finalizers"] = ["example.com/hold"]
    assert desk.cluster.call_now("POST", trainingjobs.path("default"), ENCODE(held)).ok
    assert desk.cluster.call_now("DELETE", trainingjobs.path("default", name)).ok


async def heard(desk: Desk, done: Callable[[list[JobStatus]], bool]) -> list[JobStatus]:
    """What was said by the time that `done` says so."""
    count = 0
    while not done(said := await desk.statuses(count)):
        count = len(said) + 1
    return said


def namespace(desk: Desk, name: str) -> None:
    said = ENCODE({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    assert desk.cluster.call_now("POST", "/api/v1/namespaces", said).ok


async def test_events_of_a_job_whose_name_is_held_for_ever_stop_no_other_job() -> None:
    async with Desk(others=(OTHER,), intake_ahead=200).open() as desk:
        namespace(desk, "other")
        await stuck(desk, "stuck")
        for _ in range(3 * 200):
            await desk.send(job("stuck"), partition=0)
        await desk.until(lambda: desk.intake.parked == 1)
        await desk.send(job("mine"), partition=0)
        await desk.send(job("theirs"), topic=OTHER.topic)
        said = await heard(desk, lambda said: {"mine", "theirs"} <= {s.id for s in said if s.reason == "Accepted"})
        said = await heard(desk, lambda said: sum(s.reason == "TooManyWaiting" for s in said) == 600 - MOST_OF_A_JOB)
        assert {s.id for s in said if s.reason == "TooManyWaiting"} == {"stuck"}
        assert len(said) == len(desk.letters) + 2, "each is answered once"
        assert desk.intake.parked == 1


async def test_one_tenant_that_parks_as_many_jobs_as_it_may_is_read_no_further_and_the_others_are() -> None:
    async with Desk(others=(OTHER,), intake_ahead=20).open() as desk:
        namespace(desk, "other")
        for n in range(40):
            await stuck(desk, f"stuck-{n}")
        for n in range(600):
            await desk.send(job(f"stuck-{n % 40}"), partition=n % 12)
        await desk.until(lambda: desk.intake.parked == 40)
        await desk.send(job("theirs"), topic=OTHER.topic)
        await heard(desk, lambda said: "theirs" in {s.id for s in said})
        assert desk.intake.in_hand <= 500, "the rest is on the topic"
        assert desk.intake.parked == 40


async def test_a_tenant_that_was_held_is_read_on_when_its_jobs_are_served() -> None:
    async with Desk(answers(creation, 503, times=10**6), others=(OTHER,), intake_ahead=20).open() as desk:
        for n in range(600):
            await desk.send(job(f"job-{n}"), partition=n % 12)
        await desk.until(lambda: desk.intake.parked >= 20)
        desk.kube.faults.clear()
        assert len(await desk.statuses(600)) == 600
        await desk.until(lambda: desk.committed() == 600)


async def test_what_is_parked_when_its_partition_goes_to_another_replica_is_parked_there_alone() -> None:
    """Read again by the new owner, it must neither be tried by both nor count twice among the events of its job."""
    async with Desk(answers(creation, 503, times=10**6)).open() as desk:
        for n in range(MOST_OF_A_JOB):
            await desk.send(job("same"), partition=1)
            await desk.send(job(f"job-{n}"), partition=n % 12)
        await desk.until(lambda: desk.intake.in_hand == 2 * MOST_OF_A_JOB)
        other, stop = desk.replica(), asyncio.Event()
        running = asyncio.create_task(other.run(stop))
        await desk.until(lambda: other.in_hand > MOST_OF_A_JOB)
        await desk.until(lambda: desk.intake.in_hand + other.in_hand == 2 * MOST_OF_A_JOB)
        desk.kube.faults.clear()
        said = await desk.statuses(2 * MOST_OF_A_JOB)
        assert {s.reason for s in said} == {"Accepted", "Duplicate"}
        await desk.until(lambda: desk.committed() == 2 * MOST_OF_A_JOB)
        assert len(await desk.statuses(0)) == 2 * MOST_OF_A_JOB
        stop.set()
        await running


async def test_large_events_are_counted_by_their_bytes() -> None:
    wide = {"image": "i", "env": {"A": "x" * 200_000}}
    async with Desk(answers(creation, 503, times=10**6), intake_bytes=1024 * 1024).open() as desk:
        for n in range(600):
            await desk.send({"id": f"wide-{n}", "roles": [{"template": wide}]}, partition=0)
            if n == 40:
                await desk.until(lambda: desk.intake._desks[JOBS.name].bytes > 1024 * 1024)
                held = desk.intake.in_hand
        await asyncio.sleep(0.3)
        assert desk.intake.in_hand == held
        desk.kube.faults.clear()


# --- keys, ids, headers ---------------------------------------------------------------------------------------------


def envelope(id: str = "e-1") -> list[tuple[str, bytes | None]]:
    said = {"ce_specversion": "1.0", "ce_type": EventType.JOB_SUBMIT, "ce_id": id, "ce_source": "s"}
    return [(name, value.encode()) for name, value in said.items()]


@pytest.mark.parametrize("key", [b"\xff" * 900_000, b"\x00" * 900_000, "\N{SNOWMAN}".encode() * 300_000])
async def test_an_event_under_a_key_of_a_megabyte_is_answered_and_the_service_lives(key: bytes) -> None:
    """As text the key is four times as long, and as JSON six times."""
    desk = Desk()
    events = JobEvents(desk.kube, desk.bus, desk.settings, SystemClock())
    await events.serve(read(JOBS.name, 0, 7, key, b"rubbish", envelope()))
    (status,) = await desk.statuses(1)
    (letter,) = desk.letters
    assert (letter.partition, letter.offset) == (0, 7)
    assert 0 < len(status.id) <= 1024
    assert max(len(r.value or b"") + len(r.key) for r in desk.said) < 16_000


def test_an_id_that_every_record_of_the_job_would_carry_is_bounded() -> None:
    assert read("t", 0, 0, b"k", b"{}", envelope("x" * MAX_ID_BYTES)).fault == ""
    assert "id of more than" in read("t", 0, 0, b"k", b"{}", envelope("x" * (MAX_ID_BYTES + 1))).fault
    whole = {"specversion": "1.0", "id": "x" * 9000, "source": "s", "type": "t", "data": {}}
    structured = [("content-type", b"application/cloudevents+json")]
    assert "id of more than" in read("t", 0, 0, b"k", ENCODE(whole), structured).fault
    whole |= {"id": "i", "extension": "y" * 100_000}
    assert "extension has more than" in read("t", 0, 0, b"k", ENCODE(whole), structured).fault


class Broken(MemoryBus):
    """Does not take what quotes the event."""

    async def publish(self, records: Sequence[Outgoing]) -> None:
        if any(b"rubbish" in (r.value or b"") or b"cnViYmlzaA" in (r.value or b"") for r in records):
            raise ValueError("a fault of ours")
        await super().publish(records)


async def test_what_cannot_be_said_in_the_events_own_words_is_said_without_them() -> None:
    desk = Desk()
    bus = Broken()
    events = JobEvents(desk.kube, bus, desk.settings, SystemClock())
    reader = bus.follow([STATUS.name, DEAD_LETTERS.name], from_start=True)
    await events.serve(Incoming(JOBS.name, 4, 9, "rubbish", b"rubbish", EventType.JOB_SUBMIT, "e"))
    said = {record.topic: record.value or b"" for record in await reader.batch()}
    letter = msgspec.json.decode(said[DEAD_LETTERS.name], type=DeadLetter)
    assert (letter.topic, letter.partition, letter.offset) == (JOBS.name, 4, 9)
    assert STATUS.name in said


# --- records too large for the bus ----------------------------------------------------------------------------------


WIDE = {f"team.example.com/label-{n}": "v" * 50 for n in range(60)}
RESTRICTED = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "m",
            "image": "i",
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}


def wide(replicas: int) -> dict[str, object]:
    template = {"metadata": {"labels": WIDE}, "spec": RESTRICTED}
    return {"id": "wide", "roles": [{"replicas": replicas, "template": template}]}


async def test_a_job_of_many_tasks_with_many_labels_is_told_of_in_records_that_the_topic_takes() -> None:
    async with Desk().open() as desk:
        await desk.send(wide(1000))
        (status,) = await desk.statuses(1)
        assert (status.reason, status.tasks) == ("Accepted", 1000)
        assert not desk.letters
        await desk.until(lambda: desk.committed() == 1)
    hints = [r for r in desk.said if r.topic == TASKS.name]
    assert len(hints) > 4
    assert max(len(r.value or b"") for r in hints) <= RECORD_BYTES
    told = [t.id for b in desk.of(TASKS.name, TasksBatch) for item in b.items for t in item.tasks]
    assert len(told) == len(set(told)) == 1000


async def test_a_job_too_wide_to_be_told_of_task_by_task_is_told_of_by_name() -> None:
    async with Desk().open() as desk:
        await desk.send(wide(10_000))
        assert (await desk.statuses(1))[0].reason == "Accepted"
    (hint,) = [item for batch in desk.of(TASKS.name, TasksBatch) for item in batch.items]
    assert isinstance(hint, JobChanged)
    assert (hint.head.declared, hint.tasks) == (10_000, ())


async def test_a_job_whose_hint_fails_is_accepted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its object exists: placement finds it in its slow pass, and a dead letter would be a lie."""

    def broken(*_: object) -> list[Outgoing]:
        raise ValueError("a fault of ours")

    monkeypatch.setattr("services.watcher.jobs.hint_records", broken)
    async with Desk().open() as desk:
        await desk.send(job())
        assert (await desk.statuses(1))[0].reason == "Accepted"
        assert not desk.letters


async def test_a_record_that_no_topic_takes_is_dropped_and_ends_nobody() -> None:
    bus = MemoryBus()
    await bus.publish(
        [Outgoing(TASKS.name, "k", b"x" * (MOST_BYTES + 1), "t", 0), Outgoing(TASKS.name, "k", b"y", "t", 0)]
    )
    assert [r.value for r in await bus.follow([TASKS.name], from_start=True).batch()] == [b"y"]
