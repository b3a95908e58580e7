"""Service: who has had much yields to who has had little, and to who has waited too long.

Two rules, both among jobs of the same priority where a lower one would yield, and both only take what saves its work
(a pod that tells how often), after all that is less disruptive, within one budget of such evictions (`fair.budget`).
**overdue**: for a job that has waited too long, anybody who has not, just after a checkpoint; any moment once the job
has waited for one. **service**: one victim, the smallest that will do, two levels of service above the job, just after
a checkpoint, once the job has waited for a while and those who wait for as much have waited for long enough together
(`fair.together`). What protects a pod from any eviction protects it here (`protect`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Final

import msgspec

from libs.domain.resources import WHOLE
from libs.domain.verdicts import Wake
from libs.engine.actions.protect import utc
from libs.engine.actions.rights import Right
from libs.engine.actions.room import Only, Rule, make_room, may_ask
from libs.engine.api import Decision, PendingJob, RunningTask
from libs.engine.fair.ask import everything
from libs.engine.session import Session

OVERDUE: Final = Rule("overdue", frozenset({Right.ALIKE}))
SERVICE: Final = Rule("service", frozenset({Right.ALIKE}), single=True)
_SPENT: Final = "as many as may have yielded to little service and to the overdue of late"
#: Who may have others evicted, and found nobody, looks again: at full multiples of this, so that all look at once.
LOOK_S: Final = 60.0
#: The same where nobody has had enough yet.
RARELY_S: Final = 600.0


def service(session: Session, job: PendingJob, refused: Decision | None) -> Decision:
    head, now, book = job.head, session.now, session.service
    if refused is None:
        return Decision(head.key, session.fits)
    if book.rules is None or not now or not may_ask(job, refused):
        return refused
    if not book.saves(now):
        return refused
    if head.key in book.overdue:
        return _overdue(session, job, refused)
    level = book.level(head, now)
    above = book.above(level, now)
    if not above:
        return _later(refused, now + RARELY_S)
    at = book.claims(head, now, everything(job.tasks)[0] / WHOLE)
    if now < at:
        # Sooner where more come that wait for as much.
        return _later(refused, min(at, now + RARELY_S), f"who has had much may yield to it from {utc(at)} on")
    if not book.evictions_left(now):
        return _later(refused, now + RARELY_S, _SPENT)
    there = [t for t in map(book.current, above) if t is not None]
    fresh = [t for t in there if book.fresh(t, now) and t.job not in book.overdue]
    found = make_room(session, job, refused, SERVICE, _only(fresh, level)) if fresh else None
    return found or _later(refused, now + LOOK_S, "who has had much may yield to it just after a checkpoint")


def _overdue(session: Session, job: PendingJob, refused: Decision) -> Decision:
    now, book, key = session.now, session.service, job.head.key
    left = book.evictions_left(now)
    if not left:
        return _later(refused, now + RARELY_S, _SPENT)
    waited = now - book.since(job.head, now)
    late = [
        task
        for task in book.savers(now)
        if task.job not in book.overdue and (waited >= task.checkpoint_s or book.fresh(task, now))
    ]
    found = make_room(session, job, refused, replace(OVERDUE, most=left, single=left == 1), _only(late, (key, left)))
    return found or _later(refused, now + LOOK_S, "it has waited so long that others may yield to it")


def _only(tasks: Iterable[RunningTask], mark: Hashable) -> Only:
    chosen = list(tasks)
    return Only(frozenset(task.uid for task in chosen), frozenset(task.node for task in chosen), mark)


def _later(refused: Decision, at: float, said: str = "") -> Decision:
    """The refusal, looked at again by time."""
    verdict = refused.verdict
    until = math.ceil(at / LOOK_S) * LOOK_S
    if verdict.until:
        until = min(until, verdict.until)
    wakes = verdict.wakes_on if Wake.TIME in verdict.wakes_on else (*verdict.wakes_on, Wake.TIME)
    message = f"{verdict.message}; {said}" if said and verdict.message else verdict.message
    return replace(refused, verdict=msgspec.structs.replace(verdict, message=message, wakes_on=wakes, until=until))
