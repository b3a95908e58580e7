"""Nodes and their devices as placement sees them. Keyed by name: a node that registers again under a new uid keeps its
pods, so its name is what room is charged to."""

from __future__ import annotations

import msgspec


class Gpu(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    index: int
    mib: int
    model: str = ""
    uuid: str = ""


class Taint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    key: str
    value: str
    effect: str  # NoSchedule | PreferNoSchedule | NoExecute


class Toleration(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An empty key with operator Exists tolerates everything; an empty effect, every effect."""

    key: str
    operator: str  # Exists | Equal; any other tolerates nothing
    value: str
    effect: str

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return self.operator in ("Equal", "") and self.value == taint.value


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts of one node. `spec` is a digest of labels, taints, cordon, conditions and allocatable: equal digests mean
    that a decision made against one holds against the other as far as the node's own facts go."""

    name: str
    uid: str
    version: str  # resourceVersion
    spec: str
    cpu: int = 0  # allocatable, milli
    mem: int = 0  # allocatable, MiB
    pods: int = 110
    gpus: tuple[Gpu, ...] = ()
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    #: Why devices of this node cannot be given out by index ("MIG mode", "time-sliced"), empty if they can.
    gpus_closed: str = ""
    #: Allocatable of every resource but CPU, memory, pods and GPUs, in its base unit.
    extra: dict[str, int] = {}
    #: Indices of GPUs that share NVLink, group by group; empty: not known, all are alike.
    nvlink: tuple[tuple[int, ...], ...] = ()

    @property
    def open(self) -> bool:
        return self.ready and not self.unschedulable


def newer(left: str, right: str) -> bool:
    """Whether resourceVersion `left` is newer. Versions exceed a double, so they compare by length, then as text."""
    return (len(left), left) > (len(right), right)
