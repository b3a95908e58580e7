"""Actions that make room, for jobs that must lie in certain domains: each choice of domains in turn, the action seeing
nothing outside of it.

Which domains would do is found by placing the job as if everybody who might yield had left; of those the one with most
room now comes first, since there the least has to yield. The action itself decides whom it may take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from libs.domain.verdicts import Kind, Reason
from libs.engine import gang
from libs.engine.actions.base import Action
from libs.engine.api import Decision, PendingJob
from libs.engine.session import Session
from libs.engine.topology.domains import Region
from libs.engine.topology.parts import Part, parts_of
from libs.engine.topology.seating import Seating

#: Choices of domains for one job, and jobs for which choices are looked for in one pass: a choice costs a look at every
#: running pod.
CHOICES: Final = 3
JOBS: Final = 8
_CANNOT_HELP: Final = frozenset(
    {Reason.GANG_INCOMPLETE, Reason.GATED, Reason.POD_GROUP, Reason.NO_NODES, Reason.UNSUPPORTED}
)


def act(session: Session, job: PendingJob, action: Action, refused: Decision | None) -> Decision:
    """What the action makes of a job that demands domains and was refused."""
    if refused is None:
        return action(session, job, None)
    verdict = refused.verdict
    if verdict.kind is not Kind.NOT_NOW or verdict.reason in _CANNOT_HELP or job.evicting or not job.may_evict:
        return refused
    if not session.running.by_uid:
        return refused
    for regions in choices(session, job):
        session.confine(regions)
        try:
            decision = action(session, job, refused)
        finally:
            session.confine(None)
        if decision.placements:
            return decision
    return refused


def choices(session: Session, job: PendingJob) -> Iterator[dict[str, Region]]:
    """The same for all actions that look at the job in this pass, each worked out when it is first asked for."""
    jobs = session.memo.setdefault(("domains to make room in",), {})
    known: list[tuple[dict[str, Region], str]] | None = jobs.get(job.head.key)
    if known is None:
        if len(jobs) >= JOBS:
            return
        known = jobs[job.head.key] = []
    for at in range(CHOICES):
        if at == len(known):
            known.append(_regions(session, job, {name for _, name in known}))
        if not known[at][0]:
            return
        yield known[at][0]


def _regions(session: Session, job: PendingJob, banned: set[str]) -> tuple[dict[str, Region], str]:
    """Where each task could be if all who might yield had left, and the name of the outermost domain of it."""
    need = gang.minimum(job)
    tasks = gang.door(job, need).usable
    root = parts_of(session, job, tasks)
    free_now = session.snapshot.columns().gpu_free.copy(), session.snapshot.columns().cpu.copy()
    statement = session.statement()
    try:
        for pod in list(session.running.by_uid.values()):
            yields = pod.priority < job.head.priority or pod.queue != job.head.queue
            yields = yields or (session.config.consolidate and pod.wishes is not None)  # it may move
            if pod.ours and pod.preemptible and yields and pod.job != job.head.key and session.running.stays(pod):
                statement.evict(pod, ())
        seating = Seating(session, statement, root, (), [], room_now=free_now, banned=frozenset(banned))
        filled = seating.attempt(gang.order(tasks, need), need)
        if not need.met(filled.tasks):
            return {}, ""
        return _innermost(root, seating), _outermost(root, seating)
    finally:
        statement.rollback()


def _innermost(root: Part, seating: Seating) -> dict[str, Region]:
    found: dict[str, Region] = {}
    for part in root.all():
        place = seating.places.get(part)
        if place is not None and place.region.name:
            found.update({task.id: place.region for task in part.tasks()})
    return found


def _outermost(root: Part, seating: Seating) -> str:
    named = (seating.places[part].region.name for part in root.all() if part.near.required and part in seating.places)
    return next(named, "")
