"""Job submissions: what other systems and users may say, checked at the edge, made into a TrainingJob's spec.

Refusals are values with a path and a sentence. The tenant comes from where the submission arrived, never from what it
says. The hash covers what the job is, so that the same id with the same content is the same job.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from libs.contracts.podsecurity import insecure, insecure_annotations
from libs.contracts.topics import ALL, JOBS
from libs.domain import keys

MOST_BYTES: Final = 512 * 1024
MOST_DEPTH: Final = 32
_NAME: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_RESERVED: Final = frozenset({keys.GPUS, keys.GPU_MIB, keys.GPU_MILLI, keys.CLAIM, keys.JOB_KEY, keys.TASK})
#: What would put a pod into a job or a queue by itself, past what the job says and the tenant may.
_OF_THE_JOB: Final = frozenset(
    {keys.JOB, keys.GANG_MIN, keys.QUEUE, *keys.POD_GROUP_LABELS, *keys.QUEUE_LABELS}
    | {keys.PREEMPTIBLE, keys.EXPECTED, keys.CHECKPOINT}
)
_Seconds = Annotated[int, Field(ge=1, le=10**8, strict=True)]
_OF_TEMPLATES: Final = frozenset({"labels", "annotations", "creationTimestamp"})
#: Where nobody's jobs go: their pods could read what the services know.
_SYSTEM: Final = frozenset({keys.SYSTEM_NAMESPACE, "kube-system", "kube-public", "kube-node-lease"})
_INTERNAL: Final = frozenset(topic.name for topic in ALL if topic is not JOBS)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class TenantPolicy(_Model):
    """What a tenant may do. `topic` is where its job events arrive; the first namespace is the default."""

    #: In labels, metrics and status events; part of the names of its job objects.
    name: Annotated[str, Field(pattern=_NAME)] = "default"
    #: Where its job events arrive; nobody else's. Who may write there is said by Kafka's access list.
    topic: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")] = JOBS.name
    #: Its jobs go nowhere else; the first is where they go that name none.
    namespaces: Annotated[tuple[Annotated[str, Field(pattern=_NAME)], ...], Field(min_length=1)] = ("default",)
    #: Queues must be this one or below it; empty allows all.
    queue: str = ""
    #: Tasks of one job.
    max_tasks: Annotated[int, Field(ge=1)] = 10_000
    #: Unfinished jobs at a time; more are refused with a status. None: as many as come.
    max_pending_jobs: Annotated[int, Field(ge=1)] | None = None
    #: The Pod Security Standard that its pod templates are held to.
    pod_security: Literal["restricted", "baseline"] = "restricted"

    @model_validator(mode="after")
    def _not_ours(self) -> TenantPolicy:
        if self.topic in _INTERNAL:
            raise ValueError(f"the topic {self.topic} is between Drystone's services")
        system = _SYSTEM & set(self.namespaces)
        if system:
            raise ValueError(f"the namespace {min(system)} is the system's")
        return self


def foreign_queues(tenant: TenantPolicy, tenants: Iterable[TenantPolicy]) -> tuple[str, ...]:
    """Queues that other tenants have for their own: not the tenant's, and none that its own lies below."""
    others = {other.queue for other in tenants if other.queue and other.name != tenant.name}
    return tuple(sorted(queue for queue in others if not tenant.queue or not within(tenant.queue, queue)))


def within(queue: str, parent: str) -> bool:
    """Whether a queue is this one or below it."""
    return queue == parent or queue.startswith(parent + "/")


class GpuMemory(_Model):
    memory: Annotated[str, Field(pattern=r"^[0-9]{1,9}(Mi|Gi)?$")]


class ShortResources(_Model):
    cpu: Annotated[str, Field(pattern=r"^[0-9]{1,6}(\.[0-9]{1,3})?m?$")] = "1"
    memory: Annotated[str, Field(pattern=r"^[0-9]{1,12}(Ki|Mi|Gi|Ti|k|M|G|T)?$")] = "1Gi"
    gpu: (
        Annotated[int, Field(ge=0, le=1024, strict=True)]
        | Annotated[str, Field(pattern=r"^0?\.[0-9]{1,3}$")]
        | GpuMemory
    ) = 0
    models: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=16)] = ()


