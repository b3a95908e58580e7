"""Placement rules on the running system: what the services are told of other pods, namespaces and volumes."""

import asyncio
from typing import Any

import msgspec
import pytest

from libs.kube import writes
from libs.kube.volumes import CLASSES, SELECTED_NODE, VOLUMES, claim_decoder
from tests.e2e.world import World, bound

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOST = "kubernetes.io/hostname"


def term(app: str, **more: Any) -> dict[str, Any]:
    return {REQUIRED: [{"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": app}}, **more}]}


async def test_pods_keep_apart_join_others_and_follow_a_namespaces_labels(world: World) -> None:
    first, second = sorted(await world.nodes(2))
    apart = {"podAntiAffinity": term("db")}
    await world.create(*(world.pod(f"db-{n}", gpus=1, labels={"app": "db"}, affinity=apart) for n in range(3)))
    pods = await world.until(lambda pods: len(bound(pods)) == 2 and sum(bool(p.reason) for p in pods.values()) == 1)
    assert {pods[name].view.node for name in bound(pods)} == {first, second}
    (waiting,) = pods.keys() - set(bound(pods))
    assert pods[waiting].reason == "Unschedulable", "one more node would help"

    await world.create(world.pod("foreign", scheduler="nobody", gpus=0, labels={"app": "cache"}, nodeName=second))
    near = {"podAffinity": term("cache", namespaceSelector={"matchLabels": {"team": "red"}})}
    await world.create(world.pod("web", gpus=0, affinity=near))
    pods = await world.until(lambda pods: bool(pods["web"].reason if "web" in pods else ""))
    assert pods["web"].reason == "Waiting", "no node makes pods run that are asked for"
    path = f"{writes.NAMESPACES}/{world.namespace}"
    answer = await world.load.kube.call(
        "PATCH", path, b'{"metadata":{"labels":{"team":"red"}}}', content_type=writes.MERGE
    )
    assert answer.ok, answer.body
    pods = await world.until(lambda pods: "web" in bound(pods))
    assert pods["web"].view.node == second


async def test_a_pod_is_bound_when_its_volume_was_provisioned_for_its_node(world: World) -> None:
    kube, name = world.load.kube, world.namespace
    await world.nodes(2)
    claims = f"/api/v1/namespaces/{name}/persistentvolumeclaims"
    waits = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "disks.example.com",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    storage = {"accessModes": ["ReadWriteOnce"], "storageClassName": name}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {**storage, "resources": {"requests": {"storage": "1Gi"}}},
    }
    await world.load.create_all(CLASSES, [waits])
    await world.load.create_all(claims, [claim])
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    try:
        await world.create(world.pod("train", gpus=1, volumes=volumes))
        node = ""
        async with asyncio.timeout(20):
            while not node:
                await asyncio.sleep(0.05)
                seen = claim_decoder.decode((await kube.call("GET", f"{claims}/data")).body)
                node = (seen.metadata.annotations or {}).get(SELECTED_NODE, "")
        assert node in world.node_names
        await world.until(lambda pods: not pods["train"].view.bound, within_s=1.0)
        await provision(world, claims, node, storage)
        pods = await world.until(lambda pods: pods["train"].view.phase == "Running")
        assert pods["train"].view.node == node
    finally:
        for path in (f"{claims}/data", f"{VOLUMES}/{name}", f"{CLASSES}/{name}"):
            await kube.call("DELETE", path)


async def provision(world: World, claims: str, node: str, storage: dict[str, Any]) -> None:
    """What an external provisioner and the volume controller do."""
    here = {"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": world.namespace},
        "spec": {
            **storage,
            "capacity": {"storage": "1Gi"},
            "csi": {"driver": "disks.example.com", "volumeHandle": "h"},
            "claimRef": {"namespace": world.namespace, "name": "data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
        },
    }
    await world.load.create_all(VOLUMES, [volume])
    done = {
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": world.namespace},
    }
    answer = await world.load.kube.call("PATCH", f"{claims}/data", msgspec.json.encode(done), content_type=writes.MERGE)
    assert answer.ok, answer.body
