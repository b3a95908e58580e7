"""Consolidate: running tasks move so that a job fits that would find enough idle room if it lay together.

Who moves is evicted, to be made anew by its controller and placed where the plan has room for it; what it leaves is
earmarked for the job in the same step. Less disruptive than preemption, since nobody has to wait, so it is tried first.
Plans and their guarantees are those of `consolidate.plan`.

A task moves again only when it has run for `EngineConfig.consolidate_after_s`. What was tried in vain is not tried
again while nothing changed, nor within RETRIED_S; and planning takes no more of the time than its credit allows.
"""

from __future__ import annotations

from typing import Final

from libs.domain.jobs import Task
from libs.domain.verdicts import Kind, Reason
from libs.engine import explain
from libs.engine.actions.protect import protection
from libs.engine.actions.room import hold, victim_of
from libs.engine.api import Decision, PendingJob
from libs.engine.consolidate.board import Work
from libs.engine.consolidate.movers import Movers
from libs.engine.consolidate.plan import LIMITS, plan_moves
from libs.engine.session import Session

RULE: Final = "consolidate"
RETRIED_S: Final = 5.0
#: Jobs remembered that were tried in vain.
REMEMBERED: Final = 4_096
_HELPED: Final = frozenset(
    {
        Reason.GANG_ROOM,
        Reason.DOMAIN_ROOM,
        Reason.GPU_COUNT,
        Reason.GPU_SHARE,
        Reason.CPU,
        Reason.MEMORY,
        Reason.PODS,
    }
)


def consolidate(session: Session, job: PendingJob, refused: Decision | None) -> Decision:
    head = job.head
    if refused is None:
        return Decision(head.key, session.fits)
    if not session.config.consolidate or not _sensible(session, job, refused):
        return refused
    tried = session.moved_in_vain
    regions = frozenset(session.regions.values()) if session.regions is not None else None
    key = (head.queue, head.priority, head.gang_min, job.held, _looks(job.tasks[0]), regions)
    last = tried.get(key)
    if last is not None and (last[0] == session.snapshot.version or 0 <= session.now - last[1] < RETRIED_S):
        return refused
    credit = session.moving
    if not credit.open(session.now):
        return refused
    shields = protection(session)
    movers = Movers(session, head, session.config.consolidate_after_s, lambda pod: shields.of(pod) is not None)
    if not movers.any():
        return refused
    work = Work(LIMITS.work)
    plan = plan_moves(session, job, movers, LIMITS, work)
    credit.spend(work.spent)
    if plan is None or not plan.moves:
        if len(tried) >= REMEMBERED:
            tried.clear()
        tried[key] = (session.snapshot.version, session.now)
        return refused
    pods = [move.pod for move in plan.moves]
    landings = [
        session.placement(movers.as_task(move.pod), session.snapshot.rows[move.target], move.charge)
        for move in plan.moves
    ]
    hold(session, [*plan.placements, *landings], pods)
    shields.changed()
    for move in plan.moves:
        session.keeping.keep(move.pod.workload or move.pod.job, move.target, move.charge, session.now)
    for line in session.queues.chain(head.queue):
        for placement in plan.placements:
            charge = placement.charge
            session.queues.charge((line,), charge.gpu_milli, charge.cpu, charge.mem)
    said = explain.moving(len(pods), len({pod.node for pod in pods}))
    victims = tuple(victim_of(pod, shields.notice_s(pod)) for pod in pods)
    return Decision(head.key, said, plan.placements, victims, rule=RULE)


def _sensible(session: Session, job: PendingJob, refused: Decision) -> bool:
    """Whether moves could help at all, without looking at a node."""
    verdict, head = refused.verdict, job.head
    if verdict.kind is not Kind.NOT_NOW or job.evicting or not head.preempts or not job.may_evict:
        return False
    return verdict.reason in _HELPED or (verdict.reason is None and not session.config.explain)


def _looks(task: Task) -> str:
    return f"{task.request}/{task.node_selector}/{task.tolerations}/{task.rules}"
