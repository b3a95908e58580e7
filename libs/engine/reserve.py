"""Where a job that fits nowhere can start soonest, and when: the nodes whose running tasks end first.

Nobody is evicted. Each task goes where it fits now, else onto the node on which the fewest tasks of unknown end, then
the earliest known ones, have to leave. Of each node only those that have to leave are waited for, the earliest first.
Jobs that demand domains of a topology stay within one of the choices that making room for them would have.
A limit of the queue that lacks now is no obstacle: what is reserved counts as used, so room under it gathers as well.
Nodes where room gathers for another job already are left alone. At most LOOKED_AT nodes are worked out, those with most
free GPUs: cost is bounded, the best node of a very large cluster may be missed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from libs.domain.jobs import Task
from libs.domain.resources import Charge
from libs.engine import gang
from libs.engine.actions.fill import fill
from libs.engine.actions.recall import on_loan
from libs.engine.actions.rights import Right
from libs.engine.actions.room import least_of, rights_of
from libs.engine.api import PendingJob, Placement, Reserved, RunningTask, Start
from libs.engine.fair.runs import UNKNOWN, Basis, End
from libs.engine.feasible import Feasibility
from libs.engine.session import Session
from libs.engine.statement import Statement
from libs.engine.topology.evicting import choices

LOOKED_AT: Final = 256
#: Who is on loan leaves when that needs it.
_RETURNS: Final = End(0.0, 0.0, 0.0, Basis.DECLARED)
_LONGEST_S: Final = 86_400
_SLACK_S: Final = 60.0


class _Room(NamedTuple):
    """Compares as nodes are preferred. `high`: when the last known one has left, at the latest."""

    unknown: int
    high: float
    given_up: int
    name: str
    row: int
    leaving: tuple[RunningTask, ...]
    last: End


def reserve(session: Session, job: PendingJob) -> Reserved | None:
    """Placements into room that is there or comes free, or None where nothing would help."""
    if not any(task.topology is not None and task.topology.required for task in job.tasks):
        return _reserve(session, job)
    for regions in choices(session, job):
        session.confine(regions)
        try:
            reserved = _reserve(session, job)
        finally:
            session.confine(None)
        if reserved is not None:
            return reserved
    return None


def in_turn(session: Session, jobs: Sequence[PendingJob]) -> list[Reserved | None]:
    """Where each of these could start soonest beside those before it, which are taken to have what they found for good:
    one entry for each up to the first that finds nothing. Who demands domains of a topology is not tried."""
    found: list[Reserved | None] = []
    statement = session.statement()
    try:
        for job in jobs:
            demands = any(task.topology is not None and task.topology.required for task in job.tasks)
            found.append(None if demands else _reserve(session, job, statement))
            if found[-1] is None:
                break
        return found
    finally:
        statement.rollback()


def _reserve(session: Session, job: PendingJob, within: Statement | None = None) -> Reserved | None:
    """`within`: what it takes stays taken there."""
    need = gang.minimum(job)
    door = gang.door(job, need)
    if door.refused is not None or not door.usable:
        return None
    statement = within or session.statement()
    placements: list[Placement] = []
    placed: list[Task] = []
    ends: list[End] = []
    nodes: dict[Feasibility, _Nodes] = {}
    leaving: list[RunningTask] = []
    try:
        for task in gang.order(door.usable, need):
            if placed and need.met(placed):
                break
            now = fill(session, statement, [task], (), [], explained=False)
            if now.placements:
                placements += now.placements
                placed.append(task)
                _changed(nodes, [session.snapshot.rows[p.node] for p in now.placements])
                continue
            view = session.feasible(task)
            known = nodes.get(view)
            if known is None or view.ruled:
                known = nodes[view] = _Nodes(session, job, view)
            room = known.best()
            if room is None:
                if not need.together:
                    return None
                continue
            for gone in room.leaving:
                statement.evict(gone, ())
            leaving += room.leaving
            charge = _charge(session, view, room.row)
            if charge is None:
                return None
            statement.take(room.row, charge, (), session.resident(task, room.row))
            _changed(nodes, [room.row])
            placements.append(session.placement(task, room.row, charge))
            placed.append(task)
            ends.append(room.last)
        if not placed or not need.met(placed):
            return None
        return Reserved(tuple(placements), start_of(ends), _yielding(session, job, door.usable, leaving))
    finally:
        if within is None:
            statement.rollback()


def _yielding(session: Session, job: PendingJob, tasks: Sequence[Task], leaving: Sequence[RunningTask]) -> bool:
    """Whether all who are in the way yield to the job when it is overdue, and somebody does not say when it ends."""
    if session.service.rules is None or not leaving:
        return False
    declared = [session.runs.end_of(task, session.now).basis is Basis.DECLARED for task in leaving]
    if all(declared):
        return False
    rights = rights_of(session, job, least_of(session, list(tasks), gang.minimum(job)))
    return all(
        task.ours and task.preemptible and task.checkpoint_s and rights.of(task) is not Right.NONE for task in leaving
    )


def _charge(session: Session, view: Feasibility, row: int) -> Charge | None:
    state = session.snapshot.states[row]
    if state is None:
        return None
    charge = state.charge(view.ask, session.choose)
    if charge is None:
        bare = state.copy()
        bare.reset(None)
        charge = bare.charge(view.ask, session.choose)
    return charge


def backfill(session: Session, job: PendingJob, lenders: Sequence[str]) -> tuple[Placement, ...]:
    """Placements for the whole of a job, or one task, where it fits into free room and into what is kept for the
    `lenders`; none where it does not. Until `settle` the next one sees them as taken, and nobody else does."""
    need = gang.minimum(job)
    door = gang.door(job, need)
    if door.refused is not None or any(task.topology is not None for task in door.usable):
        return ()
    chain = session.queues.chain(job.head.queue)
    statement = session.statement()
    try:
        for lender in lenders:
            for name in sorted(session.snapshot.earmarks.get(lender, ())):
                row = session.snapshot.rows.get(name)
                if row is None:
                    continue
                for charge in session.snapshot.uses[name].earmarked.get(lender, ()):
                    statement.free_earmark(row, charge, ())
        lent: list[Placement] = session.memo.setdefault(("lent",), [])
        for placement in lent:
            row = session.snapshot.rows[placement.node]
            state = session.snapshot.states[row]
            if state is not None and state.holds(placement.charge):
                statement.take(row, placement.charge, (), session.resident(placement.task, row))
        filled = fill(session, statement, gang.order(door.usable, need), chain, [], explained=False)
        if not need.met(filled.tasks):
            return ()
        lent += filled.placements
        return tuple(filled.placements)
    finally:
        statement.rollback()


def start_of(ends: list[End]) -> Start:
    """When all of these have come."""
    if any(end.basis is Basis.UNKNOWN for end in ends):
        return Start(basis=Basis.UNKNOWN)
    basis = Basis.PREDICTED if any(end.basis is Basis.PREDICTED for end in ends) else Basis.DECLARED
    if not ends:
        return Start(basis=basis)
    return Start(max(e.at for e in ends), max(e.low for e in ends), max(e.high for e in ends), basis)


def lasts(start: Start, now: float, turn_s: float, turns: int) -> int:
    """How long room is kept, seconds: to a quarter after the expected start where that is known, else a turn, doubled
    for each that the job had. `now`: seconds since the epoch, 0 where nobody knows."""
    turn = min(turn_s * 2.0 ** min(turns, 16), _LONGEST_S)
    if start.high and now:
        turn = max(turn_s, (start.high - now) * 1.25 + _SLACK_S)
    return min(math.ceil(turn), _LONGEST_S)


class _Nodes:
    """The nodes that are looked at for one class of tasks, the best first. One is worked out anew only when something
    on it changed: worked out for each task, a gang of 500 cost seconds. (Where rules between pods speak of the class,
    any change may matter anywhere; then this serves one task.)"""

    def __init__(self, session: Session, job: PendingJob, view: Feasibility) -> None:
        self._session, self._job, self._view = session, job, view
        self._rooms: list[_Room] = []
        self._stale: set[int] = set()
        self._all = False
        self._look()

    def changed(self, rows: Iterable[int]) -> None:
        self._stale.update(rows)
        self._all = False

    def best(self) -> _Room | None:
        while True:
            while self._rooms:
                room = self._rooms[0]
                if room.row not in self._stale:
                    return room
                heapq.heappop(self._rooms)
                self._stale.discard(room.row)
                self._view.refresh()
                if self._view.codes[room.row] == 0 and self._view.slots()[room.row] > 0:
                    self._work_out(room.row)
            if self._all:
                return None
            self._look()

    def _look(self) -> None:
        view, snapshot = self._view, self._session.snapshot
        view.refresh()
        rows = np.flatnonzero((view.codes == 0) & (view.slots() > 0))
        if len(rows) > LOOKED_AT:
            free = snapshot.columns().gpu_free[rows]
            rows = rows[np.lexsort((snapshot.rank[rows], -free))[:LOOKED_AT]]
        self._stale.clear()
        self._all = True
        for row in rows.tolist():
            self._work_out(row)

    def _work_out(self, row: int) -> None:
        snapshot = self._session.snapshot
        state = snapshot.states[row]
        if state is None or not self._view.admits(row):
            return
        use = snapshot.uses.get(state.name)
        if use is not None and any(key != self._job.head.key for key in use.earmarked):
            return
        found = _on(self._session, self._job, self._view, row)
        if found is not None:
            heapq.heappush(self._rooms, found)


def _changed(nodes: Mapping[Feasibility, _Nodes], rows: Sequence[int]) -> None:
    for known in nodes.values():
        known.changed(rows)


def _on(session: Session, job: PendingJob, view: Feasibility, row: int) -> _Room | None:
    """Who has to leave this node until the task fits, the earliest first."""
    real = session.snapshot.states[row]
    if real is None or (view.ask.count and real.shut):
        return None
    state, now = real.copy(), session.now
    there = [task for task in session.running.by_node.get(state.name, {}).values() if session.running.stays(task)]
    ends = {
        task.uid: _RETURNS._replace(at=now, low=now, high=now)
        if job.lent is not None and on_loan(session, job, task)
        else session.runs.end_of(task, now)
        for task in there
    }
    there.sort(key=lambda task: (ends[task.uid].high, -task.charge.gpu_milli, task.uid))
    leaving: list[RunningTask] = []
    for task in there:
        if view.ask.count and not task.charge.gpus and state.cpu >= view.ask.cpu and state.mem >= view.ask.mem:
            continue  # holds nothing of what is lacking
        state.give(task.charge)
        leaving.append(task)
        if state.charge(view.ask, session.choose) is not None:
            break
    else:
        # Somebody is there whom no fact speaks of yet, or who is leaving: when that ends is not known.
        state.reset(None)
        if state.charge(view.ask, session.choose) is None:
            return None
        return _Room(len(there) + 1, 0.0, real.gpu_cap - real.gpu_free, state.name, row, tuple(there), UNKNOWN)
    charge = state.charge(view.ask, session.choose)
    needed = [task for task in leaving if charge is None or _touches(task.charge, charge, real.cpu, real.mem)]
    last = [ends[task.uid] for task in needed]
    unknown = sum(1 for end in last if end is UNKNOWN or math.isinf(end.high))
    high = max((end.high for end in last if not math.isinf(end.high)), default=0.0)
    milli = sum(task.charge.gpu_milli for task in needed)
    worst = max(last, key=lambda end: end.high, default=End(now, now, now, Basis.DECLARED))
    return _Room(unknown, high, milli, state.name, row, tuple(needed), worst)


def _touches(theirs: Charge, ours: Charge, cpu: int, mem: int) -> bool:
    """Whether ours needs what this one holds: a device, or CPU or memory that the node lacks."""
    if theirs.gpus and ours.gpus and {g.index for g in theirs.gpus} & {g.index for g in ours.gpus}:
        return True
    return (ours.cpu > cpu and theirs.cpu > 0) or (ours.mem > mem and theirs.mem > 0)
