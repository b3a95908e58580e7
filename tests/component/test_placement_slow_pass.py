"""The slow pass of placement beside thousands of pods that wait: what is as it was is not read again."""

from __future__ import annotations

import msgspec
import pytest

from libs.domain import keys
from libs.domain.jobs import partition_of
from libs.kube.embedded import EmbeddedCluster
from libs.kube.grouping import Known
from libs.kube.pods import PodView
from services.placement import truth
from services.placement.jobs import Pending

ENCODE = msgspec.json.encode
PODS = "/api/v1/namespaces/default/pods"


def pod(name: str, gpus: int = 1) -> bytes:
    limits = {"nvidia.com/gpu": str(gpus)}
    spec = {
        "schedulerName": keys.SCHEDULER_NAME,
        "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}],
    }
    return ENCODE({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec})


async def test_of_the_pods_that_wait_only_those_with_a_new_version_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, pending = EmbeddedCluster(), Pending()
    read: list[str] = []
    parse = truth.parse_pod

    def counted(raw: bytes) -> PodView:
        found = parse(raw)
        read.append(found.name)
        return found

    monkeypatch.setattr(truth, "parse_pod", counted)
    for name in ("same", "changes", "goes"):
        assert cluster.call_now("POST", PODS, pod(name)).ok
    everything = frozenset(range(8))
    first = await truth.read_truth(cluster, Known(), everything, 8, pending.jobs)
    for key, change in first.jobs.items():
        pending.merge(change, partition_of(key, 8), 0.0)
    assert sorted(read) == ["changes", "goes", "same"]

    read.clear()
    label = ENCODE({"metadata": {"labels": {"team": "vision"}}})
    assert cluster.call_now("PATCH", f"{PODS}/changes", label, content_type="application/merge-patch+json").ok
    assert cluster.call_now("DELETE", f"{PODS}/goes").ok
    assert cluster.call_now("POST", PODS, pod("comes")).ok
    second = await truth.read_truth(cluster, Known(), everything, 8, pending.jobs)
    assert sorted(read) == ["changes", "comes"]
    assert sorted(second.jobs) == ["pod/default/changes", "pod/default/comes", "pod/default/same"]
    (same,) = second.jobs["pod/default/same"].tasks
    assert same in first.jobs["pod/default/same"].tasks
    (changed,) = second.jobs["pod/default/changes"].tasks
    assert changed.version != first.jobs["pod/default/changes"].tasks[0].version
    await cluster.close()
