"""Pods read into one flat value: what they ask, where they are, what was granted to them.

`parse_pod` never raises for what users wrote into a pod; only for bytes that are no pod at all. A pod whose wishes
cannot be read or served carries the reasons in `unsupported`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from libs.domain import keys
from libs.domain.bounds import MOST_ASKED
from libs.domain.jobs import GATES, Task, Wishes
from libs.domain.nodes import Gpu, Toleration
from libs.domain.notices import noticed
from libs.domain.resources import WHOLE, Charge, GpuGrant, Request
from libs.domain.rules import Rules
from libs.domain.topology import Topology
from libs.kube.near import topology_of
from libs.kube.objects import OwnerReference, Pod, pod_decoder, present
from libs.kube.requests import asked, tolerations
from libs.kube.rules import rules_of

#: Controllers that make a pod again however often it goes.
_MAKES_AGAIN: Final = frozenset({"ReplicaSet", "StatefulSet", "ReplicationController"})
_ENDED = ("Succeeded", "Failed")
_MOST_INDEX = 1024


class PodView(msgspec.Struct, frozen=True):
    """`node` is empty while the pod is unbound. `priority` is what admission resolved (None where nothing did).
    `gang_min` is 0 where the pod does not say. `status_reason` is kubelet's, such as "OutOfcpu"."""

    uid: str
    name: str
    namespace: str
    version: str
    scheduler: str
    node: str
    phase: str
    terminating: bool
    request: Request
    node_selector: dict[str, str]
    tolerations: tuple[Toleration, ...]
    unsupported: tuple[str, ...]
    gated: bool
    priority: int | None
    priority_class: str
    priority_word: str
    preempts: bool
    labels: dict[str, str]
    annotations: dict[str, str]
    created: float
    gang_min: int
    claim: str
    role: str
    index: int
    attempt: int
    owners: tuple[OwnerReference, ...]
    status_reason: str
    started: float
    rules: Rules | None = None
    topology: Topology | None = None
    #: It was told to make room for another, or to leave its node: how it ends then says nothing about its program.
    disrupted: bool = False
    #: It was said of the pod that it goes for others that the scheduler places (PreemptionByScheduler).
    preempted: bool = False
    #: For whom, and by which rule; empty where it was not said.
    evicted_for: tuple[str, str] = ("", "")
    deleted: float = 0.0  # when its deletion was asked for, 0: it was not

    @property
    def ours(self) -> bool:
        return self.scheduler == keys.SCHEDULER_NAME

    @property
    def bound(self) -> bool:
        return bool(self.node)

    @property
    def ended(self) -> bool:
        return self.phase in _ENDED

    @property
    def pending(self) -> bool:
        """Waits for a node and may still get one."""
        return not self.node and not self.terminating and self.phase not in _ENDED

    @property
    def holds(self) -> bool:
        """Holds room on its node. Terminating pods hold theirs until they are gone or ended."""
        return bool(self.node) and self.phase not in _ENDED

    @property
    def task_id(self) -> str:
        """ "<job uid>/<role>/<index>/<attempt>" on a pod that was created for a TrainingJob, else the pod's uid."""
        owner = self.training_job
        if owner is None or keys.TASK not in self.annotations:
            return self.uid
        return f"{owner.uid}/{self.annotations[keys.TASK]}"

    @property
    def training_job(self) -> OwnerReference | None:
        """The TrainingJob that controls this pod, if one does."""
        for owner in self.owners:
            if owner.controller and owner.kind == "TrainingJob" and owner.api_version.startswith(keys.GROUP + "/"):
                return owner
        return None

    @property
    def wishes(self) -> Wishes | None:
        """What it asks of a node, where what controls it makes it again when it is evicted and counts that as no
        failure. A Job and its likes may give up after a few; of them only who says `preemptible: "true"` moves."""
        kinds = [owner.kind for owner in self.owners if owner.controller]
        if not kinds:
            return None
        if self.training_job is None and kinds[0] not in _MAKES_AGAIN:
            said = self.annotations.get(keys.PREEMPTIBLE, "").strip().lower()
            if said != "true":
                return None
        return Wishes(self.request, self.node_selector, self.tolerations, self.rules)

    def to_task(self) -> Task:
        return Task(
            id=self.uid,
            name=self.name,
            namespace=self.namespace,
            version=self.version,
            role=self.role,
            index=self.index,
            request=self.request,
            node_selector=self.node_selector,
            tolerations=self.tolerations,
            unsupported=(GATES, *self.unsupported) if self.gated else self.unsupported,
            created=self.created,
            labels=self.labels,
            rules=self.rules,
            topology=self.topology,
        )

    def charge(self, node_gpus: Sequence[Gpu] | None = None) -> Charge:
        """What the pod takes from its node. `node_gpus` are the node's devices where they are known: an index beyond
        them is not believed. A pod of ours is charged by what its annotations grant; one without a readable grant,
        and every foreign pod, by count (`blind`)."""
        request = self.request
        if not request.gpu.count:
            return Charge(cpu=request.cpu, mem=request.mem)
        if self.ours:
            grants = self._grants(node_gpus)
            if grants:
                return Charge(cpu=request.cpu, mem=request.mem, gpus=grants)
        elif not request.gpu.whole:
            # A share asked of another scheduler in our words: no device plugin hands out anything for it.
            return Charge(cpu=request.cpu, mem=request.mem)
        return Charge(cpu=request.cpu, mem=request.mem, blind=request.gpu.count)

    def _grants(self, node_gpus: Sequence[Gpu] | None) -> tuple[GpuGrant, ...]:
        """Grants from the annotations; empty where they are absent, cannot be read, or do not match the request."""
        indices = parse_indices(self.annotations.get(keys.GPUS, ""))
        if len(indices) != self.request.gpu.count:
            return ()
        sizes = {g.index: g.mib for g in node_gpus} if node_gpus else None
        if sizes is not None and not all(i in sizes for i in indices):
            return ()
        said_milli, said_mib = (
            _number(self.annotations.get(keys.GPU_MILLI)),
            _number(self.annotations.get(keys.GPU_MIB)),
        )
        grants = []
        for index in indices:
            milli, mib = self.request.gpu.grant(sizes[index] if sizes else 0)
            milli = said_milli if said_milli is not None else milli
            mib = said_mib if said_mib is not None else mib
            grants.append(GpuGrant(index, min(milli, WHOLE), min(mib, MOST_ASKED)))
        return tuple(grants)


