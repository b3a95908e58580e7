"""One pass: the first dirty jobs in order are decided, committed to the ledger, and handed over.

There is no tick: a pass runs as soon as anything is dirty, takes at most what one commit takes, and lets the readers in
before the next, so that whatever arrived meanwhile is ordered with the rest. What becomes of plans is in `commits`.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Sequence

import structlog

from libs.domain.plans import EvictionPlan, Plan
from libs.domain.verdicts import Kind, Reason, Verdict, Wake
from libs.engine.actions.recall import LENT
from libs.engine.api import Borrowing, Decision, PendingJob, Placement, Reserved, Start
from libs.engine.gang import minimum
from libs.runtime.clock import Clock
from libs.runtime.tasks import comes
from libs.store.port import Ledger
from services.placement import measures
from services.placement.commits import EVICTING, Commits
from services.placement.decide import (
    Tenure,
    eviction_of,
    noted,
    plan_of,
    signature,
    tempered,
    too_old,
)
from services.placement.emit import Emitter
from services.placement.jobs import Job
from services.placement.reserve import Reservations
from services.placement.settings import PlacementSettings
from services.placement.state import BUSY_S, State

log = structlog.get_logger()

_KEPT = Verdict(
    kind=Kind.NOT_NOW,
    reason=Reason.GANG_ROOM,
    message="others took the room for the gang again and again; it is kept for it now",
    wakes_on=(Wake.ROOM_FREED, Wake.NODE_ADDED),
)


class Cycle:
    """`fenced` is called with a partition (None: all of them) whose fences the ledger refused."""

    def __init__(
        self,
        state: State,
        ledger: Ledger,
        emitter: Emitter,
        settings: PlacementSettings,
        clock: Clock,
        *,
        waits: Callable[[Job, Verdict], None],
        fenced: Callable[[int | None], None],
    ) -> None:
        self._state = state
        self._emitter = emitter
        self._settings = settings
        self._clock = clock
        self._waits = waits
        self._reservations = Reservations(
            state, after_s=settings.placement_reserve_after_s, turn_s=settings.placement_reserve_s
        )
        self._commits = Commits(state, ledger, emitter, settings, clock, self._reservations, self._wait, fenced)
        self._stopping = False
        #: When refusals say that time ends them (monotonic, full seconds), soonest first; and the same as a set.
        self._times: list[int] = []
        self._timed: set[int] = set()
        self._bounded_at = float("-inf")
        self._between = asyncio.Event()
        self._between.set()

    async def stop(self) -> None:
        """No further pass; returns when the one in hand is handed over."""
        self._stopping = True
        await self._between.wait()

    async def run(self) -> None:
        """For ever: pass after pass while something is dirty, else until something happens or a pause is over."""
        state = self._state
        while True:
            state.wake.clear()
            if self._stopping:
                await asyncio.Event().wait()  # until cancelled
            self._between.clear()
            try:
                more = await self.once()
            finally:
                self._between.set()
            if more:
                await asyncio.sleep(0)
                continue
            due = self._due()
            if state.pending.has_dirty and state.wake.is_set():
                continue
            pause = None if due is None else max(due - self._clock.monotonic(), 0.001)
            await comes(state.wake, pause)
            # Readers that have something go first: a burst is ordered as a whole.
            await asyncio.sleep(0)

    def _due(self) -> float | None:
        """When there is something to do again by itself."""
        state, now = self._state, self._clock.monotonic()
        attention = state.pending.attention
        times = [attention.again_opens(queue, now) for queue in state.waiting.unfinished]
        times += [attention.first_opens(q, now) for q in state.waiting.unfinished if state.waiting.head_due(q)]
        times += [at for at in (state.pending.ripen(now), self._reservations.due(now)) if at is not None]
        times += self._times[:1]
        return min(times, default=None)

    async def once(self) -> bool:
        """One pass; whether there was anything to decide."""
        state, now = self._state, self._clock.monotonic()
        news = state.view.news
        state.pending.attention.busy = now - state.claimed_at < BUSY_S
        while self._times and self._times[0] <= now:
            self._timed.discard(heapq.heappop(self._times))
            news.kinds.add(Wake.TIME)
        state.pending.line.follow(state.view.engine.shares)
        if news or state.waiting.unfinished:
            attention, batch = state.pending.attention, self._settings.placement_batch
            if not _STIRS.isdisjoint(news.kinds):
                attention.stirred()
            woken = state.waiting.wake(
                news, lambda queue: attention.again(queue, now, batch), lambda queue: attention.first(queue, now)
            )
            for key in woken:
                job = state.pending.jobs.get(key)
                if job is not None:
                    state.pending.dirty(job)
            news.clear()
        state.pending.ripen(now)
        if not state.waiting:
            # Who waits no more is forgotten when it is looked at where everybody stands, which nobody asks for now.
            for key in state.view.engine.line_seen(0.0, state.pending.jobs.__contains__, self._clock.wall()):
                moved = state.pending.jobs.get(key)
                if moved is not None:
                    state.pending.moved(moved)
        self._reservations.tick(now, self._clock.wall())
        jobs = state.pending.take(self._settings.placement_batch, state.active, now)
        if not jobs:
            return False
        to_decide = self._sure(self._not_shared(jobs), now)
        if to_decide:
            await self._decide(to_decide)
            measures.PASS_S.observe(self._clock.monotonic() - now)
        return True

    def _sure(self, jobs: list[Job], now: float) -> list[Job]:
        """Without gangs whose claims may yet come to nothing: they are looked at again when those end."""
        pending = self._state.pending
        unsure = [job for job in jobs if pending.unsure(job)]
        for job in unsure:
            if job.reminder <= now:
                pending.remind(job, now + _UNSURE_S)
        return [job for job in jobs if job not in unsure] if unsure else jobs

    def _not_shared(self, jobs: list[Job]) -> list[Job]:
        """Those whose look-alikes do not wait already. The others join them, undecided."""
        state = self._state
        if not state.waiting:
            return jobs
        left = []
        for job in jobs:
            looks = self._signature(job)
            verdict = state.waiting.shared(looks)
            if (
                verdict is None
                or state.waiting.trying(job.head.key)
                or (verdict.kind is Kind.NEVER and too_old(job.seen, state.view.version))
            ):
                left.append(job)
            else:
                state.waiting.join(job, looks)
                self._say(job, verdict)
        return left

    async def _decide(self, jobs: list[Job]) -> None:
        state, now = self._state, self._clock.monotonic()
        engine = state.view.engine
        pending = {job.head.key: state.pending.to_engine(job, may_evict=self._may_evict(job)) for job in jobs}
        decisions = engine.decide(list(pending.values()), self._clock.wall())
        measures.ENGINE_S.inc(self._clock.monotonic() - now)
        by_key = {job.head.key: job for job in jobs}
        plans: list[Plan] = []
        evictions: list[EvictionPlan] = []
        unplaced: list[Job] = []
        waits = False
        self._commits.refused_in.clear()
        try:
            for decision in decisions:
                job = by_key.pop(decision.job)
                tenure = state.tenures[job.partition]
                lent: Plan | None = None
                if decision.placements and not decision.victims and self._gathers(job, pending[decision.job]):
                    evictions.append(self._reserve(job, Reserved(decision.placements, Start()), tenure))
                    self._wait(job, _KEPT, now)
                elif decision.victims:
                    # Whoever is on room that is kept for the job gives it back by leaving.
                    placements = () if decision.rule == LENT else self._grantable(decision)
                    evictions.append(eviction_of(job, decision, placements, tenure))
                    job.verdict = EVICTING
                elif decision.placements:
                    gang = len(decision.placements) > 1 and minimum(pending[decision.job]).together
                    plans.append(
                        plan_of(job, self._grantable(decision), tenure, gang=gang, first_use=state.view.first_use)
                    )
                    if decision.leftover is not None:
                        job.verdict = decision.leftover
                    else:
                        job.verdict = None
                elif (lent := self._lent(job, pending[decision.job], decision)) is not None:
                    plans.append(lent)
                    job.verdict = None
                else:
                    waits = True
                    self._wait(job, decision.verdict, now)
                    if self._reservations.wanted(job, decision.verdict):
                        unplaced.append(job)
                self._attend(job, bool(decision.placements) or lent is not None, now)
                measures.DECISIONS.labels(decision.verdict.kind).inc()
            for job in unplaced:
                reserved = engine.reserve(pending[job.head.key], self._clock.wall())
                if reserved is None:
                    self._reservations.refused(job, now)
                elif not self._reservations.yielding(job, reserved, now):
                    evictions.append(self._reserve(job, reserved, state.tenures[job.partition]))
            if plans:
                await self._commits.plans(plans)
            if evictions:
                await self._commits.evictions(evictions)
        finally:
            engine.settle()
        if waits and self._commits.refused_in:
            # They were told no while room and quota were held for plans that came to nothing. No other news follows:
            # who was refused may hold its claim already (its pod is bound, and nobody has told us so yet).
            state.view.news.kinds.add(Wake.ROOM_FREED)
            state.view.news.queues |= self._commits.refused_in
            state.wake.set()
        for job in by_key.values():  # the engine said nothing about it: never lose a job silently
            state.pending.later(job, now + 1.0)
        await self._emitter.urgent.room()

    def _lent(self, job: Job, asked: PendingJob, decision: Decision) -> Plan | None:
        """A plan for room that is kept for others, where the job ends before they start, or yields to them."""
        wall, view = self._clock.wall(), self._state.view
        engine = view.engine

        def borrowing() -> Borrowing | None:
            guarded = any(view.guards(task.namespace, task.labels) for task in asked.tasks)
            return engine.borrows(asked, wall) if not guarded else None

        if decision.verdict.kind is not Kind.NOT_NOW or job.refusals:
            return None
        loan = self._reservations.loan(job, borrowing, self._clock.monotonic(), wall)
        placements = engine.backfill(asked, loan.lenders, wall) if loan is not None else ()
        if loan is None or not placements or (loan.yields and not self._reservations.touches(loan, placements)):
            return None
        measures.RESERVATIONS.labels("lent").inc()
        return plan_of(
            job,
            [self._granted(p) for p in placements],
            self._state.tenures[job.partition],
            gang=len(placements) > 1 and minimum(asked).together,
            ends_s=loan.ends_s,
            yields=loan.yields,
            first_use=self._state.view.first_use,
        )

    def _gathers(self, job: Job, asked: PendingJob) -> bool:
        return minimum(asked).together and self._reservations.gang_wanted(job)

    def _reserve(self, job: Job, reserved: Reserved, tenure: Tenure) -> EvictionPlan:
        granted = [self._granted(p) for p in reserved.placements]
        plan = self._reservations.plan(job, Reserved(tuple(granted), reserved.start), tenure, self._clock.wall())
        self._commits.starts[plan.id] = reserved.start
        return plan

    def _attend(self, job: Job, placed: bool, now: float) -> None:
        attention, queue = self._state.pending.attention, job.head.queue
        if placed:
            attention.placed(queue)
            return
        measures.HOPELESS.inc()
        if attention.failed(queue) and now - self._bounded_at >= _TELL_S:
            self._bounded_at = now
            log.info(
                "jobs of a queue fit nowhere, one after the other; it is decided in slices",
                queue=queue,
                evaluations=attention.count(queue),
                per_s=attention.per_s,
            )

    def _grantable(self, decision: Decision) -> Sequence[Placement]:
        view = self._state.view
        if not view.measured.note():
            return decision.placements
        return [self._granted(p) for p in decision.placements]

    def _granted(self, p: Placement) -> Placement:
        charge = self._state.view.grantable(p.node, p.charge)
        return Placement(task=p.task, node=p.node, node_spec=p.node_spec, charge=charge)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _may_evict(self, job: Job) -> bool:
        """Not while the room of its last victims is on its way: that they are gone and that their room is here are told
        by different ways."""
        now = self._clock.monotonic()
        if job.settling:
            job.settling, job.settles_at = False, now + _SETTLES_S
            self._state.pending.remind(job, job.settles_at)
        return job.evictions < self._settings.placement_evictions and now >= job.settles_at

    def _signature(self, job: Job) -> object:
        state = self._state
        engine = state.view.engine
        if engine.keeps(job.head.workload):
            return job.head.key  # there is room for it that is nobody else's
        return signature(
            job, job.waiting, state.pending.held(job), may_evict=self._may_evict(job), scope_of=engine.scope_of
        )

    def _wait(self, job: Job, verdict: Verdict, now: float) -> None:
        """The job stays. What it waits for, and what is said about it, follow from the verdict."""
        state = self._state
        early = False
        if verdict.kind is Kind.NEVER:
            job.never_since = job.never_since or now
            verdict = tempered(
                verdict,
                seen=job.seen,
                view=state.view.version,
                waited_s=now - job.never_since,
                bound_s=self._settings.placement_never_wait_s,
            )
            early = verdict.kind is not Kind.NEVER
        else:
            job.never_since = 0.0
        if verdict.reason is Reason.GANG_INCOMPLETE and job.doubt:
            state.ended(job)
        if verdict.reason is Reason.EVICTING and job.evicting is not None and len(job.evicting.victims) > _FEW:
            # Victims leave one by one: a large gang is not placed in vain for each of them.
            job.not_before = max(job.not_before, now + min(1.0, len(job.tasks) * _PAUSE_PER_TASK_S))
        looks = self._signature(job)
        if early or verdict.kind is Kind.WAIT:
            # Decided by itself and soon again, never for its look-alikes: their events may be older.
            looks = job.head.key
            waited = now - job.never_since if early else 0.0
            state.pending.later(job, now + min(max(0.05, waited / 4), 30.0))
        elif Wake.TIME in verdict.wakes_on:
            self._time(now + (verdict.until - self._clock.wall() if verdict.until else 1.0))
        if verdict.kind is not Kind.WAIT and verdict.reason in _ON_GPU_SIZES:
            verdict = noted(verdict, state.view.measured.note())
        state.waiting.hold(job, looks, verdict)
        self._say(job, verdict)

    def _time(self, at: float) -> None:
        """Whom time helps is woken at the first full second after `at`, once for all who name it."""
        second = math.ceil(at)
        if second not in self._timed:
            self._timed.add(second)
            heapq.heappush(self._times, second)

    def _say(self, job: Job, verdict: Verdict) -> None:
        job.verdict = verdict
        if verdict.kind is not Kind.WAIT:
            self._waits(job, verdict)


#: What may help any job that waits, and comes rarely.
_STIRS = frozenset({Wake.NODE_ADDED, Wake.NODE_CHANGED, Wake.SPEC_CHANGED})
#: Between two lines of the log about bounded queues.
_TELL_S = 60.0
#: How often a gang is looked at of whose claims not all have ended. What ends them makes it dirty, mostly.
_UNSURE_S = 1.0
#: Between the leaving of the last victim and the ledger's word on its room, at most.
_SETTLES_S = 2.0
#: Of whom waits for more victims than these, decisions pause for so long per task.
_FEW = 4
_PAUSE_PER_TASK_S = 0.002
_ON_GPU_SIZES = frozenset({Reason.GPU_MEMORY_TOTAL, Reason.GPU_MODEL, Reason.GPU_SHARE})
