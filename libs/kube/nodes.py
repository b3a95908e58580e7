"""Nodes read into domain values, with a digest of everything a placement decision depends on.

The digest ignores what changes without meaning anything for placement (heartbeats, annotations, images, usage), so a
decision made against it stays good through a thousand status updates. A node that offers more than any node has is
believed to have as much as `libs.domain.bounds` says; one with too many devices gives none of them out by index.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from libs.domain import keys
from libs.domain.bounds import MOST_ASKED, MOST_DEVICES, MOST_EXTRA, MOST_OFFERED
from libs.domain.nodes import Gpu, Node, Taint
from libs.kube.objects import NodeObject, Quantities, node_decoder
from libs.kube.quantities import mib, milli, units
from libs.kube.shares import HAMI

#: Labels that change with time alone.
_HEARTBEAT_LABELS: Final = frozenset({"nvidia.com/gfd.timestamp"})
#: Conditions under which a kubelet refuses pods, or pods cannot talk, whatever the taints say.
_REFUSING: Final = frozenset({"DiskPressure", "PIDPressure", "NetworkUnavailable"})
_DEFAULT_PODS: Final = 110
_REPLICAS: Final = "nvidia.com/gpu.replicas"
_COUNT: Final = "nvidia.com/gpu.count"
#: Resources with a place of their own in a node.
_OF_THEIR_OWN: Final = frozenset({"cpu", "memory", "pods", keys.GPU_RESOURCE, *HAMI})

_encode = msgspec.json.Encoder(order="deterministic").encode


def parse_node(raw: bytes) -> Node:
    """Raises msgspec.DecodeError where `raw` is no node. A quantity that cannot be read counts as none."""
    return node_of(node_decoder.decode(raw))


def node_of(seen: NodeObject) -> Node:
    meta, allocatable = seen.metadata, seen.status.allocatable or {}
    labels = {k: v for k, v in (meta.labels or {}).items() if k not in _HEARTBEAT_LABELS}
    taints = tuple(sorted((Taint(t.key, t.value or "", t.effect) for t in seen.spec.taints or ()), key=_taint_order))
    cpu = min(_read(allocatable, "cpu", in_milli=True), MOST_OFFERED)
    mem = min(mib(_read(allocatable, "memory"), up=False), MOST_OFFERED)
    pods = min(_read(allocatable, "pods"), MOST_OFFERED) if "pods" in allocatable else _DEFAULT_PODS
    offered = _devices(_read(allocatable, keys.GPU_RESOURCE), labels)
    count = min(offered, MOST_DEVICES)
    closed = _closed(labels, allocatable) or ("" if offered == count else f"more than {MOST_DEVICES} devices")
    device_mib = _mib(labels.get(keys.NODE_GPU_MEMORY, ""))
    model = labels.get(keys.NODE_GPU_MODEL, "")
    gpus = tuple(Gpu(index=i, mib=device_mib, model=model) for i in range(count))
    nvlink = _nvlink(meta.annotations or {}, labels, count)
    extra = {
        name: min(amount, MOST_EXTRA)
        for name in sorted(allocatable)
        if name not in _OF_THEIR_OWN and (amount := _read(allocatable, name))
    }
    unschedulable = bool(seen.spec.unschedulable)
    ready = _ready(seen)
    return Node(
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        spec=_digest(
            labels,
            taints,
            unschedulable,
            ready,
            cpu,
            mem,
            pods,
            count,
            closed,
            *([extra] if extra else []),
            *([nvlink] if nvlink else []),
        ),
        cpu=cpu,
        mem=mem,
        pods=pods,
        gpus=gpus,
        labels=labels,
        taints=taints,
        unschedulable=unschedulable,
        ready=ready,
        gpus_closed=closed,
        extra=extra,
        nvlink=nvlink,
    )


def _taint_order(taint: Taint) -> tuple[str, str, str]:
    return taint.key, taint.effect, taint.value


def _read(allocatable: Quantities, name: str, *, in_milli: bool = False) -> int:
    try:
        value = allocatable.get(name, 0)
        return max(0, milli(value, False) if in_milli else units(value, False))
    except ValueError:
        return 0


def _ready(seen: NodeObject) -> bool:
    conditions = {c.type: c.status for c in seen.status.conditions or ()}
    if conditions.get("Ready") != "True" or seen.metadata.deletion_timestamp is not None:
        return False
    return not any(conditions.get(name) == "True" for name in _REFUSING)


def _devices(allocatable: int, labels: dict[str, str]) -> int:
    """Each device is offered `gpu.replicas` times where devices are shared by the plugin."""
    replicas = _number(labels.get(_REPLICAS, ""))
    if replicas <= 1:
        return allocatable
    return min(_number(labels.get(_COUNT, "")) or allocatable, allocatable // replicas)


def _nvlink(annotations: dict[str, str], labels: dict[str, str], count: int) -> tuple[tuple[int, ...], ...]:
    """Groups of indices: "0,1,2,3;4,5,6,7", or as a label, which has fewer characters to spell with, "0-3_4-7". Nothing
    where the text says anything else, names a device twice, or one that is not there."""
    text = annotations.get(keys.NVLINK_GROUPS) or labels.get(keys.NVLINK_GROUPS, "")
    groups: list[tuple[int, ...]] = []
    for part in text.replace(" ", "").replace("_", ";").split(";") if text else ():
        indices: list[int] = []
        for piece in part.replace(".", ",").split(","):
            first, dash, last = piece.partition("-")
            if not _is_index(first) or (dash and not _is_index(last)):
                return ()
            if int(last if dash else first) >= count or len(indices) > count:
                return ()
            indices.extend(range(int(first), int(last if dash else first) + 1))
        groups.append(tuple(sorted(indices)))
    every = [index for group in groups for index in group]
    if len(set(every)) < len(every) or not all(groups) or any(index >= count for index in every):
        return ()
    return tuple(sorted(groups))


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 4


def _mib(text: str) -> int:
    """Of one device, by its node's label; 0 where that says nothing."""
    text = text.lstrip("0") if text.isascii() and text.isdecimal() else ""
    return min(int(text[:20]), MOST_ASKED) if text else 0


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0


def _closed(labels: dict[str, str], allocatable: Quantities) -> str:
    """Why an index does not stand for one undivided device here."""
    product = labels.get(keys.NODE_GPU_MODEL, "")
    if "-MIG-" in product or any(name.startswith("nvidia.com/mig-") for name in allocatable):
        return "MIG mode"
    if _number(labels.get(_REPLICAS, "")) > 1:
        return "time-sliced"
    if product.endswith("-SHARED") or "nvidia.com/gpu.shared" in allocatable:
        return "time-sliced"
    return ""


def _digest(*facts: object) -> str:
    return hashlib.blake2b(_encode(facts), digest_size=8).hexdigest()
