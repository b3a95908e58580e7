"""Preempt: lower-priority tasks yield to a job that fits in no other way.

Never in vain: the beneficiary's whole minimum is placed, with every filter and with exact device indices, into the room
that the victims leave, before anybody is named a victim; and whoever turns out not to be needed is spared. A queue at
its limit is helped by victims of its own, the ledger crediting what leaves; each task is then placed where its victims
were.
"""

from __future__ import annotations

import heapq
from typing import Final

from libs.domain.jobs import Task
from libs.domain.plans import Victim
from libs.domain.resources import Charge, GpuGrant
from libs.domain.verdicts import Kind, Reason
from libs.engine import explain, gang
from libs.engine.actions.fill import fill
from libs.engine.actions.victims import Choice, choose_on
from libs.engine.api import Decision, PendingJob, Placement, RunningTask
from libs.engine.feasible import Feasibility
from libs.engine.queues import Chain
from libs.engine.session import Session
from libs.engine.statement import Statement

#: Nodes whose victims are worked out before the best of them is taken; more only while none was found.
LOOKED_AT: Final = 256
_CANNOT_HELP: Final = frozenset(
    {Reason.GANG_INCOMPLETE, Reason.GATED, Reason.NO_NODES, Reason.EVICTING, Reason.UNSUPPORTED}
)

_Entry = tuple[tuple[int, int, int, float, str], int, Choice | None]


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
    if alone and session.hopeless.get((view, head.priority)) == session.snapshot.version:
        return refused
    found = _attempt(session, job, need, tasks)
    if found is None:
        if alone:
            session.hopeless[view, head.priority] = session.snapshot.version
        return refused
    return found


def _attempt(session: Session, job: PendingJob, need: gang.Minimum, tasks: list[Task]) -> Decision | None:
    head = job.head
    chain = session.queues.chain(head.queue)
    statement = session.statement()
    ordered = gang.order(tasks, need)
    searches: dict[Feasibility, _Search] = {}
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
                search = searches[view] = _Search(session, view, head.priority, chain)
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
        return None
    victims = _spare(session, statement, units)
    statement.rollback()
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


class _Search:
    """The cheapest node to take for a class of tasks, asked again and again while tasks are placed.

    A node enters with a bound that its true cost cannot be below, is worked out when it comes up, and again when it
    changed since. After LOOKED_AT nodes the best known one is taken without looking further.
    """

    def __init__(self, session: Session, view: Feasibility, priority: int, chain: Chain) -> None:
        self._session = session
        self._view = view
        self._priority = priority
        self._chain = chain
        self._looked = 0
        view.refresh()
        rows = session.snapshot.rows
        self._heap: list[_Entry] = [
            ((floor, 0, 0, 0.0, name), row, None)
            for name, floor in session.running.floors().items()
            if floor < priority and (row := rows.get(name)) is not None and not view.codes[row] and self._open(row)
        ]
        heapq.heapify(self._heap)
        self._known: list[_Entry] = []

    def _open(self, row: int) -> bool:
        state = self._session.snapshot.states[row]
        return state is not None and not (self._view.ask.count and state.shut)

    def best(self) -> Choice | None:
        while self._heap or self._known:
            enough = self._looked >= LOOKED_AT and self._known
            if self._heap and not enough and (not self._known or self._heap[0] < self._known[0]):
                _, row, _ = heapq.heappop(self._heap)
                self._look(row)
                continue
            cost, row, choice = heapq.heappop(self._known)
            fresh = self._choose(row)
            if fresh is None:
                continue
            if choice is not None and fresh.cost == cost:
                heapq.heappush(self._known, (cost, row, fresh))  # may serve another task
                return fresh
            heapq.heappush(self._known, (fresh.cost, row, fresh))
        return None

    def _look(self, row: int) -> None:
        self._looked += 1
        choice = self._choose(row)
        if choice is not None:
            heapq.heappush(self._known, (choice.cost, row, choice))

    def _choose(self, row: int) -> Choice | None:
        state = self._session.snapshot.states[row]
        if state is None:
            return None
        return choose_on(self._session.running, state, self._view.ask, self._priority, self._chain)


def _spare(session: Session, statement: Statement, units: list[tuple[RunningTask, ...]]) -> list[RunningTask]:
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
        if not statement.spare(list(unit)):
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
