"""Allocate: place what fits into free room, disturbing nobody. A gang's minimum is placed together or not at all."""

from __future__ import annotations

from libs.domain.jobs import Task
from libs.domain.verdicts import Kind, Reason, Verdict
from libs.engine import explain, gang
from libs.engine.actions.fill import Earmark, Filled, fill
from libs.engine.api import Decision, PendingJob
from libs.engine.queues import Chain
from libs.engine.session import Session
from libs.engine.statement import Statement
from libs.engine.topology.parts import wished
from libs.engine.topology.refusal import refusal
from libs.engine.topology.seating import seating_of


def allocate(session: Session, job: PendingJob, refused: Decision | None) -> Decision:  # noqa: ARG001
    head = job.head
    need = gang.minimum(job)
    door = gang.door(job, need)
    if door.refused is not None:
        return Decision(head.key, door.refused)
    tasks = door.usable
    if not tasks:
        return Decision(head.key, session.fits)
    chain = session.queues.chain(head.queue)
    verdict = gang.quota_never(job, tasks, need, chain)
    if verdict is not None:
        return Decision(head.key, verdict)
    statement = session.statement()
    earmarks = _give_back(session, statement, job, chain)
    kept = [] if earmarks else _kept(session, statement, head.workload)
    before = statement.checkpoint()
    verdict = gang.quota_now(tasks, need, chain) if need.together else None
    if verdict is not None:
        statement.rollback()
        return Decision(head.key, gang.room_never(session, tasks, need) or verdict)
    filled = Filled()
    seating = seating_of(session, statement, job, tasks, chain, earmarks or kept) if wished(tasks) else None
    for ordered in _orders(tasks, need):
        statement.rollback(before)
        if seating is not None:
            filled = seating.attempt(ordered, need)
        if seating is None or not (seating.demands or need.met(filled.tasks)):
            filled = fill(session, statement, ordered, chain, earmarks or kept)
        if need.met(filled.tasks):
            if kept:
                _take_back(session, statement, kept, filled.used, ())
                session.keeping.used(head.workload, len(filled.placements))
            if earmarks:
                _take_back(session, statement, earmarks, filled.used, chain)
                session.given_back.add(head.key)
            session.keep(statement)
            return Decision(head.key, session.fits, tuple(filled.placements), leftover=filled.first or door.barred)
    statement.rollback()
    if seating is not None and seating.demands:
        return Decision(head.key, refusal(session, seating, gang.order(tasks, need), need))
    return Decision(head.key, _why_not(session, tasks, need, filled))


def _orders(tasks: list[Task], need: gang.Minimum) -> list[list[Task]]:
    """Large tasks first; where the tasks of a gang differ, small ones first is tried as well."""
    if not need.together:
        return [tasks if len(tasks) == 1 else gang.order(tasks, need)]
    orders = [gang.order(tasks, need)]
    if len(tasks) > need.total and any(task.request != tasks[0].request for task in tasks):
        orders.append(gang.order(tasks, need, large_first=False))
    return orders


def _why_not(session: Session, tasks: list[Task], need: gang.Minimum, filled: Filled) -> Verdict:
    first = filled.first or session.fits
    if not need.together and first.reason is not Reason.QUOTA:
        return first
    never = gang.room_never(session, tasks, need)
    if never is not None:
        return never
    if not need.together or (first.kind is Kind.NOT_NOW and not first.nodes):
        return first  # the queue, or no nodes at all
    return explain.gang_room(len(filled.tasks), need.total, first)


def _give_back(session: Session, statement: Statement, job: PendingJob, chain: Chain) -> list[Earmark]:
    """Room that is earmarked for this job is free while it is decided."""
    names = session.snapshot.earmarks.get(job.head.key)
    if not names or job.head.key in session.given_back:
        return []
    found: list[Earmark] = []
    for name in sorted(names):
        row = session.snapshot.rows.get(name)
        if row is None:
            continue
        for charge in session.snapshot.uses[name].earmarked.get(job.head.key, ()):
            statement.free_earmark(row, charge, chain)
            found.append((row, charge))
    return found


def _kept(session: Session, statement: Statement, workload: str) -> list[Earmark]:
    """Room that is kept for tasks of this workload, which were moved, is free while it is decided."""
    found: list[Earmark] = []
    for kept in session.keeping.of(workload) if workload else ():
        row = session.snapshot.rows.get(kept.node)
        if row is not None:
            statement.free_earmark(row, kept.charge, ())
            found.append((row, kept.charge))
    return found


def _take_back(
    session: Session, statement: Statement, earmarks: list[Earmark], used: list[Earmark], chain: Chain
) -> None:
    """Earmarks that were not used stay the job's: their room is taken again where it is still free."""
    left = list(earmarks)
    for earmark in used:
        left.remove(earmark)
    for row, charge in left:
        state = session.snapshot.states[row]
        if state is not None and state.holds(charge):
            statement.take(row, charge, chain)