def parse_pod(raw: bytes) -> PodView:
    """Raises msgspec.MsgspecError where `raw` is no pod."""
    return pod_of(pod_decoder.decode(raw))


def pod_of(pod: Pod) -> PodView:
    meta, spec, status = pod.metadata, pod.spec, pod.status
    labels, annotations = meta.labels or {}, meta.annotations or {}
    wish = asked(spec, annotations, status)
    problems = list(wish.unsupported)
    rules = rules_of(spec, meta.namespace, labels, problems, meta.name)
    role, index, attempt = parse_task(annotations.get(keys.TASK, ""))
    targets = (c for c in status.conditions or () if c.type == "DisruptionTarget" and c.status == "True")
    disruption = next(targets, None)
    topology = topology_of(labels, annotations, problems, index if role else None)
    unsupported = tuple(problems)
    gang_min = 0
    said_min = annotations.get(keys.GANG_MIN) or labels.get(keys.GANG_MIN)
    if said_min is not None:
        gang_min = _number(said_min) or 0
        if not 0 < gang_min <= 100_000:
            gang_min = 0
            unsupported = (*unsupported, f"{keys.GANG_MIN}: {said_min[:40]!r} is not a number of pods")
    return PodView(
        uid=meta.uid,
        name=meta.name,
        namespace=meta.namespace,
        version=meta.resource_version,
        scheduler=spec.scheduler_name or "default-scheduler",
        node=spec.node_name or "",
        phase=status.phase or "Pending",
        terminating=meta.deletion_timestamp is not None,
        request=wish.request,
        node_selector=spec.node_selector or {},
        tolerations=tolerations(spec),
        unsupported=unsupported,
        gated=present(spec.scheduling_gates),
        priority=spec.priority,
        priority_class=spec.priority_class_name or "",
        priority_word=labels.get(keys.PRIORITY_LABEL, ""),
        preempts=spec.preemption_policy != "Never",
        labels=labels,
        annotations=annotations,
        created=meta.created,
        gang_min=gang_min,
        claim=annotations.get(keys.CLAIM, ""),
        role=role,
        index=index,
        attempt=attempt,
        owners=meta.owner_references or (),
        status_reason=status.reason or "",
        started=status.start_time.timestamp() if status.start_time else meta.created,
        rules=rules,
        topology=topology,
        disrupted=disruption is not None,
        preempted=disruption is not None and disruption.reason == "PreemptionByScheduler",
        evicted_for=noticed(disruption.message or "") if disruption is not None else ("", ""),
        deleted=meta.deleted,
    )


def parse_indices(text: str) -> tuple[int, ...]:
    """ "0,3" -> (0, 3); empty where the text is anything else, duplicates included."""
    if not text:
        return ()
    found = []
    for part in text.split(","):
        number = _number(part)
        if number is None or number > _MOST_INDEX or number in found:
            return ()
        found.append(number)
    return tuple(found)


def parse_task(text: str) -> tuple[str, int, int]:
    """ "<role>/<index>/<attempt>" -> its parts; ("", 0, 0) where the text is anything else."""
    parts = text.split("/")
    if len(parts) != 3:
        return "", 0, 0
    index, attempt = _number(parts[1]), _number(parts[2])
    return (parts[0], index, attempt) if index is not None and attempt is not None else ("", 0, 0)


def _number(text: str | None) -> int | None:
    """A plain non-negative decimal number, else None."""
    return int(text) if text is not None and len(text) <= 10 and text.isascii() and text.isdecimal() else None
