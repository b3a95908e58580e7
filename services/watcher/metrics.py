"""The watcher's metrics."""

from libs.observe.metrics import counter, gauge, histogram

EVENTS = counter("drystone_watcher_events_total", "Watch events by resource.", ("resource",))
LISTS = counter("drystone_watcher_lists_total", "Full lists by resource.", ("resource",))
LEADER = gauge("drystone_watcher_leader", "1 while this replica leads.")
LAG = histogram(
    "drystone_watcher_report_seconds",
    "From the receipt of events to the ledger and the topics having them: the age of facts.",
)
DIRTY = gauge("drystone_watcher_dirty", "Facts that the broker has not acknowledged yet.")
REBUILDS = counter("drystone_watcher_rebuilds_total", "Times that the ledger was built anew.")
SWEPT = counter("drystone_watcher_swept_total", "Bound tasks that a list did not show, freed.")
IGNORED = counter(
    "drystone_watcher_ignored_total", "Annotations of pods that say nothing that can be read.", ("annotation",)
)
KUBELET = counter(
    "drystone_kubelet_refusals_total", "Pods of ours that their node's kubelet refused, by its reason.", ("reason",)
)
QUEUE_STATUS = counter("drystone_watcher_queue_status_total", "Statuses of queues written, by outcome.", ("outcome",))
UNREADABLE = counter("drystone_watcher_unreadable_total", "Objects that could not be read.")
FAULTS = counter("drystone_watcher_faults_total", "Faults of ours at one object, kept from all others.", ("what",))
INTAKE = counter("drystone_intake_total", "Job events by what became of them.", ("tenant", "outcome"))
PARKED = gauge("drystone_intake_parked", "Keys that wait for a passing fault to end.")
