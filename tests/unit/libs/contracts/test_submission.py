"""What tenants may submit, and what comes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libs.contracts.strict import Rejected
from libs.contracts.submission import MOST_BYTES, Submission, job_id, parse_cancel, parse_submit
from libs.contracts.tenants import TenantPolicy, foreign_queues

TEAM = TenantPolicy(
    name="vision", topic="drystone.jobs.vision", namespaces=("vision", "vision-dev"), queue="org/vision"
)


def job(**more: Any) -> dict[str, Any]:
    return {"id": "train-1", "roles": [{"template": {"image": "repo/train:1", "resources": {"gpu": 1}}}], **more}


FORGED = {"drystone.dev/gpus": "0"}


def with_template(template: dict[str, Any]) -> dict[str, Any]:
    return job(roles=[{"template": template}])


def submit(said: object, tenant: TenantPolicy = TEAM) -> Submission | Rejected:
    return parse_submit(json.dumps(said).encode(), tenant)


def test_a_short_job_becomes_a_spec_in_the_tenants_first_namespace() -> None:
    taken = submit(job())
    assert isinstance(taken, Submission)
    assert taken.namespace == "vision"
    assert taken.spec["queue"] == "org/vision"
    assert taken.spec["tenant"] == "vision"
    container = taken.spec["roles"][0]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_same_words_in_another_order_are_the_same_job() -> None:
    said = job(priority="high", backoffLimit=2)
    first, again = submit(said), submit(dict(reversed(said.items())))
    other = submit(job(priority="low", backoffLimit=2))
    assert isinstance(first, Submission) and isinstance(again, Submission) and isinstance(other, Submission)
    assert first.hash == again.hash != other.hash


def test_what_is_declared_of_a_run_is_in_the_spec_and_what_is_not_leaves_the_job_the_same() -> None:
    said = submit(job(preemptible=False, expectedSeconds=7200, checkpointSeconds=600))
    assert isinstance(said, Submission)
    assert {k: said.spec[k] for k in ("preemptible", "expectedSeconds", "checkpointSeconds")} == {
        "preemptible": False,
        "expectedSeconds": 7200,
        "checkpointSeconds": 600,
    }
    plain, spelled_out = submit(job()), submit(job(preemptible=True, expectedSeconds=None))
    assert isinstance(plain, Submission) and isinstance(spelled_out, Submission)
    assert plain.hash == spelled_out.hash != said.hash


@pytest.mark.parametrize(
    ("said", "path"),
    [
        (job(preemptible="no"), "preemptible"),
        (job(expectedSeconds=0), "expectedSeconds"),
        (job(expectedSeconds=10**9), "expectedSeconds"),
        (job(checkpointSeconds="60"), "checkpointSeconds"),
        (job(namespace="finance"), "namespace"),
        (job(queue="org/finance"), "queue"),
        (job(queue="org/vision-2"), "queue"),
        (job(tenant="finance"), "tenant"),
        (job(priority="system-node-critical"), "priority"),
        (job(gangMin=2), ""),
        (job(backoffLimit=-1), "backoffLimit"),
        (job(backoffLimit=1.5), "backoffLimit"),
        (job(roles=[]), "roles"),
        (job(roles=[{"replicas": 20_000, "template": {"image": "i"}}]), "roles"),
        (with_template({"spec": {"hostNetwork": True}}), "roles.0.template.spec.hostNetwork"),
        (with_template({"spec": {}, "metadata": {"annotations": FORGED}}), "roles.0.template.metadata.annotations"),
        *(
            (with_template({"spec": {}, "metadata": {group: {key: "x"}}}), f"roles.0.template.metadata.{group}")
            for group in ("labels", "annotations")
            for key in (
                "drystone.dev/queue",
                "drystone.dev/job",
                "drystone.dev/gang-min",
                "kai.scheduler/queue",
                "kueue.x-k8s.io/queue-name",
                "scheduling.x-k8s.io/pod-group",
                "pod-group-name",
            )
        ),
        *(
            (with_template({"spec": {}, "metadata": {key: said}}), f"roles.0.template.metadata.{key}")
            for key, said in (("namespace", "finance"), ("ownerReferences", []), ("finalizers", ["x/y"]), ("name", "n"))
        ),
        (
            with_template({"spec": {}, "metadata": {"labels": {"priority": "high"}}}),
            "roles.0.template.metadata.labels.priority",
        ),
    ],
)
def test_what_is_not_the_tenants_to_say_is_refused_by_its_path(said: object, path: str) -> None:
    refused = submit(said)
    assert isinstance(refused, Rejected)
    assert refused.path == path
    assert refused.id == "train-1"


def test_labels_of_the_users_own_pass() -> None:
    spec = {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "main",
                "image": "i",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }
    labels = {"app": "train", "priority": "normal", "team": "vision"}
    template = {"metadata": {"labels": labels, "creationTimestamp": None}, "spec": spec}
    assert isinstance(submit(with_template(template)), Submission)
    template["metadata"] = {"labels": {"priority": "1 of 3"}}  # no word of ours
    assert isinstance(submit(with_template(template)), Submission)


class TestQueuesOfOthers:
    """A tenant without a queue of its own may name any that is nobody else's."""

    tenants = (
        TenantPolicy(name="open", topic="open", namespaces=("open",)),
        TenantPolicy(name="vision", topic="vision", namespaces=("vision",), queue="org/vision"),
        TenantPolicy(name="robots", topic="robots", namespaces=("robots",), queue="org/vision/robots"),
        TenantPolicy(name="org", topic="org", namespaces=("org",), queue="org"),
        TenantPolicy(name="twin", topic="twin", namespaces=("twin",), queue="org/vision"),
    )

    @pytest.mark.parametrize(
        ("tenant", "queue", "taken"),
        [
            ("open", "spare", True),
            ("open", "organic", True),
            ("open", "org", False),
            ("open", "org/vision/robots", False),
            ("vision", "org/vision", True),
            ("vision", "org/vision/x", True),
            ("vision", "org/vision/robots", False),
            ("vision", "org/vision/robots/arm", False),
            ("robots", "org/vision/robots/arm", True),
            ("robots", "org/vision", False),
            ("org", "org/other", True),
            ("org", "org/vision", False),
            ("twin", "org/vision", True),  # two that were given one queue share it
        ],
    )
    def test_a_queue_belongs_to_the_tenant_that_has_it_closest(self, tenant: str, queue: str, taken: bool) -> None:
        policy = next(t for t in self.tenants if t.name == tenant)
        raw = json.dumps(job(queue=queue)).encode()
        assert isinstance(parse_submit(raw, policy, foreign_queues(policy, self.tenants)), Submission) is taken


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"topic": "drystone.plans"}, "between Drystone's services"),
        ({"topic": "no topic"}, "topic"),
        ({"namespaces": ("drystone-system",)}, "the namespace drystone-system is the system's"),
        ({"namespaces": ("a", "kube-system")}, "the namespace kube-system is the system's"),
        ({"namespaces": ("Not A Name",)}, "namespaces"),
        ({"namespaces": ()}, "namespaces"),
    ],
)
def test_a_tenant_cannot_be_given_what_is_the_systems(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TenantPolicy(**said)


def test_the_id_is_read_off_events_that_are_no_jobs() -> None:
    assert job_id(b'{"id": "a", "roles": 7}') == "a"
    assert job_id(b'{"id": 7}') == job_id(b"\xff") == job_id(None) == job_id(b"[" * 100_000) == ""


def test_a_cancellation_says_which_job_and_nothing_else() -> None:
    assert isinstance(parse_cancel(b'{"id": "a", "force": true}'), Rejected)
    assert not isinstance(parse_cancel(b'{"id": "a"}'), Rejected)


def test_topology_and_precision_reach_the_spec_where_they_are_said() -> None:
    role = {
        "template": {"image": "i"},
        "topology": {"required": "rack", "groups": {"size": 4, "required": "nvlink"}},
        "precision": {"kind": "fp8", "required": True},
    }
    said = submit(job(topology={"required": "zone", "preferred": "example.com/row"}, roles=[role]))
    assert isinstance(said, Submission)
    assert said.spec["topology"] == {"required": "zone", "preferred": "example.com/row"}
    assert said.spec["roles"][0]["topology"] == role["topology"]
    assert said.spec["roles"][0]["precision"] == role["precision"]
    plain = submit(job())
    assert isinstance(plain, Submission)
    assert not {"topology", "precision"} & (plain.spec.keys() | plain.spec["roles"][0].keys())


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"topology": {"required": "two words"}}, "topology.required"),
        ({"topology": {"groups": {"size": 2}}}, "topology.groups"),
        ({"precision": {"kind": "fp12"}}, "precision.kind"),
        ({"precision": {"required": True}}, "precision.kind"),
        (
            {"roles": [{"template": {"image": "i"}, "topology": {"groups": {"size": 0}}}]},
            "roles.0.topology.groups.size",
        ),
    ],
)
def test_a_wish_that_cannot_be_read_is_refused_where_it_stands(wrong: dict[str, Any], path: str) -> None:
    said = submit(job(**wrong))
    assert isinstance(said, Rejected)
    assert said.path == path


@pytest.mark.parametrize(
    "unknown",
    [[1e16] * 60_000, ["<" * 90_000] * 3],
    ids=["numbers", "brackets"],
)
def test_an_event_that_would_be_a_far_larger_object_is_refused(unknown: object) -> None:
    """The API server writes numbers out and escapes what could be HTML: its store would not take the object, which is
    answered as a fault of the server's own."""
    spec = {"containers": [{"name": "m", "image": "i"}], "x": unknown}
    raw = json.dumps({"id": "large", "roles": [{"template": {"spec": spec}}]}, ensure_ascii=False).encode()
    assert len(raw) < MOST_BYTES
    refused = parse_submit(raw, TenantPolicy(pod_security="baseline"))
    assert isinstance(refused, Rejected)
    assert (refused.id, refused.path) == ("large", "roles")
    assert "the API server would keep" in refused.reason


def test_a_job_with_long_arguments_is_taken_up_to_what_an_event_may_have() -> None:
    template = {"image": "i", "args": ["x" * 1000] * 500}
    raw = json.dumps({"id": "long", "roles": [{"template": template}]}).encode()
    assert not isinstance(parse_submit(raw, TenantPolicy()), Rejected)
