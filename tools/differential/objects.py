"""Objects that are the same in every world but for their names."""

from __future__ import annotations

from tools.differential.words import DRIVER, FIRST_USE_CLASS, IMMEDIATE_CLASS, KEYS, RUNTIME_CLASS, Object


def storage_classes() -> list[Object]:
    """One that binds at once (nobody does here), one that waits for first use and provisions in two zones only."""
    common = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": DRIVER}
    zones = [{"matchLabelExpressions": [{"key": KEYS[0], "values": ["z1", "z2"]}]}]
    return [
        {**common, "metadata": {"name": IMMEDIATE_CLASS}, "volumeBindingMode": "Immediate"},
        {
            **common,
            "metadata": {"name": FIRST_USE_CLASS},
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": zones,
        },
    ]


def csi_node(name: str, count: int) -> Object:
    driver = {"name": DRIVER, "nodeID": name, "topologyKeys": [], "allocatable": {"count": count}}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name},
        "spec": {"drivers": [driver]},
    }


def claim(
    space: str, name: str, mode: str, kind: str, volume: str = "", annotations: dict[str, str] | None = None
) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": space, "annotations": annotations or {}},
        "spec": {
            "accessModes": [mode],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": kind,
            **({"volumeName": volume} if volume else {}),
        },
    }


def runtime_class() -> Object:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": RUNTIME_CLASS},
        "handler": RUNTIME_CLASS,
        "overhead": {"podFixed": {"cpu": "250m", "memory": "64Mi"}},
    }
