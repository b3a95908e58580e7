"""Tenants: where their jobs arrive, where they may go, and whose queues are whose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from libs.contracts.strict import NAME, Strict
from libs.contracts.topics import ALL, JOBS
from libs.domain import keys

#: Where nobody's jobs go: their pods could read what the services know.
_SYSTEM: Final = frozenset({keys.SYSTEM_NAMESPACE, "kube-system", "kube-public", "kube-node-lease"})
_INTERNAL: Final = frozenset(topic.name for topic in ALL if topic is not JOBS)


class TenantPolicy(Strict):
    """What a tenant may do. `topic` is where its job events arrive; the first namespace is the default."""

    #: In labels, metrics and status events; part of the names of its job objects.
    name: Annotated[str, Field(pattern=NAME)] = "default"
    #: Where its job events arrive; nobody else's. Who may write there is said by Kafka's access list.
    topic: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")] = JOBS.name
    #: Its jobs go nowhere else; the first is where they go that name none.
    namespaces: Annotated[tuple[Annotated[str, Field(pattern=NAME)], ...], Field(min_length=1)] = ("default",)
    #: Queues must be this one or below it; empty allows all.
    queue: str = ""
    #: Tasks of one job.
    max_tasks: Annotated[int, Field(ge=1)] = 10_000
    #: Unfinished jobs at a time; more are refused with a status. None: as many as come.
    max_pending_jobs: Annotated[int, Field(ge=1)] | None = 10_000
    #: The Pod Security Standard that its pod templates are held to.
    pod_security: Literal["restricted", "baseline"] = "restricted"

    @model_validator(mode="after")
    def _not_ours(self) -> TenantPolicy:
        if self.topic in _INTERNAL:
            raise ValueError(f"the topic {self.topic} is between Drystone's services")
        system = _SYSTEM & set(self.namespaces)
        if system:
            raise ValueError(f"the namespace {min(system)} is the system's")
        return self


def most_tasks(of_any: int, tenants: Iterable[TenantPolicy]) -> int:
    """Tasks of one job that are served, whoever made it: a tenant that may have more in an event has more there."""
    return max(of_any, *(tenant.max_tasks for tenant in tenants))


def foreign_queues(tenant: TenantPolicy, tenants: Iterable[TenantPolicy]) -> tuple[str, ...]:
    """Queues that other tenants have for their own: not the tenant's, and none that its own lies below."""
    others = {other.queue for other in tenants if other.queue and other.name != tenant.name}
    return tuple(sorted(queue for queue in others if not tenant.queue or not within(tenant.queue, queue)))


def within(queue: str, parent: str) -> bool:
    """Whether a queue is this one or below it."""
    return queue == parent or queue.startswith(parent + "/")
