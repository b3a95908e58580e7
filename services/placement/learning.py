"""The typical mix of tasks and the precisions that they declare: learned by each replica from the jobs that it decides,
shared by all, kept over restarts. And who waits, where there are other replicas: a place in line counts theirs too.

The owner of a partition counts that partition's jobs and writes the counts on a compacted topic, one record per
partition; every replica reads all records and adds them up. So a replica that starts, or that takes a partition, has
what all have learned. The record that was written last stands: a fenced owner's late one is replaced by the next of the
true owner, and costs a few counts until then. The owner itself believes nobody about its own partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NoReturn

import msgspec
import structlog

from libs.bus.pack import ALONE
from libs.bus.port import BusUnavailable, FullReader, Incoming, Outgoing, Publisher
from libs.contracts.events import EventType, LearnedMix, MixCount, PrecisionCount, QueueLine
from libs.contracts.topics import MIX
from libs.engine.mix import MixState, Shape
from libs.engine.precision.demand import DemandState, Kind
from libs.runtime.clock import Clock
from services.placement import measures
from services.placement.explain import Explainer
from services.placement.state import State

log = structlog.get_logger()
_decode: Final = msgspec.json.Decoder(LearnedMix).decode
_encode: Final = msgspec.json.Encoder().encode
#: Between two looks at whether something was learned.
_LOOK_S: Final = 1.0


class Learning:
    """`look` brings up to date who stands where, as `explainer` tells."""

    def __init__(
        self,
        state: State,
        publisher: Publisher,
        clock: Clock,
        partitions: int,
        every_s: float,
        explainer: Explainer,
        look: Callable[[], Awaitable[None]],
    ) -> None:
        self._state = state
        self._explainer = explainer
        self._look = look
        self._lines: dict[int, tuple[QueueLine, ...]] = {}
        self._publisher = publisher
        self._clock = clock
        self._partitions = partitions
        self._every_s = every_s
        self._told: dict[int, int] = {}
        self._told_at: dict[int, float] = {}
        self.ready = asyncio.Event()

    async def follow(self, reader: FullReader) -> NoReturn:
        while True:
            self.take(await reader.batch(1000))
            if reader.caught_up:
                self.ready.set()

    def take(self, records: Sequence[Incoming]) -> None:
        latest = {record.key: record.value for record in records if record.value is not None}
        for value in latest.values():
            try:
                mix = _decode(value)
            except msgspec.MsgspecError as error:
                log.warning("a learned mix cannot be read", error=str(error))
                continue
            if mix.partition not in self._state.active and 0 <= mix.partition < self._partitions:
                if mix.seen != self._state.view.engine.counted(mix.partition):
                    self._state.view.engine.recall(_state_of(mix), mix.partition)
                self._told[mix.partition] = mix.seen
                self._explainer.heard.take(mix.partition, mix.lines)
                self._lines[mix.partition] = mix.lines

    async def run(self) -> NoReturn:
        while True:
            await self._clock.sleep(_LOOK_S)
            await self.tell()

    async def tell(self, *, at_once: bool = False) -> None:
        """Write what was learned since the last time; not more often than every so many seconds per partition."""
        now = self._clock.monotonic()
        news: list[tuple[int, int, tuple[QueueLine, ...], Outgoing]] = []
        shared = self._explainer.shared = len(self._state.active) < self._partitions
        if shared and not at_once:
            await self._look()
        for partition in sorted(self._state.active):
            if partition not in self._state.active:
                continue  # lost while others had the loop
            if not at_once and now - self._told_at.get(partition, float("-inf")) < self._every_s:
                continue
            engine = self._state.view.engine
            seen = engine.counted(partition)
            lines = self._explainer.lines_of(partition) if shared else ()
            if seen and (seen != self._told.get(partition) or lines != self._lines.get(partition, ())):
                news.append((partition, seen, lines, _record(partition, engine.learned(partition), lines)))
                await asyncio.sleep(0)  # hundreds of shapes take milliseconds per partition
        if not news:
            return
        try:
            await self._publisher.publish([record for *_, record in news])
        except BusUnavailable as error:
            log.warning("what was learned is not written yet", error=str(error))
            return
        measures.MIX_WRITTEN.inc(len(news))
        for partition, seen, lines, _ in news:
            self._told[partition], self._lines[partition] = seen, lines
            self._told_at[partition] = now


def _record(partition: int, learned: MixState, lines: tuple[QueueLine, ...]) -> Outgoing:
    counts = tuple(MixCount(owner, *shape, count) for owner, shape, count in learned.counts)
    precisions = tuple(PrecisionCount(*kind, milli) for kind, milli in learned.demand.counts)
    mix = LearnedMix(partition, learned.seen, learned.until, counts, precisions, learned.demand.tasks, lines)
    while len(value := _encode(mix)) > ALONE and (mix.counts or mix.lines):
        # What is rare counts least; a line that is not told is not followed elsewhere.
        often = sorted(mix.counts, key=lambda c: -c.count)
        mix = msgspec.structs.replace(mix, counts=tuple(often[: len(often) // 2]), lines=mix.lines if often else ())
    return Outgoing(MIX.name, str(partition), value, EventType.MIX)


def _state_of(mix: LearnedMix) -> MixState:
    counts = ((c.owner, Shape(c.cpu, c.gpus, c.milli, c.mib, c.models), c.count) for c in mix.counts)
    precisions = ((Kind(c.precision, c.required), c.milli) for c in mix.precisions)
    return MixState(tuple(counts), mix.seen, mix.until, DemandState(tuple(precisions), mix.declared))
