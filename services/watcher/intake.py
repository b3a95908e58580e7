"""Job events from other systems, in order by job, none lost.

An offset is committed when its event is finished: the object exists (or the dead letter is acknowledged) and the status
and the hint are acknowledged. Events of one job stay in order, whatever their record keys; a job whose event met a
passing fault waits with all that came behind it, and others pass. Bounds: reading stops when too many events are in
hand, or too many stand behind one that is parked (they are finished, but their offsets cannot be committed yet).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from libs.bus.port import Bus, BusUnavailable, GroupReader, Incoming
from libs.bus.positions import InHand, Positions
from libs.contracts.submission import job_id
from libs.kube.grouping import NOTHING_KNOWN, Known
from libs.kube.port import Kube
from libs.runtime.backoff import Backoff
from libs.runtime.clock import Clock
from libs.runtime.tasks import comes
from services.watcher import metrics
from services.watcher.jobs import JobEvents, PassingFault
from services.watcher.leaving import leave
from services.watcher.settings import WatcherSettings

log = structlog.get_logger()

GROUP = "drystone-intake"
#: Finished events behind a parked one cost a few bytes each; so many times `intake_ahead` of them may there be.
_BEHIND = 50

LaneKey = tuple[str, str]


@dataclass(slots=True)
class _Lane:
    """Events of one job, in order; one task works on it."""

    waiting: deque[tuple[Incoming, InHand]] = field(default_factory=deque)


class Intake:
    def __init__(
        self,
        kube: Kube,
        bus: Bus,
        settings: WatcherSettings,
        clock: Clock,
        known: Callable[[], tuple[Known, str]] = lambda: (NOTHING_KNOWN, ""),
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self._topics = sorted(tenant.topic for tenant in settings.tenants)
        self._events = JobEvents(kube, bus, settings, clock, known)
        self._positions = Positions()
        self._lanes: dict[LaneKey, _Lane] = {}
        self._slots = asyncio.Semaphore(settings.intake_width)
        self._moved = asyncio.Event()
        self._parked: set[LaneKey] = set()
        self._reader: GroupReader | None = None
        #: Events that were read and are not finished.
        self.in_hand = 0

    @property
    def parked(self) -> int:
        return len(self._parked)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then what was read is finished, as far as the caller lets it, and the group is left."""
        reader = self._bus.group(GROUP, self._topics, rebalanced=self._rebalanced)
        self._reader = reader
        try:
            async with asyncio.TaskGroup() as tasks:
                while not stop.is_set():
                    await self._commit()
                    if self._full:
                        await self._wait(0.2)
                        continue
                    # With events in hand, come back soon to commit what finishes.
                    for record in await reader.batch(500, 0.2 if not self._lanes else 0.02):
                        self._take(record, tasks)
                while self._lanes:
                    await self._wait(0.2)
                    await self._commit()
            await self._commit()
        finally:
            await leave(reader)

    @property
    def _full(self) -> bool:
        ahead = self._settings.intake_ahead
        return self.in_hand >= ahead or self._positions.in_hand >= _BEHIND * ahead

    def _take(self, record: Incoming, tasks: asyncio.TaskGroup) -> None:
        held = self._positions.read(record)
        key = lane_of(record)
        self.in_hand += 1
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
            lane.waiting.append((record, held))
            tasks.create_task(self._work(key, lane), name=f"job events {key[1][:40]}")
        else:
            lane.waiting.append((record, held))

    async def _work(self, key: LaneKey, lane: _Lane) -> None:
        try:
            while lane.waiting:
                record, held = lane.waiting[0]
                await self._finish(key, record)
                lane.waiting.popleft()
                self.in_hand -= 1
                held.part_done()
                self._moved.set()
        finally:
            del self._lanes[key]
            self._moved.set()

    async def _finish(self, key: LaneKey, record: Incoming) -> None:
        pause = Backoff(0.1, 5.0)
        while True:
            try:
                async with self._slots:
                    await self._events.serve(record)
                break
            except (PassingFault, BusUnavailable) as fault:
                if key not in self._parked:
                    log.warning("job event parked", key=key[1], topic=key[0], fault=str(fault), cause=record.id)
                self._parked.add(key)
                metrics.PARKED.set(len(self._parked))
                await self._clock.sleep(pause.next())
        if key in self._parked:
            self._parked.discard(key)
            metrics.PARKED.set(len(self._parked))

    async def _commit(self) -> None:
        due = self._positions.due()
        if due and self._reader is not None:
            await self._reader.done(due)

    async def _wait(self, seconds: float) -> None:
        self._moved.clear()
        await comes(self._moved, seconds)

    def _rebalanced(self, _gained: frozenset[tuple[str, int]], lost: frozenset[tuple[str, int]]) -> None:
        self._positions.forget(lost)


def lane_of(record: Incoming) -> LaneKey:
    """What must stay in order: a job's submission and its cancellation, under whatever record keys they were sent. An
    event that names no job is told apart by its record's key, else by its own id."""
    named = job_id(record.value)
    if named:
        return record.topic, "id/" + named[:200]
    return record.topic, record.key or record.id
