"""Which resources the embedded server knows, and what a path names."""

from __future__ import annotations

from typing import Final, NamedTuple

from libs.domain import keys
from libs.kube.sim.store import Place


class Kind(NamedTuple):
    """`status`: has a /status subresource of its own, so that writes to the one leave the other alone."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False

    @property
    def resource(self) -> str:
        return f"{self.group}/{self.plural}"

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class Target(NamedTuple):
    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def place(self) -> Place:
        return Place(self.kind.resource, self.namespace if self.kind.namespaced else "", self.name)


_OURS, _VERSION = keys.API_VERSION.split("/")
KINDS: Final = (
    Kind("", "v1", "pods", "Pod", status=True),
    Kind("", "v1", "nodes", "Node", namespaced=False, status=True),
    Kind("", "v1", "namespaces", "Namespace", namespaced=False, status=True),
    Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", status=True),
    Kind("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False, status=True),
    Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False),
    Kind("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False),
    Kind("", "v1", "configmaps", "ConfigMap"),
    Kind("", "v1", "secrets", "Secret"),
    Kind("", "v1", "events", "Event"),
    Kind("coordination.k8s.io", "v1", "leases", "Lease"),
    Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False),
    Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", status=True),
    Kind("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", status=True),
    Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", status=True),
    Kind("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup", status=True),
    Kind(_OURS, _VERSION, "trainingjobs", "TrainingJob", status=True),
    Kind(_OURS, _VERSION, "queues", "Queue", namespaced=False, status=True),
)


class Router:
    def __init__(self, kinds: tuple[Kind, ...] = KINDS) -> None:
        self._kinds = {(k.group, k.version, k.plural): k for k in kinds}

    def add(self, kind: Kind) -> None:
        self._kinds[kind.group, kind.version, kind.plural] = kind

    def resolve(self, path: str) -> Target | None:
        """None where the real server would answer 404 for the path itself."""
        parts = path.strip("/").split("/")
        if parts[0] == "api" and len(parts) >= 3:
            group, version, rest = "", parts[1], parts[2:]
        elif parts[0] == "apis" and len(parts) >= 4:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            return None
        namespace = ""
        if rest[0] == "namespaces" and len(rest) >= 3 and (group, version, rest[2]) in self._kinds:
            namespace, rest = rest[1], rest[2:]
        kind = self._kinds.get((group, version, rest[0]))
        if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
            return None
        return Target(kind, namespace, rest[1] if len(rest) > 1 else "", rest[2] if len(rest) > 2 else "")
