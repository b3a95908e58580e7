"""Queue objects on a real API server: what makes no sense is refused with a sentence, whoever sends it by whatever
client, and what makes sense comes back as it was said."""

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from libs.domain import keys
from libs.domain.queues import Quota, Weights
from libs.kube import queues, writes
from libs.kube.objects import queue_decoder
from libs.kube.outcomes import Outcome, classify, status_of
from libs.kube.port import Answer, Kube
from tools.load import Load, kubectl
from tools.stack import StackInfo

pytestmark = pytest.mark.real


@pytest.fixture
async def admin(info: StackInfo) -> AsyncIterator[Kube]:
    async with Load.of(info) as load:
        yield load.kube


@pytest.fixture
async def named(admin: Kube) -> AsyncIterator[str]:
    name = f"q-{uuid.uuid4().hex[:8]}"
    yield name
    await admin.call("DELETE", f"{writes.QUEUES}/{name}")


async def create(kube: Kube, name: str, spec: dict[str, Any]) -> Answer:
    body = {"apiVersion": keys.API_VERSION, "kind": "Queue", "metadata": {"name": name}, "spec": spec}
    return await kube.call("POST", writes.QUEUES, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"limits": {"nvidia.com/gpus": 4}}, "nvidia.com/gpus is none of nvidia.com/gpu, cpu, memory"),
        ({"deserved": {"nvidia.com/gpu:": 4}}, "nvidia.com/gpu: is none of"),
        ({"weights": {"gpu": 4}}, "gpu is none of nvidia.com/gpu, cpu, memory"),
        ({"weights": {"nvidia.com/gpu:": 4}}, "nvidia.com/gpu: is none of"),
        ({"weights": {"nvidia.com/gpu:H100": 1001}}, "should be less than or equal to 1000"),
        ({"usageHalfLifeSeconds": 59}, "should be greater than or equal to 60"),
        ({"usageHalfLifeSeconds": 7776001}, "should be less than or equal to 7776000"),
        ({"usageHalfLifeSeconds": "1d"}, "must be of type integer"),
        ({"limits": {"cpu": "many"}}, "should match"),
        ({"limits": {"nvidia.com/gpu": -1}}, "should be greater than or equal to 0"),
        ({"limits": {"memory": "-1Gi"}}, "should match"),
        ({"limits": {"memory": "5Pi"}}, "at most 1M GPUs, 100M cores, 4Pi of memory"),
        ({"limits": {"nvidia.com/gpu": 4}, "deserved": {"nvidia.com/gpu": "4500m"}}, "deserves no more than its limit"),
        ({"limits": {"cpu": "1500m"}, "deserved": {"cpu": 2}}, "deserves no more than its limit"),
        ({"limits": {"nvidia.com/gpu": 4}, "deserved": {"nvidia.com/gpu:H100": 5}}, "of one model than its limit"),
        ({"weights": {"nvidia.com/gpu": 1001}}, "should be less than or equal to 1000"),
        ({"weights": {"cpu": -1}}, "should be greater than or equal to 0"),
        ({"minRunSeconds": -5}, "should be greater than or equal to 0"),
        ({"evictions": {"most": 3, "windowSeconds": 1}}, "should be greater than or equal to 60"),
        ({"namespaces": ["Team"]}, "should match"),
        ({"namespaces": ["team", "team"]}, "Duplicate value"),
        ({"parent": "a/b"}, "should match"),
        ({"preemptible": "no"}, "must be of type boolean"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_sentence(
    admin: Kube, named: str, spec: dict[str, Any], said: str
) -> None:
    answer = await create(admin, named, spec)
    assert classify(answer) is Outcome.REFUSED, answer.body
    assert answer.status == 422
    assert said in (status_of(answer).message or "")


async def test_no_queue_is_its_own_parent_and_no_change_makes_it_so(admin: Kube, named: str) -> None:
    answer = await create(admin, named, {"parent": named})
    assert "a queue is not its own parent" in (status_of(answer).message or "")
    assert (await create(admin, named, {})).ok
    patch = json.dumps({"spec": {"parent": named}}).encode()
    answer = await admin.call("PATCH", f"{writes.QUEUES}/{named}", patch, content_type=writes.MERGE)
    assert answer.status == 422
    assert "a queue is not its own parent" in (status_of(answer).message or "")


async def test_what_makes_sense_comes_back_as_it_was_said(admin: Kube, named: str) -> None:
    spec = {
        "parent": "not-there-yet",
        "limits": {"nvidia.com/gpu": 16, "nvidia.com/gpu:NVIDIA-A100-SXM4-80GB": "8", "cpu": "64", "memory": "512Gi"},
        "deserved": {"nvidia.com/gpu": "7500m", "nvidia.com/gpu:NVIDIA-A100-SXM4-80GB": 4, "cpu": 0},
        "weights": {"nvidia.com/gpu": 3, "nvidia.com/gpu:NVIDIA-A100-SXM4-80GB": 7, "memory": 1000},
        "usageHalfLifeSeconds": 43200,
        "preemptible": False,
        "minRunSeconds": 900,
        "evictions": {"most": 2, "windowSeconds": 3600},
        "namespaces": ["team-a", "team-b"],
    }
    answer = await create(admin, named, spec)
    assert answer.ok, answer.body
    stored = json.loads((await admin.call("GET", f"{writes.QUEUES}/{named}")).body)
    assert stored["spec"] == spec
    seen = queue_decoder.decode(answer.body)
    read = queues.tree({named: (seen.spec, seen.metadata.resource_version)})[named]
    assert queues.limits_of(read.queue) == Quota(16_000, 64_000, 512 * 1024, {"NVIDIA-A100-SXM4-80GB": 8000})
    assert read.queue.deserved == Quota(7500, 0, None, {"NVIDIA-A100-SXM4-80GB": 4000})
    assert read.queue.weights == Weights(3, 1, 1000, {"NVIDIA-A100-SXM4-80GB": 7})
    assert read.queue.half_life_s == 43_200
    assert (read.queue.preemptible, read.queue.min_run_s) == (False, 900)
    assert (read.queue.evictions, read.queue.evictions_window_s) == (2, 3600)
    assert read.queue.namespaces == ("team-a", "team-b")


async def test_what_kubectl_shows_is_the_share_and_the_use(info: StackInfo, admin: Kube, named: str) -> None:
    spec = {"parent": "org", "limits": {"nvidia.com/gpu": 16}, "deserved": {"nvidia.com/gpu": "7500m"}}
    uid = json.loads((await create(admin, named, spec)).body)["metadata"]["uid"]
    status = {"used": {"nvidia.com/gpu": "5"}, "pending": {"jobs": 3, "tasks": 9, "gpus": "12"}, "no-such": "field"}
    assert (await writes.patch_queue_status(admin, named, uid, status)).ok
    shown = kubectl(info, "get", "queues.drystone.dev", named)
    head, row = shown.splitlines()
    assert head.split() == ["NAME", "PARENT", "GPU-LIMIT", "GPU-DESERVED", "GPU-USED", "PENDING", "AGE"]
    assert row.split()[:6] == [named, "org", "16", "7500m", "5", "3"]
    stored = json.loads((await admin.call("GET", f"{writes.QUEUES}/{named}")).body)
    assert stored["spec"] == spec, "a status is written beside the spec"
    assert "no-such" not in stored["status"]


async def test_a_status_meant_for_another_queue_of_the_name_is_not_written(admin: Kube, named: str) -> None:
    assert (await create(admin, named, {})).ok
    answer = await writes.patch_queue_status(admin, named, str(uuid.uuid4()), {"path": named})
    assert classify(answer) is Outcome.CONFLICT
    assert "status" not in json.loads((await admin.call("GET", f"{writes.QUEUES}/{named}")).body)
