"""Preempt: lower-priority tasks yield to a job that fits in no other way.

Never in vain: the beneficiary's whole minimum is placed, with every filter and with exact device indices, into the room
that the victims leave, before anybody is named a victim; and whoever turns out not to be needed is spared. A queue at
its limit is helped by victims of its own, the ledger crediting what leaves; each task is then placed where its victims
were.
"""

from __future__ import annotations

from typing import Final

from libs.domain.jobs import Task
from libs.domain.plans import Victim
from libs.domain.resources import Charge, GpuGrant
from libs.domain.verdicts import Kind, Reason
from libs.engine import explain, gang
from libs.engine.actions.fill import fill
from libs.engine.actions.search import Search
from libs.engine.api import Decision, PendingJob, Placement, RunningTask
from libs.engine.feasible import Feasibility
from libs.engine.session import Session
from libs.engine.statement import Statement

_CANNOT_HELP: Final = frozenset(
    {Reason.GANG_INCOMPLETE, Reason.GATED, Reason.NO_NODES, Reason.EVICTING, Reason.UNSUPPORTED}
)


def preempt(session: Session, job: PendingJob, refused: Decision | None) -> Decision:
    head = job.head
    if refused is None or refused.verdict.kind is not Kind.NOT_NOW or refused.verdict.reason in _CANNOT_HELP:
        return refused or Decision(head.key, session.fits)
    if job.evicting:
        return Decision(head.key, explain.still_evicting(refused.verdict))
    if not head.preempts or not job.may_evict:
        return refused
    floors = session.running.floors()
    if not floors or min(floors.values()) >= head.priority:
        return refused
    need = gang.minimum(job)
    tasks = gang.door(job, need).usable
    alone = len(tasks) == 1
    view = session.feasible(tasks[0])
    hopeless = ("hopeless", view, head.priority, head.queue)
    if alone and session.memo.get(hopeless) == session.snapshot.version:
        return refused
    found = _attempt(session, job, need, tasks)
    if found is None:
        if alone:
            session.memo[hopeless] = session.snapshot.version
        return refused
    return found


def _attempt(session: Session, job: PendingJob, need: gang.Minimum, tasks: list[Task]) -> Decision | None:
    head = job.head
    chain = session.queues.chain(head.queue)
    statement = session.statement()
    ordered = gang.order(tasks, need)
    searches: dict[Feasibility, Search] = {}
    units: list[tuple[RunningTask, ...]] = []
    placements: list[Placement] = []
    placed: list[Task] = []
    for task in ordered:
        if need.together and need.met(placed):
            break
        filled = fill(session, statement, [task], chain, [], explained=False)
        if not filled.placements:
            view = session.feasible(task)
            search = searches.get(view)
            if search is None:
                search = searches[view] = _search(session, view, head.priority, head.queue)
            choice = search.best()
            if choice is None:
                if not need.together or all(t.request == task.request for t in ordered):
                    break
                continue
            for unit in choice.units:
                fresh = [victim for victim in unit if session.running.stays(victim)]
                for victim in fresh:
                    statement.evict(victim, chain)
                units.append(tuple(fresh))
            filled = fill(session, statement, [task], chain, [], explained=False)
            if not filled.placements:
                raise AssertionError(f"{choice.node}: victims were enough and the task does not fit")
        placements.extend(filled.placements)
        placed.extend(filled.tasks)
    if not placements or (need.together and not need.met(placed)):
        statement.rollback()
        _forget_searches(session)
        return None
    victims = _spare(session, statement, units, placements)
    statement.rollback()
    if len(victims) < sum(map(len, units)):
        _forget_searches(session)
    if not victims:
        return None
    _hold(session, placements, victims)
    for line in chain:
        back = [victim.charge for victim in victims if line.covers(victim.queue)]
        asked = [placement.charge for placement in placements]
        session.queues.charge(
            (line,),
            max(0, sum(c.gpu_milli for c in asked) - sum(c.gpu_milli for c in back)),
            max(0, sum(c.cpu for c in asked) - sum(c.cpu for c in back)),
            max(0, sum(c.mem for c in asked) - sum(c.mem for c in back)),
        )
    nodes = len({victim.node for victim in victims})
    return Decision(
        head.key, explain.evicting(len(victims), nodes), tuple(placements), tuple(map(_victim, victims))
    )  # fmt: skip


def _search(session: Session, view: Feasibility, priority: int, queue: str) -> Search:
    """One search serves all alike jobs of a pass: in it, pods are only marked and room is only taken."""
    key = ("search", view, priority, queue)
    search: Search | None = session.memo.get(key)
    if search is None:
        search = session.memo[key] = Search(session, view, priority, session.queues.chain(queue))
    return search


def _forget_searches(session: Session) -> None:
    """What was given up as exhausted in an attempt that was undone is there again."""
    for key in [key for key in session.memo if key[0] == "search"]:
        del session.memo[key]


def _spare(
    session: Session, statement: Statement, units: list[tuple[RunningTask, ...]], placements: list[Placement]
) -> list[RunningTask]:
    """Victims whose room nobody needs in the end stay, the most valuable first. A gang that is taken wholly stays
    wholly or not at all, however it was taken."""
    running = session.running
    whole: dict[str, list[RunningTask]] = {}
    single: list[tuple[RunningTask, ...]] = []
    for unit in units:
        job = unit[0].job if unit and unit[0].gang_min > 1 else ""
        if job and not any(map(running.stays, running.by_job.get(job, {}).values())):
            whole.setdefault(job, []).extend(unit)
        else:
            single.append(unit)
    units = [*single, *map(tuple, whole.values())]
    kept: list[RunningTask] = []
    valued = sorted(
        (unit for unit in units if unit),
        key=lambda unit: (-max(t.priority for t in unit), -len(unit), min(t.started for t in unit), unit[0].uid),
    )
    for unit in valued:
        if not statement.spare(list(unit), lambda: all(map(session.allowed, placements))):
            kept.extend(unit)
    return kept


def _hold(session: Session, placements: list[Placement], victims: list[RunningTask]) -> None:
    """Until the ledger answers: victims are marked, and what the placements need beyond their room is taken."""
    freed: dict[str, list[Charge]] = {}
    asked: dict[str, list[Charge]] = {}
    for victim in victims:
        session.mark(victim.uid)
        freed.setdefault(victim.node, []).append(victim.charge)
    for placement in placements:
        session.stand(placement)
        asked.setdefault(placement.node, []).append(placement.charge)
    for node, charges in asked.items():
        row = session.snapshot.rows[node]
        less = freed.get(node, [])
        gpus: dict[int, list[int]] = {}
        for sign, group in ((1, charges), (-1, less)):
            for grant in (g for charge in group for g in charge.gpus):
                pair = gpus.setdefault(grant.index, [0, 0])
                pair[0] += sign * grant.milli
                pair[1] += sign * grant.mib
        beyond = Charge(
            max(0, sum(c.cpu for c in charges) - sum(c.cpu for c in less)),
            max(0, sum(c.mem for c in charges) - sum(c.mem for c in less)),
            tuple(GpuGrant(i, max(0, m), max(0, b)) for i, (m, b) in sorted(gpus.items()) if m > 0 or b > 0),
        )
        session.hold(row, beyond, max(0, len(charges) - len(less)))


def _victim(task: RunningTask) -> Victim:
    return Victim(task.uid, task.name, task.namespace, task.node, task.job, task.priority, task.guarded)
