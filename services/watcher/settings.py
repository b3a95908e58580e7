"""Settings of the watcher, read from the environment beside the common ones."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from libs.contracts.tenants import TenantPolicy
from libs.domain.bounds import MOST_TASKS
from libs.engine.fair.budget import Budget
from libs.host.settings import CommonSettings


class WatcherSettings(CommonSettings):
    #: Tenants with their job topics and namespaces, as JSON.
    tenants: tuple[TenantPolicy, ...] = (TenantPolicy(),)
    #: Tasks of one job, however it was made; of one with more nothing is expanded. A tenant's `max_tasks` above it
    #: stands for all. Watcher and placement have the same.
    job_tasks: int = Field(default=MOST_TASKS, ge=1, le=100_000)
    #: Where the Lease of the leader is.
    lease_namespace: str = "drystone-system"
    lease_name: str = "drystone-watcher"
    #: How long it holds without being renewed.
    lease_s: float = Field(default=6.0, gt=1, le=120)
    #: How often the leader renews its Lease.
    renew_s: float = Field(default=2.0, gt=0.1, le=60)
    #: List everything and compare, whatever the watches said.
    slow_pass_s: float = Field(default=30.0, gt=0.5, le=3600)
    #: After so long a half of what a queue used counts no more, where past use counts at all.
    history_half_life_s: int = Field(default=86_400, ge=60, le=90 * 86_400)
    #: Evictions for little service and for the overdue for each job that came, at most, and what they may cost of the
    #: GPU time worked, per cent. Watcher and placement have the same.
    placement_service_evictions: float = Field(default=0.3, ge=0, le=100)
    placement_service_lost_pct: float = Field(default=2.0, ge=0, le=100)
    #: How often what queues used is told to placement.
    history_tell_s: float = Field(default=10.0, ge=0.1, le=600)
    #: How often statuses of queues are written, from which the next leader begins.
    queue_status_s: float = Field(default=60.0, ge=0.5, le=3600)
    #: The longest that a write to the API server may still land after it was given up.
    longest_write_s: float = Field(default=5.0, ge=0, le=60)
    #: Job events served at once, of all tenants; and how many of one tenant may be read ahead of the slowest.
    intake_width: int = Field(default=32, ge=1, le=1024)
    intake_ahead: int = Field(default=2000, ge=1, le=100_000)
    #: Bytes of the job events that were read and are not finished, of all tenants.
    intake_bytes: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024, le=4 * 1024 * 1024 * 1024)
    #: How long an event is tried that others do not share the fault of; then it is a dead letter.
    intake_park_s: float = Field(default=300.0, gt=0, le=86_400)
    #: Limit of one request, told to the server too.
    write_timeout_s: float = Field(default=5.0, gt=0, le=5)

    @model_validator(mode="after")
    def _tenants_apart(self) -> Self:
        """A topic or a namespace of two tenants would let one speak for the other."""
        topics = [tenant.topic for tenant in self.tenants]
        spaces = [namespace for tenant in self.tenants for namespace in tenant.namespaces]
        names = [tenant.name for tenant in self.tenants]
        for what, found in (("topic", topics), ("namespace", spaces), ("name", names)):
            twice = {one for one in found if found.count(one) > 1}
            if twice:
                raise ValueError(f"DRYSTONE_TENANTS: the {what} {min(twice)} belongs to two tenants")
        return self

    @property
    def budget(self) -> Budget:
        """A new one for each leader."""
        return Budget(self.placement_service_evictions, self.placement_service_lost_pct / 100)

    @property
    def job_topics(self) -> tuple[str, ...]:
        return tuple(tenant.topic for tenant in self.tenants)

    @property
    def tenant_by_namespace(self) -> dict[str, str]:
        return {namespace: tenant.name for tenant in self.tenants for namespace in tenant.namespaces}
