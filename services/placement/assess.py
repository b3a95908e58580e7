"""What a TrainingJob object and its pods amount to: what is to be placed, what counts, what the status should say.

Pure. The object and its pods are the truth; a pod that was lost (evicted, deleted, refused by kubelet) is no failure of
its program: its task is placed again under a higher attempt number, beside those that still run.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from libs.domain.jobs import JobHead, Phase, Task
from libs.engine.recent import Recent
from libs.kube import trainingjobs
from libs.kube.grouping import NOTHING_KNOWN, Known
from libs.kube.pods import PodView
from libs.kube.trainingjobs import TrainingJobStatus, TrainingJobView
from services.placement.decide import ANOTHER_TEMPLATE, REFUSED_WORD


@dataclass(slots=True)
class Assessment:
    """What an object and its pods amount to. `status` is what the object should say. `tasks` are to be placed, all of
    attempt `head.attempt`; `held` are task ids that count (running or succeeded); `doomed` pods are to be deleted."""

    head: JobHead
    status: TrainingJobStatus
    tasks: list[Task] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    doomed: list[PodView] = field(default_factory=list)


def assess(
    view: TrainingJobView,
    pods: Collection[PodView],
    *,
    claimed: Collection[str],
    ended: Collection[str] | Recent,
    now: str,
    known: Known = NOTHING_KNOWN,
    refusal: str = "",
) -> Assessment:
    """Pure. `claimed` and `ended` are task ids: in the binder's hands, and never to be used again. `refusal`: why the
    API server will not have a pod of this attempt, where it said so."""
    base, status = view.status.attempt, view.status
    present = [p for p in pods if p.attempt >= base]
    latest: dict[tuple[str, int], PodView] = {}
    for pod in present:
        slot = (pod.role, pod.index)
        if slot not in latest or pod.attempt > latest[slot].attempt:
            latest[slot] = pod
    doomed = [p for p in pods if p.attempt < base and not p.ended and not p.terminating]
    top = max((p.attempt for p in present), default=base)
    failures = [p for p in latest.values() if p.phase == "Failed" and not lost(p)]
    succeeded = sum(1 for p in latest.values() if p.phase == "Succeeded")
    running = [p for p in latest.values() if p.holds]
    if view.ended:
        return Assessment(trainingjobs.head_of(view, base, known), status, doomed=_alive(pods))
    if failures or refusal:
        failed = status.failed + 1
        why = refusal
        if failures:
            first = min(failures, key=lambda p: p.name)
            why = f"pod {first.name} failed" + (f": {first.status_reason}" if first.status_reason else "")
        if failed > view.spec.backoff_limit:
            return Assessment(
                trainingjobs.head_of(view, base, known),
                msgspec.structs.replace(
                    status,
                    phase=Phase.FAILED,
                    reason="BackoffLimitExceeded" if failures else REFUSED_WORD,
                    message=f"{why}; attempt {failed} of {view.spec.backoff_limit + 1}"
                    + ("" if failures else f". would help: {ANOTHER_TEMPLATE}"),
                    bound=0,
                    succeeded=succeeded,
                    failed=failed,
                    completion_time=now,
                ),
                doomed=_alive(pods),
            )
        head, tasks = trainingjobs.expand(view, top + 1, known)
        return Assessment(
            head,
            msgspec.structs.replace(
                status,
                phase=Phase.PENDING,
                attempt=top + 1,
                reason="Restarting",
                message=f"{why}; attempt {failed + 1} of {view.spec.backoff_limit + 1} follows",
                bound=0,
                succeeded=0,
                failed=failed,
            ),
            tasks=tasks,
            doomed=_alive(pods),
        )
    if view.replicas and succeeded == view.replicas:
        return Assessment(
            trainingjobs.head_of(view, base, known),
            msgspec.structs.replace(
                status,
                phase=Phase.SUCCEEDED,
                reason="",
                message="",
                bound=0,
                succeeded=succeeded,
                completion_time=now,
            ),
        )
    held = {p.task_id for p in latest.values() if p.holds or p.phase == "Succeeded"}
    occupied = {slot for slot, p in latest.items() if p.task_id in held}
    for one in claimed:
        parts = trainingjobs.task_of(one)
        if parts is not None:
            occupied.add((parts[1], parts[2]))
    tasks, attempt = _missing(view, occupied, latest, base, ended, known)
    head = trainingjobs.head_of(view, attempt, known)
    phase = status.phase
    if len(running) + succeeded >= view.gang_min and (running or succeeded):
        phase = Phase.RUNNING
    return Assessment(
        head,
        msgspec.structs.replace(status, phase=phase, bound=len(running), succeeded=succeeded),
        tasks=tasks,
        held=held,
        doomed=doomed,
    )


def _missing(
    view: TrainingJobView,
    occupied: Collection[tuple[str, int]],
    latest: dict[tuple[str, int], PodView],
    base: int,
    ended: Collection[str] | Recent,
    known: Known,
) -> tuple[list[Task], int]:
    """Tasks of slots that nothing fills, all of one attempt number that none of them has used: a plan speaks of one
    attempt, and a task id that has ended is refused for ever."""
    if view.replicas > known.most_tasks:
        return trainingjobs.expand(view, base, known)[1], base
    slots = [(r.name, i) for r in view.spec.roles for i in range(r.replicas) if (r.name, i) not in occupied]
    if not slots:
        return [], base
    attempt = max([base, *(latest[s].attempt + 1 for s in slots if s in latest)])
    while any(trainingjobs.task_id(view.uid, role, index, attempt) in ended for role, index in slots):
        attempt += 1
    wanted = frozenset(slots)
    _, tasks = trainingjobs.expand(view, attempt, known)
    return [t for t in tasks if (t.role, t.index) in wanted], attempt


def lost(pod: PodView) -> bool:
    """Whether a Failed pod says nothing about its program: kubelet refused it, it made room for another, or it had to
    leave its node."""
    reason = pod.status_reason
    return (
        pod.disrupted
        or reason.startswith("OutOf")
        or reason
        in (
            "Evicted",
            "Preempting",
            "NodeAffinity",
            "NodeLost",
            "NodeShutdown",
            "Terminated",
            "UnexpectedAdmissionError",
            "AdmissionError",
        )
    )


def _alive(pods: Collection[PodView]) -> list[PodView]:
    return [p for p in pods if not p.ended and not p.terminating]
