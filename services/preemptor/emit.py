"""What leaves the preemptor besides evictions: outcomes, dead letters, then offsets. In that order."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import msgspec
import structlog

from libs.bus.pack import halved, packed
from libs.bus.port import BusUnavailable, GroupReader, Outgoing, Publisher, onward
from libs.bus.positions import InHand, Positions
from libs.contracts.events import EventType, EvictionOutcome
from libs.contracts.topics import OUTCOMES
from libs.runtime.clock import Clock
from libs.runtime.insist import Insist
from services.preemptor import metrics

log = structlog.get_logger()


class Emitter:
    def __init__(self, publisher: Publisher, positions: Positions, clock: Clock, rng: random.Random) -> None:
        self._publisher = publisher
        self._positions = positions
        self._clock = clock
        self._insist = Insist("reports", (BusUnavailable,), clock, rng)
        self.reader: GroupReader | None = None
        self._outcomes: list[EvictionOutcome] = []
        self._letters: list[Outgoing] = []
        self._held: list[InHand] = []
        self._news = asyncio.Event()
        self._flushing = False

    @property
    def failing_since(self) -> float | None:
        return self._insist.failing_since

    def ended(self, outcome: EvictionOutcome, records: Sequence[InHand]) -> None:
        self._outcomes.append(outcome)
        self._held.extend(records)
        self._news.set()

    def letter(self, record: Outgoing, held: InHand) -> None:
        metrics.DEAD_LETTERS.inc()
        self._letters.append(record)
        self._held.append(held)
        self._news.set()

    def read_finished(self) -> None:
        """A record had nothing to carry out: its offset may go."""
        self._news.set()

    async def drained(self) -> None:
        while self._flushing or self._news.is_set():
            await self._clock.sleep(0.01)

    async def forever(self) -> None:
        while True:
            await self._news.wait()
            self._flushing = True
            try:
                await self.flush()
            finally:
                self._flushing = False

    async def flush(self) -> None:
        self._news.clear()
        outcomes, self._outcomes = self._outcomes, []
        letters, self._letters = self._letters, []
        held, self._held = self._held, []
        records = [*outcome_records(outcomes), *letters]
        if records:
            await self._insist.on(partial(self._publisher.publish, records))
        for each in held:
            each.part_done()
        due = self._positions.due()
        if due and self.reader is not None:
            await self._insist.on(partial(self.reader.done, due))


def outcome_records(outcomes: Sequence[EvictionOutcome]) -> list[Outgoing]:
    """One record per partition, more where they say more than one takes."""
    by_partition: defaultdict[int, list[EvictionOutcome]] = defaultdict(list)
    for outcome in outcomes:
        by_partition[outcome.partition].append(outcome)
    return [
        Outgoing(
            topic=OUTCOMES.name,
            key=items[0].job,
            value=value,
            type=EventType.OUTCOMES,
            partition=partition,
            headers=onward(items[0].cause, items[0].traceparent),
        )
        for partition, some in by_partition.items()
        for items, value in packed(some, _halves)
    ]


def _halves(outcome: EvictionOutcome) -> list[EvictionOutcome]:
    evicted, refused = halved(outcome.evicted), halved(tuple(outcome.refused.items()))
    parts = [(who, dict(why)) for who, why in zip(evicted, refused, strict=True) if who or why]
    return [msgspec.structs.replace(outcome, evicted=who, refused=why) for who, why in parts]
