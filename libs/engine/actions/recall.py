"""Recall: who is on room that is kept for another job leaves when that one lacks no other.

Room that gathers for a job lies idle until all of it is there. Meanwhile it is lent: to a task that ends before the job
can start, and to one that can be made to leave at little cost, since it is preemptible and says how often it saves its
work, or is expected to have ended by then. Whoever started on those devices while room was kept there is on loan
(`loans`). Its eviction is decided when nobody else is in the way, so the job starts as soon as the borrowers have left,
and none leaves in vain; it costs one that saves its work no more than it did since.
"""

from __future__ import annotations

from typing import Final

from libs.domain.resources import WHOLE, Charge, GpuGrant
from libs.engine import explain, gang
from libs.engine.actions.fill import fill
from libs.engine.actions.protect import protection
from libs.engine.actions.room import may_ask, victim_of
from libs.engine.api import Borrowing, Decision, PendingJob, RunningTask
from libs.engine.loans import touches
from libs.engine.session import Session

#: The rule's name.
LENT: Final = "lent"


def recall(session: Session, job: PendingJob, refused: Decision | None) -> Decision:
    head = job.head
    if refused is None:
        return Decision(head.key, session.fits)
    if not job.kept or not session.now or not may_ask(job, refused):
        return refused
    borrowers = _borrowers(session, job)
    if not borrowers:
        return refused
    need = gang.minimum(job)
    door = gang.door(job, need)
    statement = session.statement()
    for name in session.snapshot.earmarks.get(head.key, ()):
        for charge in session.snapshot.uses[name].earmarked.get(head.key, ()):
            statement.free_earmark(session.snapshot.rows[name], charge, ())
    for task in borrowers:
        statement.evict(task, ())
    # What gathers counts as used of its queue already: no limit is asked again.
    filled = fill(session, statement, gang.order(door.usable, need), (), [], explained=False)
    statement.rollback()
    if not need.met(filled.tasks):
        return refused
    kept = protection(session)
    for task in borrowers:
        session.mark(task.uid)
    kept.changed()
    nodes = len({task.node for task in borrowers})
    return Decision(
        head.key,
        explain.evicting(len(borrowers), nodes),
        tuple(filled.placements),
        tuple(victim_of(task, kept.notice_s(task)) for task in borrowers),
        rule=LENT,
    )


def borrows(session: Session, job: PendingJob) -> Borrowing | None:
    head = job.head
    if head.gang_min > 1 or head.role_min or not head.preemptible or len(job.tasks) != 1:
        return None
    task = job.tasks[0]
    if not task.request.gpu.count:
        return None
    milli = task.request.gpu.milli or WHOLE
    charge = Charge(gpus=tuple(GpuGrant(index, milli, 0) for index in range(task.request.gpu.count)))
    running = RunningTask(
        task.id, task.name, task.namespace, "", head.key, head.queue, head.priority, charge, True,
        started=session.now, checkpoint_s=head.checkpoint_s, workload=head.workload,
    )  # fmt: skip
    if protection(session).of(running) is not None:
        return None
    return Borrowing(head.checkpoint_s > 0, session.runs.lasts(running))


def on_loan(session: Session, job: PendingJob, task: RunningTask) -> bool:
    """Whether the pod is on room of the job and leaves when that needs it."""
    return (
        task.ours
        and not task.guarded
        and task.gang_min <= 1
        and (task.checkpoint_s > 0 or 0.0 < job.kept_until <= session.now)
        and job.lent is not None
        and job.lent.to(task)
        and protection(session).of(task) is None
    )


def _borrowers(session: Session, job: PendingJob) -> list[RunningTask]:
    """Those on the kept devices; none where somebody is there who does not leave for this."""
    by_node: dict[str, list[Charge]] = {}
    for node, charge in job.kept:
        by_node.setdefault(node, []).append(charge)
    found: list[RunningTask] = []
    for node in sorted(by_node):
        for task in session.running.by_node.get(node, {}).values():
            if any(touches(task.charge, charge) for charge in by_node[node]):
                if not session.running.stays(task) or not on_loan(session, job, task):
                    return []
                found.append(task)
    return sorted(found, key=lambda task: task.uid)
