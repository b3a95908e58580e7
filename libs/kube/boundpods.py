"""What a bound pod carries, and the pods of TrainingJobs, which are born bound.

Pods made here carry the job as controller, the claim, and the granted devices; nothing that their template says of
these is taken over.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from libs.domain import keys
from libs.domain.plans import Assignment
from libs.kube.declared import KEYS
from libs.kube.nesting import readable
from libs.kube.trainingjobs import KIND, TEMPLATES_KEPT, TrainingJobView
from libs.runtime.sized import kept_by_bytes

_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
_encode = msgspec.json.encode


class _Prepared(msgspec.Struct, frozen=True):
    """A template made ready: `spec` is the pod spec's JSON without its closing brace."""

    labels: dict[str, str]
    annotations: dict[str, str]
    spec: bytes


def grant_annotations(assignment: Assignment) -> dict[str, str]:
    """The result annotations of one assignment: what the binder writes in the very call that binds."""
    grants = assignment.charge.gpus
    said = {keys.CLAIM: assignment.claim}
    if grants:
        said[keys.GPUS] = ",".join(str(g.index) for g in grants)
        said[keys.GPU_MIB] = str(min(g.mib for g in grants))
        said[keys.GPU_MILLI] = str(min(g.milli for g in grants))
    return said


def pod_manifest(view: TrainingJobView, assignment: Assignment, attempt: int) -> bytes:
    """The pod of one task, bound at birth. Raises ValueError where the job has no such role or no readable template."""
    role = view.role(assignment.role)
    if role is None:
        raise ValueError(f"{view.key} has no role {assignment.role!r}")
    prepared = _prepared(bytes(role.template))
    metadata = {
        "name": assignment.name,
        "namespace": view.namespace,
        "labels": {**prepared.labels, keys.JOB: view.name},
        "annotations": {
            **prepared.annotations,
            **view.spec.wishes(role),
            **view.spec.declared.annotations(),
            **grant_annotations(assignment),
            keys.JOB_KEY: view.key,
            keys.TASK: f"{assignment.role}/{assignment.index}/{attempt}",
            keys.GANG_MIN: str(view.gang_min),
            keys.QUEUE: prepared.annotations.get(keys.QUEUE) or view.spec.queue or keys.DEFAULT_QUEUE,
        },
        "ownerReferences": [
            {
                "apiVersion": keys.API_VERSION,
                "kind": KIND,
                "name": view.name,
                "uid": view.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }
    priority = view.spec.priority
    priority_class = b""
    if priority in keys.PRIORITY_WORDS:
        metadata["labels"] = {keys.PRIORITY_LABEL: priority, **metadata["labels"]}  # type: ignore[dict-item]
    elif priority:
        priority_class = b',"priorityClassName":' + _encode(priority)
    return b"".join(
        (
            b'{"apiVersion":"v1","kind":"Pod","metadata":',
            _encode(metadata),
            b',"spec":',
            prepared.spec,
            priority_class,
            b',"nodeName":',
            _encode(assignment.node),
            b"}}",
        )
    )


@kept_by_bytes(TEMPLATES_KEPT)
def _prepared(template: bytes) -> _Prepared:
    try:
        decoded = msgspec.json.decode(readable(template))
        metadata = decoded.get("metadata") or {}
        spec: dict[str, Any] = {**decoded["spec"]}
        labels = {str(k): str(v) for k, v in (metadata.get("labels") or {}).items()}
        annotations = {str(k): str(v) for k, v in (metadata.get("annotations") or {}).items() if k not in _RESULTS}
        for name in ("nodeName", "schedulingGates", "priority", "priorityClassName"):
            spec.pop(name, None)
        spec["schedulerName"] = keys.SCHEDULER_NAME
        spec.setdefault("restartPolicy", "Never")
        for group in ("containers", "initContainers"):
            if spec.get(group):
                spec[group] = [_with_devices(c) for c in spec[group]]
    except (msgspec.MsgspecError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"pod template cannot be read: {error}") from error
    return _Prepared(labels=labels, annotations=annotations, spec=_encode(spec)[:-1])


#: What a template's word is not taken for: results, and what the job says for all its pods.
_RESULTS: Final = KEYS | keys.RESULTS


def _with_devices(container: dict[str, Any]) -> dict[str, Any]:
    """The container told its devices by the annotation, through the downward API. A value of the user's own would
    show it devices that were given to others, so it is replaced."""
    env = [e for e in container.get("env") or () if e.get("name") != _VISIBLE]
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{keys.GPUS}']"}}
    return {**container, "env": [*env, {"name": _VISIBLE, "valueFrom": source}]}
