"""Expect: room that comes free anyway is waited for, before anybody moves or yields for it.

Where a whole gang had to go for one task, the rest of its room is promised to nobody. Jobs that this room is enough for
wait for it: ten tasks that each need a device cost one gang of ten, and not one gang each.
"""

from __future__ import annotations

from libs.engine import explain, gang
from libs.engine.actions.fill import fill
from libs.engine.actions.room import hold, may_ask, overlaps, wanted
from libs.engine.api import Decision, PendingJob, RunningTask
from libs.engine.running import COMES_S
from libs.engine.session import Session


def expect(session: Session, job: PendingJob, refused: Decision | None) -> Decision:
    head = job.head
    if refused is None:
        return Decision(head.key, session.fits)
    coming = session.running.coming(head.key)
    if not coming or session.regions is not None or not may_ask(job, refused):
        return refused
    need = gang.minimum(job)
    tasks = wanted(job, need)
    if not tasks:
        return refused
    chain = session.queues.chain(head.queue)
    statement = session.statement()
    for task in coming:
        row = session.snapshot.rows.get(task.node)
        if row is not None:
            statement.free_earmark(row, task.charge, tuple(line for line in chain if line.covers(task.queue)))
    filled = fill(session, statement, tasks, chain, [], explained=False)
    enough = need.met(filled.tasks) if need.together else len(filled.tasks) == len(tasks)
    statement.rollback()
    if not enough:
        return refused
    placements = filled.placements
    used: list[RunningTask] = [task for task in coming if any(overlaps(task, p) for p in placements)]
    if not used:
        return refused
    for task in used:
        session.running.promise(task.uid, head.key)
    hold(session, placements, used)
    until = session.now + COMES_S + 1.0 if session.now else 0.0
    return Decision(head.key, explain.expecting(len(used), refused.verdict, until))
