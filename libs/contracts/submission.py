"""Job submissions: what other systems and users may say, checked at the edge, made into a TrainingJob's spec.

The tenant comes from where the submission arrived, never from what it says. The hash covers what the job is, so that
the same id with the same content is the same job.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import Field, ValidationError, model_validator

from libs.contracts.strict import NAME, Rejected, Strict, rejected
from libs.contracts.templates import template
from libs.contracts.tenants import TenantPolicy, within

MOST_BYTES: Final = 512 * 1024
MOST_DEPTH: Final = 32
#: Of the job object as the API server keeps it; its store takes 1.5 MiB, and the pods are made of the same.
MOST_STORED: Final = 1024 * 1024
_Seconds = Annotated[int, Field(ge=1, le=10**8, strict=True)]
_Level = Annotated[
    str, Field(max_length=317, pattern=r"^([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
]


class SubmitNear(Strict):
    """Levels by name (zone, rack, nvlink, host) or by the key of a node label. `required`: all in one domain of that
    level; `preferred`: in one if one takes all, else in as narrow and as few ones as can be."""

    required: _Level | None = None
    preferred: _Level | None = None


class SubmitGroups(SubmitNear):
    """The same for each `size` replicas of consecutive index."""

    size: Annotated[int, Field(ge=1, le=100_000, strict=True)]


class SubmitRoleNear(SubmitNear):
    groups: SubmitGroups | None = None


class SubmitPrecision(Strict):
    """What is computed in. `required`: only on GPUs that are not known to lack it."""

    kind: Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "mixed"]
    required: Annotated[bool, Field(strict=True)] = False


class SubmitRole(Strict):
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


class SubmitJob(Strict):
    """`dev.drystone.job.submit.v1`."""

    id: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]
    namespace: Annotated[str, Field(pattern=NAME)] | None = None
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


class CancelJob(Strict):
    """`dev.drystone.job.cancel.v1`."""

    id: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]
    namespace: Annotated[str, Field(pattern=NAME)] | None = None


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
        return rejected(error, external)
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
        return rejected(error, said["id"] if isinstance(said.get("id"), str) else "")


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
        made = template(role.template, f"roles.{n}.template", tenant, job.priority)
        if isinstance(made, Rejected):
            return Rejected(made.reason, made.path, job.id)
        said = {"name": role.name, "replicas": role.replicas, "template": made}
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
    stored = stored_size(spec)
    if stored > MOST_STORED:
        large = f"the API server would keep {stored} bytes of it; at most {MOST_STORED} are taken"
        return Rejected(large, "roles", job.id)
    digest = hashlib.sha256(json.dumps([namespace, spec], sort_keys=True).encode()).hexdigest()[:40]
    spec["hash"] = digest
    return Submission(job.id, namespace, spec, digest)


#: Of a number that is written without an exponent, as Go does up to 10^21.
_LONGEST_NUMBER: Final = 26
#: What is noted of a field for whoever owns it, beside its name: "f:name":{},
_OWNED: Final = 8


def stored_size(value: Any) -> int:
    """About the bytes that the API server keeps of a JSON value, rather more than less: numbers written out, angle
    brackets and ampersands as six characters, and every field's name once more for its owner."""
    match value:
        case str():
            plain = len(msgspec.json.encode(value))
            return plain + 5 * sum(map(value.count, "<>&")) + 3 * sum(map(value.count, _BREAKS))
        case dict():
            return 2 + sum(2 * stored_size(str(k)) + _OWNED + stored_size(v) for k, v in value.items())
        case list() | tuple():
            return 2 + sum(1 + stored_size(v) for v in value)
        case bool() | None:
            return 5
        case int():
            return len(str(value))
        case _:
            return _LONGEST_NUMBER


_BREAKS: Final = "\u2028\u2029"


def _wishes(said: SubmitJob | SubmitRole) -> dict[str, Any]:
    """Topology and precision as the object says them, where they are said."""
    wishes = {"topology": said.topology, "precision": said.precision}
    found = {name: wish.model_dump(exclude_none=True) for name, wish in wishes.items() if wish is not None}
    return {name: wish for name, wish in found.items() if wish}
