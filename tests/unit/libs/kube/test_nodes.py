"""Nodes, and the digest that tells a meaningful change from a heartbeat."""

from typing import Any

import pytest

from libs.domain.nodes import Gpu, Taint
from libs.kube.nodes import parse_node
from tests.unit.libs.kube.objects_for_tests import raw_node

A100 = {"nvidia.com/gpu.product": "A100", "nvidia.com/gpu.memory": "40960"}


def test_a_gpu_node() -> None:
    node = parse_node(
        raw_node(gpus=2, labels=A100, spec={"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]})
    )
    assert node.gpus == (Gpu(0, 40960, "A100"), Gpu(1, 40960, "A100"))
    assert (node.cpu, node.mem, node.pods, node.open) == (64000, 512 * 1024, 110, True)
    assert node.taints == (Taint("gpu", "yes", "NoSchedule"),)


def test_capacities_are_rounded_down() -> None:
    node = parse_node(raw_node(allocatable={"cpu": "1999999u", "memory": "1048577"}))
    assert (node.cpu, node.mem) == (1999, 1)


def test_a_heartbeat_changes_nothing() -> None:
    before = parse_node(raw_node(labels={**A100, "nvidia.com/gfd.timestamp": "1"}, gpus=2))
    after = parse_node(
        raw_node(
            labels={**A100, "nvidia.com/gfd.timestamp": "2"},
            gpus=2,
            conditions={"MemoryPressure": "False"},
            meta={"resourceVersion": "10", "annotations": {"volumes.kubernetes.io/x": "y"}},
        )
    )
    assert before.spec == after.spec
    assert before.version != after.version


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}},
        {"labels": {"zone": "b"}},
        {"allocatable": {"cpu": "63"}},
        {"gpus": 7},
        {"conditions": {"Ready": "Unknown"}},
        {"conditions": {"DiskPressure": "True"}},
        {"meta": {"deletionTimestamp": "2026-11-30T06:00:00Z"}},
    ],
)
def test_what_matters_changes_the_digest(change: dict[str, Any]) -> None:
    assert parse_node(raw_node(**change)).spec != parse_node(raw_node()).spec


def test_order_of_taints_does_not_matter() -> None:
    taints = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]
    one, other = raw_node(spec={"taints": taints}), raw_node(spec={"taints": taints[::-1]})
    assert parse_node(one).spec == parse_node(other).spec


@pytest.mark.parametrize("conditions", [{"Ready": "False"}, {"NetworkUnavailable": "True"}, {"PIDPressure": "True"}])
def test_a_node_that_would_refuse_is_not_ready(conditions: dict[str, str]) -> None:
    assert not parse_node(raw_node(conditions=conditions)).ready


@pytest.mark.parametrize(
    ("labels", "allocatable", "why"),
    [
        ({"nvidia.com/gpu.replicas": "4"}, {}, "time-sliced"),
        ({"nvidia.com/gpu.replicas": "1"}, {}, ""),
        ({"nvidia.com/gpu.product": "A100-SHARED"}, {}, "time-sliced"),
        ({"nvidia.com/gpu.product": "A100-MIG-1g.5gb"}, {}, "MIG mode"),
        ({}, {"nvidia.com/mig-1g.5gb": "7"}, "MIG mode"),
    ],
)
def test_devices_without_an_index_of_their_own_are_closed(
    labels: dict[str, str], allocatable: dict[str, str], why: str
) -> None:
    assert parse_node(raw_node(gpus=1, labels=labels, allocatable=allocatable)).gpus_closed == why


@pytest.mark.parametrize(("labels", "devices"), [({}, 4), ({"nvidia.com/gpu.count": "2"}, 2)])
def test_a_device_that_is_offered_several_times_is_one_device(labels: dict[str, str], devices: int) -> None:
    node = parse_node(raw_node(gpus=16, labels={"nvidia.com/gpu.replicas": "4", **labels}))
    assert (len(node.gpus), node.gpus_closed) == (devices, "time-sliced")


def test_other_resources_are_kept_by_name() -> None:
    amounts = {"example.com/fpga": "2", "hugepages-2Mi": "64Mi", "hugepages-1Gi": "0", "ephemeral-storage": "1Gi"}
    node = parse_node(raw_node(allocatable=amounts))
    assert node.extra == {"example.com/fpga": 2, "hugepages-2Mi": 64 * 2**20, "ephemeral-storage": 2**30}
    assert node.spec != parse_node(raw_node(allocatable={**amounts, "example.com/fpga": "1"})).spec
