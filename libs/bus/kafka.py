"""The bus on Kafka: one publisher and any number of readers behind the port, with a watch over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from aiokafka.errors import KafkaError

from libs.bus.admin import check_topics
from libs.bus.consumer import Reader
from libs.bus.full_reader import KafkaFullReader
from libs.bus.group_reader import KafkaGroupReader
from libs.bus.port import BusUnavailable, Rebalanced
from libs.bus.producer import KafkaPublisher
from libs.bus.settings import KafkaSettings
from libs.contracts.topics import ALL, Topic

__all__ = ["KafkaBus", "KafkaSettings"]

log = structlog.get_logger()


class KafkaBus:
    def __init__(self, settings: KafkaSettings, topics: Sequence[Topic] = ALL) -> None:
        self._settings = settings
        self._topics = tuple(topics)
        #: The topic table and the broker agree: `open` checks it.
        self._partitions = {topic.name: topic.partitions for topic in topics}
        self._publisher = KafkaPublisher(settings, self._partitions)
        self._readers: list[Reader] = []

    def publisher(self) -> KafkaPublisher:
        return self._publisher

    def group(self, group: str, topics: Sequence[str], *, rebalanced: Rebalanced | None = None) -> KafkaGroupReader:
        reader = KafkaGroupReader(group, self._settings, topics, rebalanced)
        self._readers.append(reader)
        return reader

    def follow(self, topics: Sequence[str], *, from_start: bool) -> KafkaFullReader:
        reader = KafkaFullReader(self._settings, topics, self._partitions, from_start=from_start)
        self._readers.append(reader)
        return reader

    def partitions(self, topic: str) -> int:
        return self._partitions[topic]

    @property
    def healthy(self) -> bool:
        return self._publisher.healthy and all(reader.healthy for reader in self._readers)

    @property
    def left_s(self) -> float:
        """For how long the reader that was left longest has not been polled by its owner."""
        return max((reader.left_s for reader in self._readers), default=0.0)

    @property
    def faults(self) -> list[str]:
        """What is broken, in words."""
        faults = [reader.fault for reader in self._readers if reader.fault]
        return faults if self._publisher.healthy else ["the producer is stuck or has no broker", *faults]

    async def open(self) -> None:
        """Raises BusUnavailable when no broker answers, BusMisconfigured when topics are not as they must be."""
        if self._settings.check_topics:
            await check_topics(self._settings, self._topics)
        try:
            await self._publisher.open()
        except (KafkaError, TimeoutError, OSError) as error:
            raise BusUnavailable(f"no broker answers at {self._settings.bootstrap}: {error!r}") from None

    async def close(self) -> None:
        readers = [asyncio.create_task(reader.close(), name="close reader") for reader in self._readers]
        await self._publisher.close(3.0)
        if readers:
            await asyncio.wait(readers, timeout=3.0)
