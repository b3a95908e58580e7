"""Whatever arrives on the job topic: every event ends as an object, a duplicate, a cancellation or a dead letter, by
its own id, and nothing is raised. Two generators: bytes of any kind, and jobs with something wrong in them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.bus.memory import MemoryBus
from libs.bus.port import Outgoing
from libs.contracts.events import DeadLetter, EventType, JobStatus
from libs.contracts.submission import parse_cancel, parse_submit
from libs.contracts.tenants import TenantPolicy
from libs.contracts.topics import DEAD_LETTERS, JOBS, STATUS
from libs.domain.jobs import Phase
from libs.kube import trainingjobs
from libs.kube.embedded import EmbeddedCluster
from libs.runtime.clock import SystemClock
from services.watcher.intake import Intake
from services.watcher.settings import WatcherSettings

GOOD_SPEC = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "main",
            "image": "i",
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}

odd = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20),
    st.sampled_from(["", "a", "../default", "\x00", "\ud800", 10**30, -1, [], {}, [[]], {"id": "x"}]),
)  # fmt: skip
nested = st.recursive(
    odd,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
templates = st.one_of(
    st.just({"image": "repo/train:1"}),
    st.just({"spec": GOOD_SPEC}),
    st.builds(lambda k, v: {"image": "i", k: v}, st.sampled_from(["image", "env", "resources", "args", "x"]), nested),
    st.builds(
        lambda k, v: {"spec": {**GOOD_SPEC, k: v}},
        st.sampled_from(
            ["hostNetwork", "containers", "initContainers", "volumes", "securityContext", "tolerations", "nodeSelector",
             "terminationGracePeriodSeconds", "priorityClassName", "schedulerName"]
        ),
        nested,
    ),
    st.builds(
        lambda k, v: {"spec": {**GOOD_SPEC, "containers": [{**GOOD_SPEC["containers"][0], k: v}]}},  # type: ignore[index]
        st.sampled_from(["securityContext", "resources", "ports", "lifecycle", "livenessProbe", "name"]),
        nested,
    ),
    nested,
)  # fmt: skip
#: Few ids, so that duplicates, reuse and cancellations of what is there happen often.
ids = st.sampled_from(["a", "b", "c", "d/e", "F" * 200, "G" * 201, "ü", 7, None])
roles = st.lists(
    st.builds(lambda t, more: {"template": t, **more}, templates,
              st.dictionaries(st.sampled_from(["name", "replicas", "min", "x"]), odd, max_size=1)),
    min_size=1, max_size=2,
)  # fmt: skip
jobs = st.one_of(
    st.builds(lambda id, template: {"id": id, "roles": [{"template": template}]}, ids, templates),
    st.builds(
        lambda id, roles, more: {"id": id, "roles": roles, **more}, ids, roles | nested,
        st.dictionaries(
            st.sampled_from(["namespace", "queue", "priority", "gangMin", "backoffLimit", "tenant", "id"]),
            odd,
            max_size=2,
        ),
    ),
)  # fmt: skip
payloads = st.one_of(
    jobs.map(lambda said: json.dumps(said).encode()),
    ids.map(lambda id: json.dumps({"id": id}).encode()),
    st.binary(max_size=64),
    st.sampled_from(
        [b"", b"null", b"[]", b'"a"', b"[" * 50_000, b'{"id":' * 5_000, b'{"id":"a","id":"b"}', b'{"id":NaN}']
    ),
)
events = st.tuples(
    payloads,
    st.sampled_from([EventType.JOB_SUBMIT] * 4 + [EventType.JOB_CANCEL, "", "dev.drystone.job.submit.v9"]),
    st.sampled_from(["", "k", "key-2"]),
    st.integers(0, JOBS.partitions - 1),
)


async def outcomes_of(sent: list[tuple[bytes, str, str, int]]) -> tuple[list[JobStatus], list[DeadLetter], int]:
    cluster, bus, stop = EmbeddedCluster(), MemoryBus(), asyncio.Event()
    intake = Intake(cluster, bus, WatcherSettings(longest_write_s=0), SystemClock())
    records = [
        Outgoing(JOBS.name, key, value or None, type, partition, id=f"event-{n}")
        for n, (value, type, key, partition) in enumerate(sent)
    ]
    await bus.publish(records)
    answers = bus.follow([STATUS.name, DEAD_LETTERS.name], from_start=True)
    running = asyncio.create_task(intake.run(stop))
    statuses: list[JobStatus] = []
    letters: list[DeadLetter] = []
    async with asyncio.timeout(10):
        while len(statuses) < len(sent):
            assert not running.done(), "the intake ended"
            for record in await answers.batch(1000, 0.05):
                if record.topic == STATUS.name:
                    statuses.append(msgspec.json.decode(record.value or b"", type=JobStatus))
                else:
                    letters.append(msgspec.json.decode(record.value or b"", type=DeadLetter))
        stop.set()
        await running
    # Dead letters come before their status, but on another topic.
    late = [record for record in await answers.batch(1000, 0.0) if record.topic == DEAD_LETTERS.name]
    letters += [msgspec.json.decode(record.value or b"", type=DeadLetter) for record in late]
    assert intake.in_hand == intake.parked == 0
    listed = msgspec.json.decode(cluster.call_now("GET", trainingjobs.path("default")).body)
    return statuses, letters, len(listed["items"])


@given(st.lists(events, min_size=1, max_size=25))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_event_is_answered_once_by_its_own_id(sent: list[tuple[bytes, str, str, int]]) -> None:
    statuses, letters, objects = asyncio.run(outcomes_of(sent))
    answered = Counter(status.cause for status in statuses)
    assert answered == Counter(f"event-{n}" for n in range(len(sent)))
    rejected = [status for status in statuses if status.phase is Phase.REJECTED]
    reasons = Counter(status.reason for status in statuses)
    told = reasons["Accepted"] + reasons["Duplicate"] + reasons["Cancelled"] + reasons["NothingToCancel"]
    assert told + len(letters) == len(sent)
    assert len(letters) == len(rejected)
    # What was accepted is there, unless it was cancelled.
    assert objects == reasons["Accepted"] - reasons["Cancelled"]


@given(st.binary(max_size=200) | payloads)
@settings(max_examples=300, deadline=None)
def test_no_bytes_make_the_parsers_raise(raw: bytes) -> None:
    parse_submit(raw, TenantPolicy())
    parse_submit(raw, TenantPolicy(pod_security="baseline"))
    parse_cancel(raw)


@given(templates)
@settings(max_examples=200, deadline=None)
def test_what_is_accepted_can_be_written_read_and_expanded(template: Any) -> None:
    raw = json.dumps({"id": "a", "roles": [{"template": template}]}).encode()
    taken = parse_submit(raw, TenantPolicy())
    if not hasattr(taken, "spec"):
        return
    cluster = EmbeddedCluster()
    body = trainingjobs.manifest("default", "a", taken.spec, {}, {})
    answer = cluster.call_now("POST", trainingjobs.path("default"), body)
    assert answer.ok, answer
    view = trainingjobs.parse(answer.body)
    assert view.spec.hash == taken.hash
    assert len(trainingjobs.expand(view, 0)[1]) == 1
