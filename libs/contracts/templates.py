"""Pod templates of submissions: the long form checked, the short one made long.

A template asks for nothing that the tenant's Pod Security Standard forbids, speaks for no job and no queue, and claims
no result of Drystone's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from libs.contracts.podsecurity import insecure, insecure_annotations
from libs.contracts.strict import Rejected, Strict, rejected
from libs.contracts.tenants import TenantPolicy
from libs.domain import keys

_RESERVED: Final = keys.RESULTS
#: What would put a pod into a job or a queue by itself, past what the job says and the tenant may.
_OF_THE_JOB: Final = frozenset(
    {keys.JOB, keys.GANG_MIN, keys.QUEUE, *keys.POD_GROUP_LABELS, *keys.QUEUE_LABELS}
    | {keys.PREEMPTIBLE, keys.EXPECTED, keys.CHECKPOINT}
)
_OF_TEMPLATES: Final = frozenset({"labels", "annotations", "creationTimestamp"})


class GpuMemory(Strict):
    memory: Annotated[str, Field(pattern=r"^[0-9]{1,9}(Mi|Gi)?$")]


class ShortResources(Strict):
    cpu: Annotated[str, Field(pattern=r"^[0-9]{1,6}(\.[0-9]{1,3})?m?$")] = "1"
    memory: Annotated[str, Field(pattern=r"^[0-9]{1,12}(Ki|Mi|Gi|Ti|k|M|G|T)?$")] = "1Gi"
    gpu: (
        Annotated[int, Field(ge=0, le=1024, strict=True)]
        | Annotated[str, Field(pattern=r"^0?\.[0-9]{1,3}$")]
        | GpuMemory
    ) = 0
    models: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=16)] = ()


class ShortTemplate(Strict):
    """One container, said briefly."""

    image: Annotated[str, Field(min_length=1, max_length=512)]
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    resources: ShortResources = ShortResources()


def template(said: dict[str, Any], path: str, tenant: TenantPolicy, priority: str) -> dict[str, Any] | Rejected:
    """A pod template as the job object has it. `path` is where it was said, `priority` what the job says of itself."""
    if "spec" not in said:
        try:
            return _long(ShortTemplate.model_validate(said))
        except ValidationError as error:
            wrong = rejected(error, "")
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