class ShortTemplate(_Model):
    """One container, said briefly."""

    image: Annotated[str, Field(min_length=1, max_length=512)]
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    resources: ShortResources = ShortResources()


_Level = Annotated[
    str, Field(max_length=317, pattern=r"^([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
]


class SubmitNear(_Model):
    """Levels by name (zone, rack, nvlink, host) or by the key of a node label. `required`: all in one domain of that
    level; `preferred`: in one if one takes all, else in as narrow and as few ones as can be."""

    required: _Level | None = None
    preferred: _Level | None = None


class SubmitGroups(SubmitNear):
    """The same for each `size` replicas of consecutive index."""

    size: Annotated[int, Field(ge=1, le=100_000, strict=True)]


class SubmitRoleNear(SubmitNear):
    groups: SubmitGroups | None = None


class SubmitPrecision(_Model):
    """What is computed in. `required`: only on GPUs that are not known to lack it."""

    kind: Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "mixed"]
    required: Annotated[bool, Field(strict=True)] = False


class SubmitRole(_Model):
    name: Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,30}[a-z0-9])?$")] = "worker"
    replicas: Annotated[int, Field(ge=1, le=100_000, strict=True)] = 1
    min: Annotated[int, Field(ge=0, le=100_000, strict=True)] | None = None
    template: dict[str, Any]
    #: Of this role, within what the job says.
    topology: SubmitRoleNear | None = None
    #: Instead of the job's.
    precision: SubmitPrecision | None = None

    @model_validator(mode="after")
    def _min(self) -> SubmitRole:
        if self.min is not None and self.min > self.replicas:
            raise ValueError("min exceeds replicas")
        return self


class SubmitJob(_Model):
    """`dev.drystone.job.submit.v1`."""

    id: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]
    namespace: Annotated[str, Field(pattern=_NAME)] | None = None
    queue: Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9/]*[a-z0-9])?$")] | None = None
    priority: Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")] = "normal"
    gangMin: Annotated[int, Field(ge=1, le=100_000, strict=True)] | None = None
    backoffLimit: Annotated[int, Field(ge=0, le=100, strict=True)] = 0
    ttlSecondsAfterFinished: Annotated[int, Field(ge=0, le=10**8, strict=True)] | None = None
    #: False: its tasks are evicted for nobody.
    preemptible: Annotated[bool, Field(strict=True)] = True
    #: How long a task will run, and how often it saves what it has done.
    expectedSeconds: _Seconds | None = None
    checkpointSeconds: _Seconds | None = None
    #: Of all tasks together.
    topology: SubmitNear | None = None
    precision: SubmitPrecision | None = None
    roles: Annotated[tuple[SubmitRole, ...], Field(min_length=1, max_length=32)]

    @model_validator(mode="after")
    def _consistent(self) -> SubmitJob:
        names = [r.name for r in self.roles]
        if len(set(names)) != len(names):
            raise ValueError("two roles have one name")
        if self.gangMin is not None and self.gangMin > sum(r.replicas for r in self.roles):
            raise ValueError("gangMin exceeds the number of tasks")
        return self


class CancelJob(_Model):
    """`dev.drystone.job.cancel.v1`."""

    id: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]
    namespace: Annotated[str, Field(pattern=_NAME)] | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why a submission cannot be served; `path` says where, in the submission's own terms."""

    reason: str
    path: str = ""
    id: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


@dataclass(frozen=True, slots=True)
class Submission:
    """An accepted one: where it goes and the TrainingJob's spec."""

    id: str
    namespace: str
    spec: dict[str, Any]
    hash: str


