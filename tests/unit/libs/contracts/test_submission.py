"""What tenants may submit, and what comes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libs.contracts.submission import Rejected, Submission, TenantPolicy, job_id, parse_cancel, parse_submit

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


@pytest.mark.parametrize(
    ("said", "path"),
    [
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
    ],
)
def test_what_is_not_the_tenants_to_say_is_refused_by_its_path(said: object, path: str) -> None:
    refused = submit(said)
    assert isinstance(refused, Rejected)
    assert refused.path == path
    assert refused.id == "train-1"


def test_the_id_is_read_off_events_that_are_no_jobs() -> None:
    assert job_id(b'{"id": "a", "roles": 7}') == "a"
    assert job_id(b'{"id": 7}') == job_id(b"\xff") == job_id(None) == job_id(b"[" * 100_000) == ""


def test_a_cancellation_says_which_job_and_nothing_else() -> None:
    assert isinstance(parse_cancel(b'{"id": "a", "force": true}'), Rejected)
    assert not isinstance(parse_cancel(b'{"id": "a"}'), Rejected)
