"""Statuses of queues: what the next leader reads off them, whatever stands there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from libs.domain import keys
from libs.domain.queues import Eviction, QueueHistory
from services.watcher.decide import Picture
from services.watcher.standing import kept, statuses
from tests.unit.services.watcher.test_decide import node, pod, queue

ENCODE = msgspec.json.encode


def raw(status: Any) -> bytes:
    meta = {"name": "vision", "uid": "u", "generation": 4, "resourceVersion": "9"}
    return ENCODE({"metadata": meta, "spec": {}, "status": status})


def test_what_one_leader_writes_the_next_reads() -> None:
    now = 5000.0
    seen = Picture(1, {}, now=lambda: now, half_life_s=600)
    seen.node_event("ADDED", node("n1", 1))
    seen.queue_list([queue("vision", 2, namespaces=("team",))])
    seen.pods.event("ADDED", pod("p", 3, "n1"))
    reasons = {"w": (Eviction("gang/a/w", "pod/a/b", "priority", 3950, 2),)}
    past = QueueHistory("vision", 4000.0, 600, 7_000_000, 5, 6, {"w": (3900, 3950)}, reasons=reasons)
    seen.tally.begin({"vision": past})
    name, found = kept(queue("vision", 2))
    status = statuses(seen, {name: found}, seen.tally.history, now)["vision"]

    again = kept(raw(status))[1]
    assert again.history == msgspec.structs.replace(seen.tally.history("vision"), path="vision")
    assert again.history is not None and again.history.evictions == {"w": (3900, 3950)}
    assert again.history.reasons == reasons
    assert (again.uid, again.generation, again.consistent) == ("u", 4, "True")


def test_used_is_by_model_and_what_waits_is_told_in_tasks_jobs_and_devices() -> None:
    seen = Picture(1, {})
    labels = {keys.NODE_GPU_MODEL: "H100"}
    seen.node_event("ADDED", node("n1", 1, labels=labels))
    seen.queue_list([queue("org", 2), queue("vision", 3, "org", ("team",))])
    seen.pods.event("ADDED", pod("runs", 4, "n1"))
    for n in range(2):
        gang = {"annotations": {keys.JOB: "g", keys.GANG_MIN: "2"}}
        seen.pods.event("ADDED", pod(f"waits-{n}", 5 + n, meta=gang))
    seen.tally.begin({})
    found = dict([kept(queue("org", 2)), kept(queue("vision", 3, "org"))])
    for status in statuses(seen, found, seen.tally.history, 0.0).values():
        assert status["used"] == {"nvidia.com/gpu": "1", "cpu": "0", "memory": "0Mi", "nvidia.com/gpu:H100": "1"}
        assert status["pending"] == {"jobs": 1, "tasks": 2, "gpus": "2"}


@pytest.mark.parametrize(
    "status",
    [None, [], "x", {"history": 7}, {"history": {"at": "soon"}}, {"evictions": [{"times": [1]}]}, {"conditions": {}}],
)
def test_a_status_that_nobody_understands_has_kept_nothing(status: Any) -> None:
    name, found = kept(raw(status))
    assert (name, found.uid, found.history) == ("vision", "u", None)


def test_amounts_below_nothing_are_nothing() -> None:
    history = kept(raw({"history": {"at": -5.0, "gpuMilliSeconds": -1, "cpuMilliSeconds": 2}}))[1].history
    assert history == QueueHistory("vision", 0.0, 0, 0, 2, 0)