def parse_submit(raw: bytes | None, tenant: TenantPolicy, foreign: Collection[str] = ()) -> Submission | Rejected:
    """Never raises, whatever the bytes. `foreign` are queues of other tenants (`foreign_queues`)."""
    said = _decode(raw)
    if isinstance(said, Rejected):
        return said
    external = said["id"] if isinstance(said.get("id"), str) else ""
    try:
        job = SubmitJob.model_validate(said)
    except ValidationError as error:
        return _rejected(error, external)
    return _accept(job, tenant, foreign)


class _Named(msgspec.Struct):
    id: Any = None


_named: Final = msgspec.json.Decoder(_Named)


def job_id(raw: bytes | None) -> str:
    """The id that an event names, empty where it cannot be read: enough to keep the events of one job in order."""
    try:
        said = _named.decode(raw or b"").id
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ""
    return said if isinstance(said, str) else ""


def parse_cancel(raw: bytes | None) -> CancelJob | Rejected:
    said = _decode(raw)
    if isinstance(said, Rejected):
        return said
    try:
        return CancelJob.model_validate(said)
    except ValidationError as error:
        return _rejected(error, said["id"] if isinstance(said.get("id"), str) else "")


def _decode(raw: bytes | None) -> dict[str, Any] | Rejected:
    if not raw:
        return Rejected("the event has no content")
    if len(raw) > MOST_BYTES:
        return Rejected(f"the event has {len(raw)} bytes; at most {MOST_BYTES} are taken")
    try:
        # Strict UTF-8 and no NaN, unlike the standard library's decoder.
        said = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return Rejected(f"the event is no JSON: {str(error)[:200]}")
    if not isinstance(said, dict):
        return Rejected("the event is no JSON object")
    if not _shallow(said, MOST_DEPTH):
        return Rejected(f"the event is nested deeper than {MOST_DEPTH}")
    return said


def _shallow(value: Any, left: int) -> bool:
    if left < 0:
        return False
    if isinstance(value, dict):
        return all(_shallow(v, left - 1) for v in value.values())
    if isinstance(value, list):
        return all(_shallow(v, left - 1) for v in value)
    return not (isinstance(value, float) and not math.isfinite(value))


def _rejected(error: ValidationError, external: str) -> Rejected:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "no such field"
    return Rejected(message, path[:200], external[:200])


def _accept(job: SubmitJob, tenant: TenantPolicy, foreign: Collection[str]) -> Submission | Rejected:
    namespace = job.namespace or tenant.namespaces[0]
    if namespace not in tenant.namespaces:
        return Rejected(f"tenant {tenant.name} has no namespace {namespace}", "namespace", job.id)
    outside = tenant.queue and job.queue and not within(job.queue, tenant.queue)
    if outside or any(within(job.queue or "", queue) for queue in foreign):
        return Rejected(f"tenant {tenant.name} has no queue {job.queue}", "queue", job.id)
    if job.priority.startswith("system-"):
        return Rejected("priority classes of the system are not for jobs", "priority", job.id)
    tasks = sum(r.replicas for r in job.roles)
    if tasks > tenant.max_tasks:
        return Rejected(f"{tasks} tasks; tenant {tenant.name} may have {tenant.max_tasks}", "roles", job.id)
    roles = []
    for n, role in enumerate(job.roles):
        template = _template(role.template, f"roles.{n}.template", tenant, job.priority)
        if isinstance(template, Rejected):
            return Rejected(template.reason, template.path, job.id)
        said = {"name": role.name, "replicas": role.replicas, "template": template}
        if role.min is not None:
            said["min"] = role.min
        said |= _wishes(role)
        roles.append(said)
    spec: dict[str, Any] = {
        "id": job.id,
        "tenant": tenant.name,
        "queue": job.queue or tenant.queue,
        "priority": job.priority,
        "backoffLimit": job.backoffLimit,
        "roles": roles,
    }
    if job.gangMin is not None:
        spec["gangMin"] = job.gangMin
    if job.ttlSecondsAfterFinished is not None:
        spec["ttlSecondsAfterFinished"] = job.ttlSecondsAfterFinished
    # Said only where they are said: a job that was submitted before these were known is the same job today.
    if not job.preemptible:
        spec["preemptible"] = False
    if job.expectedSeconds is not None:
        spec["expectedSeconds"] = job.expectedSeconds
    if job.checkpointSeconds is not None:
        spec["checkpointSeconds"] = job.checkpointSeconds
    spec |= _wishes(job)
    digest = hashlib.sha256(json.dumps([namespace, spec], sort_keys=True).encode()).hexdigest()[:40]
    spec["hash"] = digest
    return Submission(job.id, namespace, spec, digest)


