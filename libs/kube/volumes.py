"""PersistentVolumeClaims, with the volumes and classes behind them, read into domain values.

Source of the rules: kube-scheduler's plugins VolumeBinding, VolumeZone, VolumeRestrictions, NodeVolumeLimits, v1.36.
"""

from __future__ import annotations

from typing import Final

import msgspec

from libs.domain.rules import NodeTerm, Requirement
from libs.domain.volumes import Claim, ClaimState
from libs.kube.objects import Meta
from libs.kube.rules import NodeSelector, node_term

CLAIMS: Final = "/api/v1/persistentvolumeclaims"
VOLUMES: Final = "/api/v1/persistentvolumes"
CLASSES: Final = "/apis/storage.k8s.io/v1/storageclasses"
CSI_NODES: Final = "/apis/storage.k8s.io/v1/csinodes"

SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
_BOUND: Final = "pv.kubernetes.io/bind-completed"
_OLD_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
_NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
_ZONES: Final = (
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
)


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _ClaimSpec(_Part, frozen=True):
    access_modes: tuple[str, ...] | None = None
    storage_class_name: str | None = None
    volume_name: str | None = None


class ClaimObject(_Part, frozen=True):
    metadata: Meta
    spec: _ClaimSpec = _ClaimSpec()


class _NodeAffinity(_Part, frozen=True):
    required: NodeSelector | None = None


class _Csi(_Part, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class _VolumeSpec(_Part, frozen=True):
    node_affinity: _NodeAffinity | None = None
    csi: _Csi | None = None


class VolumeObject(_Part, frozen=True):
    metadata: Meta
    spec: _VolumeSpec = _VolumeSpec()


class _TopologyExpression(_Part, frozen=True):
    key: str = ""
    values: tuple[str, ...] | None = None


class _TopologyTerm(_Part, frozen=True):
    match_label_expressions: tuple[_TopologyExpression, ...] | None = None


class ClassObject(_Part, frozen=True):
    metadata: Meta
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: tuple[_TopologyTerm, ...] | None = None


class _Count(_Part, frozen=True):
    count: int | None = None


class _Driver(_Part, frozen=True):
    name: str = ""
    allocatable: _Count | None = None


class _CsiNodeSpec(_Part, frozen=True):
    drivers: tuple[_Driver, ...] | None = None


class CsiNodeObject(_Part, frozen=True):
    metadata: Meta
    spec: _CsiNodeSpec = _CsiNodeSpec()

    @property
    def limits(self) -> dict[str, int]:
        """Volumes that may be attached, by driver; a driver that says nothing has no limit."""
        drivers = self.spec.drivers or ()
        return {d.name: d.allocatable.count for d in drivers if d.allocatable and d.allocatable.count is not None}


claim_decoder: Final = msgspec.json.Decoder(ClaimObject)
volume_decoder: Final = msgspec.json.Decoder(VolumeObject)
class_decoder: Final = msgspec.json.Decoder(ClassObject)
csi_node_decoder: Final = msgspec.json.Decoder(CsiNodeObject)


def class_of(claim: ClaimObject) -> str:
    return (claim.metadata.annotations or {}).get(_OLD_CLASS) or claim.spec.storage_class_name or ""


def is_bound(claim: ClaimObject) -> bool:
    return bool(claim.spec.volume_name) and _BOUND in (claim.metadata.annotations or {})


def claim_of(claim: ClaimObject, volume: VolumeObject | None, kind: ClassObject | None) -> Claim:
    """`volume` and `kind` are what the claim names, None where they are not there (yet)."""
    meta, spec = claim.metadata, claim.spec
    annotations = meta.annotations or {}
    known = Claim(meta.namespace, meta.name, exclusive="ReadWriteOncePod" in (spec.access_modes or ()))
    if meta.deletion_timestamp is not None:
        return known
    if spec.volume_name:
        if not is_bound(claim) or volume is None:
            return known
        return _bound(known, volume)
    if kind is None or kind.volume_binding_mode != "WaitForFirstConsumer":
        return known
    if not kind.provisioner or kind.provisioner == _NO_PROVISIONER:
        return msgspec.structs.replace(known, state=ClaimState.STATIC)
    selected = annotations.get(SELECTED_NODE)
    node = _allowed(kind)
    if selected:
        # What was selected stays so until the provisioner gives up and takes the annotation away.
        here = (Requirement("metadata.name", "In", (selected,)),)
        node = tuple(NodeTerm(term.labels, here) for term in node or (NodeTerm(),))
    return msgspec.structs.replace(
        known, state=ClaimState.FIRST_USE, node=node, driver=kind.provisioner, handle=f"{meta.namespace}/{meta.name}"
    )


def _bound(known: Claim, volume: VolumeObject) -> Claim:
    affinity, csi = volume.spec.node_affinity, volume.spec.csi
    required = affinity.required if affinity is not None else None
    labels = volume.metadata.labels or {}
    return msgspec.structs.replace(
        known,
        state=ClaimState.BOUND,
        node=tuple(map(node_term, required.node_selector_terms or ())) if required is not None else None,
        zones=tuple((key, tuple(sorted(labels[key].split("__")))) for key in _ZONES if key in labels),
        driver=csi.driver if csi is not None and csi.volume_handle else "",
        handle=csi.volume_handle if csi is not None else "",
    )


def _allowed(kind: ClassObject) -> tuple[NodeTerm, ...] | None:
    if not kind.allowed_topologies:
        return None
    return tuple(
        NodeTerm(tuple(Requirement(e.key, "In", e.values or ()) for e in term.match_label_expressions or ()))
        for term in kind.allowed_topologies
    )
