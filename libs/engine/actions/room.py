"""Making room by eviction: what shrink, reclaim and preempt have in common.

Never in vain: the beneficiary's whole minimum is placed, with every filter and with exact device indices, into the room
that the victims leave, before anybody is named a victim; and whoever turns out not to be needed is spared. A queue at
its limit is helped by victims of its own, the ledger crediting what leaves; each task is then placed where its victims
were. Nobody is evicted for tasks of an elastic job above its minimum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, NamedTuple

from libs.domain.jobs import Task
from libs.domain.plans import Victim
from libs.domain.resources import WHOLE, Charge, GpuGrant
from libs.domain.verdicts import Kind, Reason, Verdict
from libs.engine import explain, gang
from libs.engine.actions.fill import fill
from libs.engine.actions.protect import protection
from libs.engine.actions.rights import Amounts, Right, Rights, Tally, amounts_of, by_models
from libs.engine.actions.search import Search
from libs.engine.actions.victims import Appraiser, Cost, Finder, Unit, elastic
from libs.engine.api import Decision, PendingJob, Placement, RunningTask
from libs.engine.feasible import Feasibility
from libs.engine.queues import by_model
from libs.engine.running import workload
from libs.engine.session import Session
from libs.engine.statement import Statement

_CANNOT_HELP: Final = frozenset(
    {
        Reason.GANG_INCOMPLETE,
        Reason.GATED,
        Reason.POD_GROUP,
        Reason.NO_NODES,
        Reason.EVICTING,
        Reason.UNSUPPORTED,
    }
)
#: Sets of victims are gone through one by one, placing all tasks anew, up to this many placings.
_PLACINGS: Final = 2048


@dataclass(frozen=True, slots=True)
class Rule:
    """`name` is what the plan says. `rights` are those that count; with `surplus` only tasks above minima yield; with
    `single` one unit goes or none, the smallest that will do. `most` workloads go, where that is not 0."""

    name: str
    rights: frozenset[Right]
    surplus: bool = False
    priority_first: bool = False
    single: bool = False
    most: int = 0


class Only(NamedTuple):
    """Those alone whom a rule may take, by uid, and where they are. `mark` tells such sets of one pass apart."""

    uids: frozenset[str]
    nodes: frozenset[str]
    mark: Hashable = None


SHRINK: Final = Rule("shrink", frozenset({Right.PRIORITY, Right.RECLAIM}), surplus=True)
RECLAIM: Final = Rule("reclaim", frozenset({Right.RECLAIM}))
PRIORITY: Final = Rule("priority", frozenset({Right.PRIORITY, Right.RECLAIM}), priority_first=True)


def make_room(
    session: Session, job: PendingJob, refused: Decision, rule: Rule, only: Only | None = None
) -> Decision | None:
    """The eviction that lets the job's minimum start, with the placements that its room is for; None where there is
    none by this rule."""
    if not may_ask(job, refused):
        return None
    need = gang.minimum(job)
    tasks = wanted(job, need)
    if not tasks:
        return None
    rights = rights_of(session, job, least_of(session, tasks, need))
    if not need.together and len(tasks) > 1 and not rights.claims:
        # Each stands alone, and what the queue may claim back may be room for one of them.
        rights = rights_of(session, job, least_of(session, tasks[:1], need))
        if rights.claims:
            tasks = tasks[:1]
    if not rights.any(rule.rights):
        return None
    alone = len(tasks) == 1
    hopeless = (
        "hopeless",
        rule.name,
        only and only.mark,
        session.feasible(tasks[0]),
        job.head.priority,
        job.head.queue,
    )
    if alone and session.memo.get(hopeless) == session.snapshot.version:
        return None
    found = Attempt(session, job, need, tasks, rule, rights, only).best()
    if found is None and alone:
        session.memo[hopeless] = session.snapshot.version
    return found


def may_ask(job: PendingJob, refused: Decision) -> bool:
    return room_helps(refused.verdict) and not job.evicting and job.head.preempts and job.may_evict


def room_helps(verdict: Verdict) -> bool:
    return verdict.kind is Kind.NOT_NOW and verdict.reason not in _CANNOT_HELP


def wanted(job: PendingJob, need: gang.Minimum) -> list[Task]:
    """Tasks that others may have to yield to: none of an elastic job that holds its minimum."""
    head = job.head
    usable = gang.order(gang.door(job, need).usable, need)
    if need.together:
        return usable
    if head.gang_min > 1 or head.role_min:
        return usable[: 0 if head.gang_min <= job.held and not need.roles else need.total]
    if head.uid and head.declared > 1:  # one task is the minimum of this job object
        return usable[:1] if not job.held else []
    return usable


def least_of(session: Session, tasks: list[Task], need: gang.Minimum) -> Amounts:
    """The least that the tasks take at once: of a gang its minimum."""
    count = need.total if need.together else len(tasks)
    sides = zip(*(_least(session, task) for task in tasks), strict=True)
    milli, cpu, mem = (sum(sorted(side)[:count]) for side in sides)
    return milli, cpu, mem


def _least(session: Session, task: Task) -> Amounts:
    request, gpu = task.request, task.request.gpu
    milli = request.gpu_milli
    if gpu.mib:
        largest = int(session.snapshot.columns().dev_mib.max(initial=0))
        milli = gpu.count * max(1, gpu.mib * WHOLE // largest) if largest else 0
    return milli, request.cpu, request.mem


def rights_of(session: Session, job: PendingJob, asked: Amounts) -> Rights:
    key = ("rights", job.head.queue, job.head.priority, asked)
    found: tuple[int, Rights] | None = session.memo.get(key)
    if found is None or found[0] != session.snapshot.version:
        found = session.memo[key] = session.snapshot.version, Rights(session, job.head.queue, job.head.priority, asked)
    return found[1]


@dataclass(slots=True)
class _Found:
    units: list[Unit]
    placements: list[Placement]
    cost: Cost | None = None


class Attempt:
    def __init__(
        self,
        session: Session,
        job: PendingJob,
        need: gang.Minimum,
        tasks: list[Task],
        rule: Rule,
        rights: Rights,
        only: Only | None = None,
    ) -> None:
        self._session = session
        self._job = job
        self._need = need
        self._tasks = tasks
        self._rule = rule
        self._rights = rights
        self._only = only
        self._chain = session.queues.chain(job.head.queue)
        self._appraiser = Appraiser(session.now, rule.priority_first, rule.single)
        self._protection = protection(session)

    def best(self) -> Decision | None:
        session = self._session
        statement = session.statement()
        found = self._first(statement)
        if found is None:
            statement.rollback()
            _forget_searches(session)
            return None
        victims = _spare(session, statement, found.units, found.placements)
        statement.rollback()
        units = _left(found.units, victims)
        if len(victims) < len({t.uid for unit in found.units for t in unit.tasks}):
            _forget_searches(session)
        if not victims:
            return None
        placements = found.placements
        fewer = self._fewer(units)
        if fewer is not None:
            units, placements = fewer
            victims = _pods(units)
            _forget_searches(session)
        if not self._rights.confirmed(placements, victims):
            return None
        if 0 < self._rule.most < len(set(map(workload, victims))):
            _forget_searches(session)
            return None
        hold(session, placements, victims)
        placed_on: dict[str, list[Placement]] = {}
        for placement in placements:
            placed_on.setdefault(placement.node, []).append(placement)
        for victim in victims:
            if not any(overlaps(victim, placement) for placement in placed_on.get(victim.node, ())):
                session.running.comes_free(victim.uid)
        self._protection.changed()
        asked = amounts_of([placement.charge for placement in placements])
        # As the ledger counts: the whole of it now, and what its victims hold until they have left.
        session.queues.charge(self._chain, *asked)
        if by_model(self._chain):
            session.queues.charge_models(self._chain, by_models(session, placements), 1)
        nodes = len({victim.node for victim in victims})
        return Decision(
            self._job.head.key,
            explain.evicting(len(victims), nodes),
            tuple(placements),
            tuple(victim_of(victim, self._protection.notice_s(victim)) for victim in victims),
            rule=self._rule.name,
        )

    def _first(self, statement: Statement) -> _Found | None:
        """Task after task, each where it costs least."""
        need, ordered = self._need, self._tasks
        tally = Tally(self._rights, self._protection.allowance)
        units: list[Unit] = []
        placements: list[Placement] = []
        placed: list[Task] = []
        failed: set[Feasibility] = set()
        left = Counter(map(self._session.feasible, ordered))
        for task in ordered:
            if need.together and need.met(placed):
                break
            view = self._session.feasible(task)
            left[view] -= 1
            if view in failed:
                continue
            filled = fill(self._session, statement, [task], self._chain, [], explained=False)
            if not filled.placements:
                alike = left[view] + 1
                if need.together:
                    alike = min(alike, max(1, need.total - len(placed)))
                choice = self._search(view).best(tally, alike)
                if choice is not None and units and self._rule.single:
                    return None
                if choice is None:
                    if not need.together or all(t.request == task.request for t in ordered):
                        break
                    failed.add(view)
                    continue
                for unit in choice.units:
                    fresh = [victim for victim in unit.tasks if self._session.running.stays(victim)]
                    for victim in fresh:
                        statement.evict(victim, self._chain)
                    tally.take(tuple(fresh))
                    units.append(Unit(tuple(fresh), unit.ends))
                filled = fill(self._session, statement, [task], self._chain, [], explained=False)
                if not filled.placements:
                    return None  # of a node's mixed devices one was chosen that the queue may not have
            placements.extend(filled.placements)
            placed.extend(filled.tasks)
        if not placements or (need.together and not need.met(placed)):
            return None
        return _Found(units, placements)

    def _fewer(self, units: list[Unit]) -> tuple[list[Unit], list[Placement]] | None:
        """What is left when units are gone through once more, the dearest first, and left out wherever all tasks can be
        placed without them, wherever that is. None where nothing changes."""
        need = self._need
        count = need.total if need.together else len(self._tasks)
        if len(units) < 2 or len(units) * count > _PLACINGS:
            return None
        appraiser = self._appraiser
        kept = list(units)
        best: list[Placement] | None = None
        for unit in sorted(units, key=lambda u: appraiser.cost((u,)), reverse=True):
            trial = [one for one in kept if one is not unit]
            if not trial:
                break
            placements = self._placed_without(trial, count)
            if placements is not None:
                kept, best = trial, placements
        return None if best is None else (kept, best)

    def _placed_without(self, units: list[Unit], count: int) -> list[Placement] | None:
        session, need = self._session, self._need
        statement = session.statement()
        for victim in _pods(units):
            statement.evict(victim, self._chain)
        filled = fill(session, statement, self._tasks, self._chain, [], explained=False)
        enough = need.met(filled.tasks) if need.together else len(filled.tasks) >= count
        placements = filled.placements
        if enough and need.together:
            placements = _minimum(need, filled.tasks, placements)
        statement.rollback()
        return placements if enough else None

    def _search(self, view: Feasibility) -> Search:
        """One search serves all alike jobs of a pass: in it, pods are only marked and room is only taken."""
        session, rule = self._session, self._rule
        only = self._only
        key = (
            "search",
            rule.name,
            only and only.mark,
            view,
            self._job.head.priority,
            self._job.head.queue,
            self._rights.asked,
        )
        search: Search | None = session.memo.get(key)
        if search is None:
            finder = Finder(
                session.running, view, self._chain, session.book, self.may, self._appraiser, rule.surplus, rule.single
            )  # fmt: skip
            search = session.memo[key] = Search(session, view, finder, only.nodes if only is not None else None)
        return search

    def may(self, task: RunningTask) -> bool:
        return (
            task.ours
            and (self._only is None or task.uid in self._only.uids)
            and self._session.running.stays(task)
            and self._rights.of(task) in self._rule.rights
            and (not self._rule.surplus or elastic(task))
            and self._protection.of(task) is None
        )


def _minimum(need: gang.Minimum, tasks: list[Task], placements: list[Placement]) -> list[Placement]:
    """The first of them that meet the minimum: nobody is evicted for more."""
    for count in range(need.total, len(tasks) + 1):
        if need.met(tasks[:count]):
            return placements[:count]
    return placements


def _pods(units: list[Unit]) -> list[RunningTask]:
    return list({t.uid: t for unit in units for t in unit.tasks}.values())


def _left(units: list[Unit], victims: list[RunningTask]) -> list[Unit]:
    """Units as they are when only these go, no pod in two of them."""
    uids = {victim.uid for victim in victims}
    whole: dict[str, list[RunningTask]] = {}
    left: list[Unit] = []
    ending = {t.job for unit in units if unit.ends and len(unit.tasks) > 1 for t in unit.tasks}
    for unit in units:
        tasks = tuple(t for t in unit.tasks if t.uid in uids)
        if not tasks:
            continue
        if tasks[0].job in ending and tasks[0].job:
            whole.setdefault(tasks[0].job, []).extend(tasks)
        else:
            left.append(Unit(tasks, unit.ends))
    return [*left, *(Unit(tuple({t.uid: t for t in tasks}.values()), True) for tasks in whole.values())]


def _forget_searches(session: Session) -> None:
    """What was given up as exhausted in an attempt that was undone is there again."""
    for key in [key for key in session.memo if key[0] == "search"]:
        del session.memo[key]


def _spare(session: Session, statement: Statement, units: list[Unit], placements: list[Placement]) -> list[RunningTask]:
    """Victims whose room nobody needs in the end stay, the most valuable first. A gang that is taken wholly stays
    wholly or not at all, however it was taken."""
    running = session.running
    whole: dict[str, list[RunningTask]] = {}
    single: list[tuple[RunningTask, ...]] = []
    for one in units:
        job = one.tasks[0].job if one.tasks and elastic(one.tasks[0]) else ""
        if job and not any(map(running.stays, running.by_job.get(job, {}).values())):
            whole.setdefault(job, []).extend(one.tasks)
        else:
            single.append(one.tasks)
    together = [*single, *map(tuple, whole.values())]
    kept: list[RunningTask] = []
    valued = sorted(
        (unit for unit in together if unit),
        key=lambda unit: (-max(t.priority for t in unit), -len(unit), min(t.started for t in unit), unit[0].uid),
    )
    for unit in valued:
        if not all(_held(session, task) for task in unit) or not statement.spare(
            list(unit), lambda: all(map(session.allowed, placements))
        ):
            kept.extend(unit)
    return kept


def overlaps(task: RunningTask, placement: Placement) -> bool:
    """Whether what is placed takes of what the pod leaves."""
    if task.node != placement.node:
        return False
    indices = {grant.index for grant in task.charge.gpus}
    return not indices or any(grant.index in indices for grant in placement.charge.gpus)


def _held(session: Session, task: RunningTask) -> bool:
    """Whether what the pod leaves is free still."""
    row = session.snapshot.rows.get(task.node)
    state = session.snapshot.states[row] if row is not None else None
    return state is None or state.holds(task.charge)


def hold(session: Session, placements: list[Placement], victims: list[RunningTask]) -> None:
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


def victim_of(task: RunningTask, notice_s: int = 0) -> Victim:
    return Victim(task.uid, task.name, task.namespace, task.node, task.job, task.priority, task.guarded, notice_s)
