"""Jobs put together from TrainingJob objects and pods: pure. A job is a TrainingJob with its pods, a gang, or a pod.

Bound tasks are counted on the pods, which are the truth; what is said about waiting comes from the job's status or its
pods' condition `PodScheduled`, where placement wrote it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from libs.domain import keys
from libs.domain.jobs import Phase
from libs.domain.verdicts import Reason
from libs.kube.grouping import job_key
from libs.kube.objects import Pod
from libs.kube.pods import PodView, pod_of
from libs.kube.trainingjobs import TrainingJobView

#: Up to where the job stands in line, which may follow.
_HELPS = re.compile(r"(?:;|\.) (?:would help|helps): (.*?)(?:\. (?:about )?\d+(?:st|nd|rd|th) of \d+ waiting in .*)?$")

_LINE = re.compile(
    r"(?:^|\. )(?P<text>(?:about )?(?P<position>\d+)(?:st|nd|rd|th) of (?P<waiting>\d+) waiting "
    r"in queue (?P<queue>[^\s,;]+)"
    r"(?: \((?:about )?(?P<overall>\d+)(?:st|nd|rd|th) of all\))?(?:, behind (?P<behind>[^\s;]+))?.*)$"
)
_START = re.compile(r"expected to start at (\S+?)(?:, between (\S+) and (\S+))? \(([^)]*)\)")
_BOUND = re.compile(r"waits at most (\d+) s more while its queue stays within its part \(([^)]*)\)")
#: The last sentence: for whom what went on as this job was evicted.
_EVICTED = re.compile(r"(?:^|\. )It was evicted for (?P<beneficiary>\S+) by rule (?P<rule>\w+) at (?P<at>\S+)$")


def evicted_of(message: str) -> tuple[str, dict[str, str] | None]:
    """(the message without it, for whom the job was evicted, by which rule and when)."""
    said = _EVICTED.search(message)
    return (message[: said.start()], said.groupdict()) if said is not None else (message, None)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job that waits stands in line, as placement said it: `text` is the whole sentence. Positions beyond ten
    are rounded. `overall` 0, `start` empty, `bound_s` 0: nothing was said."""

    text: str
    queue: str
    position: int
    waiting: int
    overall: int = 0
    behind: str = ""
    start: str = ""
    start_low: str = ""
    start_high: str = ""
    basis: str = ""
    bound_s: int = 0


def place_of(message: str) -> Place | None:
    """The part of a pod condition's or job status' message that tells the place in line; None where none is told."""
    said = _LINE.search(evicted_of(message)[0])
    if said is None:
        return None
    start, bound = _START.search(said["text"]), _BOUND.search(said["text"])
    return Place(
        text=said["text"],
        queue=said["queue"],
        position=int(said["position"]),
        waiting=int(said["waiting"]),
        overall=int(said["overall"] or 0),
        behind=said["behind"] or "",
        start=start[1] if start else "",
        start_low=(start[2] or "") if start else "",
        start_high=(start[3] or "") if start else "",
        basis=start[4] if start else "",
        bound_s=int(bound[1]) if bound else 0,
    )


@dataclass(frozen=True, slots=True)
class Placed:
    """One task on its node; `gpus` are the indices it was given."""

    name: str
    node: str
    gpus: str
    phase: str


@dataclass(slots=True)
class Group:
    """`kind` is job, gang, podgroup or pod; `id` what the submitter called it, if anything."""

    kind: str
    namespace: str
    name: str
    id: str = ""
    phase: str = ""
    total: int = 0
    bound: int = 0
    reason: str = ""
    message: str = ""
    placed: list[Placed] = field(default_factory=list)
    members: set[str] = field(default_factory=set)

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def waits(self) -> bool:
        return self.phase in (Phase.PENDING, Phase.STARTING) and self.bound < self.total

    def row(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "id": self.id,
            "phase": self.phase,
            "bound": self.bound,
            "tasks": self.total,
            "reason": self.reason,
            "message": self.message,
        }

    def record(self) -> dict[str, Any]:
        """The row with the verdict's parts and where each bound task is."""
        message, evicted = evicted_of(self.message)
        helps = _HELPS.search(message)
        place = place_of(message)
        return {
            **self.row(),
            "nodes": counted(self.message),
            "helps": helps.group(1) if helps else "",
            "line": asdict(place) if place is not None else None,
            "evicted": evicted,
            "placed": [{"name": p.name, "node": p.node, "gpus": p.gpus, "phase": p.phase} for p in self.placed],
        }