def _wishes(said: SubmitJob | SubmitRole) -> dict[str, Any]:
    """Topology and precision as the object says them, where they are said."""
    wishes = {"topology": said.topology, "precision": said.precision}
    found = {name: wish.model_dump(exclude_none=True) for name, wish in wishes.items() if wish is not None}
    return {name: wish for name, wish in found.items() if wish}


def _template(said: dict[str, Any], path: str, tenant: TenantPolicy, priority: str) -> dict[str, Any] | Rejected:
    if "spec" not in said:
        try:
            return _long(ShortTemplate.model_validate(said))
        except ValidationError as error:
            wrong = _rejected(error, "")
            return Rejected(wrong.reason, f"{path}.{wrong.path}")
    if not isinstance(said["spec"], dict) or not isinstance(said.get("metadata") or {}, dict):
        return Rejected("a pod template has metadata and spec", path)
    unknown = set(said) - {"metadata", "spec", "apiVersion", "kind"}
    if unknown:
        return Rejected("no such field", f"{path}.{min(unknown)}")
    unknown = set(said.get("metadata") or {}) - _OF_TEMPLATES
    if unknown:
        return Rejected("is not for templates", f"{path}.metadata.{min(unknown)[:100]}")
    for group in ("labels", "annotations"):
        marks = (said.get("metadata") or {}).get(group) or {}
        if not isinstance(marks, dict) or not all(isinstance(v, str) for v in marks.values()):
            return Rejected("keys and values are text", f"{path}.metadata.{group}")
        forged = _RESERVED & marks.keys()
        if forged:
            return Rejected(f"{min(forged)} is written by Drystone", f"{path}.metadata.{group}")
        own = _OF_THE_JOB & marks.keys()
        if own:
            return Rejected(f"{min(own)} is said of the job, not of its pods", f"{path}.metadata.{group}")
        if group == "labels" and marks.get(keys.PRIORITY_LABEL, priority) in keys.PRIORITY_WORDS.keys() - {priority}:
            return Rejected("another priority than the job's", f"{path}.metadata.labels.{keys.PRIORITY_LABEL}")
        marked = insecure_annotations(marks) if group == "annotations" else None
        if marked is not None:
            return Rejected(marked.reason, f"{path}.metadata.{marked.path}")
    wrong_field = insecure(said["spec"], tenant.pod_security)
    if wrong_field is not None:
        return Rejected(wrong_field.reason, f"{path}.spec.{wrong_field.path}")
    return said


def _long(short: ShortTemplate) -> dict[str, Any]:
    gpu = short.resources.gpu
    amounts = {"cpu": short.resources.cpu, "memory": short.resources.memory}
    annotations: dict[str, str] = {}
    if isinstance(gpu, int):
        if gpu:
            amounts[keys.GPU_RESOURCE] = str(gpu)
    elif isinstance(gpu, str):
        annotations[keys.GPU_FRACTION] = gpu
    else:
        annotations[keys.GPU_MEMORY] = gpu.memory
    if short.resources.models:
        annotations[keys.GPU_MODELS] = ",".join(short.resources.models)
    container: dict[str, Any] = {
        "name": "main",
        "image": short.image,
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if short.command:
        container["command"] = list(short.command)
    if short.args:
        container["args"] = list(short.args)
    if short.env:
        container["env"] = [{"name": k, "value": v} for k, v in sorted(short.env.items())]
    return {
        "metadata": {"annotations": annotations},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }
