"""Typed writes and reads over `Kube`. Each is one request, sent once; what the answer means is `outcomes.classify`.

Bodies of the hot path are put together from bytes. A Binding is sent raw, never through a generated client: those raise
after the server has bound, because the reply is a Status.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from libs.domain import keys
from libs.kube import trainingjobs
from libs.kube.errors import ReadFailed
from libs.kube.nesting import decoded, readable
from libs.kube.objects import list_decoder
from libs.kube.port import Answer, Kube
from libs.kube.trainingjobs import TrainingJobStatus
from libs.kube.volumes import SELECTED_NODE

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
PAGE: Final = 500
WRITE_TIMEOUT_S: Final = 5.0
#: A list of a page may take the server a while on a large cluster.
LIST_TIMEOUT_S: Final = 30.0
#: Of a list that nobody waits for: objects of a page, and seconds of rest in all.
GENTLE_PAGE: Final = 100
RESTS_S: Final = 5.0

_encode = msgspec.json.encode


def pods_path(namespace: str = "", name: str = "", subresource: str = "") -> str:
    if not namespace:
        return "/api/v1/pods"
    if not name:
        return f"/api/v1/namespaces/{namespace}/pods"
    tail = f"/{subresource}" if subresource else ""
    return f"/api/v1/namespaces/{namespace}/pods/{name}{tail}"


NODES: Final = "/api/v1/nodes"
PRIORITY_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
PDBS: Final = "/apis/policy/v1/poddisruptionbudgets"
QUEUES: Final = f"/apis/{keys.API_VERSION}/queues"
TRAINING_JOBS: Final = f"/apis/{keys.API_VERSION}/trainingjobs"
NAMESPACES: Final = "/api/v1/namespaces"

# --- the hot path -------------------------------------------------------------------------------------------


async def bind(
    kube: Kube,
    namespace: str,
    pod: str,
    uid: str,
    version: str,
    node: str,
    annotations: Mapping[str, str],
    *,
    timeout_s: float = WRITE_TIMEOUT_S,
) -> Answer:
    """Bind a pod to a node, with the result annotations in the same call. The server checks `uid` and `version`; pass
    an empty `version` to leave that check out. 409: bound already, another pod, changed since, deleting or gated."""
    return await kube.call(
        "POST",
        f"/api/v1/namespaces/{namespace}/pods/{pod}/binding",
        binding_body(namespace, pod, uid, version, node, annotations),
        timeout_s=timeout_s,
    )


def binding_body(namespace: str, pod: str, uid: str, version: str, node: str, annotations: Mapping[str, str]) -> bytes:
    metadata: dict[str, Any] = {"name": pod, "namespace": namespace, "uid": uid, "annotations": annotations}
    if version:
        metadata["resourceVersion"] = version
    return b"".join(
        (
            b'{"apiVersion":"v1","kind":"Binding","metadata":',
            _encode(metadata),
            b',"target":{"apiVersion":"v1","kind":"Node","name":',
            _encode(node),
            b"}}",
        )
    )


async def create_pod(kube: Kube, namespace: str, manifest: bytes, *, timeout_s: float = WRITE_TIMEOUT_S) -> Answer:
    """Strictly: a field that the server does not know is refused with its name. By itself the server would leave it
    out, and a limit that was misspelled would be none."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    return await kube.call("POST", path, manifest, params=_STRICT, timeout_s=timeout_s)


_STRICT: Final = {"fieldValidation": "Strict"}


async def get_pod(kube: Kube, namespace: str, name: str, *, timeout_s: float = WRITE_TIMEOUT_S) -> Answer:
    """Read through to the store: never older than any write that was answered before."""
    return await kube.call("GET", f"/api/v1/namespaces/{namespace}/pods/{name}", timeout_s=timeout_s)


