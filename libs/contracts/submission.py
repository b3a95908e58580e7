"""Job submissions: what other systems and users may say, checked at the edge, made into a TrainingJob's spec.

Refusals are values with a path and a sentence. The tenant comes from where the submission arrived, never from what it
says. The hash covers what the job is, so that the same id with the same content is the same job.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from libs.domain import keys

MOST_BYTES: Final = 512 * 1024
MOST_DEPTH: Final = 32
_NAME: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_RESERVED: Final = frozenset({keys.GPUS, keys.GPU_MIB, keys.GPU_MILLI, keys.CLAIM, keys.JOB_KEY, keys.TASK})


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class TenantPolicy(_Model):
    """What a tenant may do. `topic` is where its job events arrive; the first namespace is the default."""

    name: Annotated[str, Field(pattern=_NAME)] = "default"
    topic: str = "drystone.jobs"
    namespaces: Annotated[tuple[str, ...], Field(min_length=1)] = ("default",)
    #: Queues must be this one or below it; empty allows all.
    queue: str = ""
    max_tasks: Annotated[int, Field(ge=1)] = 10_000
    pod_security: Literal["restricted", "baseline"] = "restricted"


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


class SubmitRole(_Model):
    name: Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,30}[a-z0-9])?$")] = "worker"
    replicas: Annotated[int, Field(ge=1, le=100_000, strict=True)] = 1
    min: Annotated[int, Field(ge=0, le=100_000, strict=True)] | None = None
    template: dict[str, Any]

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


def parse_submit(raw: bytes | None, tenant: TenantPolicy) -> Submission | Rejected:
    """Never raises, whatever the bytes."""
    said = _decode(raw)
    if isinstance(said, Rejected):
        return said
    external = said["id"] if isinstance(said.get("id"), str) else ""
    try:
        job = SubmitJob.model_validate(said)
    except ValidationError as error:
        return _rejected(error, external)
    return _accept(job, tenant)


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


def _accept(job: SubmitJob, tenant: TenantPolicy) -> Submission | Rejected:
    namespace = job.namespace or tenant.namespaces[0]
    if namespace not in tenant.namespaces:
        return Rejected(f"tenant {tenant.name} has no namespace {namespace}", "namespace", job.id)
    if tenant.queue and job.queue and job.queue != tenant.queue and not job.queue.startswith(tenant.queue + "/"):
        return Rejected(f"tenant {tenant.name} has no queue {job.queue}", "queue", job.id)
    tasks = sum(r.replicas for r in job.roles)
    if tasks > tenant.max_tasks:
        return Rejected(f"{tasks} tasks; tenant {tenant.name} may have {tenant.max_tasks}", "roles", job.id)
    roles = []
    for n, role in enumerate(job.roles):
        template = _template(role.template, f"roles.{n}.template", tenant)
        if isinstance(template, Rejected):
            return Rejected(template.reason, template.path, job.id)
        said = {"name": role.name, "replicas": role.replicas, "template": template}
        if role.min is not None:
            said["min"] = role.min
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
    digest = hashlib.sha256(json.dumps([namespace, spec], sort_keys=True).encode()).hexdigest()[:40]
    spec["hash"] = digest
    return Submission(job.id, namespace, spec, digest)


def _template(said: dict[str, Any], path: str, tenant: TenantPolicy) -> dict[str, Any] | Rejected:
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
    for group in ("labels", "annotations"):
        marks = (said.get("metadata") or {}).get(group) or {}
        if not isinstance(marks, dict) or not all(isinstance(v, str) for v in marks.values()):
            return Rejected("keys and values are text", f"{path}.metadata.{group}")
        forged = _RESERVED & marks.keys()
        if forged:
            return Rejected(f"{min(forged)} is written by Drystone", f"{path}.metadata.{group}")
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


# --- Pod Security Standards, https://kubernetes.io/docs/concepts/security/pod-security-standards/ ---------------------

_ADDABLE: Final = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
_PLAIN_VOLUMES: Final = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)


def insecure(spec: dict[str, Any], profile: str) -> Rejected | None:
    """The first field of a pod spec that the profile (`baseline` or `restricted`) does not allow."""
    for field in ("hostNetwork", "hostPID", "hostIPC", "hostUsers"):
        if spec.get(field) and field != "hostUsers":
            return Rejected("host namespaces are not allowed", field)
    if spec.get("nodeName"):
        return Rejected("the node is chosen by Drystone", "nodeName")
    if spec.get("schedulerName") not in (None, keys.SCHEDULER_NAME):
        return Rejected("another scheduler is named", "schedulerName")
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        return Rejected("at least one container is needed", "containers")
    pod_context = _mapping(spec.get("securityContext"))
    if pod_context is None:
        return Rejected("is no object", "securityContext")
    for volume in _items(spec.get("volumes")):
        kinds = volume.keys() - {"name"} if isinstance(volume, dict) else {"?"}
        if "hostPath" in kinds or (profile == "restricted" and kinds - _PLAIN_VOLUMES):
            return Rejected(f"a volume of kind {min(kinds)} is not allowed", "volumes")
    for group in ("containers", "initContainers", "ephemeralContainers"):
        for n, container in enumerate(_items(spec.get(group))):
            found = _insecure_container(container, pod_context, profile)
            if found is not None:
                return Rejected(found.reason, f"{group}.{n}.{found.path}")
    if pod_context.get("sysctls"):
        return Rejected("sysctls are not allowed", "securityContext.sysctls")
    return None


def _insecure_container(container: Any, pod: dict[str, Any], profile: str) -> Rejected | None:
    if not isinstance(container, dict):
        return Rejected("is no object", "")
    context = _mapping(container.get("securityContext"))
    if context is None:
        return Rejected("is no object", "securityContext")
    if context.get("privileged"):
        return Rejected("privileged containers are not allowed", "securityContext.privileged")
    if context.get("procMount") not in (None, "Default"):
        return Rejected("only the default procMount is allowed", "securityContext.procMount")
    for port in _items(container.get("ports")):
        if isinstance(port, dict) and port.get("hostPort"):
            return Rejected("host ports are not allowed", "ports")
    capabilities = _mapping(context.get("capabilities")) or {}
    added = {str(c) for c in _items(capabilities.get("add"))}
    allowed = _ADDABLE if profile == "baseline" else {"NET_BIND_SERVICE"}
    if added - allowed:
        return Rejected(f"capability {min(added - allowed)} is not allowed", "securityContext.capabilities.add")
    for where in (context, pod):
        seccomp = (_mapping(where.get("seccompProfile")) or {}).get("type")
        if seccomp == "Unconfined":
            return Rejected("an unconfined seccomp profile is not allowed", "securityContext.seccompProfile")
    if profile != "restricted":
        return None
    if context.get("allowPrivilegeEscalation") is not False:
        return Rejected("must be false", "securityContext.allowPrivilegeEscalation")
    if context.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        return Rejected("must be true", "securityContext.runAsNonRoot")
    if context.get("runAsUser", pod.get("runAsUser")) == 0:
        return Rejected("must not be 0", "securityContext.runAsUser")
    if "ALL" not in _items(capabilities.get("drop")):
        return Rejected("must drop ALL", "securityContext.capabilities.drop")
    if not (context.get("seccompProfile") or pod.get("seccompProfile")):
        return Rejected("must be RuntimeDefault or Localhost", "securityContext.seccompProfile")
    return None


def _mapping(value: Any) -> dict[str, Any] | None:
    """{} for an absent one, None for what is no object."""
    if value is None:
        return {}
    return value if isinstance(value, dict) else None


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
