"""What owners declare of how their pods run reaches placement, by the watcher's hints and by placement's own list."""

from __future__ import annotations

import msgspec

from libs.contracts.events import PodFact
from libs.domain import keys
from libs.domain.jobs import JobHead
from libs.engine.core import PlacementEngine
from libs.kube.embedded import EmbeddedCluster
from libs.kube.grouping import Known
from services.placement.truth import read_truth
from services.placement.view import View
from services.watcher.decide import Picture
from services.watcher.lists import group_watch, handlers

ENCODE = msgspec.json.encode
GROUP = {"metadata": {"name": "gang", "annotations": {keys.PREEMPTIBLE: "false", keys.CHECKPOINT: "300"}}}
POD = {
    "metadata": {
        "name": "m",
        "labels": {"scheduling.x-k8s.io/pod-group": "gang"},
        "annotations": {keys.CHECKPOINT: "60"},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u-1", "controller": True}],
    },
    "spec": {"schedulerName": "drystone", "containers": [{"name": "main"}]},
}


def declared(head: JobHead) -> tuple[bool, int, str]:
    return head.preemptible, head.checkpoint_s, head.workload


async def test_a_pod_groups_words_reach_placement_both_ways() -> None:
    cluster = EmbeddedCluster()
    groups = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
    group = cluster.call_now("POST", groups, ENCODE({**GROUP, "spec": {"minMember": 1}}))
    pod = cluster.call_now("POST", "/api/v1/namespaces/default/pods", ENCODE(POD))
    assert group.ok and pod.ok

    picture = Picture(1, {})
    ways = {name: way for name, (way, _) in handlers(picture).items()}
    ways[group_watch("scheduler-plugins")]([group.body])
    ways["pods"]([pod.body])
    (hint,) = picture.take().hints.values()
    truth = await read_truth(cluster, Known(), frozenset(range(8)), 8, {})
    (listed,) = truth.jobs.values()
    assert declared(hint.head) == declared(listed.head) == (False, 60, "Job/default/u-1")
    await cluster.close()


async def test_when_a_running_pod_says_that_it_saved_its_work_placement_is_told() -> None:
    cluster = EmbeddedCluster()
    said = {**POD["metadata"]["annotations"], keys.CHECKPOINT_AT: "2026-01-02T03:04:05+00:00"}
    body = {"metadata": {"name": "m", "annotations": said}, "spec": {**POD["spec"], "nodeName": "n1"}}
    made = cluster.call_now("POST", "/api/v1/namespaces/default/pods", ENCODE(body))
    assert made.ok

    picture = Picture(1, {})
    {name: way for name, (way, _) in handlers(picture).items()}["pods"]([made.body])
    (fact,) = [fact for fact in picture.take().facts.values() if isinstance(fact, PodFact)]
    assert (fact.saved, fact.checkpoint_s) == (1_767_323_045.0, 60)
    engine = PlacementEngine()
    View(lambda: engine).see(fact, 0.0)
    (running,) = engine._session.running.by_uid.values()
    assert (running.saved, running.checkpoint_s) == (fact.saved, 60)
    await cluster.close()
