"""What becomes of plans: the ledger's answer is the truth.

What it refused is decided again with the fresh use that it sent along, at once and a few times, then after growing
pauses. An answer that did not come is asked for again with the same ids, which is harmless.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
import structlog

from libs.bus.pack import ALONE, encoded_size
from libs.domain.plans import EvictionPlan, Plan
from libs.domain.verdicts import Kind, Reason, Verdict, Wake
from libs.engine.api import Start
from libs.runtime.backoff import Backoff
from libs.runtime.clock import Clock
from libs.store.port import Committed, Ledger, LedgerUnavailable, Refusal, StaleGeneration
from services.placement import measures
from services.placement.decide import Next, judge_refusal
from services.placement.emit import Emitter
from services.placement.jobs import Job
from services.placement.reserve import Reservations
from services.placement.settings import PlacementSettings
from services.placement.state import State

log = structlog.get_logger()

EVICTING: Final = Verdict(
    kind=Kind.NOT_NOW,
    reason=Reason.EVICTING,
    message="evicted tasks are leaving; their room is kept for this job",
    wakes_on=(Wake.ROOM_FREED, Wake.NODE_ADDED),
)

#: Of a job for which so many would have to be evicted that no record can say it.
TOO_LARGE: Final = Verdict(
    kind=Kind.NOT_NOW,
    reason=Reason.GANG_ROOM,
    wakes_on=(Wake.ROOM_FREED, Wake.NODE_ADDED, Wake.NODE_CHANGED),
    helps=("room that comes free without evictions",),
)


class Commits:
    """`wait` is told who stays, with what verdict and when; `fenced` of a partition (None: all) whose fences the ledger
    refused. `starts` has what is known of the start of jobs for which room is to be kept, by plan."""

    def __init__(
        self,
        state: State,
        ledger: Ledger,
        emitter: Emitter,
        settings: PlacementSettings,
        clock: Clock,
        reservations: Reservations,
        wait: Callable[[Job, Verdict, float], None],
        fenced: Callable[[int | None], None],
    ) -> None:
        self._state = state
        self._ledger = ledger
        self._emitter = emitter
        self._settings = settings
        self._clock = clock
        self._reservations = reservations
        self._wait = wait
        self._fenced = fenced
        self._rng = random.Random(settings.placement_seed or None)
        self.starts: dict[str, Start] = {}
        #: Queues of plans refused, in whole or in part, since a pass began: whose room is nobody's after all.
        self.refused_in: set[str] = set()

    async def plans(self, plans: list[Plan]) -> None:
        state = self._state
        answers = await self._asked(lambda: self._ledger.commit(plans))
        if answers is None:
            self._again(plans)
            return
        now = self._clock.monotonic()
        taken: list[Plan] = []
        for plan, answer in zip(plans, answers, strict=True):
            state.view.use(answer.fresh, answer.queues)
            job = state.pending.jobs.get(plan.job)
            if job is None or job.head.uid != plan.job_uid:
                # Cancelled while it was being committed: whoever cancelled it did not know these claims.
                state.give_up(plan.job, plan.generation, answer.taken)
                continue
            if answer.taken:
                whole = len(answer.taken) == len(plan.assignments)
                taken.append(plan if whole else _only(plan, answer.taken))
                measures.PLANNED.inc(len(answer.taken))
                measures.SEEN_TO_PLAN_S.observe(now - job.since)
                state.claimed(job, plan, answer.taken, now)
            if answer.refused:
                self._refused(job, plan, answer)
            else:
                job.refusals = 0
                if not job.waiting:
                    state.stop_evicting(job)
                    if job.gathering is not None:
                        measures.RESERVATIONS.labels("served").inc()
                        state.stop_gathering(job)
                    job.turns = 0
                    state.give_back(job)
                for key in state.waiting.placed(plan.job) if state.waiting else ():
                    following = state.pending.jobs.get(key)
                    if following is not None:
                        state.pending.dirty(following)
                if job.waiting:  # the rest is decided by itself: for it, others may have to yield
                    job.verdict = None
                    state.poke(job)
        if taken:
            self._emitter.plans(taken)

    async def evictions(self, plans: list[EvictionPlan]) -> None:
        state = self._state
        plans = [plan for plan in plans if self._can_be_told(plan)]
        if not plans:
            return
        answers = await self._asked(lambda: self._ledger.commit_evictions(plans))
        if answers is None:
            self._again(plans)
            return
        now = self._clock.monotonic()
        decided: list[EvictionPlan] = []
        for plan, answer in zip(plans, answers, strict=True):
            state.view.use(answer.fresh, answer.queues)
            job = state.pending.jobs.get(plan.job)
            if not answer.refused and (job is None or job.head.uid != plan.job_uid):
                state.give_up(plan.job, plan.generation, [a.claim for a in plan.assignments])
                continue
            if plan.gather_s:
                if job is not None:
                    self._gathered(job, plan, answer, now)
                continue
            if not answer.refused:
                decided.append(plan)
                measures.EVICTIONS.labels("decided").inc()
            else:
                measures.EVICTIONS.labels("refused").inc()
            if job is None:
                continue
            if answer.refused:
                taken = (Refusal.VICTIM_MARKED, Refusal.VICTIM_GONE)
                state.marked_by_others((uid for uid, why in answer.refused.items() if why in taken), now)
                self._refused(job, plan, answer)
                continue
            job.evictions += 1
            state.evicting(job, plan, now)
            self._wait(job, EVICTING, now)
            if job.evicting is not None and not job.evicting.victims:
                state.stop_evicting(job)  # the victims left before we could look: their room is here
                state.poke(job)
        if decided:
            self._emitter.evictions(decided)

    def _can_be_told(self, plan: EvictionPlan) -> bool:
        """Victims and places go together or not at all, so one that no record takes is not begun: the job waits without
        evicting, and room is kept for it as it comes free. What gathers room is told to nobody but the ledger."""
        if plan.gather_s or (size := encoded_size(plan)) <= ALONE:
            return True
        job = self._state.pending.jobs.get(plan.job)
        if job is not None:
            log.warning("eviction plan too large", job=plan.job, bytes=size, cause=plan.cause)
            job.evictions = max(job.evictions, self._settings.placement_evictions)
            message = f"the eviction plan for it would have {size} bytes, and {ALONE} at most can be told"
            self._wait(job, msgspec.structs.replace(TOO_LARGE, message=message), self._clock.monotonic())
        return False

    def _gathered(self, job: Job, plan: EvictionPlan, answer: Committed, now: float) -> None:
        start = self.starts.pop(plan.id, Start())
        if answer.refused:
            self.refused_in.add(plan.queue)
            for reason in set(answer.refused.values()):
                measures.REFUSALS.labels(reason).inc()
            self._reservations.refused(job, now)
            self._state.pending.later(job, now + 1.0)  # whatever was in its way, it is decided again
            return
        self._reservations.accepted(job, plan, start, now)
        self._state.poke(job)  # what it lacked may have been there already

    async def _asked(self, ask: Callable[[], Awaitable[Sequence[Committed]]]) -> Sequence[Committed] | None:
        """The ledger's answer, asked for until it comes; None where our generation is not the ledger's any more."""
        pause = Backoff(0.02, 2.0, self._rng)
        while True:
            try:
                return await ask()
            except LedgerUnavailable as error:
                log.warning("ledger did not answer a commit", tries=pause.tries, error=str(error))
                await self._clock.sleep(pause.next())
            except StaleGeneration:
                measures.REFUSALS.labels(Refusal.GENERATION).inc()
                self._fenced(None)
                return None

    def _again(self, plans: Sequence[Plan | EvictionPlan]) -> None:
        """Decided against a data set that is gone: the take-over that follows makes these dirty once more."""
        for plan in plans:
            self.starts.pop(plan.id, None)
            job = self._state.pending.jobs.get(plan.job)
            if job is not None:
                self._state.pending.dirty(job)

    def _refused(self, job: Job, plan: Plan | EvictionPlan, answer: Committed) -> None:
        """Some or all of a plan was refused. The worst reason decides what follows; a task that ended is forgotten."""
        state, now = self._state, self._clock.monotonic()
        self.refused_in.add(plan.queue)
        tasks = {a.claim: a.task for a in plan.assignments}
        worst: Refusal | None = None
        for claim, reason in answer.refused.items():
            if reason is Refusal.TOMBSTONE and claim in tasks:
                state.pending.take_gone(job, (tasks[claim],))
                state.ended(job)
            elif worst is None or _WEIGHT.get(reason, 1) > _WEIGHT.get(worst, 1):
                worst = reason
        for reason in set(answer.refused.values()):
            measures.REFUSALS.labels(reason).inc()
        if worst is None:
            # Only ended tasks were in the way (a gang is refused as a whole for them): the rest is decided again.
            if job.tasks:
                state.poke(job)
            else:
                state.idle(job)
            return
        job.refusals += 1
        judged = judge_refusal(
            worst,
            job.refusals - 1,
            at_once=self._settings.placement_retries_at_once,
            jitter=self._rng.random(),
        )
        if judged.next is Next.FENCED:
            self._fenced(plan.partition if worst is Refusal.EPOCH else None)
            state.pending.dirty(job)
        elif judged.next is Next.AGAIN:
            state.poke(job)
        else:
            state.waiting.wake_one(job.head.key)
            state.pending.later(job, now + judged.after_s)
            state.wake.set()


#: Of several reasons for one plan, what follows is decided by the heaviest.
_WEIGHT = {
    Refusal.REBUILDING: 9,
    Refusal.GENERATION: 9,
    Refusal.EPOCH: 8,
    Refusal.HELD: 3,
    Refusal.NODE_CHANGED: 2,
    Refusal.NODE_GONE: 2,
}


def _only(plan: Plan, claims: Sequence[str]) -> Plan:
    names = frozenset(claims)
    return msgspec.structs.replace(plan, assignments=tuple(a for a in plan.assignments if a.claim in names))
