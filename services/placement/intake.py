"""What arrives: hints about jobs, facts about the cluster, measurements, outcomes, and the ledger's stream.

Each source has one reader task. None of them decides anything: it brings the shared state up to date and sets `wake`.
A record that cannot be read is counted and skipped: every one of these topics is repaired by a slow pass of its sender
or of ours. Offsets of hints are committed once the hint is in the pending set, which can be derived again at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import msgspec
import structlog

from libs.bus.port import FullReader, GroupReader, Incoming
from libs.contracts.events import (
    ClusterFact,
    EvictionOutcome,
    GpuFacts,
    JobChanged,
    Landed,
    OutcomesBatch,
    PlanOutcome,
    TaskOutcome,
    TasksBatch,
    known_kind,
)
from libs.domain.jobs import partition_of
from libs.domain.verdicts import Verdict
from libs.kube.trainingjobs import task_of
from libs.runtime.backoff import Backoff
from libs.runtime.clock import Clock
from libs.store.pages import dump_pages
from libs.store.port import Ledger, LedgerUnavailable, StaleGeneration
from services.placement import measures
from services.placement.decide import Next, judge_outcome, refused
from services.placement.guard import FAULTS
from services.placement.jobs import Job
from services.placement.settings import PlacementSettings
from services.placement.state import State

log = structlog.get_logger()

_tasks: Final = msgspec.json.Decoder(TasksBatch)
_facts: Final = msgspec.json.Decoder(ClusterFact)
_gpus: Final = msgspec.json.Decoder(GpuFacts)
_outcomes: Final = msgspec.json.Decoder(OutcomesBatch)


class Intake:
    """`owned` says which partitions are ours now; `cancelled` is told of job objects being deleted, `waits` of jobs
    that the API server refuses pods of."""

    def __init__(
        self,
        state: State,
        settings: PlacementSettings,
        clock: Clock,
        partitions: int,
        *,
        owned: Callable[[], frozenset[int]],
        cancelled: Callable[[str], None],
        waits: Callable[[Job, Verdict], None],
    ) -> None:
        self._state = state
        self._settings = settings
        self._clock = clock
        self._partitions = partitions
        self._owned = owned
        self._cancelled = cancelled
        self._waits = waits
        self.cluster_ready = asyncio.Event()
        self.uses_ready = state.uses_ready

    # -- drystone.tasks -----------------------------------------------------------------------------------------------

    async def hints(self, reader: GroupReader) -> NoReturn:
        while True:
            records = await reader.batch(500)
            if not records:
                continue
            self.take_hints(records)
            await reader.done(_next_offsets(records))

    def take_hints(self, records: Sequence[Incoming]) -> None:
        owned, now = self._owned(), self._clock.monotonic()
        for record in records:
            if record.value is None or record.partition not in owned:
                continue
            try:
                batch = _tasks.decode(record.value)
            except msgspec.MsgspecError as error:
                _unreadable(record, error)
                continue
            for change in batch.items:
                try:
                    self._take_hint(change, record.partition, now)
                except Exception as error:
                    FAULTS.seen("hint", change.head.key, error)
        if self._state.pending.has_dirty:
            self._state.wake.set()

    def _take_hint(self, change: JobChanged, partition: int, now: float) -> None:
        state, head = self._state, change.head
        key = head.key
        if partition_of(key, self._partitions) != partition:
            return  # sent by somebody who counts partitions otherwise; the slow pass finds the job
        if head.uid and not (change.tasks or change.bound or change.gone or change.deleted):
            # Its tasks say more than a record takes: the object says it once, and is read instead.
            state.look.add(key)
            state.look_event.set()
            return
        known = state.pending.jobs.get(key)
        if known is not None and head.uid != known.head.uid and known.head.uid:
            if change.deleted or not change.tasks:
                return  # about an older object of the same name
            self._cancelled(key)
        if change.deleted:
            self._cancelled(key)
            return
        if known is not None and change.bound:
            # May come before the binder's outcome, which then brings nothing new: the job is told of here.
            state.bound(known, change.bound)
        state.pending.merge(change, partition, now)
        job = state.pending.jobs.get(key)
        if change.gone and head.uid:
            state.look.add(key)
            state.look_event.set()
        if job is not None and (change.bound or change.gone):
            state.idle(job)
        if job is not None and change.gone and job.tasks and job.head.gang_min > 1:
            state.poke(job)  # what those who are left wait for, and what is kept for them, may be another matter now
        if key in state.waiting and job is None:
            state.waiting.leave(key)

    # -- drystone.cluster ---------------------------------------------------------------------------------------------

    async def cluster(self, reader: FullReader) -> NoReturn:
        state = self._state
        while True:
            records = await reader.batch(1000)
            now = self._clock.monotonic()
            view = state.view
            for record in records:
                seen = record.headers.get("seen")
                if seen:
                    view.reached(seen)
                if not known_kind(record.key):
                    continue
                if record.value is None:
                    view.gone(record.key)
                    continue
                try:
                    fact = _facts.decode(record.value)
                except msgspec.MsgspecError as error:
                    _unreadable(record, error)
                    continue
                try:
                    view.see(fact, now)
                except Exception as error:
                    FAULTS.seen("fact", record.key, error)
            if reader.caught_up and not self.cluster_ready.is_set():
                log.info("cluster facts read", nodes=len(view.nodes), pods=len(view.pods), queues=len(view.queues))
                self.cluster_ready.set()
            if view.news or state.pending.has_dirty:
                state.wake.set()

    # -- drystone.gpus ------------------------------------------------------------------------------------------------

    async def gpus(self, reader: FullReader) -> NoReturn:
        while True:
            records = await reader.batch(1000)
            now = self._clock.monotonic()
            for record in records:
                if record.value is None:
                    continue
                try:
                    facts = _gpus.decode(record.value)
                except msgspec.MsgspecError as error:
                    _unreadable(record, error)
                    continue
                try:
                    self._state.view.measure(facts, now)
                except Exception as error:
                    FAULTS.seen("measurement", facts.node, error)
            if self._state.view.news:
                self._state.wake.set()

    # -- drystone.outcomes --------------------------------------------------------------------------------------------

    async def outcomes(self, reader: FullReader) -> NoReturn:
        while True:
            records = await reader.batch(1000)
            owned = self._owned()
            for record in records:
                if record.value is None or record.partition not in owned:
                    continue
                try:
                    batch = _outcomes.decode(record.value)
                except msgspec.MsgspecError as error:
                    _unreadable(record, error)
                    continue
                for outcome in batch.items:
                    match outcome:
                        case PlanOutcome():
                            self._take_outcome(outcome)
                        case EvictionOutcome():
                            self._take_eviction(outcome)

    def _take_outcome(self, outcome: PlanOutcome) -> None:
        """Reports about claims that are not the task's present one are old news: the claim named there has ended."""
        state = self._state
        job = state.pending.jobs.get(outcome.job)
        for landed, count in _count(outcome).items():
            measures.OUTCOMES.labels(landed).inc(count)
        if job is None:
            return
        bound = [t.task for t in outcome.tasks if t.landed is Landed.BOUND]
        gone: list[str] = []
        worst: TaskOutcome | None = None
        prefix = outcome.plan + "."
        for task in outcome.tasks:
            if task.landed is Landed.BOUND:
                continue
            claim = job.claims.get(task.task)
            if claim is None or not claim.id.startswith(prefix):
                continue
            if task.landed is Landed.GONE:
                gone.append(task.task)
                continue
            del job.claims[task.task]
            if worst is None or _weight(task) > _weight(worst):
                worst = task
        if gone:
            state.not_placed(gone)
            state.pending.take_gone(job, gone)
            state.ended(job)
        if bound:
            state.bound(job, bound)
        elif gone:
            state.idle(job)
        if worst is not None and job.head.key in state.pending.jobs:
            self._judge(job, worst)
        if gone and job.tasks and worst is None and job.head.key in state.pending.jobs:
            state.poke(job)

    def _judge(self, job: Job, outcome: TaskOutcome) -> None:
        state, landed, why = self._state, outcome.landed, outcome.why
        judged = judge_outcome(
            landed,
            job.failures,
            at_once=self._settings.placement_retries_at_once,
            jitter=(hash(job.head.key) & 0xFF) / 255,
        )
        job.failures += 1
        if judged is None:
            return
        if judged.next is Next.AGAIN:
            state.poke(job)
            return
        log.info(
            "decided again later",
            job=job.head.key,
            landed=landed,
            why=why,
            after_s=round(judged.after_s, 2),
            cause=job.cause,
        )
        state.waiting.wake_one(job.head.key)
        state.pending.later(job, self._clock.monotonic() + judged.after_s)
        state.wake.set()
        if landed is Landed.REFUSED:
            self._refused(job, outcome, judged.after_s)

    def _refused(self, job: Job, outcome: TaskOutcome, after_s: float) -> None:
        """It is said of the job at once. What will be refused again is an attempt that failed: its controller counts it
        and ends the job after its last one."""
        state, task = self._state, job.tasks.get(outcome.task)
        verdict = refused(
            task.name if task is not None else outcome.task,
            outcome.why,
            of_object=bool(job.head.uid),
            lasting=outcome.lasting,
            until=self._clock.wall() + after_s,
        )
        state.waiting.leave(job.head.key)
        job.verdict = verdict
        if outcome.lasting and job.head.uid:
            parts = task_of(outcome.task)
            if parts is None or parts[3] < job.head.attempt:
                return  # counted already: another attempt follows that one
            job.refusal = verdict.message
            state.look.add(job.head.key)
            state.look_event.set()
            return
        self._waits(job, verdict)

    def _take_eviction(self, outcome: EvictionOutcome) -> None:
        """Nothing done, or not all: what is still to leave is waited for, the rest is decided again."""
        state = self._state
        job = state.pending.jobs.get(outcome.job)
        if job is None or job.evicting is None or job.evicting.plan != outcome.plan:
            return
        if outcome.void:
            measures.EVICTIONS.labels("void").inc()
            state.stop_evicting(job)
            state.poke(job)
        elif outcome.refused:
            measures.EVICTIONS.labels("partly refused").inc()
            state.release_victims(job, outcome.refused)
            state.poke(job)

    # -- the ledger's stream ------------------------------------------------------------------------------------------

    async def uses(self, ledger: Ledger, fenced: Callable[[int | None], None]) -> NoReturn:
        """Used room: a dump, then the stream from where the dump began; a dump again when we fell behind. What lies in
        both is applied twice, which the revisions make harmless."""
        state = self._state
        pause = Backoff(0.05, 2.0)
        position, cause = "", "start"
        while True:
            try:
                if not position or not self.uses_ready.is_set():
                    position = await self._dump(ledger, cause)
                    self.uses_ready.set()
                batch = await ledger.tail(position)
                pause.reset()
            except LedgerUnavailable as error:
                log.warning("ledger stream broke", error=str(error), tries=pause.tries)
                await self._clock.sleep(pause.next())
                continue
            except StaleGeneration:
                fenced(None)
                position, cause = "", "generation"
                await self._clock.sleep(pause.next())
                continue
            if batch.lost:
                position, cause = "", "behind"
                continue
            position = batch.position
            state.view.use(batch.nodes, batch.queues)
            if state.view.news or state.pending.has_dirty:
                state.wake.set()

    async def _dump(self, ledger: Ledger, cause: str) -> str:
        measures.VIEW_RELOADS.labels(cause).inc()
        position = ""
        async for page in dump_pages(ledger):
            position = page.position
            self._state.view.use(page.nodes, page.queues)
        self._state.wake.set()
        return position


def _weight(task: TaskOutcome) -> tuple[bool, bool]:
    return task.landed is Landed.REFUSED, task.lasting


def _count(outcome: PlanOutcome) -> dict[Landed, int]:
    counts: dict[Landed, int] = {}
    for task in outcome.tasks:
        counts[task.landed] = counts.get(task.landed, 0) + 1
    return counts


def _next_offsets(records: Sequence[Incoming]) -> dict[tuple[str, int], int]:
    offsets: dict[tuple[str, int], int] = {}
    for record in records:
        place = (record.topic, record.partition)
        offsets[place] = max(offsets.get(place, 0), record.offset + 1)
    return offsets


def _unreadable(record: Incoming, error: Exception) -> None:
    measures.UNREADABLE.labels(record.topic).inc()
    log.warning(
        "record cannot be read", topic=record.topic, partition=record.partition, offset=record.offset, error=str(error)
    )
