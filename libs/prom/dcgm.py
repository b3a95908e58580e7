"""Names, units and labels of NVIDIA's DCGM exporter, and how its series become devices.

The sets of metrics differ by release and site, so what is there is found out and what is missing is said. Memory is in
MiB. Under MIG the utilisation of the device is not measured; the profiling metric (0 to 1) stands in for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from libs.prom.client import Sample

UTIL: Final = "DCGM_FI_DEV_GPU_UTIL"  # percent
ENGINE: Final = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"  # 0 to 1, also under MIG
USED: Final = "DCGM_FI_DEV_FB_USED"  # MiB
FREE: Final = "DCGM_FI_DEV_FB_FREE"  # MiB
RESERVED: Final = "DCGM_FI_DEV_FB_RESERVED"  # MiB, kept by the driver
TOTAL: Final = "DCGM_FI_DEV_FB_TOTAL"  # MiB

METRICS: Final = (UTIL, ENGINE, USED, FREE, RESERVED, TOTAL)
SELECTOR: Final = '{__name__=~"' + "|".join(METRICS) + '"}'

#: Where the node's name may stand, best first. `Hostname` is the exporter's own; relabelling often adds `node`.
NODE_LABELS: Final = ("node", "Hostname", "kubernetes_node", "nodename")


class Device(msgspec.Struct, frozen=True, gc=False):
    """One device as measured. None: not measured."""

    node: str
    index: int
    uuid: str = ""
    model: str = ""
    used_mib: int | None = None
    total_mib: int | None = None
    util_pct: float | None = None
    at: float = 0.0
    pod: str = ""  # "namespace/name" that the exporter sees on it


def missing(found: Collection[str]) -> list[str]:
    """What we cannot know with these metrics, in words."""
    lacks = []
    if USED not in found:
        lacks.append(f"memory used ({USED})")
    if TOTAL not in found and FREE not in found:
        lacks.append(f"memory size ({TOTAL} or {FREE})")
    if UTIL not in found and ENGINE not in found:
        lacks.append(f"utilisation ({UTIL} or {ENGINE})")
    return lacks


class _Gathered:
    __slots__ = ("at", "labels", "values")

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels
        self.values: dict[str, float] = {}
        self.at = 0.0


def devices(samples: Iterable[Sample], node_label: str = "") -> list[Device]:
    """Devices from series, sorted by node and index. A series that names no node or no device, or has no finite value,
    is left out. MIG instances of a device are summed (memory) and the busiest counts (utilisation)."""
    gathered: dict[tuple[str, int], _Gathered] = {}
    for sample in samples:
        labels = sample.labels
        node = labels.get(node_label, "") if node_label else _node(labels)
        try:
            index = int(labels.get("gpu", ""))
        except ValueError:
            continue
        if not node or index < 0 or not math.isfinite(sample.value) or sample.value < 0:
            continue
        entry = gathered.get((node, index))
        if entry is None:
            entry = gathered[node, index] = _Gathered(labels)
        elif _pod(labels) and not _pod(entry.labels):
            entry.labels = labels
        name = sample.name
        before = entry.values.get(name)
        if before is None:
            entry.values[name] = sample.value
        elif name in (UTIL, ENGINE):
            entry.values[name] = max(before, sample.value)
        elif labels.get("GPU_I_ID"):
            entry.values[name] = before + sample.value
        else:
            # The same device twice (two exporters, or one series per pod): the larger is the safer.
            entry.values[name] = max(before, sample.value)
        entry.at = max(entry.at, sample.at)
    return [_device(node, index, gathered[node, index]) for node, index in sorted(gathered)]


def _device(node: str, index: int, entry: _Gathered) -> Device:
    values = entry.values
    used, free, total = values.get(USED), values.get(FREE), values.get(TOTAL)
    if total is None and used is not None and free is not None:
        total = used + free + values.get(RESERVED, 0.0)
    util = values.get(UTIL)
    if util is None and ENGINE in values:
        util = 100.0 * values[ENGINE]
    return Device(
        node,
        index,
        entry.labels.get("UUID", ""),
        entry.labels.get("modelName", ""),
        # Used is rounded up and sizes down, as everywhere.
        math.ceil(used) if used is not None else None,
        math.floor(total) if total is not None else None,
        min(util, 100.0) if util is not None else None,
        entry.at,
        _pod(entry.labels),
    )


def _node(labels: dict[str, str]) -> str:
    for name in NODE_LABELS:
        node = labels.get(name)
        if node:
            return node
    return ""


def _pod(labels: dict[str, str]) -> str:
    """The pod on the device. Where Prometheus adds labels of its own, `pod` is the exporter's pod and the one that we
    want was renamed."""
    pod = labels.get("exported_pod") or labels.get("pod") or ""
    namespace = labels.get("exported_namespace") or labels.get("namespace") or ""
    return f"{namespace}/{pod}" if pod else ""