async def fence_pod(
    kube: Kube, namespace: str, name: str, uid: str, claim: str, *, timeout_s: float = WRITE_TIMEOUT_S
) -> Answer:
    """Change the pod's resourceVersion, so that a Binding in flight that names the old one is refused for ever, and say
    which claim was taken back. A patch that changes nothing is no write: the mark is another one each time, whatever
    stands on the pod already."""
    body = _encode({"metadata": {"uid": uid, "annotations": {keys.FENCE: claim, keys.FENCE_MARK: uuid.uuid4().hex}}})
    return await kube.call("PATCH", pods_path(namespace, name), body, content_type=MERGE, timeout_s=timeout_s)


# --- volume claims --------------------------------------------------------------------------------------------


async def get_claim(kube: Kube, namespace: str, name: str, *, timeout_s: float = WRITE_TIMEOUT_S) -> Answer:
    return await kube.call("GET", _claim_path(namespace, name), timeout_s=timeout_s)


async def select_node(
    kube: Kube, namespace: str, name: str, uid: str, version: str, node: str, *, timeout_s: float = WRITE_TIMEOUT_S
) -> Answer:
    """Name the node that a claim which waits for first use is provisioned for, if it is as it was read."""
    annotations = {SELECTED_NODE: node}
    body = _encode({"metadata": {"uid": uid, "resourceVersion": version, "annotations": annotations}})
    return await kube.call("PATCH", _claim_path(namespace, name), body, content_type=MERGE, timeout_s=timeout_s)


def _claim_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"


# --- endings ------------------------------------------------------------------------------------------------


async def delete_pod(
    kube: Kube,
    namespace: str,
    name: str,
    uid: str,
    *,
    version: str = "",
    grace_s: int | None = None,
    timeout_s: float = WRITE_TIMEOUT_S,
) -> Answer:
    """Delete this very pod: another one of the same name is left alone (409)."""
    options = _delete_options(uid, version, grace_s)
    return await kube.call("DELETE", pods_path(namespace, name), _encode(options), timeout_s=timeout_s)


async def evict(
    kube: Kube,
    namespace: str,
    name: str,
    uid: str,
    *,
    dry_run: bool = False,
    grace_s: int | None = None,
    timeout_s: float = WRITE_TIMEOUT_S,
) -> Answer:
    """Ask for this very pod to go, within its disruption budgets. 429 with cause DisruptionBudget: not now."""
    options = _delete_options(uid, "", grace_s)
    if dry_run:
        options["dryRun"] = ["All"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": options,
    }
    path = pods_path(namespace, name, "eviction")
    params = {"dryRun": "All"} if dry_run else None
    return await kube.call("POST", path, _encode(body), params=params, timeout_s=timeout_s)


def _delete_options(uid: str, version: str, grace_s: int | None) -> dict[str, Any]:
    preconditions = {"uid": uid}
    if version:
        preconditions["resourceVersion"] = version
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return options


# --- conditions and status ----------------------------------------------------------------------------------


async def patch_pod_condition(
    kube: Kube,
    namespace: str,
    name: str,
    uid: str,
    *,
    type: str,
    status: str,
    reason: str,
    message: str,
    annotations: Mapping[str, str | None] | None = None,
    now: float | None = None,
    timeout_s: float = WRITE_TIMEOUT_S,
) -> Answer:
    """Set one condition of this very pod (the uid in the patch makes the server refuse another one). Annotations go
    with it; None takes one away."""
    condition = {
        "type": type,
        "status": status,
        "reason": reason,
        "message": message[:1024],
        "lastTransitionTime": trainingjobs.when(time.time() if now is None else now),
    }
    metadata: dict[str, Any] = {"uid": uid}
    if annotations:
        metadata["annotations"] = annotations
    body = _encode({"metadata": metadata, "status": {"conditions": [condition]}})
    path = pods_path(namespace, name, "status")
    return await kube.call("PATCH", path, body, content_type=STRATEGIC, timeout_s=timeout_s)


# --- TrainingJobs -------------------------------------------------------------------------------------------


