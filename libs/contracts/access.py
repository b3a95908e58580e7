"""Who writes and who reads which topic: what brokers' access lists allow, and what the catalogue of events tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from libs.contracts.topics import (
    CLUSTER,
    DEAD_LETTERS,
    EVICTIONS,
    GPUS,
    JOBS,
    MIX,
    OUTCOMES,
    PLANS,
    STATUS,
    TASKS,
    Topic,
)


@dataclass(frozen=True, slots=True)
class Access:
    """Of one service. `group` is the consumer group in which its replicas divide the first of `reads`; empty: every
    replica reads all. The watcher reads the tenants' own topics as it reads `drystone.jobs`."""

    writes: tuple[Topic, ...]
    reads: tuple[Topic, ...]
    group: str = ""


SERVICES: Final = {
    "watcher": Access((CLUSTER, TASKS, STATUS, DEAD_LETTERS), (JOBS, CLUSTER), "drystone-intake"),
    "metrics-collector": Access((GPUS,), (CLUSTER, GPUS)),
    "placement": Access((PLANS, EVICTIONS, STATUS, MIX), (TASKS, CLUSTER, GPUS, OUTCOMES, MIX), "drystone-placement"),
    "preemptor": Access((OUTCOMES, DEAD_LETTERS), (EVICTIONS, CLUSTER), "drystone-preemptor"),
    "binder": Access((OUTCOMES, DEAD_LETTERS), (PLANS, CLUSTER), "drystone-binder"),
}


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """One entry of Kafka's access list, in Kafka's own words: who may do what with which topic or group."""

    principal: str
    operation: str  # READ, WRITE, DESCRIBE, DESCRIBE_CONFIGS
    resource: str  # TOPIC, GROUP
    name: str
    prefixed: bool = False

    def __str__(self) -> str:
        return f"{self.principal} {self.operation} {self.resource.lower()} {self.name}{'*' if self.prefixed else ''}"


def rules(service: str, principal: str, job_topics: Sequence[str] = (JOBS.name,)) -> list[Rule]:
    """What a service must be allowed, and nothing else. The shape of all topics is checked at every start, so all may
    be described; `job_topics` are those of the tenants."""
    access = SERVICES[service]
    reads = [name for topic in access.reads for name in (job_topics if topic is JOBS else (topic.name,))]
    found = [Rule(principal, operation, "TOPIC", "drystone.", True) for operation in ("DESCRIBE", "DESCRIBE_CONFIGS")]
    found += [Rule(principal, "READ", "TOPIC", name) for name in reads]
    found += [Rule(principal, "WRITE", "TOPIC", topic.name) for topic in access.writes]
    if access.group:
        found.append(Rule(principal, "READ", "GROUP", access.group))
    return found


def tenant_rules(principal: str, topic: str) -> list[Rule]:
    """Of a system that submits jobs: it writes its own topic. (What becomes of jobs is told of all tenants on one
    topic, so who may read that is for the operator to say.)"""
    return [Rule(principal, operation, "TOPIC", topic) for operation in ("WRITE", "DESCRIBE")]
