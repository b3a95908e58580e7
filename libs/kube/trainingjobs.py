"""TrainingJobs (`trainingjobs.drystone.dev`): read, expanded into tasks, and what is written of them.

A task's pod has a name that is a function of (job, role, index, attempt), so that a second creation meets the first one
under the same name instead of making a twin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from libs.domain import keys
from libs.domain.jobs import Barred, JobHead, Phase, Task
from libs.domain.resources import WHOLE
from libs.domain.topology import Topology
from libs.domain.verdicts import Reason
from libs.kube.declared import Declared
from libs.kube.grouping import NOTHING_KNOWN, Known, not_open, resolve_queue
from libs.kube.near import KEYS as NEAR_KEYS
from libs.kube.near import NearSpec, PrecisionSpec, RoleNearSpec, annotations_of, topology_of
from libs.kube.nesting import decoded
from libs.kube.objects import Meta, template_decoder
from libs.kube.requests import asked, tolerations
from libs.kube.rules import rules_of
from libs.observe import trace
from libs.runtime.sized import kept_by_bytes

RESOURCE: Final = "trainingjobs"
KIND: Final = "TrainingJob"
_NAME_MOST: Final = 63
#: Bytes of pod templates of which is kept what was read of them.
TEMPLATES_KEPT: Final = 8 * 1024 * 1024
_encode = msgspec.json.encode


class Role(msgspec.Struct, frozen=True, rename="camel"):
    """`min` of None: all replicas are needed."""

    name: str
    replicas: int = 1
    min: int | None = None
    template: msgspec.Raw = msgspec.Raw(b"{}")
    topology: RoleNearSpec | None = None
    precision: PrecisionSpec | None = None


class TrainingJobSpec(msgspec.Struct, frozen=True, rename="camel"):
    """`priority` is a word of the label `priority` or a PriorityClass' name. `hash` is that of the submission."""

    roles: tuple[Role, ...] = ()
    id: str = ""
    tenant: str = ""
    hash: str = ""
    queue: str = ""
    priority: str = ""
    gang_min: int | None = None
    backoff_limit: int = 0
    ttl_seconds_after_finished: int | None = None
    preemptible: bool = True
    expected_seconds: int = 0
    checkpoint_seconds: int = 0
    topology: NearSpec | None = None
    precision: PrecisionSpec | None = None

    def wishes(self, role: Role) -> dict[str, str]:
        """What the job and the role say of topology and precision, as annotations of the role's pods."""
        if self.topology is None and self.precision is None and role.topology is None and role.precision is None:
            return {}
        return annotations_of(self.topology, role.topology, self.precision, role.precision)

    @property
    def declared(self) -> Declared:
        return Declared(self.preemptible, self.expected_seconds, self.checkpoint_seconds)


class TrainingJobStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Times are RFC 3339. `attempt` counts from 0."""

    phase: Phase = Phase.PENDING
    attempt: int = 0
    reason: str = ""
    message: str = ""
    bound: int = 0
    succeeded: int = 0
    failed: int = 0
    start_time: str | None = None
    completion_time: str | None = None


class TrainingJobView(msgspec.Struct, frozen=True):
    metadata: Meta
    spec: TrainingJobSpec = TrainingJobSpec()
    status: TrainingJobStatus = TrainingJobStatus()

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def version(self) -> str:
        return self.metadata.resource_version

    @property
    def key(self) -> str:
        return f"job/{self.metadata.namespace}/{self.metadata.name}"

    @property
    def deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def ended(self) -> bool:
        return self.status.phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.REJECTED)

    @property
    def replicas(self) -> int:
        return sum(max(r.replicas, 0) for r in self.spec.roles)

    @property
    def role_min(self) -> dict[str, int]:
        return {r.name: r.replicas if r.min is None else min(max(r.min, 0), r.replicas) for r in self.spec.roles}

    @property
    def gang_min(self) -> int:
        """How many tasks must hold together: as said, at least the sum of the roles' minima, at most all."""
        floor = sum(self.role_min.values())
        said = self.spec.gang_min if self.spec.gang_min is not None else floor
        return max(1, min(max(said, floor), self.replicas))

    def role(self, name: str) -> Role | None:
        return next((r for r in self.spec.roles if r.name == name), None)


class _Without(msgspec.Struct, frozen=True):
    metadata: Meta
    spec: TrainingJobSpec = TrainingJobSpec()


_decoder: Final = msgspec.json.Decoder(TrainingJobView)
_spec_decoder: Final = msgspec.json.Decoder(_Without)


