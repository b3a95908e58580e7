"""What the API server does to pods beyond storing them: defaults, immutability, Binding, deletion, Eviction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from libs.kube.sim.answers import Refusal, bad_request, conflict, invalid, not_found
from libs.kube.sim.selectors import labels_match
from libs.kube.sim.store import Object, Place, Store

PODS: Final = "/pods"
PDBS: Final = "policy/poddisruptionbudgets"
_CLASSES: Final = "scheduling.k8s.io/priorityclasses"
_GRACE_S: Final = 30
#: Spec fields that an update may change, within rules that are not checked here.
_MUTABLE: Final = frozenset(
    {"activeDeadlineSeconds", "tolerations", "schedulingGates", "terminationGracePeriodSeconds", "nodeSelector"}
)


def admit(store: Store, pod: Object) -> Object:
    """A new pod with the server's defaults and the priority of its class."""
    name, spec = pod["metadata"].get("name", ""), dict(pod.get("spec") or {})
    if not spec.get("containers"):
        raise invalid(PODS, name, "spec.containers: Required value")
    for group in ("containers", "initContainers"):
        if group in spec:
            spec[group] = [_defaulted(c) for c in spec[group]]
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", _GRACE_S)
    _prioritise(store, name, spec)
    if spec.get("nodeName") and spec.get("schedulingGates"):
        raise invalid(PODS, name, "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared")
    return {**pod, "spec": spec, "status": {"phase": "Pending"}}


def _defaulted(container: Object) -> Object:
    """A limit stands for a request that is not there."""
    resources = container.get("resources") or {}
    limits = resources.get("limits")
    if not limits:
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **(resources.get("requests") or {})}}}


def _prioritise(store: Store, name: str, spec: Object) -> None:
    wanted = spec.get("priorityClassName")
    chosen: Object | None = None
    if wanted:
        found = store.get(Place(_CLASSES, "", wanted))
        if found is None:
            raise Refusal(
                403, "Forbidden", f'pods "{name}" is forbidden: no PriorityClass with name {wanted} was found'
            )
        chosen = found.object
    else:
        chosen = next((s.object for _, s in store.all(_CLASSES) if s.object.get("globalDefault")), None)
    value = int(chosen.get("value", 0)) if chosen else 0
    if spec.get("priority", value) != value:
        raise Refusal(403, "Forbidden", f'pods "{name}" is forbidden: the integer value of priority must not be given')
    spec["priority"] = value
    spec["preemptionPolicy"] = (chosen or {}).get("preemptionPolicy") or "PreemptLowerPriority"
    if chosen and not wanted:
        spec["priorityClassName"] = chosen["metadata"]["name"]


def check_update(old: Object, new: Object) -> None:
    """Most of a pod's spec never changes after its creation; the node is set by a Binding alone."""
    if _fixed(old.get("spec") or {}) != _fixed(new.get("spec") or {}):
        why = "spec: Forbidden: pod updates may not change fields other than those listed in the documentation"
        raise invalid(PODS, old["metadata"]["name"], why)


def _fixed(spec: Mapping[str, Any]) -> Object:
    kept = {k: v for k, v in spec.items() if k not in _MUTABLE}
    for group in ("containers", "initContainers"):
        kept[group] = [{k: v for k, v in c.items() if k != "image"} for c in spec.get(group) or ()]
    return kept


def bind(store: Store, place: Place, binding: Object, now: str) -> None:
    """The one way a pod gets a node after its creation. Checks come in the API server's order."""
    found = store.get(place)
    if found is None:
        raise not_found(PODS, place.name)
    pod, meta = found.object, binding.get("metadata") or {}
    target = binding.get("target") or {}
    if target.get("kind", "Node") not in ("", "Node"):
        raise invalid(PODS, place.name, f'target.kind: Unsupported value: "{target.get("kind")}"')
    if not target.get("name"):
        raise invalid(PODS, place.name, "target.name: Required value")
    if meta.get("name", place.name) != place.name:
        raise bad_request(f"name in URL ({place.name}) does not match name in Binding object: {meta.get('name')}")
    check_preconditions(PODS, pod, meta.get("uid"), meta.get("resourceVersion"))
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict(PODS, place.name, f"pod {place.name} is being deleted, cannot be assigned to a host")
    if pod["spec"].get("nodeName"):
        node = pod["spec"]["nodeName"]
        raise conflict(PODS, place.name, f'pod {place.name} is already assigned to node "{node}"')
    if pod["spec"].get("schedulingGates"):
        raise conflict(PODS, place.name, f"pod {place.name} has non-empty .spec.schedulingGates")
    metadata = dict(pod["metadata"])
    for field in ("annotations", "labels"):
        if meta.get(field):
            metadata[field] = {**(metadata.get(field) or {}), **meta[field]}
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
    others = [c for c in pod["status"].get("conditions") or () if c.get("type") != "PodScheduled"]
    store.put(
        place,
        {
            **pod,
            "metadata": metadata,
            "spec": {**pod["spec"], "nodeName": target["name"]},
            "status": {**pod["status"], "conditions": [*others, condition]},
        },
    )


def check_preconditions(resource: str, item: Object, uid: str | None, version: str | None) -> None:
    meta = item["metadata"]
    if uid and uid != meta["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {meta['uid']}"
        raise conflict(resource, meta["name"], why)
    if version and version != meta["resourceVersion"]:
        why = (
            f"Precondition failed: ResourceVersion in precondition: {version}, "
            f"ResourceVersion in object meta: {meta['resourceVersion']}"
        )
        raise conflict(resource, meta["name"], why)


def grace_of(pod: Object, asked: int | None) -> int:
    """Seconds until the kubelet is done with it; 0 where there is nothing to wait for."""
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    if asked is not None:
        return max(0, asked)
    return int(pod["spec"].get("terminationGracePeriodSeconds", _GRACE_S))


def guard(store: Store, pod: Object, dry_run: bool) -> None:
    """Charge an eviction to the pod's disruption budget, or refuse it. Pods that do not run are not guarded."""
    if pod["status"].get("phase") in ("Succeeded", "Failed", "Pending") or pod["metadata"].get("deletionTimestamp"):
        return
    budgets = [
        (place, stored.object)
        for place, stored in store.all(PDBS, pod["metadata"]["namespace"])
        if selects(stored.object, pod)
    ]
    if not budgets:
        return
    if len(budgets) > 1:
        why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise Refusal(500, "InternalError", why)
    place, budget = budgets[0]
    status = budget.get("status") or {}
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 1):
        why = f"The disruption budget {place.name} is still being processed by the server."
        raise Refusal(429, "TooManyRequests", why, cause="DisruptionBudget", retry_after_s=10.0)
    allowed = int(status.get("disruptionsAllowed", 0))
    if allowed <= 0:
        why = "Cannot evict pod as it would violate the pod's disruption budget."
        raise Refusal(429, "TooManyRequests", why, cause="DisruptionBudget")
    if not dry_run:
        store.put(place, {**budget, "status": {**status, "disruptionsAllowed": allowed - 1}})


def selects(budget: Object, pod: Object) -> bool:
    """Whether a disruption budget's selector (labels only) picks the pod."""
    selector = (budget.get("spec") or {}).get("selector")
    return selector is not None and labels_match(selector.get("matchLabels") or {}, pod)
