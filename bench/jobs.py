"""A 10-task job event on Kafka, on an idle system: from the broker's acknowledgement to the tenth task seen bound by a
watch of the harness' own. Trials one after another, each on its own job; writes are counted from the audit log."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from bench.pipeline import count_writes, percentiles, prepare
from libs.contracts import topics
from libs.contracts.events import EventType
from tools.fleet import Fleet
from tools.load import Load
from tools.stack import Stack

TASKS = 10


def event(job: str, tasks: int = TASKS) -> bytes:
    return json.dumps(
        {
            "id": job,
            "namespace": "default",
            "roles": [
                {
                    "name": "worker",
                    "replicas": tasks,
                    "template": {
                        "image": "train:1",
                        "resources": {"cpu": "4", "memory": "16Gi", "gpu": 1},
                    },
                }
            ],
        }
    ).encode()


def headers(job: str) -> list[tuple[str, bytes]]:
    """CloudEvents binary mode, as any producer would send it."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_type", EventType.JOB_SUBMIT.encode()),
        ("ce_id", f"{job}-event".encode()),
        ("ce_source", b"bench"),
        ("content-type", b"application/json"),
    ]


async def run(trials: int, nodes: int, *, report: Callable[[str], None]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="drystone-bench-") as scratch:
        stack = Stack(Path(scratch) / "stack", parts=("etcd", "apiserver", "kafka", "redis", "prometheus"), audit=True)
        info = await asyncio.to_thread(stack.up)
        latencies: list[float] = []
        try:
            async with Load.of(info) as load:
                await prepare(info, load, nodes)
                producer = AIOKafkaProducer(bootstrap_servers=info.kafka_bootstrap, acks="all", enable_idempotence=True)
                await producer.start()
                try:
                    async with Fleet(info, Path(scratch) / "fleet") as fleet:
                        await fleet.start()
                        for n in range(5):
                            await _trial(load, producer, f"warm-{n}")
                        before = sum(count_writes(info.audit_log).values())
                        for n in range(trials):
                            latencies.append(1000 * await _trial(load, producer, f"trial-{n}"))
                            if n % 50 == 49:
                                report(f"{n + 1} trials: {percentiles(latencies)}")
                        await asyncio.sleep(2.0)
                        counted = count_writes(info.audit_log)
                finally:
                    await producer.stop()
        finally:
            await asyncio.to_thread(stack.down)
    return {
        "trials": trials,
        "tasks": TASKS,
        "nodes": nodes,
        "ack_to_tenth_bound_ms": percentiles(latencies),
        "writes_per_job": round((sum(counted.values()) - before) / trials, 3),
        "by_call": dict(counted),
    }


async def _trial(load: Load, producer: AIOKafkaProducer, job: str) -> float:
    async with load.count_bound() as count:
        await asyncio.sleep(0.02)
        await producer.send_and_wait(topics.JOBS.name, event(job), key=job.encode(), headers=headers(job))
        acknowledged = time.monotonic()
        took = await count.reach(TASKS, 30) - acknowledged
    # Room for the next trial, outside of the measured time: the job's pods go, its object too.
    await load.delete_jobs()
    await load.delete_pods()
    return took