def parse(raw: bytes) -> TrainingJobView:
    """Raises msgspec.MsgspecError where `raw` is no TrainingJob. A status that is none of ours is none at all."""
    try:
        return decoded(_decoder, raw)
    except msgspec.MsgspecError:
        bare = decoded(_spec_decoder, raw)
        return TrainingJobView(bare.metadata, bare.spec)


def path(namespace: str = "", name: str = "", subresource: str = "") -> str:
    parts = [f"/apis/{keys.API_VERSION}"]
    if namespace:
        parts.append(f"namespaces/{namespace}")
    parts.append(RESOURCE)
    parts.extend(p for p in (name, subresource) if p)
    return "/".join(parts)


def object_name(tenant: str, external_id: str) -> str:
    """The object's name for a job that another system named: the same for the same (tenant, id), different else."""
    digest = hashlib.blake2b(f"{len(tenant)}:{tenant}{external_id}".encode(), digest_size=10).hexdigest()
    readable = "".join(c if c.isascii() and c.isalnum() else "-" for c in external_id.lower())[:30].strip("-")
    return f"{readable}-{digest}" if readable and readable[0].isalpha() else f"job-{digest}"


def pod_name(job: str, role: str, index: int, attempt: int) -> str:
    """ "<job>-<role>-<index>-<attempt>"; shortened with a hash of the whole where it exceeds a DNS label."""
    full = f"{job}-{role}-{index}-{attempt}" if role else f"{job}-{index}-{attempt}"
    if len(full) <= _NAME_MOST:
        return full
    digest = hashlib.blake2b(full.encode(), digest_size=5).hexdigest()
    tail = f"-{digest}-{index}-{attempt}"
    return full[: _NAME_MOST - len(tail)].rstrip("-.") + tail


def task_id(uid: str, role: str, index: int, attempt: int) -> str:
    return f"{uid}/{role}/{index}/{attempt}"


def task_of(identity: str) -> tuple[str, str, int, int] | None:
    """(job uid, role, index, attempt) of a task id that `task_id` made; None for a pod's uid."""
    parts = identity.split("/")
    if len(parts) != 4 or not (parts[2].isdecimal() and parts[3].isdecimal()):
        return None
    return parts[0], parts[1], int(parts[2]), int(parts[3])


def head_of(view: TrainingJobView, attempt: int, known: Known = NOTHING_KNOWN) -> JobHead:
    word = view.spec.priority
    priority = keys.PRIORITY_WORDS.get(word)
    if priority is None:
        priority = known.priorities.get(word, 0)
    return JobHead(
        key=view.key,
        tenant=known.tenants.get(view.namespace, view.namespace),
        namespace=view.namespace,
        queue=resolve_queue(view.spec.queue, view.namespace, known),
        uid=view.uid,
        priority=priority,
        gang_min=view.gang_min,
        role_min=view.role_min if len(view.spec.roles) > 1 else {},
        declared=view.replicas,
        created=view.metadata.created,
        attempt=attempt,
        external_id=view.spec.id,
        preemptible=view.spec.preemptible,
        expected_s=view.spec.expected_seconds,
        checkpoint_s=view.spec.checkpoint_seconds,
        workload=f"{KIND}/{view.namespace}/{view.uid}",
        traceparent=trace.valid((view.metadata.annotations or {}).get(keys.TRACEPARENT, "")),
        barred=not_open(view.spec.queue, view.namespace, known) or _too_many(view, known),
    )


def _too_many(view: TrainingJobView, known: Known) -> Barred | None:
    if view.replicas <= known.most_tasks:
        return None
    return Barred(
        Reason.TOO_MANY_TASKS,
        f"the job has {view.replicas} tasks, at most {known.most_tasks} of one job are served",
        f"a job of fewer tasks, or DRYSTONE_JOB_TASKS raised up to {view.replicas}",
        never=True,
    )


