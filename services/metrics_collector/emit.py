"""What leaves: changed facts on `drystone.gpus`, and gauges of our own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from libs.bus.port import Outgoing, Publisher
from libs.contracts.events import EventType, GpuFacts
from libs.contracts.topics import GPUS
from libs.observe.metrics import counter, gauge
from libs.prom.dcgm import Device
from services.metrics_collector.decide import Leak

_encode = msgspec.json.encode

UTILISATION: Final = gauge("gpu_utilization", "Utilisation of a device as measured, percent.", ("node", "gpu_id"))
USED: Final = gauge("gpu_memory_used_mib", "Memory in use on a device, MiB.", ("node", "gpu_id"))
TOTAL: Final = gauge("gpu_memory_total_mib", "Memory of a device, MiB.", ("node", "gpu_id"))
LEAKED: Final = gauge("gpu_memory_leaked_mib", "Memory in use that no bound pod is charged for.", ("node", "gpu_id"))
NODES: Final = gauge("drystone_collector_nodes", "Nodes that Prometheus shows devices of, in our share.")
PUBLISHED: Final = counter("drystone_collector_facts_total", "Facts told, by kind.", ("kind",))
QUERY_FAULTS: Final = counter("drystone_collector_query_faults_total", "Queries without a usable answer.")
MISSING: Final = gauge("drystone_collector_missing_metrics", "Kinds of facts that no exporter gives.")


async def publish(publisher: Publisher, news: Sequence[GpuFacts], gone: Sequence[str]) -> None:
    """Raises BusUnavailable; nothing is then taken as told."""
    records = [Outgoing(GPUS.name, new.node, _encode(new), EventType.GPUS) for new in news]
    records += [Outgoing(GPUS.name, node, None, EventType.GPUS) for node in gone]
    if records:
        await publisher.publish(records)
        PUBLISHED.labels("changed").inc(len(news))
        PUBLISHED.labels("gone").inc(len(gone))


class Gauges:
    """Our gauges show what Prometheus shows now; series of devices that are gone end."""

    def __init__(self) -> None:
        self._shown: set[tuple[str, str]] = set()

    def show(self, devices: Iterable[Device]) -> None:
        now: set[tuple[str, str]] = set()
        for d in devices:
            key = (d.node, str(d.index))
            now.add(key)
            if d.util_pct is not None:
                UTILISATION.labels(*key).set(d.util_pct)
            if d.used_mib is not None:
                USED.labels(*key).set(d.used_mib)
            if d.total_mib is not None:
                TOTAL.labels(*key).set(d.total_mib)
        for key in self._shown - now:
            for metric in (UTILISATION, USED, TOTAL):
                # A device that never had a value of a kind has no such series.
                metric.labels(*key)
                metric.remove(*key)
        self._shown = now
        NODES.set(len({node for node, _ in now}))

    def leaks(self, leaks: Iterable[Leak], ended: Iterable[tuple[str, int]]) -> None:
        for leak in leaks:
            LEAKED.labels(leak.node, str(leak.index)).set(leak.mib)
        for node, index in ended:
            LEAKED.labels(node, str(index))
            LEAKED.remove(node, str(index))


def kinds(devices: Iterable[Device]) -> Mapping[str, bool]:
    """Which kinds of facts the exporters give at all."""
    found = {"memory used": False, "memory size": False, "utilisation": False}
    for d in devices:
        found["memory used"] |= d.used_mib is not None
        found["memory size"] |= d.total_mib is not None
        found["utilisation"] |= d.util_pct is not None
    return found
