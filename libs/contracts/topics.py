"""The topic table: who writes, who reads, how it is kept. `drystone topics` creates these and refuses drift."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Topic:
    """`shared_group` topics divide partitions among the replicas of their reader; others are read whole by each."""

    name: str
    partitions: int
    compacted: bool = False
    retention_ms: int = 7 * 24 * HOUR_MS
    max_message_bytes: int = 4 * 1024 * 1024

    def config(self, replicas: int) -> dict[str, str]:
        """Kafka's own names and values; min.insync.replicas is 2 as soon as there are three replicas."""
        config = {
            "cleanup.policy": "compact" if self.compacted else "delete",
            "min.insync.replicas": "2" if replicas >= 3 else "1",
            "max.message.bytes": str(self.max_message_bytes),
        }
        if not self.compacted:
            config["retention.ms"] = str(self.retention_ms)
        return config

    def tuning(self) -> dict[str, str]:
        """What a topic is created with besides, and may be changed later. The broker compacts closed segments only, and
        by itself closes one at a gigabyte or after a week: until then whoever starts reads all that ever happened."""
        if not self.compacted:
            return {}
        return {
            "segment.bytes": str(32 * 1024 * 1024),
            "segment.ms": str(HOUR_MS // 6),
            "min.cleanable.dirty.ratio": "0.3",
            # How long a reader from the start may take without missing that something went.
            "delete.retention.ms": str(HOUR_MS),
        }


#: Partitions of the job-keyed internal topics. Equal for all of them (the owner of a partition of `drystone.tasks`
#: reads the same number of `drystone.outcomes`), and never changed in place.
JOB_PARTITIONS: Final = 12

JOBS: Final = Topic("drystone.jobs", JOB_PARTITIONS, max_message_bytes=1024 * 1024)
TASKS: Final = Topic("drystone.tasks", JOB_PARTITIONS)
CLUSTER: Final = Topic("drystone.cluster", 4, compacted=True)
GPUS: Final = Topic("drystone.gpus", 4, compacted=True)
MIX: Final = Topic("drystone.mix", 1, compacted=True)
PLANS: Final = Topic("drystone.plans", JOB_PARTITIONS)
EVICTIONS: Final = Topic("drystone.evictions", JOB_PARTITIONS)
OUTCOMES: Final = Topic("drystone.outcomes", JOB_PARTITIONS)
STATUS: Final = Topic("drystone.status", JOB_PARTITIONS)
DEAD_LETTERS: Final = Topic("drystone.dead-letters", 1, retention_ms=30 * 24 * HOUR_MS)

ALL: Final = (JOBS, TASKS, CLUSTER, GPUS, MIX, PLANS, EVICTIONS, OUTCOMES, STATUS, DEAD_LETTERS)


def with_job_topics(names: Iterable[str]) -> tuple[Topic, ...]:
    """All topics, with those that tenants have of their own, which are of the shape of `drystone.jobs`."""
    own = sorted(set(names) - {topic.name for topic in ALL})
    return (*ALL, *(replace(JOBS, name=name) for name in own))