def expand(view: TrainingJobView, attempt: int, known: Known = NOTHING_KNOWN) -> tuple[JobHead, list[Task]]:
    """All tasks of one attempt, as if none had been created yet. A template that cannot be read or served gives tasks
    with the reasons in `unsupported`. Of a job with too many only the first is given: it carries what the job is
    told."""
    tasks: list[Task] = []
    head = head_of(view, attempt, known)
    created = view.metadata.created
    for role in view.spec.roles:
        said = tuple(view.spec.wishes(role).items())
        shape, marks = _shape(bytes(role.template), view.namespace, _labels_of(view), said)
        replicas = role.replicas if head.barred is None else min(role.replicas, 1 - len(tasks))
        near = _nearness(marks, replicas) if marks else None
        tasks.extend(
            Task(
                id=task_id(view.uid, role.name, index, attempt),
                name=pod_name(view.name, role.name, index, attempt),
                namespace=view.namespace,
                role=role.name,
                index=index,
                request=shape.request,
                node_selector=shape.node_selector,
                tolerations=shape.tolerations,
                unsupported=shape.unsupported if near is None else (*shape.unsupported, *near[index][1]),
                created=created,
                create=True,
                labels=shape.labels,
                rules=shape.rules,
                topology=near[index][0] if near is not None else None,
            )
            for index in range(replicas)
        )
    return head, tasks


def gpu_milli(view: TrainingJobView) -> int:
    """Milli GPUs that all tasks together ask for; a device asked for in MiB counts as a whole one."""
    total = 0
    for role in view.spec.roles:
        said = tuple(view.spec.wishes(role).items())
        request = _shape(bytes(role.template), view.namespace, _labels_of(view), said)[0].request
        total += max(role.replicas, 0) * (request.gpu_milli or request.gpu.count * WHOLE)
    return total


def _labels_of(view: TrainingJobView) -> tuple[tuple[str, str], ...]:
    """Labels that every pod of the job gets beside its template's."""
    priority = view.spec.priority
    ours = ((keys.PRIORITY_LABEL, priority),) if priority in keys.PRIORITY_WORDS else ()
    return (*ours, (keys.JOB, view.name))


def _nearness(marks: Mapping[str, str], replicas: int) -> list[tuple[Topology | None, tuple[str, ...]]]:
    """What each replica is to be near to, with what cannot be read of it."""

    def one(index: int) -> tuple[Topology | None, tuple[str, ...]]:
        problems: list[str] = []
        return topology_of({}, marks, problems, index), tuple(problems)

    first = one(0)
    grouped = first[0] is not None and first[0].group
    return [one(index) for index in range(replicas)] if grouped else [first] * replicas


@kept_by_bytes(TEMPLATES_KEPT)
def _shape(
    template: bytes, namespace: str, ours: tuple[tuple[str, str], ...], said: tuple[tuple[str, str], ...] = ()
) -> tuple[Task, dict[str, str]]:
    """What pods of this template ask for, as a task without identity, and their annotations where those say what they
    are to be near to. `said` are annotations that stand before the template's."""
    try:
        read = decoded(template_decoder, template)
    except msgspec.MsgspecError as error:
        return Task(id="", name="", namespace="", unsupported=(f"pod template: {error}"[:200],)), {}
    annotations = {**(read.metadata.annotations or {}), **dict(said)}
    wish = asked(read.spec, annotations)
    job = dict(ours)
    labels = {**job, **(read.metadata.labels or {}), keys.JOB: job[keys.JOB]}
    problems = list(wish.unsupported)
    rules = rules_of(read.spec, namespace, labels, problems)
    shape = Task(
        id="",
        name="",
        namespace="",
        request=wish.request,
        node_selector=read.spec.node_selector or {},
        tolerations=tolerations(read.spec),
        unsupported=tuple(problems),
        labels=labels,
        rules=rules,
    )
    return shape, {} if NEAR_KEYS.isdisjoint(annotations) else annotations


def status_patch(uid: str, status: TrainingJobStatus) -> bytes:
    """Body of a JSON patch on /status that replaces the status of this very job. A merge patch would not do: the server
    drops metadata from status writes of custom resources, the uid included, and would write to a namesake."""
    fields = {said: value for said, name in _STATUS_FIELDS if (value := getattr(status, name)) is not None}
    return _encode(
        [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/status", "value": fields},
        ]
    )


_STATUS_FIELDS: Final[tuple[tuple[str, str], ...]] = tuple(
    (f.encode_name, f.name) for f in msgspec.structs.fields(TrainingJobStatus)
)


def when(seconds: float) -> str:
    """RFC 3339 of seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def manifest(
    namespace: str, name: str, spec: Mapping[str, Any], labels: Mapping[str, str], annotations: Mapping[str, str]
) -> bytes:
    """A TrainingJob object as it is created."""
    return _encode(
        {
            "apiVersion": keys.API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": dict(labels),
                "annotations": dict(annotations),
            },
            "spec": dict(spec),
        }
    )
