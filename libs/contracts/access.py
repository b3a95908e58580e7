"""Who writes and who reads which topic: what brokers' access lists allow, and what the catalogue of events tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from libs.contracts.topics import (
    CLUSTER,
    DEAD_LETTERS,
    EVICTIONS,
    GPUS,
    JOBS,
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
    "placement": Access((PLANS, EVICTIONS, STATUS), (TASKS, CLUSTER, GPUS, OUTCOMES), "drystone-placement"),
    "preemptor": Access((OUTCOMES, DEAD_LETTERS), (EVICTIONS, CLUSTER), "drystone-preemptor"),
    "binder": Access((OUTCOMES, DEAD_LETTERS), (PLANS, CLUSTER), "drystone-binder"),
}
