"""Jobs as their owner sees them, from objects as the API server gives them."""

from typing import Any

import msgspec
import pytest

from cli.jobview import Group, counted, evicted_of, find, groups_of, place_of
from libs.domain import keys
from libs.domain.queues import Eviction
from libs.kube import trainingjobs
from libs.kube.objects import Pod, pod_decoder


def pod(
    name: str,
    *,
    node: str = "",
    phase: str = "Pending",
    gang: str = "",
    minimum: int = 1,
    gpus: str = "",
    says: tuple[str, str] = ("", ""),
    owner: str = "",
    scheduler: str = "drystone",
) -> Pod:
    annotations = {keys.GPUS: gpus} if gpus else {}
    if gang:
        annotations |= {keys.JOB: gang, keys.GANG_MIN: str(minimum)}
    owners = [
        {"apiVersion": keys.API_VERSION, "kind": "TrainingJob", "name": owner, "uid": f"u-{owner}", "controller": True}
    ]
    condition = {"type": "PodScheduled", "status": "False", "reason": says[0], "message": says[1]}
    body: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"u-{name}",
            "annotations": annotations,
            **({"ownerReferences": owners} if owner else {}),
        },
        "spec": {"schedulerName": scheduler, "nodeName": node or None, "containers": [{"name": "main"}]},
        "status": {"phase": phase, "conditions": [condition] if says[0] else []},
    }
    return pod_decoder.decode(msgspec.json.encode(body))


def job(
    name: str, replicas: int, *, id: str = "", deleting: bool = False, **status: Any
) -> trainingjobs.TrainingJobView:
    going = {"deletionTimestamp": "2026-11-30T08:00:00Z"} if deleting else {}
    body = {
        "metadata": {"name": name, "namespace": "team", "uid": f"u-{name}", **going},
        "spec": {"id": id, "roles": [{"name": "worker", "replicas": replicas, "template": {}}]},
        "status": status,
    }
    return trainingjobs.parse(msgspec.json.encode(body))


def only(groups: list[Group]) -> Group:
    (group,) = groups
    return group


NO_ROOM = "0/3 nodes fit: 2 not enough free GPUs, 1 node cordoned; helps: 2 idle GPUs on one node (at most 1 are now)"


def test_a_waiting_gang_tells_why_with_its_nodes_counted() -> None:
    pods = [pod(f"g-{n}", gang="g", minimum=4, says=("Unschedulable", NO_ROOM)) for n in range(4)]
    group = only(groups_of([], pods))
    assert (group.kind, group.title, group.phase, group.bound, group.total) == ("gang", "team/g", "Pending", 0, 4)
    record = group.record()
    assert record["reason"] == "Unschedulable"
    assert record["nodes"] == {"not enough free GPUs": 2, "node cordoned": 1}
    assert record["helps"] == "2 idle GPUs on one node (at most 1 are now)"


def test_a_gang_of_which_pods_are_still_missing_counts_its_minimum() -> None:
    group = only(groups_of([], [pod("g-0", gang="g", minimum=8)]))
    assert (group.total, group.bound, group.waits) == (8, 0, True)


def test_a_bound_pod_says_where_and_which_devices() -> None:
    group = only(groups_of([], [pod("train", node="n1", phase="Running", gpus="0,3")]))
    assert (group.phase, group.bound, group.reason) == ("Running", 1, "")
    assert group.record()["placed"] == [{"name": "train", "node": "n1", "gpus": "0,3", "phase": "Running"}]


def test_bound_tasks_of_a_job_are_counted_on_its_pods_not_by_an_old_status() -> None:
    pods = [pod(f"j-worker-{n}-0", owner="j", node="n1", phase="Running", gpus=str(n)) for n in range(2)]
    group = only(groups_of([job("j", 2, phase="Pending", reason="Unschedulable", message=NO_ROOM)], pods))
    assert (group.kind, group.phase, group.bound, group.total) == ("job", "Running", 2, 2)
    assert group.reason == "", "what was said while it waited is over"


def test_a_failed_job_keeps_its_reason() -> None:
    group = only(groups_of([job("j", 1, phase="Failed", reason="BackoffLimitExceeded", message="pod x failed")], []))
    assert (group.phase, group.reason, group.message) == ("Failed", "BackoffLimitExceeded", "pod x failed")


