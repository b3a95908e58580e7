"""Who may do what on Kafka, as the access lists will say it."""

import pytest

from cli.acls import _OPERATIONS, _RESOURCES, service_rules
from libs.contracts import topics
from libs.contracts.access import SERVICES, Rule, rules, tenant_rules


def allowed(service: str, operation: str, job_topics: tuple[str, ...] = ("drystone.jobs",)) -> set[str]:
    found = rules(service, "User:x", job_topics)
    return {rule.name for rule in found if rule.operation == operation and not rule.prefixed}


def test_only_placement_decides_and_only_the_binder_and_the_preemptor_say_what_came_of_it() -> None:
    writers = {name: {s for s in SERVICES if name in allowed(s, "WRITE")} for name in (t.name for t in topics.ALL)}
    assert writers["drystone.plans"] == writers["drystone.evictions"] == {"placement"}
    assert writers["drystone.outcomes"] == {"binder", "preemptor"}
    assert writers["drystone.gpus"] == {"metrics-collector"}
    assert writers["drystone.mix"] == {"placement"}
    assert writers["drystone.jobs"] == set(), "jobs come from outside"


def test_the_watcher_reads_the_tenants_topics_and_nobody_else_does() -> None:
    assert {"jobs-a", "jobs-b"} <= allowed("watcher", "READ", ("jobs-a", "jobs-b"))
    assert "drystone.jobs" not in allowed("watcher", "READ", ("jobs-a",))
    assert all("jobs-a" not in allowed(s, "READ", ("jobs-a",)) for s in SERVICES if s != "watcher")


@pytest.mark.parametrize("service", SERVICES)
def test_what_covers_many_topics_only_describes(service: str) -> None:
    prefixed = {rule.operation for rule in rules(service, "User:x") if rule.prefixed}
    assert prefixed == {"DESCRIBE", "DESCRIBE_CONFIGS"}


def test_a_tenant_writes_its_own_topic_and_reads_none() -> None:
    assert {(r.operation, r.name) for r in tenant_rules("User:a", "jobs-a")} == {
        ("WRITE", "jobs-a"),
        ("DESCRIBE", "jobs-a"),
    }


def test_every_rule_can_be_told_to_the_broker() -> None:
    found = service_rules("drystone-", ["drystone.jobs"])
    assert {rule.principal for rule in found} == {f"User:drystone-{service}" for service in SERVICES}
    assert {rule.operation for rule in found} <= _OPERATIONS.keys()
    assert {rule.resource for rule in found} == _RESOURCES.keys()
    assert str(Rule("User:a", "READ", "TOPIC", "drystone.", True)) == "User:a READ topic drystone.*"
