"""What placement measures of itself."""

from __future__ import annotations

from libs.observe.metrics import counter, gauge, histogram

PASS_S = histogram("drystone_placement_pass_seconds", "One pass: decide, commit, hand over.")
ENGINE_S = counter("drystone_placement_engine_seconds_total", "Time spent inside the engine.")
SEEN_TO_PLAN_S = histogram(
    "drystone_placement_seen_to_plan_seconds", "From the first sight of a job's task to its committed plan."
)
DECISIONS = counter("drystone_placement_decisions_total", "Jobs decided, by verdict.", ("verdict",))
HOPELESS = counter(
    "drystone_placement_hopeless_evaluations_total", "Evaluations of jobs that placed nothing; bounded per queue."
)
REFUSALS = counter("drystone_placement_commit_refusals_total", "Plans refused by the ledger, by reason.", ("reason",))
PLANNED = counter("drystone_placement_planned_tasks_total", "Tasks whose claim the ledger took.")
OUTCOMES = counter("drystone_placement_outcomes_total", "Reports of the binder about tasks.", ("landed",))
EVICTIONS = counter("drystone_placement_eviction_plans_total", "Eviction plans, by what became of them.", ("what",))
RESERVATIONS = counter(
    "drystone_placement_reservations_total", "Reservations for heads of queues, by what became of them.", ("what",)
)
GATHERERS = gauge("drystone_placement_kept_for_jobs", "Jobs for which room is being kept.")
RELEASED = counter("drystone_placement_released_gangs_total", "Broken gangs released as a whole.")
PENDING = gauge("drystone_placement_pending_jobs", "Jobs with tasks that are not bound yet.")
WAITING = gauge("drystone_placement_waiting_jobs", "Jobs that wait for something to change.")
CLAIMS = gauge("drystone_placement_open_claims", "Claims that are not known bound yet.")
PARTITIONS = gauge("drystone_placement_partitions", "Partitions owned and taken.")
STATUS_WRITES = counter(
    "drystone_placement_status_writes_total", "Status writes, by kind and answer.", ("kind", "answer")
)
MIX_WRITTEN = counter("drystone_placement_mix_written_total", "Records of the learned mix of tasks written.")
ADVICE_S = histogram("drystone_placement_advice_seconds", "One answer to what would help a job that waits.")
REPAIRED = counter("drystone_placement_repaired_total", "What the slow pass found different.", ("what",))
VIEW_RELOADS = counter("drystone_placement_view_reloads_total", "Dumps of the ledger read, by cause.", ("cause",))
FAULTS = counter(
    "drystone_placement_faults_total", "Faults of ours at one job or object, kept from all others.", ("what",)
)
UNREADABLE = counter("drystone_placement_unreadable_total", "Records that could not be read, by topic.", ("topic",))
