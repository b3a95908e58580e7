"""What the bus tells an operator."""

from __future__ import annotations

from typing import Final

from libs.observe.metrics import counter, gauge, histogram

PUBLISHED: Final = counter("drystone_bus_published_records_total", "Records acknowledged by the broker.", ("topic",))
PUBLISH_SECONDS: Final = histogram(
    "drystone_bus_publish_seconds", "From handing a batch to the client to the broker's acknowledgement."
)
PUBLISH_FAULTS: Final = counter("drystone_bus_publish_faults_total", "Batches that failed, by fault.", ("fault",))
PENDING: Final = gauge("drystone_bus_pending_records", "Records that wait to be sent or acknowledged.")
TOO_LARGE: Final = counter(
    "drystone_bus_too_large_total", "Records dropped because no topic takes so large ones.", ("topic",)
)
READ: Final = counter("drystone_bus_read_records_total", "Records read.", ("topic",))
LAG: Final = gauge("drystone_bus_lag_records", "Records behind the end of the partition.", ("topic", "partition"))
REBUILDS: Final = counter("drystone_bus_rebuilds_total", "Clients made anew because they were stuck.", ("client",))
REBALANCES: Final = counter("drystone_bus_rebalances_total", "Assignments received.", ("group",))
COMMIT_FAULTS: Final = counter(
    "drystone_bus_commit_faults_total", "Commits that failed and are tried again.", ("group",)
)
FAULTY: Final = counter("drystone_bus_faulty_envelopes_total", "Records whose envelope cannot be read.", ("topic",))
