"""The leader's picture of the cluster: which changes are worth a word, and which are not."""

from __future__ import annotations

from typing import Any

import msgspec

from libs.contracts.events import NodeFact, PodFact, PriorityClassFact
from libs.domain import keys
from services.watcher.decide import Picture
from services.watcher.lists import handlers

ENCODE = msgspec.json.encode


def pod(name: str, version: int, node: str = "", **more: Any) -> bytes:
    annotations = {keys.GPUS: "2", keys.CLAIM: "1.0.1.1.0"} if node else {}
    meta = {"name": name, "namespace": "team", "uid": "uid-" + name, "resourceVersion": str(version)}
    spec = {"schedulerName": more.pop("scheduler", "drystone"), "nodeName": node}
    limits = {keys.GPU_RESOURCE: "1"}
    return ENCODE(
        {
            "metadata": {**meta, "annotations": annotations, **more.pop("meta", {})},
            "spec": {**spec, "containers": [{"resources": {"limits": limits}}]},
            "status": {"phase": "Pending", **more},
        }
    )


def node(name: str, version: int, gpus: int = 8, uid: str = "", **more: Any) -> bytes:
    return ENCODE(
        {
            "metadata": {"name": name, "uid": uid or "uid-" + name, "resourceVersion": str(version), **more},
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", keys.GPU_RESOURCE: str(gpus)},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )


def queue(name: str, version: int, parent: str = "", namespaces: tuple[str, ...] = ()) -> bytes:
    spec = {"namespaces": namespaces, **({"parent": parent} if parent else {})}
    return ENCODE({"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}, "spec": spec})


def picture() -> tuple[Picture, Any]:
    unreadable: list[str] = []
    made = Picture(7, {"team": "vision"}, unreadable.append)
    return made, unreadable


def test_a_pods_life_is_a_task_then_a_charge_then_room() -> None:
    seen, _ = picture()
    seen.pods.event("ADDED", pod("p", 5))
    (hint,) = seen.take().hints.values()
    assert list(hint.tasks) == ["uid-p"]
    assert hint.head.tenant == "vision"

    seen.pods.event("MODIFIED", pod("p", 6, "n1"))
    changes = seen.take()
    assert changes.bound["uid-p"].claim == "1.0.1.1.0"
    assert list(changes.hints["pod/team/p"].bound) == ["uid-p"]

    seen.pods.event("DELETED", pod("p", 7, "n1"))
    changes = seen.take()
    assert changes.gone == {"uid-p"}
    assert changes.facts == {"pod/uid-p": None}
    assert list(changes.hints["pod/team/p"].gone) == ["uid-p"]


def test_bound_and_gone_within_one_burst_is_only_gone() -> None:
    seen, _ = picture()
    seen.pods.event("ADDED", pod("p", 5, "n1"))
    seen.pods.event("DELETED", pod("p", 6, "n1"))
    changes = seen.take()
    assert not changes.bound
    assert changes.gone == {"uid-p"}
    assert changes.facts == {"pod/uid-p": None}


def test_a_kubelets_heartbeat_says_nothing_and_an_older_version_is_dropped_after_it() -> None:
    seen, _ = picture()
    seen.node_event("ADDED", node("n1", 10))
    seen.pods.event("ADDED", pod("p", 11, "n1"))
    said = seen.take()
    seen.node_event("MODIFIED", node("n1", 100))
    seen.pods.event("MODIFIED", pod("p", 101, "n1"))
    assert not seen.take()
    # 99 is older than 100, though greater as text.
    seen.node_event("MODIFIED", node("n1", 99, gpus=4))
    seen.pods.event("MODIFIED", pod("p", 99, "n1", phase="Failed"))
    assert not seen.take()
    # What the topic has is what was said: heartbeats must not look like lost facts.
    assert seen.fact("node/n1") == said.facts["node/n1"]
    assert seen.fact("pod/uid-p") == said.facts["pod/uid-p"]


def test_a_word_in_the_status_of_a_pod_that_waits_is_no_news_and_a_changed_wish_is() -> None:
    """Thousands of pods that fit nowhere get a condition each: placement wrote it, nobody needs to be told."""
    seen, _ = picture()
    seen.pods.event("ADDED", pod("p", 5))
    (first,) = seen.take().hints.values()
    assert first.tasks["uid-p"].version == "5"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    seen.pods.event("MODIFIED", pod("p", 6, conditions=[condition]))
    assert not seen.take()
    assert seen.pods.version_of("uid-p") == "6"
    seen.pods.event("MODIFIED", pod("p", 7, conditions=[condition], meta={"annotations": {keys.QUEUE: "other"}}))
    (changed,) = seen.take().hints.values()
    assert changed.tasks["uid-p"].version == "7"
    seen.pods.event("MODIFIED", pod("p", 8, "n1", conditions=[condition]))
    assert "uid-p" in seen.take().bound


def test_a_list_reads_again_only_whose_version_is_new() -> None:
    seen, unreadable = picture()
    listed, _ = handlers(seen)["pods"]
    listed([pod("p", 5), pod("q", 6), pod("goes", 7)])
    seen.take()
    broken = ENCODE({"metadata": {"uid": "uid-p", "resourceVersion": "5"}, "spec": "of which nothing needs to be read"})
    listed([broken, pod("q", 9, "n1")])
    changes = seen.take()
    assert not unreadable
    assert set(changes.bound) == {"uid-q"}
    assert changes.gone == {"uid-goes"}
    assert set(seen.pods.by_uid) == {"uid-p", "uid-q"}
    listed([ENCODE({"metadata": {"uid": "uid-p", "resourceVersion": "10"}, "spec": "broken"}), pod("q", 9, "n1")])
    assert len(unreadable) == 1
    assert "uid-p" in seen.pods.by_uid, "it is there all the same"


def test_a_node_that_registers_under_a_new_uid_keeps_its_pods() -> None:
    seen, _ = picture()
    seen.node_event("ADDED", node("n1", 10))
    seen.pods.event("ADDED", pod("p", 11, "n1"))
    seen.take()
    seen.node_event("DELETED", node("n1", 12))
    seen.node_event("ADDED", node("n1", 13, uid="another"))
    changes = seen.take()
    assert changes.nodes["n1"].uid == "another"
    assert not changes.nodes_gone
    assert not changes.gone


def test_a_pod_before_its_node_is_charged_again_when_the_devices_are_known() -> None:
    seen, _ = picture()
    seen.pods.event("ADDED", pod("p", 5, "n1"))
    seen.take()
    seen.node_event("ADDED", node("n1", 6, nothing=None, labels={keys.NODE_GPU_MEMORY: "40000"}))
    (grant,) = seen.take().bound["uid-p"].charge.gpus
    assert (grant.index, grant.mib) == (2, 40000)


def test_lists_end_what_they_do_not_show_of_every_kind() -> None:
    seen, _ = picture()
    listed = {name: way for name, (way, _) in handlers(seen).items()}
    listed["nodes"]([node("n1", 1), node("n2", 2)])
    listed["pods"]([pod("p", 3, "n1"), pod("waits", 4)])
    listed["queues"]([queue("org", 5), queue("vision", 6, "org", ("team",))])
    listed["priorityclasses"]([ENCODE({"metadata": {"name": "urgent", "resourceVersion": "7"}, "value": 9})])
    listed["pdbs"]([ENCODE({"metadata": {"name": "b", "namespace": "team", "uid": "u", "resourceVersion": "8"}})])
    keys_then = seen.fact_keys()
    assert set(seen.take().facts) == keys_then
    assert seen.known.namespace_queues == {"team": "org/vision"}

    for resource in ("nodes", "pods", "queues", "priorityclasses", "pdbs"):
        listed[resource]([])
    changes = seen.take()
    assert changes.facts == dict.fromkeys(keys_then)
    assert changes.nodes_gone == {"n1", "n2"}
    assert changes.queues_gone == {"org", "org/vision"}
    assert changes.gone == {"uid-p", "uid-waits"}
    assert not seen.fact_keys()
    assert not seen.known.namespace_queues


def test_an_object_that_cannot_be_read_is_counted_and_stops_nobody() -> None:
    seen, unreadable = picture()
    listed, event = handlers(seen)["pods"]
    listed([pod("a", 1), b'{"metadata": {"uid": 7}}', pod("b", 2)])
    event("MODIFIED", b"{")
    assert list(seen.pods.by_uid) == ["uid-a", "uid-b"]
    assert len(unreadable) >= 2


def test_a_pod_that_became_unreadable_is_not_taken_for_gone() -> None:
    seen, _ = picture()
    listed, _ = handlers(seen)["pods"]
    listed([pod("p", 1, "n1")])
    seen.take()
    broken = msgspec.json.decode(pod("p", 2, "n1"))
    broken["spec"]["containers"] = "none"
    listed([ENCODE(broken)])
    assert not seen.take().gone


def test_everything_tells_the_whole_topic_anew_with_this_leaders_term() -> None:
    seen, _ = picture()
    seen.node_event("ADDED", node("n1", 1))
    seen.pods.event("ADDED", pod("p", 2, "n1"))
    seen.catalog.priority("ADDED", ENCODE({"metadata": {"name": "urgent", "resourceVersion": "7"}, "value": 9}))
    seen.take()
    changes = seen.everything()
    assert changes.facts.keys() == seen.fact_keys()
    kinds = {type(fact) for fact in changes.facts.values()}
    assert kinds == {NodeFact, PodFact, PriorityClassFact}
    assert all(fact is not None and fact.term == 7 for fact in changes.facts.values())
    assert list(changes.bound) == ["uid-p"]


def test_a_queue_that_is_its_own_ancestor_does_not_hang_the_leader() -> None:
    seen, _ = picture()
    seen.queue_list([queue("a", 1, "b"), queue("b", 2, "a"), queue("c", 3, "not-there")])
    assert {path.rsplit("/", 1)[-1] for path in seen.catalog.queues} == {"a", "b", "c"}


def test_queues_change_under_what_waits_and_what_runs() -> None:
    """A job object and a pod that wait follow their namespace; a pod that runs stays, but for its queue's own move."""
    seen, _ = picture()
    seen.queue_list([queue("org", 1), queue("a", 2, "org", ("team",)), queue("b", 3)])
    role = {"name": "worker", "replicas": 2, "template": {"spec": {"containers": [{"name": "main"}]}}}
    meta = {"name": "train", "namespace": "team", "uid": "j", "resourceVersion": "4"}
    seen.job_event("ADDED", ENCODE({"metadata": meta, "spec": {"roles": [role]}}))
    seen.pods.event("ADDED", pod("waits", 5))
    seen.pods.event("ADDED", pod("runs", 6, "n1"))
    seen.take()

    seen.queue_event("MODIFIED", queue("a", 7, "org"))
    seen.queue_event("MODIFIED", queue("b", 8, namespaces=("team",)))
    changes = seen.take()
    assert {key: hint.head.queue for key, hint in changes.hints.items()} == {
        "job/team/train": "b",
        "pod/team/waits": "b",
    }
    assert len(changes.hints["job/team/train"].tasks) == 2
    assert not changes.bound

    seen.queue_event("MODIFIED", queue("a", 9))
    changes = seen.take()
    assert changes.bound["uid-runs"].queue == "a"
    assert not changes.hints
    seen.pods.event("MODIFIED", pod("runs", 10, "n1", phase="Running"))
    assert seen.take().bound["uid-runs"].queue == "a"
