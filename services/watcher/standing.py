"""Statuses of queues: what each uses, deserves and waits for, what is wrong with it, and what the next leader begins
from. Pure: the time is handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from libs.domain.jobs import Phase
from libs.domain.queues import Eviction, Left, Queue, QueueHistory, Quota, Served, Spending, ancestors
from libs.domain.resources import WHOLE
from libs.kube import trainingjobs
from libs.kube.grouping import Known, resolve_queue
from libs.kube.objects import ABSENT, queue_decoder
from libs.kube.queues import Placed, amounts, spelled
from libs.kube.trainingjobs import when
from services.watcher.decide import Picture

CONSISTENT: Final = "Consistent"


class _Spending(msgspec.Struct, rename="camel"):
    jobs: float = 0.0
    evictions: float = 0.0
    lost_gpu_milli_seconds: int = 0
    half_life_seconds: int = 0
    worked_gpu_milli_seconds: int = 0


class _Served(msgspec.Struct, rename="camel"):
    workload: str
    gpu_milli_seconds: int = 0
    run_seconds: int = 0
    at: int = 0


class _Left(msgspec.Struct, rename="camel"):
    at: float = 0.0
    evictions: float = 0.0
    gpu_milli_seconds: int = 0


class _History(msgspec.Struct, rename="camel"):
    at: float = 0.0
    half_life_seconds: int = 0
    gpu_milli_seconds: int = 0
    gpu_milli_seconds_by_model: dict[str, int] = {}
    cpu_milli_seconds: int = 0
    memory_mib_seconds: int = 0
    spending: _Spending = msgspec.field(default_factory=_Spending)
    left: _Left | None = None


class _Evicted(msgspec.Struct):
    workload: str
    times: tuple[int, ...] = ()
    pods: tuple[int, ...] = ()
    reasons: tuple[Eviction, ...] = ()


class _Condition(msgspec.Struct, rename="camel"):
    type: str = ""
    status: str = ""
    last_transition_time: str = ""


class _Status(msgspec.Struct):
    history: _History | None = None
    evictions: tuple[_Evicted, ...] = ()
    served: tuple[_Served, ...] = ()
    conditions: tuple[_Condition, ...] = ()


_status: Final = msgspec.json.Decoder(_Status)


@dataclass(slots=True)
class Kept:
    """What stands in a queue's status as it was first seen: `history` of its path-to-be; when it was last told to be
    consistent, or not, and since when."""

    uid: str
    generation: int
    history: QueueHistory | None = None
    consistent: str = ""
    since: str = ""


def kept(raw: bytes) -> tuple[str, Kept]:
    """(name, what was kept) of a raw Queue. A status that cannot be read has kept nothing."""
    seen = queue_decoder.decode(raw)
    meta = seen.metadata
    found = Kept(meta.uid, meta.generation)
    if seen.status != ABSENT:
        try:
            status = _status.decode(seen.status)
        except msgspec.MsgspecError:
            return meta.name, found
        past = status.history
        if past is not None:
            left = past.left
            if left is not None and left.at < past.at - 1:
                left = None  # of another release, which left it where it stood
            found.history = QueueHistory(
                path=meta.name,
                at=max(past.at, 0.0),
                half_life_s=max(past.half_life_seconds, 0),
                gpu_milli_s=max(past.gpu_milli_seconds, 0),
                cpu_milli_s=max(past.cpu_milli_seconds, 0),
                mem_mib_s=max(past.memory_mib_seconds, 0),
                evictions={one.workload: one.times for one in status.evictions if one.times},
                pods={one.workload: one.pods for one in status.evictions if len(one.pods) == len(one.times) > 0},
                reasons={one.workload: one.reasons for one in status.evictions if one.reasons},
                served={o.workload: Served(o.gpu_milli_seconds, o.run_seconds, o.at) for o in status.served},
                spending=Spending(
                    max(past.spending.jobs, 0.0),
                    max(past.spending.evictions, 0.0),
                    max(past.spending.lost_gpu_milli_seconds, 0),
                    max(past.spending.half_life_seconds, 0),
                    max(past.spending.worked_gpu_milli_seconds, 0),
                ),
                models={model: used for model, used in past.gpu_milli_seconds_by_model.items() if used > 0},
                left=Left(max(left.at, 0.0), left.evictions, left.gpu_milli_seconds) if left is not None else None,
            )
        for condition in status.conditions:
            if condition.type == CONSISTENT:
                found.consistent, found.since = condition.status, condition.last_transition_time
    return meta.name, found


@dataclass(slots=True)
class _Waiting:
    jobs: set[str] = field(default_factory=set)
    tasks: int = 0
    gpu: int = 0


def waiting(picture: Picture) -> dict[str, _Waiting]:
    """What waits for room as far as the leader knows: pods that are not bound, and tasks of job objects that have no
    pods yet. By path, below included."""
    found: dict[str, _Waiting] = {}

    def add(queue: str, job: str, tasks: int, gpu: int) -> None:
        for path in ancestors(queue):
            total = found.get(path)
            if total is None:
                total = found[path] = _Waiting()
            total.jobs.add(job)
            total.tasks += tasks
            total.gpu += gpu

    for pod in picture.pods.by_uid.values():
        if pod.head is not None and pod.view.pending:
            gpu = pod.view.request.gpu
            add(pod.head.queue, pod.head.key, 1, pod.view.request.gpu_milli or gpu.count * WHOLE)
    for view in picture.jobs.values():
        tasks = view.replicas - view.status.bound
        if not view.ended and view.status.phase in _WAITS and tasks > 0:
            milli = trainingjobs.gpu_milli(view) * tasks // view.replicas
            add(_queue_of(view, picture.known), view.key, tasks, milli)
    return found


_WAITS: Final = (Phase.PENDING, Phase.STARTING)


def _queue_of(view: trainingjobs.TrainingJobView, known: Known) -> str:
    return resolve_queue(view.spec.queue, view.namespace, known)


def statuses(
    picture: Picture, kept: Mapping[str, Kept], history: Callable[[str], QueueHistory], now: float
) -> dict[str, dict[str, Any]]:
    """The status of every queue object, by name."""
    waits, used = waiting(picture), picture.tally.used
    return {
        name: _one(place, kept[name], used(place.queue.path), waits.get(place.queue.path), history, now)
        for name, place in picture.catalog.placed.items()
        if name in kept
    }


def _one(
    place: Placed,
    kept: Kept,
    held: Quota,
    waits: _Waiting | None,
    history: Callable[[str], QueueHistory],
    now: float,
) -> dict[str, Any]:
    queue: Queue = place.queue
    waits = waits or _Waiting()
    past = history(queue.path)
    return {
        "observedGeneration": kept.generation,
        "path": queue.path,
        "used": amounts(held),
        "deserved": amounts(queue.deserved),
        "pending": {"jobs": len(waits.jobs), "tasks": waits.tasks, "gpus": spelled(waits.gpu)},
        "conditions": [_consistent(place, kept, now)],
        "history": {
            "at": past.at,
            "halfLifeSeconds": past.half_life_s,
            "gpuMilliSeconds": past.gpu_milli_s,
            "gpuMilliSecondsByModel": past.models,
            "cpuMilliSeconds": past.cpu_milli_s,
            "memoryMibSeconds": past.mem_mib_s,
            "spending": {
                "jobs": past.spending.jobs,
                "evictions": past.spending.evictions,
                "lostGpuMilliSeconds": past.spending.lost_milli_s,
                "halfLifeSeconds": past.spending.half_life_s,
                "workedGpuMilliSeconds": past.spending.worked_milli_s,
            },
            **_left(past.left),
        },
        "evictions": [_evicted(key, past) for key in past.evictions],
        "served": [
            {"workload": key, "gpuMilliSeconds": had.gpu_milli_s, "runSeconds": had.run_s, "at": had.at}
            for key, had in past.served.items()
        ],
    }


def _left(left: Left | None) -> dict[str, Any]:
    if left is None:
        return {}
    return {"left": {"at": left.at, "evictions": left.evictions, "gpuMilliSeconds": left.gpu_milli_s}}


def _evicted(workload: str, past: QueueHistory) -> dict[str, Any]:
    said: dict[str, Any] = {"workload": workload, "times": list(past.evictions[workload])}
    if pods := past.pods.get(workload):
        said["pods"] = list(pods)
    if reasons := past.reasons.get(workload):
        said["reasons"] = [{**msgspec.to_builtins(one), "pods": one.pods} for one in reasons]
    return said


def _consistent(place: Placed, kept: Kept, now: float) -> dict[str, Any]:
    status = "False" if place.problems else "True"
    if kept.consistent != status or not kept.since:
        kept.consistent, kept.since = status, when(now)
    return {
        "type": CONSISTENT,
        "status": status,
        "reason": place.problems[0][0] if place.problems else "AsDeclared",
        "message": "; ".join(message for _, message in place.problems)[:1024],
        "lastTransitionTime": kept.since,
        "observedGeneration": kept.generation,
    }


def steady(status: Mapping[str, Any]) -> dict[str, Any]:
    """What of a status is news by itself: the past only fades."""
    return {key: value for key, value in status.items() if key != "history"}
