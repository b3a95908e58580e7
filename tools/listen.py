"""What is published from now on, for whoever measures or tests beside the services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from libs.bus.kafka import KafkaBus
from libs.bus.port import Incoming
from libs.bus.settings import KafkaSettings

#: Until the reader stands at the end of the topics.
_BEGINS_S = 15.0


@asynccontextmanager
async def listening(
    settings: KafkaSettings, topics: Sequence[str], take: Callable[[Incoming], None]
) -> AsyncIterator[None]:
    """`take` gets every record that is published while the block runs. What it raises ends the listening, and is raised
    at the block's end. Raises TimeoutError where the topics' ends are not found."""
    bus = KafkaBus(settings)
    await bus.open()
    reader = bus.follow(topics, from_start=False)

    async def follow() -> None:
        while True:
            for record in await reader.batch():
                take(record)

    following = asyncio.create_task(follow(), name="listening")
    try:
        async with asyncio.timeout(_BEGINS_S):
            while not reader.caught_up and not following.done():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield
        if following.done():
            following.result()
    finally:
        following.cancel()
        await asyncio.wait({following})
        await bus.close()
