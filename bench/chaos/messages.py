"""Faults of the messages between services: said again, in another order, or never arrived."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from libs.contracts import topics

#: Between services; what the watcher says of the cluster is a table by key, in which order is part of the contract.
BETWEEN: Final = (topics.TASKS, topics.PLANS, topics.OUTCOMES, topics.EVICTIONS)
LASTS_S: Final = 10.0


async def said_again(bootstrap: str, rng: random.Random) -> None:
    """For a while, half of what was said lately is said again, shuffled: by old turns up to some seconds late."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    async with _reading(bootstrap) as consumer:
        await producer.start()
        try:
            until = asyncio.get_running_loop().time() + LASTS_S
            lately: list[ConsumerRecord] = []
            while asyncio.get_running_loop().time() < until:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    # Not what we said ourselves, or it would be said for ever.
                    lately += [r for r in records if not any(name == "chaos" for name, _ in r.headers)]
                lately = lately[-400:]
                chosen = rng.sample(lately, len(lately) // 2)
                for r in chosen:
                    headers = [*r.headers, ("chaos", b"again")]
                    await producer.send(r.topic, r.value, key=r.key, partition=r.partition, headers=headers)
                await asyncio.sleep(rng.uniform(0.2, 1.0))
        finally:
            with contextlib.suppress(KafkaError):
                await producer.stop()


async def dropped(bootstrap: str, rng: random.Random) -> None:
    """For a while, now and then, everything between services that is there is deleted, read or not."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        async with _reading(bootstrap) as consumer:
            until = asyncio.get_running_loop().time() + LASTS_S
            while asyncio.get_running_loop().time() < until:
                with contextlib.suppress(KafkaError):
                    ends = await consumer.end_offsets(sorted(consumer.assignment()))
                    await admin.delete_records({tp: RecordsToDelete(end) for tp, end in ends.items() if end})
                await asyncio.sleep(rng.uniform(0.0, 0.3))
    finally:
        await admin.close()


@asynccontextmanager
async def _reading(bootstrap: str) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="latest")
    await consumer.start()
    try:
        places = [TopicPartition(topic.name, n) for topic in BETWEEN for n in range(topic.partitions)]
        consumer.assign(places)
        await consumer.seek_to_end(*places)
        yield consumer
    finally:
        with contextlib.suppress(KafkaError):
            await consumer.stop()
