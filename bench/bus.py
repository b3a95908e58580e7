"""What a record costs on the bus, and how long it takes on an idle one: `python -m bench.bus --json`.

Starts a broker of its own, unless one is named. Figures: CPU microseconds of our process per record, published and
read, in batches of 500 with 600 bytes each; milliseconds from `publish` to a waiting reader, one record at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from libs.bus.admin import ensure_topics
from libs.bus.kafka import KafkaBus, KafkaSettings
from libs.bus.port import Outgoing
from libs.contracts.topics import CLUSTER, TASKS
from libs.observe import logs
from tools.stack import Stack

_RECORDS = 20_000
_BATCH = 500
_TRIALS = 200


async def measure(bootstrap: str) -> dict[str, Any]:
    settings = KafkaSettings(bootstrap, check_topics=False)
    await ensure_topics(settings, create=True, topics=[CLUSTER, TASKS], replicas=1)
    bus = KafkaBus(settings, [CLUSTER, TASKS])
    await bus.open()
    try:
        return {**await _throughput(bus), **await _latency(bus)}
    finally:
        await bus.close()


async def _throughput(bus: KafkaBus) -> dict[str, float]:
    publisher = bus.publisher()
    value = b"x" * 600
    records = [
        Outgoing(CLUSTER.name, f"pod/{n}", value, "dev.drystone.cluster.v1", headers={"cause": "c"})
        for n in range(_RECORDS)
    ]
    reader = bus.follow([CLUSTER.name], from_start=True)
    while not reader.caught_up:
        await reader.batch(1000, 0.1)
    published: list[tuple[float, float]] = []
    consumed: list[tuple[float, float]] = []
    for _ in range(3):
        cpu, wall = time.process_time(), time.perf_counter()
        for at in range(0, _RECORDS, _BATCH):
            await publisher.publish(records[at : at + _BATCH])
        published.append((time.process_time() - cpu, time.perf_counter() - wall))
        cpu, wall, seen = time.process_time(), time.perf_counter(), 0
        while seen < _RECORDS:
            seen += len(await reader.batch(1000, 1.0))
        consumed.append((time.process_time() - cpu, time.perf_counter() - wall))

    def us(found: list[tuple[float, float]], which: int) -> float:
        return round(statistics.median(f[which] for f in found) / _RECORDS * 1e6, 2)

    return {
        "publish_cpu_us": us(published, 0),
        "publish_wall_us": us(published, 1),
        "read_cpu_us": us(consumed, 0),
        "read_wall_us": us(consumed, 1),
    }


async def _latency(bus: KafkaBus) -> dict[str, float]:
    reader = bus.group("bench", [TASKS.name])
    while not reader.owned:
        await reader.batch(100, 0.2)
    took: list[float] = []

    async def reading() -> None:
        while len(took) < _TRIALS:
            batch = await reader.batch(100, 1.0)
            took.extend((time.perf_counter() - float(r.value or b"0")) * 1000 for r in batch)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(reading(), name="reading")
        for n in range(_TRIALS):
            await asyncio.sleep(0.02)
            now = str(time.perf_counter()).encode()
            await bus.publisher().publish([Outgoing(TASKS.name, "k", now, "t", n % TASKS.partitions)])
    took.sort()
    return {
        "idle_ms_p50": round(took[len(took) // 2], 2),
        "idle_ms_p99": round(took[int(len(took) * 0.99)], 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost and latency of the bus on Kafka.")
    parser.add_argument("--bootstrap", help="a broker that runs; else one is started")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    chosen = parser.parse_args()
    logs.configure(level="WARNING", format="console")  # to stderr: stdout has the figures alone
    if chosen.bootstrap:
        found = uvloop.run(measure(chosen.bootstrap))
    else:
        with tempfile.TemporaryDirectory() as folder, Stack(Path(folder), parts=("kafka",)) as info:
            found = uvloop.run(measure(info.kafka_bootstrap))
    sys.stdout.write(
        json.dumps(found) + "\n" if chosen.json else "".join(f"{name:<18}{value}\n" for name, value in found.items())
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
