"""What an operator can set for placement."""

from __future__ import annotations

import zlib

from pydantic import Field, field_validator

from libs.contracts.hardware import GpuModelEntry, TopologyLevel, default_levels, gpu_models_of, levels_of
from libs.contracts.tenants import TenantPolicy
from libs.domain.bounds import MOST_TASKS
from libs.engine.fair.little import LittleService
from libs.host.settings import CommonSettings


class PlacementSettings(CommonSettings):
    #: Tenants with their namespaces, as JSON: the same value that the watcher has.
    tenants: tuple[TenantPolicy, ...] = (TenantPolicy(),)
    #: Tasks of one job, however it was made; of one with more nothing is expanded. A tenant's `max_tasks` above it
    #: stands for all. Watcher and placement have the same.
    job_tasks: int = Field(default=MOST_TASKS, ge=1, le=100_000)
    #: Policy name -> weight, as JSON. `precision` has a say for tasks that declare one (docs/precision.md).
    placement_weights: dict[str, int] = Field(default_factory=lambda: {"drystone": 1, "precision": 1})
    #: Kinds of topology domains, widest first, as JSON (docs/topology.md).
    placement_topology_levels: tuple[TopologyLevel, ...] = Field(default_factory=default_levels)
    #: GPUs that the table of precisions does not know, or knows otherwise, as JSON (docs/precision.md).
    placement_gpu_models: tuple[GpuModelEntry, ...] = ()
    #: Draw among that many best nodes: with several replicas fewer plans are refused and decided again, and the
    #: packing is looser. Refusals are cheap, room is not.
    placement_candidates: int = Field(default=1, ge=1, le=64)
    #: Of the draw; the same seed draws the same. 0: by the replica's id, so that replicas draw differently.
    placement_seed: int = 0
    #: Move running tasks where that lets a waiting job in: those that something makes again when they are evicted.
    placement_consolidate: bool = True
    #: A task moves only after it has run this long.
    placement_consolidate_after_s: float = Field(default=600.0, ge=0, le=10_000_000)
    #: What a partition's jobs taught about the mix of tasks is written at most this often, seconds.
    placement_mix_s: float = Field(default=5.0, gt=0, le=3600)
    #: What would help a job that waits is worked out for one job in this time, seconds.
    placement_advice_s: float = Field(default=5.0, gt=0, le=3600)
    #: The consumer group that divides the jobs among replicas.
    placement_group: str = "drystone-placement"
    #: Most tasks decided and committed in one pass; the ledger takes at most 256 at once.
    placement_batch: int = Field(default=256, ge=1, le=256)
    #: Decide again at once after that many refusals in a row, then pause.
    placement_retries_at_once: int = Field(default=4, ge=0, le=100)
    #: The slow pass: list pods and jobs, repair what lost hints left behind.
    placement_slow_pass_s: float = Field(default=30.0, gt=0, le=3600)
    #: An open claim older than this, whose pod is listed unbound, is looked up in the ledger.
    placement_claim_s: float = Field(default=15.0, gt=0, le=600)
    #: A job that waits gets its first words after this long, and its pods their condition.
    placement_words_s: float = Field(default=0.3, ge=0, le=60)
    #: A pod that waits gets its condition after this long.
    placement_condition_s: float = Field(default=1.0, ge=0, le=60)
    #: Words that differ only in their figures are written again at most this often, per job.
    placement_rewrite_s: float = Field(default=30.0, ge=0, le=3600)
    #: Status writes to the API server under way at once, and per second.
    placement_status_writers: int = Field(default=8, ge=1, le=256)
    placement_status_per_s: float = Field(default=200.0, gt=0, le=10_000)
    #: Of these, about jobs that wait, while anything is being placed; 50 more at once.
    placement_status_busy_per_s: float = Field(default=25.0, gt=0, le=10_000)
    #: Jobs that wait are asked for words that differ only in their figures one after the other, so many a second.
    placement_figures_per_s: float = Field(default=20.0, gt=0, le=10_000)
    #: How long a Never waits for a view as new as the job before it is said anyway.
    placement_never_wait_s: float = Field(default=3.0, ge=0, le=60)
    #: Measured GPU facts older than this no longer fill in for what a node does not declare.
    placement_gpu_max_age_s: float = Field(default=120.0, gt=0, le=3600)
    #: Victims that have not left after this long are no longer waited for.
    placement_evicting_s: float = Field(default=600.0, gt=0, le=3600)
    #: Most eviction plans for one job in a row before it waits a while.
    placement_evictions: int = Field(default=3, ge=0, le=100)

    #: From fairness between queues (100: the smallest difference of their shares decides) to efficiency (0: the better
    #: job goes first, whichever queue above its share it is of). What queues deserve stands at any setting.
    placement_fairness: int = Field(default=100, ge=0, le=100)
    #: How much of what counts as used by a queue is its past average instead of the present.
    placement_history: int = Field(default=50, ge=0, le=100)
    #: A job that has waited this long is the first of its queue.
    placement_overdue_s: float = Field(default=129_600.0, gt=0, le=10_000_000)
    #: Who has had little service goes first among jobs of a priority, and who has had much yields now and then
    #: (docs/queues.md). Off: by age.
    placement_little_service: bool = True
    #: GPU seconds up to which a job counts as new; each level of service is four times the one before.
    placement_new_gpu_s: float = Field(default=57_600.0, gt=0, le=1e12)
    #: Evictions for little service for each job that came, at most.
    placement_service_evictions: float = Field(default=0.3, ge=0, le=100)
    #: They stop where evictions cost more than this share of the GPU time worked, per cent.
    placement_service_lost_pct: float = Field(default=2.0, ge=0, le=100)
    #: Who stands first in its queue, fits nowhere and has waited this long has room kept for it.
    placement_reserve_after_s: float = Field(default=60.0, ge=0, le=86_400)
    #: How long room is kept where nobody knows when the job can start; doubled at each turn. 0: no reservations.
    placement_reserve_s: float = Field(default=600.0, ge=0, le=86_400)
    #: Evaluations a second that one queue may spend on jobs that then do not fit; a quarter while others are placed.
    placement_hopeless_per_s: float = Field(default=200.0, ge=1, le=100_000)

    #: A gang that holds less than its minimum is refilled first; after this long it is released as a whole.
    placement_gang_grace_s: float = Field(default=60.0, gt=0, le=86_400)
    #: After one broken gang yielded, the next in order waits this long for the room to help it.
    placement_gang_settle_s: float = Field(default=30.0, gt=0, le=3600)

    @property
    def little_service(self) -> LittleService | None:
        """What the engine gets."""
        if not self.placement_little_service:
            return None
        return LittleService(
            base=self.placement_new_gpu_s,
            overdue_s=self.placement_overdue_s,
            evictions_per_job=self.placement_service_evictions,
            lost=self.placement_service_lost_pct / 100,
        )

    @property
    def draws_by(self) -> int:
        """The seed that the engine gets."""
        return self.placement_seed or zlib.crc32(self.replica_id.encode())

    @field_validator("placement_topology_levels")
    @classmethod
    def _levels(cls, levels: tuple[TopologyLevel, ...]) -> tuple[TopologyLevel, ...]:
        levels_of(levels)
        return levels

    @field_validator("placement_gpu_models")
    @classmethod
    def _gpu_models(cls, entries: tuple[GpuModelEntry, ...]) -> tuple[GpuModelEntry, ...]:
        gpu_models_of(entries)
        return entries

    @field_validator("placement_weights")
    @classmethod
    def _weights(cls, weights: dict[str, int]) -> dict[str, int]:
        if not weights or any(w < 0 for w in weights.values()) or not any(weights.values()):
            raise ValueError("needs at least one policy with a positive weight")
        return weights
