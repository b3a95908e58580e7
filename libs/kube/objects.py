"""The parts of Kubernetes objects that Drystone reads, decoded straight from the raw JSON.

Structs name only the fields that are used; everything else is skipped without being built, which is what makes a pod
cost microseconds. Parts whose mere presence matters stay raw (`present`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from msgspec import Raw

from libs.kube.quantities import Quantity

ABSENT: Final = Raw(b"")


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """Base of all parts: Kubernetes spells its fields in camel case."""


def present(raw: Raw) -> bool:
    """Whether a raw part says anything at all."""
    return bytes(raw) not in (b"", b"null", b"{}", b"[]")


class OwnerReference(_Part, frozen=True):
    uid: str = ""
    kind: str = ""
    name: str = ""
    api_version: str = ""
    controller: bool | None = None


class Meta(_Part, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    owner_references: tuple[OwnerReference, ...] | None = None

    @property
    def created(self) -> float:
        return self.creation_timestamp.timestamp() if self.creation_timestamp else 0.0

    @property
    def deleted(self) -> float:
        """When its deletion was asked for, 0 where it was not. The time stamp is when it is to be over."""
        if self.deletion_timestamp is None:
            return 0.0
        return self.deletion_timestamp.timestamp() - (self.deletion_grace_period_seconds or 0)


# --- pods ---------------------------------------------------------------------------------------------------

Quantities = dict[str, Quantity]


class Resources(_Part, frozen=True):
    requests: Quantities | None = None
    limits: Quantities | None = None
    claims: Raw = ABSENT


class ContainerPort(_Part, frozen=True):
    host_port: int | None = None
    container_port: int = 0
    protocol: str | None = None
    host_ip: str | None = msgspec.field(default=None, name="hostIP")


class Container(_Part, frozen=True):
    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None
    ports: tuple[ContainerPort, ...] | None = None


class TolerationPart(_Part, frozen=True):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class PodSpec(_Part, frozen=True):
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    overhead: Quantities | None = None
    resources: Resources | None = None
    host_network: bool | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[TolerationPart, ...] | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    preemption_policy: str | None = None
    affinity: Raw = ABSENT
    topology_spread_constraints: Raw = ABSENT
    scheduling_gates: Raw = ABSENT
    resource_claims: Raw = ABSENT
    workload_ref: Raw = ABSENT
    scheduling_group: Raw = ABSENT
    volumes: tuple[dict[str, Raw], ...] | None = None


class Condition(_Part, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class ContainerStatus(_Part, frozen=True):
    """`resources` are what the container runs with, `allocated_resources` what its node has set aside for it."""

    name: str = ""
    resources: Resources | None = None
    allocated_resources: Quantities | None = None


class PodStatus(_Part, frozen=True):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    resources: Resources | None = None
    allocated_resources: Quantities | None = None

    @property
    def resized(self) -> bool:
        """Whether the node says anything of resources: the pod has run, and may ask for other amounts by now."""
        return (
            self.container_statuses is not None
            or self.init_container_statuses is not None
            or self.resources is not None
        )


class Pod(_Part, frozen=True):
    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PodTemplate(_Part, frozen=True):
    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()


# --- nodes --------------------------------------------------------------------------------------------------


class TaintPart(_Part, frozen=True):
    key: str = ""
    value: str | None = None
    effect: str = ""


class NodeSpec(_Part, frozen=True):
    unschedulable: bool | None = None
    taints: tuple[TaintPart, ...] | None = None


class NodeStatus(_Part, frozen=True):
    allocatable: Quantities | None = None
    capacity: Quantities | None = None
    conditions: tuple[Condition, ...] | None = None


class NodeObject(_Part, frozen=True):
    metadata: Meta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# --- the rest -----------------------------------------------------------------------------------------------


class PriorityClass(_Part, frozen=True):
    metadata: Meta
    value: int = 0
    global_default: bool | None = None
    preemption_policy: str | None = None

    @property
    def preempts(self) -> bool:
        return self.preemption_policy != "Never"


class LabelSelector(_Part, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: Raw = ABSENT


class PdbSpec(_Part, frozen=True):
    selector: LabelSelector | None = None


class PdbStatus(_Part, frozen=True):
    disruptions_allowed: int = 0
    observed_generation: int = 0


class Pdb(_Part, frozen=True):
    metadata: Meta
    spec: PdbSpec = PdbSpec()
    status: PdbStatus = PdbStatus()

    @property
    def match_labels(self) -> dict[str, str] | None:
        """Labels that select a pod; None where the selector uses expressions. An absent selector selects nothing,
        which is said with a label that no pod can have; an empty one selects all."""
        if self.spec.selector is None:
            return {"": ""}
        if present(self.spec.selector.match_expressions):
            return None
        return self.spec.selector.match_labels or {}


class QueueEvictions(_Part, frozen=True):
    most: int | None = None
    window_seconds: int | None = None


class QueueSpec(_Part, frozen=True):
    """Amounts and weights speak of "nvidia.com/gpu" (fractions allowed), "nvidia.com/gpu:<model>", "cpu", "memory"."""

    parent: str | None = None
    limits: Quantities | None = None
    deserved: Quantities | None = None
    weights: dict[str, int] | None = None
    preemptible: bool | None = None
    min_run_seconds: int | None = None
    evict_notice_seconds: int | None = None
    evictions: QueueEvictions | None = None
    namespaces: tuple[str, ...] | None = None
    usage_half_life_seconds: int | None = None


class QueueObject(_Part, frozen=True):
    """The status is ours alone and stays raw: what stands there never makes the queue itself unreadable."""

    metadata: Meta
    spec: QueueSpec = QueueSpec()
    status: Raw = ABSENT


class PodGroupSpec(_Part, frozen=True):
    min_member: int | None = None


class PodGroup(_Part, frozen=True):
    metadata: Meta
    spec: PodGroupSpec = PodGroupSpec()


class Namespace(_Part, frozen=True):
    metadata: Meta


class LeaseSpec(_Part, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(_Part, frozen=True):
    metadata: Meta
    spec: LeaseSpec = LeaseSpec()


class StatusCause(_Part, frozen=True):
    reason: str | None = None
    message: str | None = None
    field: str | None = None


class StatusDetails(_Part, frozen=True):
    name: str | None = None
    uid: str | None = None
    causes: tuple[StatusCause, ...] | None = None
    retry_after_seconds: int | None = None


class Status(_Part, frozen=True):
    """What the API server answers when it refuses, and inside a watch when it ends it."""

    kind: str | None = None
    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: StatusDetails | None = None


class ListMeta(msgspec.Struct, frozen=True):
    resourceVersion: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


class ListObject(msgspec.Struct, frozen=True):
    metadata: ListMeta = ListMeta()
    items: list[Raw] | None = None


class Bare(msgspec.Struct, frozen=True):
    """Just the metadata of any object."""

    metadata: Meta


pod_decoder: Final = msgspec.json.Decoder(Pod)
template_decoder: Final = msgspec.json.Decoder(PodTemplate)
node_decoder: Final = msgspec.json.Decoder(NodeObject)
priority_class_decoder: Final = msgspec.json.Decoder(PriorityClass)
pdb_decoder: Final = msgspec.json.Decoder(Pdb)
queue_decoder: Final = msgspec.json.Decoder(QueueObject)
pod_group_decoder: Final = msgspec.json.Decoder(PodGroup)
namespace_decoder: Final = msgspec.json.Decoder(Namespace)
lease_decoder: Final = msgspec.json.Decoder(Lease)
status_decoder: Final = msgspec.json.Decoder(Status)
list_decoder: Final = msgspec.json.Decoder(ListObject)
bare_decoder: Final = msgspec.json.Decoder(Bare)
