"""Small rules of the intake: what stays in order, which refusals are final, who a topic belongs to."""

from __future__ import annotations

import msgspec
import pytest

from libs.bus.port import Incoming
from libs.contracts.events import EventType, PriorityClassFact, QueueFact
from libs.domain.queues import Queue
from libs.kube.port import Answer
from services.watcher.intake import lane_of
from services.watcher.jobs import permanent
from services.watcher.knowledge import Knowledge
from services.watcher.settings import WatcherSettings

ENCODE = msgspec.json.encode


def record(value: bytes, key: str = "", id: str = "event-1") -> Incoming:
    return Incoming("drystone.jobs", 0, 0, key, value, EventType.JOB_SUBMIT, id)


def test_events_of_one_job_share_a_lane_whatever_their_record_keys() -> None:
    assert lane_of(record(b'{"id": "a", "roles": []}', "k1")) == lane_of(record(b'{"id": "a"}', "k2"))
    assert lane_of(record(b'{"id": "a"}', "k")) != lane_of(record(b'{"id": "b"}', "k"))


def test_events_that_name_no_job_are_told_apart_by_key_or_by_their_own_id() -> None:
    assert lane_of(record(b"\xff", "k")) == lane_of(record(b"[]", "k"))
    assert lane_of(record(b"\xff", "", "event-1")) != lane_of(record(b"\xff", "", "event-2"))


def status(code: int, reason: str, message: str) -> Answer:
    return Answer(code, ENCODE({"kind": "Status", "reason": reason, "message": message, "code": code}))


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        (Answer(404, b"404 page not found\n"), False),
        (status(404, "NotFound", "the server could not find the requested resource"), False),
        (status(404, "NotFound", 'namespaces "x" not found'), True),
        (status(403, "Forbidden", 'User "w" cannot create resource "trainingjobs" in API group "drystone.dev"'), False),
        (status(403, "Forbidden", "exceeded quota: jobs, requested: 1, used: 5, limited: 5"), True),
        (status(403, "Forbidden", "status unknown for quota: jobs, resources: count/trainingjobs.drystone.dev"), False),
        (status(422, "Invalid", "spec.roles: Required value"), True),
        (status(429, "TooManyRequests", "later"), False),
        (status(500, "InternalError", "etcd"), False),
        (Answer(0, b"", unsure=True), False),
    ],
)
def test_only_what_waiting_cannot_cure_is_final(answer: Answer, final: bool) -> None:
    assert permanent(answer) is final


@pytest.mark.parametrize("second", [{"topic": "t"}, {"namespaces": ("default",)}, {"name": "default"}])
def test_two_tenants_must_not_share_a_topic_a_namespace_or_a_name(second: dict[str, object]) -> None:
    other = {"name": "b", "topic": "u", "namespaces": ("b",), **second}
    with pytest.raises(ValueError, match="belongs to two tenants"):
        WatcherSettings.model_validate({"tenants": [{"topic": "t"}, other]})


def fact(key: str, said: object, offset: int = 0) -> Incoming:
    return Incoming("drystone.cluster", 0, offset, key, ENCODE(said), EventType.CLUSTER)


def test_a_deposed_leaders_last_word_does_not_undo_what_the_new_one_said() -> None:
    knowledge = Knowledge({})
    new = Queue("org/new", namespaces=("team",), version="9")
    knowledge.take(
        [fact("queue/org/new", QueueFact(new, 3)), fact("priorityclass/p", PriorityClassFact("p", 5, "9", term=3))]
    )
    old = Queue("org/new", namespaces=("stale",), version="4")
    knowledge.take(
        [fact("queue/org/new", QueueFact(old, 2)), fact("priorityclass/p", PriorityClassFact("p", 1, "4", term=2))]
    )
    assert knowledge.known.namespace_queues == {"team": "org/new"}
    assert knowledge.known.priorities == {"p": 5}
    assert knowledge.seen == "9"
    knowledge.take([Incoming("drystone.cluster", 0, 9, "queue/org/new", None, EventType.CLUSTER)])
    assert not knowledge.known.queue_paths
