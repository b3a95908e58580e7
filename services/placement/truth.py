"""One consistent look at the API server: what waits, which job objects there are, and their pods.

The truth that hints only hurry along. A pod that names a PodGroup whose minimum cannot be learned bars its job: a gang
is never begun as a single.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import msgspec
import structlog

from libs.contracts.events import JobChanged
from libs.domain import keys
from libs.domain.jobs import JobHead, Task, opens, partition_of
from libs.kube import trainingjobs, writes
from libs.kube.errors import ReadFailed
from libs.kube.grouping import POD_GROUPS, Known, job_key, job_of, pod_group_of
from libs.kube.objects import bare_decoder, pod_group_decoder
from libs.kube.pods import PodView, parse_pod
from libs.kube.port import Kube
from libs.kube.trainingjobs import TrainingJobView
from services.placement.guard import FAULTS
from services.placement.jobs import Job

log = structlog.get_logger()

T = TypeVar("T")
Rest = Callable[[float], Awaitable[object]]

_PENDING: Final = f"spec.schedulerName={keys.SCHEDULER_NAME},spec.nodeName="
_DONE: Final = f"spec.schedulerName={keys.SCHEDULER_NAME},status.phase=Succeeded"
#: Objects that are read at a stretch; then others have the loop.
_STRETCH: Final = 50


@dataclass(slots=True)
class Truth:
    """Unbound pods of ours by job, job objects, pods of job objects by owner uid. `done`: of gangs whose unbound pods
    are fewer than their minimum, the members that ended well. `stamp` is `Pending.stamp` as the list began."""

    jobs: dict[str, JobChanged] = field(default_factory=dict)
    objects: dict[str, TrainingJobView] = field(default_factory=dict)
    owned: dict[str, list[PodView]] = field(default_factory=dict)
    done: dict[str, set[str]] = field(default_factory=dict)
    stamp: int = 0


async def read_truth(
    kube: Kube, known: Known, partitions: frozenset[int], count: int, jobs: Mapping[str, Job], rest: Rest | None = None
) -> Truth:
    """What of `partitions` (of `count`) there is. `jobs` are those known already: their heads were resolved, and of
    their pods only those are read whose version is a new one. `rest`: nobody waits for it (`writes.list_all`)."""
    truth = Truth()
    if not partitions:
        return truth
    waiting: list[PodView] = []
    listed_now = (await writes.list_all(kube, writes.pods_path(), field_selector=_PENDING, rest=rest)).items
    known_tasks = {
        task.id: (job.head.key, task)
        for job in jobs.values()
        if job.partition in partitions and job.head.barred is None  # what bars it may have gone
        for task in job.tasks.values()
    }
    unchanged: dict[str, list[Task]] = {}
    for number, raw in enumerate(listed_now):
        if number % _STRETCH == _STRETCH - 1:
            await asyncio.sleep(0)  # a long list must not hold up binds
        meta = bare_decoder.decode(raw).metadata
        key, task = known_tasks.get(meta.uid, ("", None))
        if task is not None and task.version == meta.resource_version and not meta.deleted:
            unchanged.setdefault(key, []).append(task)
            continue
        fresh = read_each(parse_pod, (raw,))
        waiting += [
            p for p in fresh if p.pending and p.ours and partition_of(job_of(p, known).key, count) in partitions
        ]
    if any(pod_group_of(pod) for pod in waiting):
        known = await _with_pod_groups(kube, known)
    pods: dict[str, list[PodView]] = {}
    heads: dict[str, JobHead] = {}
    for pod in waiting:
        head = job_of(pod, known)
        pods.setdefault(head.key, []).append(pod)
        older = heads.get(head.key)
        heads[head.key] = head if older is None else _joined(older, head)
    for number, key in enumerate({**unchanged, **pods}):
        if number % _STRETCH == _STRETCH - 1:
            await asyncio.sleep(0)
        job, known_head = jobs.get(key), heads.get(key)
        if job is not None and (known_head is None or (job.tasks and _stands(job.head, known_head))):
            known_head = job.head  # resolved by the watcher, which may know more
        if known_head is not None:  # else it went meanwhile
            tasks = (pod.to_task() for pod in pods.get(key, ()))
            truth.jobs[key] = JobChanged(head=known_head, tasks=(*unchanged.get(key, ()), *tasks))
    short = {key: job.head for key, job in truth.jobs.items() if len(job.tasks) < job.head.gang_min}
    for namespace in sorted({head.namespace for head in short.values()}):
        keys_there = [key for key, head in short.items() if head.namespace == namespace]
        truth.done |= await read_done(kube, namespace, keys_there)
    for view in read_each(trainingjobs.parse, await _all(kube, writes.TRAINING_JOBS)):
        if partition_of(view.key, count) in partitions:
            truth.objects[view.key] = view
    if any(not view.ended for view in truth.objects.values()):
        listed_now = (await writes.list_all(kube, writes.pods_path(), label_selector=keys.JOB, rest=rest)).items
        for pod in read_each(parse_pod, listed_now):
            owner = pod.training_job
            if owner is not None:
                truth.owned.setdefault(owner.uid, []).append(pod)
    return truth


async def read_done(kube: Kube, namespace: str, jobs: Collection[str]) -> dict[str, set[str]]:
    """Tasks of these gangs whose pods ended well and are still there. A gang of which some were bound late, or whose
    members were lost and made anew, is as whole by these as by those that run."""
    done: dict[str, set[str]] = {key: set() for key in jobs}
    done_pods = await writes.list_all(kube, writes.pods_path(namespace), field_selector=_DONE)
    for pod in read_each(parse_pod, done_pods.items):
        if (key := job_key(pod)) in done:
            done[key].add(pod.task_id)
    return done


def read_each(parse: Callable[[bytes], T], raws: Iterable[bytes]) -> Iterator[T]:
    """What can be read of these. One object that cannot be is counted, and hides no other."""
    for raw in raws:
        try:
            found = parse(raw)
        except Exception as error:
            FAULTS.seen("object", _name_of(raw), error)
            continue
        yield found


def _name_of(raw: bytes) -> str:
    try:
        meta = bare_decoder.decode(raw).metadata
    except (msgspec.MsgspecError, RecursionError):
        return "?"
    return f"{meta.namespace}/{meta.name}"


async def _with_pod_groups(kube: Kube, known: Known) -> Known:
    least: dict[tuple[str, str], int] = {}
    words: dict[tuple[str, str], Mapping[str, str]] = {}
    for path in POD_GROUPS.values():
        for group in read_each(pod_group_decoder.decode, await _all(kube, path, unless=(404, 403))):
            place = group.metadata.namespace, group.metadata.name
            least[place] = max(least.get(place, 1), group.spec.min_member or 1)
            words[place] = words.get(place) or group.metadata.annotations or {}
    return replace(
        known,
        pod_group_min=lambda namespace, name: least.get((namespace, name)),
        pod_group_annotations=lambda namespace, name: words.get((namespace, name), {}),
    )


async def _all(kube: Kube, path: str, unless: tuple[int, ...] = (404,)) -> tuple[bytes, ...]:
    """Everything under the path; nothing where the resource is not installed."""
    try:
        return tuple((await writes.list_all(kube, path)).items)
    except ReadFailed as failed:
        if failed.answer.status not in unless:
            raise
        if failed.answer.status == 403:
            log.warning("not allowed to list, left to the watcher's hints", path=path)
        return ()


def _stands(known: JobHead, listed: JobHead) -> bool:
    """Whether the head that is known is as good as the one by the list, or better."""
    return known.uid == listed.uid and (known.barred is None or listed.barred is not None)


def _joined(one: JobHead, other: JobHead) -> JobHead:
    """Heads of two pods of one gang: the older age, the greater minimum."""
    return msgspec.structs.replace(
        one,
        created=min(one.created, other.created),
        gang_min=max(one.gang_min, other.gang_min),
        declared=max(one.declared, other.declared),
        barred=one.barred if not opens(one, other) else other.barred,
    )
