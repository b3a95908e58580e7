"""What the binder concludes from node facts, answers and pods."""

from __future__ import annotations

import msgspec
import pytest

from libs.domain import keys
from libs.domain.plans import Assignment
from libs.domain.resources import Charge, GpuGrant, GpuRequest, Request
from libs.kube.pods import parse_pod
from libs.kube.port import Answer
from libs.testkit.builders import node
from services.binder.decide import (
    Seen,
    Step,
    after_write,
    judge_bind,
    judge_created,
    objection,
    still_wanted,
)


def assignment(**changes):
    base = Assignment(
        claim="1.0.1.1.0",
        task="uid-a",
        name="a",
        node="n1",
        node_spec=node("n1").spec,
        charge=Charge(1000, 1024, (GpuGrant(0, 1000, 81920),)),
        version="7",
    )
    return msgspec.structs.replace(base, **changes)


class TestObjection:
    def test_an_unchanged_node_admits(self):
        assert objection(assignment(), node("n1"), None) == ""

    def test_a_node_that_is_gone_does_not(self):
        assert "gone" in objection(assignment(), None, None)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"cordoned": True}, "cordoned"),
            ({"ready": False}, "not ready"),
            ({"taints": ["maintenance=soon:NoSchedule"]}, "maintenance"),
            ({"gpus": 0}, "no GPU 0"),
            ({"mib": 40960}, "no GPU 0"),
            ({"cpu": 500}, "too small"),
            ({"gpus_closed": "MIG mode"}, "MIG"),
            ({"cpu": 90_000}, "shrunk"),
        ],
    )
    def test_what_was_lost_since_the_decision_counts(self, change, says):
        assert says in objection(assignment(), node("n1", **change), node("n1"))

    def test_a_label_that_is_gone_counts_and_a_new_one_does_not(self):
        then = node("n1", labels={"rack": "r1"})
        decided = assignment(node_spec=then.spec)
        assert "labels" in objection(decided, node("n1"), then)
        assert objection(decided, node("n1", labels={"rack": "r1", "new": "x"}), then) == ""

    def test_a_taint_that_was_there_when_it_was_decided_is_tolerated(self):
        then = node("n1", taints=["gpu=yes:NoSchedule"])
        now = node("n1", taints=["gpu=yes:NoSchedule"], labels={"new": "x"})
        assert objection(assignment(node_spec=then.spec), now, then) == ""
        assert "gpu" in objection(assignment(node_spec=then.spec), now, None)


class TestAnswers:
    @pytest.mark.parametrize(
        ("answer", "step"),
        [
            (Answer(201, b"{}"), Step.BOUND),
            (Answer(409, b'{"reason":"Conflict"}'), Step.LOOK),
            (Answer(409, b'{"reason":"AlreadyExists"}'), Step.LOOK),
            (Answer(504, b"", unsure=True), Step.LOOK),
            (Answer(500, b""), Step.LOOK),
            (Answer(0, b"", unsure=True), Step.LOOK),
            (Answer(0, b""), Step.AGAIN),
            (Answer(429, b""), Step.AGAIN),
            (Answer(401, b""), Step.AGAIN),
            (Answer(404, b""), Step.GONE),
            (Answer(403, b""), Step.REFUSED),
            (Answer(422, b""), Step.REFUSED),
        ],
    )
    def test_every_answer_has_one_next_step(self, answer, step):
        assert after_write(answer, create=False) is step

    def test_a_namespace_that_is_ending_takes_no_pods(self):
        body = b'{"reason":"Forbidden","details":{"causes":[{"reason":"NamespaceTerminating"}]}}'
        assert after_write(Answer(403, body), create=True) is Step.GONE


def pod(uid="uid-a", node="", claim="", phase="Pending", deleting=False, gates=False, notes=None, owner=""):
    annotations = {**({"drystone.dev/claim": claim} if claim else {}), **(notes or {})}
    meta = {"name": "a", "namespace": "team", "uid": uid, "resourceVersion": "9", "annotations": annotations}
    if deleting:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if owner:
        meta["ownerReferences"] = [{"uid": owner, "kind": "TrainingJob", "controller": True}]
    limits = {"nvidia.com/gpu": "1", "cpu": "1", "memory": "1Gi"}
    spec = {"containers": [{"name": "m", "resources": {"limits": limits}}]}
    if node:
        spec["nodeName"] = node
    if gates:
        spec["schedulingGates"] = [{"name": "wait"}]
    return parse_pod(msgspec.json.encode({"metadata": meta, "spec": spec, "status": {"phase": phase}}))


class TestPods:
    """A conflict means one of several things; the pod tells which."""

    @pytest.mark.parametrize(
        ("found", "seen"),
        [
            (pod(node="n1", claim="1.0.1.1.0"), Seen.BOUND),
            (pod(node="n1", claim="1.0.1.9.0"), Seen.ELSEWHERE),
            (pod(node="n2", claim="1.0.1.1.0"), Seen.ELSEWHERE),
            (pod(node="n1"), Seen.ELSEWHERE),
            (pod(uid="uid-recreated"), Seen.GONE),
            (pod(uid="uid-recreated", node="n1", claim="1.0.1.1.0"), Seen.GONE),
            (pod(deleting=True), Seen.GONE),
            (pod(phase="Failed"), Seen.GONE),
            (pod(gates=True), Seen.CHANGED),
            (pod(notes={keys.FENCE: "1.0.1.1.0"}), Seen.FENCED),
            (pod(notes={keys.FENCE: "1.0.1.0.0"}), Seen.UNBOUND),
            (pod(), Seen.UNBOUND),
        ],
    )
    def test_a_pending_pod(self, found, seen):
        assert judge_bind(assignment(), found) is seen

    @pytest.mark.parametrize(
        ("found", "seen"),
        [
            (pod(uid="x", node="n1", claim="1.0.1.1.0", owner="job-1"), Seen.BOUND),
            (pod(uid="x", node="n1", claim="1.0.1.1.0", owner="job-2"), Seen.FOREIGN),
            (pod(uid="x", node="n1", claim="1.0.1.1.0"), Seen.FOREIGN),
            (pod(uid="x", node="n2", claim="1.0.1.1.0", owner="job-1"), Seen.ELSEWHERE),
            (pod(uid="x", node="n1", claim="other", owner="job-1"), Seen.ELSEWHERE),
            (pod(uid="x", node="n1", claim="other", owner="job-1", deleting=True), Seen.GONE),
        ],
    )
    def test_a_pod_found_under_the_name_to_create(self, found, seen):
        assert judge_created(assignment(task="job-1//0/0", create=True), found, "job-1") is seen

    @pytest.mark.parametrize(
        ("gpu", "grants", "wanted"),
        [
            (GpuRequest(1), [(1000, 81920)], True),
            (GpuRequest(2), [(1000, 81920)], False),
            (GpuRequest(1, milli=500), [(500, 40960)], True),
            (GpuRequest(1, milli=500), [(250, 20480)], False),
            (GpuRequest(1, mib=8192), [(100, 8192)], True),
            (GpuRequest(1, mib=8192), [(1000, 81920)], False),
            (GpuRequest(1), [(500, 40960)], False),
        ],
    )
    def test_an_edited_wish_is_not_served_with_the_old_grant(self, gpu, grants, wanted):
        charge = Charge(1000, 1024, tuple(GpuGrant(i, *grant) for i, grant in enumerate(grants)))
        assert still_wanted(assignment(charge=charge), Request(1000, 1024, gpu)) is wanted