def test_a_cancelled_job_does_not_look_as_if_it_ran_while_its_pods_leave() -> None:
    cancelled = job("j", 2, deleting=True, phase="Running")
    pods = [pod(f"j-worker-{n}-0", owner="j", node="n1", phase="Running", gpus=str(n)) for n in range(2)]
    group = only(groups_of([cancelled], pods))
    assert (group.phase, group.reason, group.bound) == ("Cancelled", "Deleting", 2)
    assert group.message == "2 of its pods are not gone yet"
    over = only(groups_of([job("j", 2, deleting=True, phase="Succeeded", reason="Completed")], []))
    assert (over.phase, over.reason) == ("Succeeded", "Completed"), "what ended is not cancelled by being cleared away"


def test_pods_of_an_earlier_job_of_the_same_name_are_not_this_jobs() -> None:
    old = pod("j-worker-0-0", owner="other", node="n1")
    groups = groups_of([job("j", 1)], [old])
    assert {(g.kind, g.name, g.bound) for g in groups} == {("job", "j", 0), ("job", "other", 1)}
    (orphans,) = (g for g in groups if g.name == "other")
    assert (orphans.phase, orphans.reason) == ("Cancelled", "Deleting"), "its job is gone, its pods follow"


def test_foreign_pods_are_not_shown() -> None:
    assert groups_of([], [pod("web", scheduler="default-scheduler")]) == []


@pytest.mark.parametrize("name", ["resnet-abc", "resnet", "resnet-abc-worker-0-0"])
def test_a_job_is_found_by_its_name_its_id_and_the_name_of_a_pod(name: str) -> None:
    pods = [pod("resnet-abc-worker-0-0", owner="resnet-abc")]
    groups = groups_of([job("resnet-abc", 1, id="resnet"), job("zz", 1, id="other")], pods)
    found = find(groups, "team", name)
    assert found is not None
    assert found.name == "resnet-abc"
    assert find(groups, "another", name) is None


def test_a_name_comes_before_an_id() -> None:
    groups = groups_of([job("a", 1, id="b"), job("b", 1, id="a")], [])
    found = find(groups, "team", "b")
    assert found is not None
    assert found.name == "b"


@pytest.mark.parametrize(
    ("message", "nodes"),
    [
        (NO_ROOM, {"not enough free GPUs": 2, "node cordoned": 1}),
        ("0/1 nodes fit: 1 node too small: GPUs; helps: a smaller task", {"node too small: GPUs": 1}),
        ("queue a: 2 of 4 GPU used, 3 more asked; helps: GPU quota freed in queue a", {}),
        ("the cluster has no nodes; helps: a node joining the cluster", {}),
        ("", {}),
    ],
)
def test_counts_are_read_back_from_the_sentence(message: str, nodes: dict[str, int]) -> None:
    assert counted(message) == nodes


@pytest.mark.parametrize(
    "place", [". 3rd of 12 waiting in queue a (2nd of all), behind x", ". about 20th of 30 waiting in queue a", ""]
)
def test_what_helps_ends_where_the_place_in_line_begins(place: str) -> None:
    group = Group("pod", "team", "p", message=f"0/2 nodes fit; helps: 4 idle GPUs, 1 more node like n1{place}")
    assert group.record()["helps"] == "4 idle GPUs, 1 more node like n1"


@pytest.mark.parametrize("line", ["", ". 1st of 2 waiting in queue a/b; expected start: unknown"])
def test_a_pod_that_was_made_again_says_for_whom_the_one_before_it_went(line: str) -> None:
    eviction = Eviction("pod/team/low-1", "pod/team/urgent-0", "priority", 1_796_000_000)
    said = f"0/1 nodes fit; would help: 1 GPU{line}"
    record = only(groups_of([], [pod("low", says=("Waiting", f"{said}. It {eviction.sentence()}"))])).record()
    told = {"beneficiary": "pod/team/urgent-0", "rule": "priority", "at": "2026-11-30T00:53:20Z"}
    assert record["evicted"] == told
    assert record["helps"] == "1 GPU"
    assert evicted_of(record["message"]) == (said, told)
    place = place_of(record["message"])
    assert (place.text if place else "") == line.removeprefix(". ")
