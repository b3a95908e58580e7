"""Room kept for the head of a line, so that small jobs do not starve a large one.

Who stands first in its queue, fits nowhere, has waited `after_s`, and with whom its queue stays within its part of the
cluster (`Shares.part`), gets a reservation: earmarks in the ledger, on the nodes where it can start soonest, that fill
up as room comes free there. Every replica's commits are checked against them. A queue has one at a time.

A reservation ends when its job starts or goes, when room is not what it lacks any more (a gang whose members are no
longer there), when one that stands before it in the queue needs one, or at its deadline: a quarter after the expected
start where that is known, else `turn_s`, doubled at each turn of the job. After that the next in line has a turn before
it comes again. So room is gathered for nobody for ever; and a head that waits for tasks of unknown length, at most L,
on the nodes it needs is served within its own turns, together at most 3 max(L, turn_s), and as many turns of the next
in line, together no longer than that.

Meanwhile the room is lent, to who ends before the job can start, or yields to it (`loan`). Pure: time is handed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from libs.domain.plans import EvictionPlan
from libs.domain.verdicts import Kind, Reason, Verdict, Wake
from libs.engine.api import Borrowing, Placement, Reserved, Start
from libs.engine.fair import asked, models_of
from libs.engine.reserve import lasts
from services.placement import measures
from services.placement.decide import Tenure, gather_of
from services.placement.jobs import Gathering, Job
from services.placement.state import State

#: How often heads of lines are looked at, and how soon one that got nothing is looked at again.
TICK_S: Final = 1.0
AGAIN_S: Final = 10.0
#: The same where those in the way yield once it has waited too long.
YIELDING_AGAIN_S: Final = 60.0
#: Heads that are decided with a reservation in mind at one tick: to look where one could start takes some milliseconds.
AT_ONCE: Final = 4
#: Of a queue's line, so many are looked at for one whose turn it is.
_HEADS: Final = 16
_LONGEST_S: Final = 86_400
#: From the decision to the start of a task that is lent room.
LEND_SLACK_S: Final = 10
#: After so many refusals by the ledger in a row a gang gathers what it was to have.
GANG_REFUSALS: Final = 3
_NOT_ROOM: Final = frozenset(
    {Reason.GANG_INCOMPLETE, Reason.GATED, Reason.POD_GROUP, Reason.UNSUPPORTED, Reason.NO_NODES, Reason.EVICTING}
)
#: Whoever room is kept for could not take it.
_NOT_READY: Final = frozenset({Reason.GANG_INCOMPLETE, Reason.GATED, Reason.POD_GROUP, Reason.UNSUPPORTED})


@dataclass(frozen=True, slots=True)
class Loan:
    """Room that is kept for the `lenders` (job keys), for a job that ends within `ends_s`, or that `yields` to them."""

    lenders: tuple[str, ...]
    ends_s: int = 0
    yields: bool = False


@dataclass(slots=True)
class _Look:
    key: str
    at: float


class Reservations:
    def __init__(self, state: State, *, after_s: float, turn_s: float) -> None:
        self._state = state
        self._after_s = after_s
        self._turn_s = turn_s
        self._next = 0.0
        #: Queue -> whose turn it is to be decided with a reservation in mind.
        self._looks: dict[str, _Look] = {}
        #: Job key -> when it may have a turn again (monotonic).
        self._cooling: dict[str, float] = {}

    # -- whose turn it is ---------------------------------------------------------------------------------------------
    def tick(self, now: float, wall: float) -> None:
        """Heads that have waited long enough are to be decided; reservations past their deadline are over."""
        state = self._state
        if now < self._next:
            return
        self._next = now + TICK_S
        for key in [key for key, at in self._cooling.items() if at <= now or key not in state.pending.jobs]:
            del self._cooling[key]
        for key in list(state.gatherers.values()):
            job = state.pending.jobs.get(key)
            if job is None or job.gathering is None:
                continue
            if job.gathering.until <= now:
                self._lapse(job, now)
            elif job.verdict is not None and job.verdict.reason in _NOT_READY:
                measures.RESERVATIONS.labels("void").inc()
                self._state.keep_none(job)
        if self._turn_s <= 0:
            return
        due: list[tuple[float, str, Job]] = []
        for queue in state.waiting.queues:
            job = state.pending.jobs.get(self._turn(queue) or "")
            if job is None or not self._waited(job, now, wall):
                self._looks.pop(queue, None)
                continue
            look = self._looks.get(queue)
            if look is not None and look.key == job.head.key and look.at > now:
                continue
            due.append((look.at if look is not None else float("-inf"), queue, job))
        due.sort(key=lambda one: one[:2])
        for _, queue, job in due[:AT_ONCE]:
            self._looks[queue] = _Look(job.head.key, now + AGAIN_S)
            state.poke(job)

    def due(self, now: float) -> float | None:
        """When to look again; None where nobody waits."""
        return max(self._next, now) if self._state.waiting or self._state.gatherers else None

    def _turn(self, queue: str) -> str | None:
        """The first of the line whom room would help and who had no turn of late; where all had, the first."""
        state = self._state
        holder = state.pending.jobs.get(state.gatherers.get(queue, ""))
        first: str | None = None
        for key in state.waiting.firsts(queue, _HEADS):
            job = state.pending.jobs.get(key)
            verdict = state.waiting.verdict_of(key)
            if job is None or verdict is None or not _for_room(verdict) or job.evicting is not None:
                continue
            if holder is not None and (holder is job or state.pending.place(holder) <= state.pending.place(job)):
                return None
            if key not in self._cooling:
                return key
            first = first or key
        return first

    def _waited(self, job: Job, now: float, wall: float) -> bool:
        waited = now - job.since
        if job.head.created and wall:
            waited = max(waited, wall - job.head.created)
        return waited >= self._after_s

    # -- reserving ----------------------------------------------------------------------------------------------------
    def wanted(self, job: Job, verdict: Verdict) -> bool:
        """Whether room is to be gathered for this job, which was just decided and fits nowhere."""
        look = self._looks.get(job.head.queue)
        if look is None or look.key != job.head.key or not _for_room(verdict) or job.gathering is not None:
            return False
        state = self._state
        held = state.pending.held(job) if job.head.gang_min > 1 else 0
        ask, models = asked(job.head, job.waiting, held), models_of(job.head, job.waiting, held)
        return state.view.engine.shares.entitled(job.head.queue, ask, models)

    def gang_wanted(self, job: Job) -> bool:
        """Whether a gang that fits was refused so often that it gathers instead."""
        if self._turn_s <= 0 or job.refusals < GANG_REFUSALS or job.gathering is not None:
            return False
        holder = self._state.pending.jobs.get(self._state.gatherers.get(job.head.queue, ""))
        pending = self._state.pending
        return holder is None or pending.place(job) < pending.place(holder)

    def plan(self, job: Job, reserved: Reserved, tenure: Tenure, wall: float) -> EvictionPlan:
        place = self._state.pending.place(job)
        start_s = max(0, math.floor(reserved.start.low - wall)) if reserved.start.low and wall else 0
        gather_s = lasts(reserved.start, wall, self._turn_s, job.turns)
        return gather_of(job, reserved.placements, tenure, place=place, gather_s=gather_s, start_s=start_s,
                         since=wall)  # fmt: skip

    def loan(self, job: Job, borrowing: Callable[[], Borrowing | None], now: float, wall: float) -> Loan | None:
        """Whose room the job may be on. If it says when it ends: of jobs of ours that start after that at the soonest.
        Else, where it can be made to leave (`borrowing`), of any that lacks more if it saves its work, or of those that
        start when it is expected to have ended."""
        if job.gathering is not None or not self._state.gatherers:
            return None
        waiting = (self._state.pending.jobs.get(key) for key in self._state.gatherers.values())
        lenders = [one for one in waiting if one is not None and one.gathering is not None]

        def starting(runs_s: float) -> tuple[str, ...]:
            ends = wall + runs_s + LEND_SLACK_S
            return tuple(o.head.key for o in lenders if o.gathering is not None and o.gathering.start.low >= ends)

        declared = job.head.expected_s
        if declared and (found := starting(declared)):
            return Loan(found, declared + LEND_SLACK_S)
        lenders = [one for one in lenders if not _starting(one, now) and self._lacks(one)]
        terms = borrowing() if lenders else None
        if terms is None:
            return None
        found = tuple(o.head.key for o in lenders) if terms.saves else starting(terms.runs_s) if terms.runs_s else ()
        return Loan(found, yields=True) if found else None

    def _lacks(self, job: Job) -> bool:
        """Whether it waits for more than it has already: else it starts now."""
        gathering = job.gathering
        if gathering is None:
            return False
        aims = sum(charge.gpu_milli for _, charge in gathering.charges)
        return self._state.view.earmarked_milli(job.head.key, gathering.nodes) < aims

    def touches(self, loan: Loan, placements: Sequence[Placement]) -> bool:
        """Whether each of them is on devices that are kept, so that it is known for a borrower."""
        kept: dict[str, set[int]] = {}
        for key in loan.lenders:
            gathering = self._state.pending.jobs[key].gathering
            for node, charge in gathering.charges if gathering is not None and gathering.since else ():
                kept.setdefault(node, set()).update(grant.index for grant in charge.gpus)
        return all(
            any(grant.index in kept.get(placement.node, ()) for grant in placement.charge.gpus)
            for placement in placements
        )

    def accepted(self, job: Job, plan: EvictionPlan, start: Start, now: float) -> None:
        measures.RESERVATIONS.labels("made").inc()
        self._state.gather(job, plan, start, now)

    def refused(self, job: Job, now: float) -> None:
        measures.RESERVATIONS.labels("refused").inc()
        self._looks[job.head.queue] = _Look(job.head.key, now + AGAIN_S)

    def yielding(self, job: Job, reserved: Reserved, now: float) -> bool:
        """Whether no room is kept for the job yet, because those in the way yield once it has waited too long."""
        if not reserved.yielding or self._state.pending.place(job)[0] == 0:
            return False
        self._looks[job.head.queue] = _Look(job.head.key, now + YIELDING_AGAIN_S)
        return True

    def _lapse(self, job: Job, now: float) -> None:
        """Its deadline came: the ledger ends the earmarks, or has; others have a turn."""
        measures.RESERVATIONS.labels("lapsed").inc()
        job.turns += 1
        self._state.keep_none(job)
        for key in list(self._cooling):
            other = self._state.pending.jobs.get(key)
            if other is None or other.head.queue == job.head.queue:
                del self._cooling[key]
        self._cooling[job.head.key] = now + _LONGEST_S


def _starting(job: Job, now: float) -> bool:
    """Whether others leave for it, or have just left: whoever came onto its room now would have to leave at once."""
    leaving = job.verdict is not None and job.verdict.reason is Reason.EVICTING
    return leaving or job.evicting is not None or job.settling or now < job.settles_at


def _for_room(verdict: Verdict) -> bool:
    helps = {Wake.ROOM_FREED, Wake.QUOTA_FREED}.intersection(verdict.wakes_on)
    return verdict.kind is Kind.NOT_NOW and verdict.reason not in _NOT_ROOM and bool(helps)


__all__ = ["Gathering", "Reservations"]
