"""What arrives: devices by PromQL, bound pods and our own earlier facts from the bus."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog

from libs.bus.port import Incoming
from libs.contracts.events import ClusterFact, EventType, GpuFacts, PodFact
from libs.prom import dcgm
from libs.prom.client import PromClient, PromFault
from services.metrics_collector.decide import Charged, Told, ours
from services.metrics_collector.settings import CollectorSettings

log = structlog.get_logger()

_cluster = msgspec.json.Decoder(ClusterFact)
_gpus = msgspec.json.Decoder(GpuFacts)


async def devices(prom: PromClient, settings: CollectorSettings) -> list[dcgm.Device] | PromFault:
    """Devices of our share of the nodes, as Prometheus knows them now."""
    samples = await prom.instant(dcgm.SELECTOR)
    if isinstance(samples, PromFault):
        return samples
    found = dcgm.devices(samples, settings.node_label)
    if settings.shards == 1:
        return found
    return [d for d in found if ours(d.node, settings.shard, settings.shards)]


def learn_pods(records: Sequence[Incoming], charged: Charged) -> None:
    for record in records:
        kind, _, uid = record.key.partition("/")
        if kind != "pod":
            continue
        if record.value is None:
            charged.apply(uid, None)
            continue
        try:
            fact = _cluster.decode(record.value)
        except msgspec.MsgspecError as error:
            log.warning("fact cannot be read", key=record.key, offset=record.offset, fault=str(error))
            continue
        if isinstance(fact, PodFact):
            charged.apply(uid, fact)


def learn_told(records: Sequence[Incoming], told: Told, settings: CollectorSettings, now: float) -> None:
    """Facts of an earlier life: a node that vanished while nobody looked must get its tombstone."""
    for record in records:
        if record.type not in ("", EventType.GPUS) or not ours(record.key, settings.shard, settings.shards):
            continue
        if record.value is None:
            told.acknowledged((), (record.key,), now)
            continue
        try:
            told.found(record.key, _gpus.decode(record.value), now)
        except msgspec.MsgspecError as error:
            log.warning("fact cannot be read", key=record.key, offset=record.offset, fault=str(error))
