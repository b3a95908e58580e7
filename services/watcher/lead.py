"""One period of leadership: load reality into the ledger, then follow it.

Order of a take-over: a mark in the ledger, then the list of pods, so that nothing bound after it began is swept. A
ledger that is not whole (new, emptied, or failed over) is rebuilt: a new generation refuses everybody's old plans, the
longest write that may still be in flight is waited out, and only then pods are listed and reality is loaded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import msgspec
import structlog

from libs.bus.port import Bus
from libs.contracts.tenants import most_tasks
from libs.contracts.topics import CLUSTER, TASKS
from libs.kube import volumes, writes
from libs.kube.grouping import POD_GROUPS
from libs.kube.pods import PodView
from libs.kube.port import Kube
from libs.kube.reflector import Reflector
from libs.observe.faults import Faults
from libs.runtime.backoff import Backoff
from libs.runtime.clock import Clock
from libs.runtime.pace import Pace
from libs.runtime.tasks import never_ends
from libs.store.pages import dump_pages
from libs.store.port import Ledger, LedgerUnavailable
from services.watcher import metrics
from services.watcher.decide import Picture
from services.watcher.emit import Emitter, chunks
from services.watcher.keep import Keeper
from services.watcher.leaving import leave
from services.watcher.lists import group_watch, handlers
from services.watcher.settings import WatcherSettings

log = structlog.get_logger()
_faults = Faults(metrics.FAULTS)

_encode = msgspec.json.encode

_GROUPS: Mapping[str, str] = {group_watch(project): path for project, path in POD_GROUPS.items()}
PATHS: Mapping[str, str] = {
    "priorityclasses": writes.PRIORITY_CLASSES,
    "queues": writes.QUEUES,
    **_GROUPS,
    "namespaces": writes.NAMESPACES,
    "storageclasses": volumes.CLASSES,
    "volumes": volumes.VOLUMES,
    "claims": volumes.CLAIMS,
    "csinodes": volumes.CSI_NODES,
    "pdbs": writes.PDBS,
    "nodes": writes.NODES,
    "pods": writes.pods_path(),
    "trainingjobs": writes.TRAINING_JOBS,
}
#: Installed by others or not at all, or only of use to few pods: absent is an ordinary answer.
OPTIONAL = frozenset({*_GROUPS, "namespaces", "storageclasses", "volumes", "claims", "csinodes"})
#: What a pod's job, queue and priority follow from: listed before pods are read.
CATALOG = frozenset({"priorityclasses", "queues", *_GROUPS})
_RECHECK_S = 5.0
#: Reports of what is bound or gone leave at most this often.
GATHER_S = 0.03
#: The same of pods that were seen on the room kept for them.
GATHER_BOUND_S = 0.1
#: How soon evictions are told, at the soonest.
_NEWS_S = 0.5
#: Without a report for so long there is no news.
_NO_NEWS_S = 0.5
#: How often the leader asks whether the ledger is still whole.
_LOOK_S = 1.0
#: Every so many slow passes the topic's content is read and compared, even if nothing looks lost.
_READ_TOPIC_EVERY = 10


class Leadership:
    def __init__(
        self,
        kube: Kube,
        ledger: Ledger,
        bus: Bus,
        settings: WatcherSettings,
        clock: Clock,
        term: int,
        *,
        first: bool = False,
    ) -> None:
        """`first`: nobody has led before, so nobody can have written on the strength of an earlier data set."""
        self._kube = kube
        self._ledger = ledger
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self._term = term
        self._first_ever = first
        self.picture = Picture(
            term,
            settings.tenant_by_namespace,
            lambda _: metrics.UNREADABLE.inc(),
            now=clock.wall,
            half_life_s=settings.history_half_life_s,
            budget=settings.budget,
            ignored=_ignored,
            most_tasks=most_tasks(settings.job_tasks, settings.tenants),
            faulty=lambda of, error: _faults.seen("object", of, error),
        )
        self._keeper = Keeper(kube, self.picture, settings, clock)
        self._emitter = Emitter(ledger, bus.publisher(), bus.partitions(TASKS.name), term)
        self._handlers = handlers(self.picture)
        self._listed: set[str] = set()
        self._reflectors: dict[str, Reflector] = {}
        self._changed = asyncio.Event()
        self._catalogued = asyncio.Event()
        self._waited = asyncio.Event()
        self._first = asyncio.Event()
        self._compared_at = -_READ_TOPIC_EVERY
        self._passes = 0
        self._arrived_at: float | None = None
        self._generation = 0
        self._mark = 0
        self._sweep = False
        self._rebuilding = False
        self._reported_at = float("-inf")
        self._pace = Pace()
        self._telling = False
        self.synced = False

    async def run(self) -> None:
        """Until cancelled. Raises StaleGeneration where the ledger changed under us: begin anew."""
        await self._before()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._wait_out(), name="writes in flight")
            for name in PATHS:
                tasks.create_task(never_ends(self._reflect(name), f"watch {name}"), name=f"watch {name}")
            tasks.create_task(never_ends(self._report(), "report"), name="report")
            tasks.create_task(never_ends(self._slow_pass(), "slow pass"), name="slow pass")
            tasks.create_task(never_ends(self._still_whole(), "still whole"), name="still whole")
            tasks.create_task(never_ends(self._tell_history(), "history"), name="history")
            tasks.create_task(never_ends(self._keep(), "queue statuses"), name="queue statuses")

    async def keep(self) -> None:
        """Write down what the next leader begins from. Only while we lead: a late one would take back what the next
        has written already."""
        if self.picture.tally.begun:
            await self._keeper.keep()

    def health(self) -> dict[str, str]:
        detail = {"term": str(self._term), "synced": str(self.synced)}
        for name, reflector in self._reflectors.items():
            seen = reflector.health()
            if not seen.listed or seen.age_s > 120:
                detail[name] = f"listed={seen.listed}, {seen.age_s:.0f} s ago"
        return detail

    # -- beginning -----------------------------------------------------------------------------------------------------

    async def _before(self) -> None:
        state = await self._ledger.open()
        self._rebuilding = not state.whole
        if self._rebuilding:
            metrics.REBUILDS.inc()
            state = await self._ledger.begin_rebuild(self._term)
            log.info("rebuilding the ledger", generation=state.generation)
        self._generation = state.generation

    async def _wait_out(self) -> None:
        """Before pods are listed; whatever no write of ours changes is listed meanwhile."""
        if self._rebuilding and not self._first_ever:
            # Somebody may have written on the strength of the data set before, and what is on its way is in no list.
            # The term does not tell: a first leader whose Redis is emptied weeks later is in its first term.
            await self._clock.sleep(self._settings.longest_write_s)
        self._mark = await self._ledger.mark()
        self._sweep = True
        self._waited.set()

    async def _first_report(self) -> None:
        """Everything has been listed once."""
        if not self.picture.tally.begun:
            self._keeper.begin()
            self.picture.tell_history()
        await self._emitter.report(self.picture.everything(), self.picture.seen)
        await self._sweep_now()
        await self._nodes_not_listed()
        if self._rebuilding:
            await self._ledger.whole(self._term)
            self._rebuilding = False
        self.synced = True
        self._first.set()
        log.info("synced", nodes=len(self.picture.nodes), pods=len(self.picture.pods.by_uid), term=self._term)

    async def _nodes_not_listed(self) -> None:
        """Nodes that the ledger knows and the list did not show."""
        absent: list[str] = []
        async for page in dump_pages(self._ledger):
            absent += [u.node for u in page.nodes if not u.gone and u.node not in self.picture.nodes]
        for names in chunks(absent):
            await self._ledger.nodes_gone(names, self._term)

    async def _compare_with_topic(self) -> None:
        """What the compacted topic holds against what is: ghosts of what went while nobody led, facts that were lost or
        overwritten by a leader that had been deposed. The ledger is told all of it again, which changes nothing there
        unless something was lost. What changes while this goes on is at worst said twice."""
        there = await self._topic_content()
        if there is None:
            return
        self._compared_at = self._passes
        ghosts = there.keys() - self.picture.fact_keys()
        self._emitter.tombstones(sorted(ghosts))
        wrong = 0
        for keys in chunks(sorted(self.picture.fact_keys()), 1000):
            for key in keys:
                fact = self.picture.fact(key)
                if fact is None:
                    continue
                differs = there.get(key) != hash(_encode(fact)) and not self._emitter.owes(key)
                wrong += differs
                self.picture.say_again(key, on_topic=differs)
            self._changed.set()
            await asyncio.sleep(0)
        if ghosts or wrong:
            log.info("the topic differed from the cluster", ghosts=len(ghosts), wrong=wrong)

    async def _topic_content(self) -> dict[str, int] | None:
        """Key -> hash of the last value; None where it cannot be read now."""
        reader = self._bus.follow([CLUSTER.name], from_start=True)
        there: dict[str, int] = {}
        try:
            async with asyncio.timeout(60):
                while not reader.caught_up:
                    for record in await reader.batch(5000, 0.2):
                        if record.value is None:
                            there.pop(record.key, None)
                        else:
                            there[record.key] = hash(record.value)
        except TimeoutError:
            log.warning("the topic's content could not be read", topic=CLUSTER.name)
            return None
        finally:
            await leave(reader)
        return there

    # -- following -----------------------------------------------------------------------------------------------------

    async def _reflect(self, name: str) -> None:
        listed, event = self._handlers[name]

        async def on_list(raws: list[bytes], _version: str) -> None:
            metrics.LISTS.labels(name).inc()
            if name == "queues":
                self._keeper.listed(raws)
            listed(raws)
            self._now_listed(name)
            self._saw_something()

        async def on_events(events: list[tuple[str, bytes]]) -> None:
            metrics.EVENTS.labels(name).inc(len(events))
            for kind, raw in events:
                if kind == "BOOKMARK":
                    continue
                if name == "queues":
                    self._keeper.seen(kind, raw)
                event(kind, raw)
            self._saw_something()

        if name in OPTIONAL:
            await self._until_there(name)
        elif name not in CATALOG:
            await self._catalogued.wait()
        if name == "pods":
            await self._waited.wait()
        reflector = Reflector(self._kube, PATHS[name], on_list=on_list, on_events=on_events)
        self._reflectors[name] = reflector
        await reflector.run()

    async def _until_there(self, name: str) -> None:
        while True:
            answer = await self._kube.call("GET", PATHS[name], params={"limit": "1"})
            if answer.ok:
                return
            if answer.status in (403, 404):
                self._now_listed(name)
                self._changed.set()
            await self._clock.sleep(_RECHECK_S if answer.status in (403, 404) else 1.0)

    def _now_listed(self, name: str) -> None:
        self._listed.add(name)
        if self._listed >= CATALOG:
            self._catalogued.set()

    def _saw_something(self) -> None:
        if self._arrived_at is None:
            self._arrived_at = time.monotonic()
        self._changed.set()

    async def _report(self) -> None:
        pause = Backoff(0.05, 2.0)
        while True:
            await self._changed.wait()
            # The pace is asked once (while it is waited for, a burst would seem to be over); what arrives meanwhile may
            # be more urgent than what is there, so the rest is waited for in steps.
            paced = (now := self._clock.monotonic()) + self._pace.pause(now)
            while self.synced and (gather := max(paced, self._gathered_at()) - self._clock.monotonic()) > 0:
                await self._clock.sleep(min(gather, GATHER_S))
            self._changed.clear()
            if not self._listed.issuperset(PATHS):
                continue
            self._reported_at, self._telling = self._clock.monotonic(), True
            self._pace.began(self._reported_at)
            arrived, self._arrived_at = self._arrived_at, None
            changes = None
            while True:
                try:
                    if not self.synced:
                        await self._first_report()
                    else:
                        changes = changes or self.picture.take()
                        if changes:
                            await self._emitter.report(changes, self.picture.seen)
                        if self._sweep:
                            await self._sweep_now()
                    break
                except LedgerUnavailable as fault:
                    # The changes are in hand and every call may be made again.
                    log.warning("ledger unavailable", fault=str(fault))
                    await self._clock.sleep(pause.next())
            pause.reset()
            self._telling = False
            self._pace.ended(self._clock.monotonic())
            if arrived is not None:
                metrics.LAG.observe(time.monotonic() - arrived)

    def _gathered_at(self) -> float:
        """When what is to be said may go: what is bound or gone together, what waits for a decision at once."""
        if self.picture.urgent:
            return self._reported_at
        return self._reported_at + (GATHER_BOUND_S if self.picture.only_bound else GATHER_S)

    async def _sweep_now(self) -> None:
        swept = await self._ledger.sweep(self._mark, self.picture.pods.bound(), self._term)
        self._sweep = False
        if swept:
            metrics.SWEPT.inc(len(swept))
            log.warning("freed what a list did not show", uids=list(swept)[:20], count=len(swept))

    async def _tell_history(self) -> None:
        await self._first.wait()
        tally, every = self.picture.tally, self._settings.history_tell_s
        due, evicted = self._clock.monotonic() + every, tally.news
        while True:
            await self._clock.sleep(min(every, _NEWS_S))
            if self._clock.monotonic() < due and tally.news == evicted:
                continue
            due, evicted = self._clock.monotonic() + every, tally.news
            self.picture.tell_history()
            self._changed.set()

    async def _keep(self) -> None:
        await self._first.wait()
        await self._keeper.run()

    async def _slow_pass(self) -> None:
        """Every half minute: list all, whatever the watches said; and publish again what was not acknowledged. While
        there is news the lists would be in its way: they are put off until there is none, by a half of that at most."""
        await self._first.wait()
        await self._compare_with_topic()
        while True:
            turns = max(1, int(self._settings.slow_pass_s / 0.5))
            for turn in range(turns + turns // 2):
                if turn >= turns and self._clock.monotonic() - self._reported_at > _NO_NEWS_S:
                    break
                await self._clock.sleep(0.5)
                await self._emitter.flush()
            try:
                self._mark = await self._ledger.mark()
            except LedgerUnavailable as fault:
                log.warning("ledger unavailable", fault=str(fault))
                continue
            listings = {name: r.health().lists for name, r in self._reflectors.items()}
            for reflector in self._reflectors.values():
                reflector.relist()
            await self._relisted(listings)
            self._sweep = True
            self._changed.set()
            self._passes += 1
            if self._passes - self._compared_at >= _READ_TOPIC_EVERY or self._looks_lost():
                await self._compare_with_topic()

    async def _still_whole(self) -> None:
        """Where nothing happens nobody else would notice that the ledger was lost, and the next pod would wait; where
        much happens, reports may be held up by the broker."""
        await self._first.wait()
        while True:
            await self._clock.sleep(_LOOK_S)
            try:
                state = await self._ledger.state()
            except LedgerUnavailable as fault:
                log.warning("ledger unavailable", fault=str(fault))
                continue
            if not state.whole or state.generation != self._generation:
                raise LedgerLost(f"generation {state.generation}, whole: {state.whole}; ours is {self._generation}")

    def _looks_lost(self) -> bool:
        """Not while anything is still to be told, which would look the same."""
        if self._telling or self._changed.is_set() or self._emitter.dirty:
            return False
        return len(self._emitter.acknowledged) != len(self.picture.fact_keys())

    async def _relisted(self, before: Mapping[str, int]) -> None:
        deadline = self._clock.monotonic() + self._settings.slow_pass_s
        while any(self._reflectors[name].health().lists <= count for name, count in before.items()):
            if self._clock.monotonic() > deadline:
                return
            await self._clock.sleep(0.05)


def _ignored(pod: PodView, note: str) -> None:
    metrics.IGNORED.labels(note.partition(":")[0]).inc()
    log.warning("annotation ignored", pod=f"{pod.namespace}/{pod.name}", note=note)


class LedgerLost(Exception):
    """The ledger is not what we loaded: it may have to be rebuilt."""
