"""Raw objects as the API server would send them, with as few words as a test needs."""

from typing import Any

import msgspec

from libs.kube.pods import PodView, parse_pod


def pod(
    name: str = "p",
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    limits: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    meta: dict[str, Any] | None = None,
    **spec: Any,
) -> PodView:
    return parse_pod(raw_pod(name, annotations, labels, limits, status, meta, **spec))


def raw_pod(
    name: str = "p",
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    limits: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    meta: dict[str, Any] | None = None,
    **spec: Any,
) -> bytes:
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "team-a",
                "uid": f"uid-{name}",
                "resourceVersion": "7",
                "annotations": annotations,
                "labels": labels,
                "creationTimestamp": "2026-11-30T06:00:00Z",
                **(meta or {}),
            },
            "spec": {
                "schedulerName": "drystone",
                "containers": [{"name": "main", "resources": {"limits": limits or {}}}],
                **spec,
            },
            "status": status or {"phase": "Pending"},
        }
    )


def raw_node(
    name: str = "n1",
    *,
    gpus: int = 0,
    labels: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
    allocatable: dict[str, str] | None = None,
    conditions: dict[str, str] | None = None,
    meta: dict[str, Any] | None = None,
) -> bytes:
    said = {"cpu": "64", "memory": "512Gi", "pods": "110", **(allocatable or {})}
    if gpus:
        said["nvidia.com/gpu"] = str(gpus)
    known = {"Ready": "True", **(conditions or {})}
    return msgspec.json.encode(
        {
            "kind": "Node",
            "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "9", "labels": labels, **(meta or {})},
            "spec": spec or {},
            "status": {
                "allocatable": said,
                "conditions": [
                    {"type": t, "status": s, "lastHeartbeatTime": "2026-11-30T06:00:00Z"} for t, s in known.items()
                ],
            },
        }
    )
