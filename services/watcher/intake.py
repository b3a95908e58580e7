"""Job events from other systems, in order by job, none lost.

An offset is committed when its event is finished: the object exists (or the dead letter is acknowledged) and the status
and the hint are acknowledged. Events of one job stay in order, whatever their record keys; a job whose event met a
passing fault waits with all that came behind it (it is *parked*), and others pass. While the API server serves nobody,
all wait; an event that it does not serve while it serves others is given up after `intake_park_s`, with a dead letter,
so that no offset stands still for ever.

Each tenant has bounds of its own: events and bytes in hand, finished events behind a parked one, calls at once. At any
of them its topic is not read further, and the others' are. Of one parked job so many events may wait; more are refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

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
_BEHIND: Final = 50
#: Events of one job that may wait while it is parked; a rebuke to whoever sends the same for ever.
MOST_OF_A_JOB: Final = 100
#: Calls at once for what a tenant has parked: they must not be in the way of what is served at once.
_AGAIN: Final = 4
#: Calls at once of one of many tenants.
_LEAST_WIDTH: Final = 4
#: Kept of an event beside its bytes.
_EVENT_BYTES: Final = 1024

LaneKey = tuple[str, str]


@dataclass(slots=True)
class _Event:
    """`since`: what its lane's `parked_s` was when it came. `lost`: its partition went to another owner, who reads it
    again."""

    record: Incoming
    held: InHand
    since: float = 0.0
    turned_away: bool = False
    lost: bool = False

    @property
    def size(self) -> int:
        return _EVENT_BYTES + len(self.record.value or b"")


@dataclass(slots=True)
class _Lane:
    """Events of one job, in order; one task works on it. `parked_s`: how long its events were not served although the
    API server served others."""

    waiting: deque[_Event] = field(default_factory=deque)
    parked_s: float = 0.0


@dataclass(slots=True)
class _Desk:
    """One tenant's part: what is in hand, and how many calls it may have at once, at first and for what is parked."""

    first: asyncio.Semaphore
    again: asyncio.Semaphore
    events: int = 0
    bytes: int = 0


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
        # However many one tenant's events need, some calls are left for each of the others.
        others = len(self._topics) - 1
        width = max(min(_LEAST_WIDTH, settings.intake_width), settings.intake_width - _LEAST_WIDTH * others)
        self._desks = {topic: _Desk(asyncio.Semaphore(width), asyncio.Semaphore(_AGAIN)) for topic in self._topics}
        self._moved = asyncio.Event()
        self._parked: set[LaneKey] = set()
        self._reader: GroupReader | None = None

    @property
    def in_hand(self) -> int:
        """Events that were read and are not finished."""
        return sum(desk.events for desk in self._desks.values())

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
                    behind = self._positions.by_topic()
                    reader.hold([topic for topic in self._topics if self._full(topic, behind.get(topic, 0))])
                    # With events in hand, come back soon to commit what finishes.
                    for record in await reader.batch(500, 0.2 if not self._lanes else 0.02):
                        self._take(record, tasks)
                while self._lanes:
                    await self._wait(0.2)
                    await self._commit()
            await self._commit()
        finally:
            await leave(reader)

    def _full(self, topic: str, behind: int) -> bool:
        """Whether no more of this tenant is taken for now. `behind`: its events whose offsets are not committed."""
        desk, settings, tenants = self._desks[topic], self._settings, len(self._topics)
        return (
            desk.events >= settings.intake_ahead
            or desk.bytes >= settings.intake_bytes // tenants
            or behind >= max(settings.intake_ahead, _BEHIND * settings.intake_ahead // tenants)
        )

    def _take(self, record: Incoming, tasks: asyncio.TaskGroup) -> None:
        desk, key = self._desks[record.topic], lane_of(record)
        event = _Event(record, self._positions.read(record))
        desk.events += 1
        desk.bytes += event.size
        lane = self._lanes.get(key)
        if lane is not None and key in self._parked and len(lane.waiting) >= MOST_OF_A_JOB:
            self._turn_away(event, tasks)
        else:
            self._line_up(key, event, tasks)

    def _line_up(self, key: LaneKey, event: _Event, tasks: asyncio.TaskGroup) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
            tasks.create_task(self._work(key, lane, tasks), name=f"job events {key[1][:40]}")
        event.since = lane.parked_s
        lane.waiting.append(event)

    def _turn_away(self, event: _Event, tasks: asyncio.TaskGroup) -> None:
        """Behind nobody of its job: it is answered soon, however long those wait."""
        event.turned_away = True
        self._line_up((event.record.topic, f"turned away/{event.record.partition}"), event, tasks)

    async def _work(self, key: LaneKey, lane: _Lane, tasks: asyncio.TaskGroup) -> None:
        desk = self._desks[key[0]]
        try:
            while lane.waiting:
                event = lane.waiting[0]
                await self._finish(key, lane, event, tasks)
                lane.waiting.popleft()
                desk.events -= 1
                desk.bytes -= event.size
                event.held.part_done()
                self._moved.set()
        finally:
            del self._lanes[key]
            self._unpark(key)
            self._moved.set()

    async def _finish(self, key: LaneKey, lane: _Lane, event: _Event, tasks: asyncio.TaskGroup) -> None:
        record, desk, limit_s = event.record, self._desks[key[0]], self._settings.intake_park_s
        pause, why, tries = Backoff(0.1, 5.0), "", 0
        failed_at: float | None = None
        while not event.lost:
            waited_s = lane.parked_s - event.since
            try:
                async with desk.again if tries else desk.first:
                    if event.turned_away:
                        await self._events.turn_away(record, f"{MOST_OF_A_JOB} events of this job are waiting already")
                    elif why and waited_s >= limit_s:
                        await self._events.give_up(record, why, waited_s)
                    else:
                        await self._events.serve(record)
                break
            except PassingFault as fault:
                now = self._clock.monotonic()
                if failed_at is not None and self._events.answered_at >= failed_at:
                    lane.parked_s += now - failed_at
                failed_at, why = now, str(fault)
                self._park(key, record, why)
                while len(lane.waiting) > MOST_OF_A_JOB:
                    self._turn_away(lane.waiting.pop(), tasks)
                if lane.parked_s - event.since >= limit_s:
                    continue
            except BusUnavailable as fault:
                failed_at = None  # nobody can be answered: no time of anybody's
                self._park(key, record, str(fault))
            tries += 1
            await self._clock.sleep(pause.next())
        self._unpark(key)

    def _park(self, key: LaneKey, record: Incoming, fault: str) -> None:
        if key not in self._parked:
            log.warning("job event parked", key=key[1], topic=key[0], fault=fault, cause=record.id)
            self._parked.add(key)
            metrics.PARKED.set(len(self._parked))

    def _unpark(self, key: LaneKey) -> None:
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
        for lane in self._lanes.values():
            for event in lane.waiting:
                event.lost = event.lost or event.held.place in lost


def lane_of(record: Incoming) -> LaneKey:
    """What must stay in order: a job's submission and its cancellation, under whatever record keys they were sent. An
    event that names no job is told apart by its record's key, else by its own id."""
    named = job_id(record.value)
    if named:
        return record.topic, "id/" + named[:200]
    return record.topic, (record.key or record.id)[:200]