def counted(message: str) -> dict[str, int]:
    """Nodes per reason, as the sentence of a verdict counts them."""
    found = {}
    for reason in Reason:
        said = re.search(rf"(?<![\d/])(\d+) {re.escape(reason.value)}(?![^,;.])", message)
        if said:
            found[reason.value] = int(said.group(1))
    return found


def groups_of(jobs: Iterable[TrainingJobView], pods: Iterable[Pod]) -> list[Group]:
    """Everything that is Drystone's, by namespace and name. `pods` were listed before `jobs`."""
    members: defaultdict[str, list[tuple[PodView, Pod]]] = defaultdict(list)
    for pod in pods:
        view = pod_of(pod)
        if view.ours:
            members[job_key(view)].append((view, pod))
    groups = [_job(job, members.pop(job.key, [])) for job in jobs]
    groups.extend(_pods(key, found) for key, found in members.items())
    return sorted(groups, key=lambda g: (g.namespace, g.name, g.kind))


def find(groups: Collection[Group], namespace: str, name: str) -> Group | None:
    """By the job's or gang's name, by the id it was submitted with, by the name of one of its pods: in this order."""
    here = [g for g in groups if g.namespace == namespace]
    for fits in (lambda g: g.name == name, lambda g: g.id == name, lambda g: name in g.members):
        found = next(filter(fits, here), None)
        if found is not None:
            return found
    return None


def _job(job: TrainingJobView, pods: Sequence[tuple[PodView, Pod]]) -> Group:
    mine = [view for view, _ in pods if view.training_job is not None and view.training_job.uid == job.uid]
    bound = [view for view in mine if view.holds]
    phase = job.status.phase
    if phase is Phase.PENDING and bound:
        phase = Phase.RUNNING if len(bound) >= job.gang_min else Phase.STARTING
    said = phase in (Phase.PENDING, Phase.STARTING) or job.ended
    if job.deleting and not job.ended:
        phase, said, status = Phase.CANCELLED, True, _leaving(mine)
    else:
        status = (job.status.reason, job.status.message)
    return Group(
        kind="job",
        namespace=job.namespace,
        name=job.name,
        id=job.spec.id,
        phase=phase,
        total=job.replicas,
        bound=len(bound),
        reason=status[0] if said else "",
        message=status[1] if said else "",
        placed=_placed(mine),
        members={view.name for view in mine},
    )


def _leaving(pods: Sequence[PodView]) -> tuple[str, str]:
    """Reason and message of a job that is deleted and whose pods follow it."""
    return "Deleting", f"{len(pods)} of its pods are not gone yet" if pods else ""


def _pods(key: str, pods: Sequence[tuple[PodView, Pod]]) -> Group:
    kind, namespace, name = key.split("/", 2)
    views = [view for view, _ in pods]
    bound = [view for view in views if view.holds]
    needed = max(1, *(view.gang_min for view in views))
    group = Group(
        kind=kind,
        namespace=namespace,
        name=name,
        phase=_phase(views, len(bound), needed),
        total=max(len(views), needed),
        bound=len(bound),
        placed=_placed(views),
        members={view.name for view in views},
    )
    if kind == "job":
        group.phase, (group.reason, group.message) = Phase.CANCELLED, _leaving(views)
        return group
    waiting = sorted((p for p in pods if p[0].pending), key=lambda p: p[0].name)
    for _, pod in waiting:
        for condition in pod.status.conditions or ():
            if condition.type == "PodScheduled" and condition.status == "False" and condition.reason:
                group.reason, group.message = condition.reason, condition.message or ""
                return group
    return group


def _phase(pods: Sequence[PodView], bound: int, needed: int) -> str:
    if any(p.pending for p in pods):
        return Phase.RUNNING if bound >= needed else Phase.STARTING if bound else Phase.PENDING
    if bound:
        return Phase.RUNNING
    return Phase.FAILED if any(p.phase == "Failed" for p in pods) else Phase.SUCCEEDED


def _placed(pods: Iterable[PodView]) -> list[Placed]:
    rows = [Placed(p.name, p.node, p.annotations.get(keys.GPUS, ""), p.phase) for p in pods if p.node]
    return sorted(rows, key=lambda row: row.name)