async def create_trainingjob(
    kube: Kube,
    namespace: str,
    name: str,
    spec: Mapping[str, Any],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    timeout_s: float = WRITE_TIMEOUT_S,
) -> Answer:
    body = trainingjobs.manifest(namespace, name, spec, labels or {}, annotations or {})
    return await kube.call("POST", trainingjobs.path(namespace), body, timeout_s=timeout_s)


async def get_trainingjob(kube: Kube, namespace: str, name: str, *, timeout_s: float = WRITE_TIMEOUT_S) -> Answer:
    return await kube.call("GET", trainingjobs.path(namespace, name), timeout_s=timeout_s)


async def patch_trainingjob_status(
    kube: Kube, namespace: str, name: str, uid: str, status: TrainingJobStatus, *, timeout_s: float = WRITE_TIMEOUT_S
) -> Answer:
    """Replace the status of this very job; another one of the same name gives a conflict."""
    body = trainingjobs.status_patch(uid, status)
    path = trainingjobs.path(namespace, name, "status")
    return await kube.call("PATCH", path, body, content_type=JSON_PATCH, timeout_s=timeout_s)


async def delete_trainingjob(
    kube: Kube, namespace: str, name: str, uid: str = "", *, timeout_s: float = WRITE_TIMEOUT_S
) -> Answer:
    """Its pods follow by garbage collection. Without a uid whatever has the name is deleted."""
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    if uid:
        options["preconditions"] = {"uid": uid}
    return await kube.call("DELETE", trainingjobs.path(namespace, name), _encode(options), timeout_s=timeout_s)


# --- queues -------------------------------------------------------------------------------------------------


async def patch_queue_status(
    kube: Kube, name: str, uid: str, status: Mapping[str, Any], *, timeout_s: float = WRITE_TIMEOUT_S
) -> Answer:
    """Replace the status of this very queue; another one of the same name gives 422."""
    body = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status", "value": status},
    ]
    return await kube.call(
        "PATCH", f"{QUEUES}/{name}/status", _encode(body), content_type=JSON_PATCH, timeout_s=timeout_s
    )


# --- lists --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listed:
    """`items` as raw JSON, `version` to watch from."""

    items: Sequence[bytes]
    version: str


async def list_all(
    kube: Kube,
    path: str,
    *,
    field_selector: str = "",
    label_selector: str = "",
    page: int = PAGE,
    timeout_s: float = LIST_TIMEOUT_S,
    rest: Callable[[float], Awaitable[object]] | None = None,
) -> Listed:
    """Everything at `path`, consistent (no resourceVersion is sent, so the answer is at least as new as the call), in
    pages. A continue token that expired starts the list over; three times at most. Raises ReadFailed.

    With `rest` nobody waits for the list: pages are small, and after each it is called with seconds, three times what
    the page took, so that server and reader are free for others meanwhile; `RESTS_S` in all, then without."""
    base = {"limit": str(min(page, GENTLE_PAGE) if rest else page)}
    clock, left = asyncio.get_running_loop().time, RESTS_S if rest else 0.0
    if field_selector:
        base["fieldSelector"] = field_selector
    if label_selector:
        base["labelSelector"] = label_selector
    for _ in range(3):
        items: list[bytes] = []
        token = ""
        while True:
            params = {**base, "continue": token} if token else base
            began = clock()
            answer = await kube.call("GET", path, params=params, timeout_s=timeout_s)
            if token and answer.status == 410:
                break
            if not answer.ok:
                raise ReadFailed(path, answer)
            try:
                listed = decoded(list_decoder, answer.body)
            except msgspec.MsgspecError as error:
                raise ReadFailed(path, Answer(answer.status, str(error).encode())) from error
            items.extend(readable(bytes(item)) for item in listed.items or ())
            token = listed.metadata.continue_ or ""
            if not token:
                return Listed(items, listed.metadata.resourceVersion)
            pause = min(3 * (clock() - began), left)
            if rest is not None and pause > 0:
                left -= pause
                await rest(pause)
    raise ReadFailed(path, answer)
