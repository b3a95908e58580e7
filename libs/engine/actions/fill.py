"""Placing tasks one after the other within a statement: the inner loop that all actions share."""

from __future__ import annotations

from dataclasses import dataclass, field

from libs.domain.jobs import Task
from libs.domain.resources import WHOLE, Charge
from libs.domain.verdicts import Verdict
from libs.engine import explain
from libs.engine.api import Placement
from libs.engine.ask import Ask
from libs.engine.feasible import Feasibility
from libs.engine.queues import Chain, by_model
from libs.engine.session import Session
from libs.engine.statement import Statement

#: One place of room that is earmarked for the job being decided.
Earmark = tuple[int, Charge]


@dataclass(slots=True)
class Filled:
    placements: list[Placement] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    #: Why the first task that did not fit does not fit, at the moment it was tried.
    first: Verdict | None = None
    used: list[Earmark] = field(default_factory=list)


def fill(
    session: Session,
    statement: Statement,
    tasks: list[Task],
    chain: Chain,
    earmarks: list[Earmark],
    explained: bool = True,
) -> Filled:
    """Place as many of the tasks as fit. After one task of a class did not fit, its likes are not tried again: room
    only shrinks on the way. Only where rules speak of other pods can a task fit after another was placed; those are
    tried again as long as that helps."""
    filled = Filled()
    left = list(earmarks)
    waiting = tasks
    while waiting:
        before = len(filled.tasks)
        if filled.first is not None and any(task.name == filled.first.task for task in waiting):
            filled.first = None  # it is asked again
        waiting = _once(session, statement, waiting, chain, left, explained, filled)
        if len(filled.tasks) == before:
            break
    return filled


def _once(
    session: Session,
    statement: Statement,
    tasks: list[Task],
    chain: Chain,
    left: list[Earmark],
    explained: bool,
    filled: Filled,
) -> list[Task]:
    """Those that rules kept from fitting."""
    kept: list[Task] = []
    failed: set[Feasibility] = set()
    # Room only shrinks here: an earmark that was not one for a class of tasks is none for its likes either.
    tried: dict[Feasibility, list[Earmark]] = {}
    for task in tasks:
        view = session.feasible(task)
        if view in failed:
            if view.ruled:
                kept.append(task)
            continue
        landed = None
        if left:
            candidates = tried.get(view)
            if candidates is None or view.ruled:
                candidates = tried[view] = left[::-1]
            landed = _on_earmark(session, view, candidates, left, chain)
        if landed is not None:
            left.remove(landed)
            filled.used.append(landed)
        else:
            found = _anywhere(session, view, task, chain)
            if isinstance(found, Verdict):
                failed.add(view)
                if filled.first is None:
                    filled.first = found
                continue
            if found is None:
                failed.add(view)
                if view.ruled:
                    kept.append(task)
                if filled.first is None and explained:
                    filled.first = session.refusal(view, task)
                continue
            landed = found
        row, charge = landed
        statement.take(row, charge, chain, session.resident(task, row))
        filled.placements.append(session.placement(task, row, charge))
        filled.tasks.append(task)
    return kept


def _anywhere(session: Session, view: Feasibility, task: Task, chain: Chain) -> Earmark | Verdict | None:
    ask = view.ask
    if chain:
        verdict = _short(chain, _least_milli(session, ask), ask, task)
        if verdict is not None:
            return verdict
    row = session.pick(view)
    if row < 0:
        return None
    charge = _charge(session, row, ask)
    if not chain or not (ask.charge_depends or (ask.count and by_model(chain))):
        return row, charge
    verdict = _unaffordable(session, chain, row, charge, ask, task)
    if verdict is None:
        return row, charge
    # What the queue pays depends on the device (asked by memory, or limited by model): the best affordable node then.
    for other in view.top(len(view.keys)):
        charge = _charge(session, other, ask)
        if _unaffordable(session, chain, other, charge, ask, task) is None:
            return other, charge
    return verdict


def _unaffordable(session: Session, chain: Chain, row: int, charge: Charge, ask: Ask, task: Task) -> Verdict | None:
    verdict = _short(chain, charge.gpu_milli, ask, task)
    state = session.snapshot.states[row]
    if verdict is not None or state is None or not by_model(chain):
        return verdict
    amounts = state.by_model(charge)
    for line in chain:
        short = line.short_of_model(amounts)
        if short:
            return explain.quota(line, short, (charge.gpu_milli, ask.cpu, ask.mem), task.name)
    return None


def _charge(session: Session, row: int, ask: Ask) -> Charge:
    state = session.snapshot.states[row]
    charge = None if state is None else state.charge(ask, session.choose)
    if charge is None:
        raise AssertionError(f"row {row} was feasible and takes no task")
    return charge


def _short(chain: Chain, milli: int, ask: Ask, task: Task) -> Verdict | None:
    for line in chain:
        short = line.short_of(milli, ask.cpu, ask.mem)
        if short:
            return explain.quota(line, short, (milli, ask.cpu, ask.mem), task.name)
    return None


def _least_milli(session: Session, ask: Ask) -> int:
    if not ask.charge_depends:
        return ask.gpu_milli
    largest = int(session.snapshot.columns().dev_mib.max(initial=0))
    return ask.count * (ask.mib * WHOLE // largest) if largest else 0


def _on_earmark(
    session: Session, view: Feasibility, candidates: list[Earmark], left: list[Earmark], chain: Chain
) -> Earmark | None:
    """An earmark that is exactly what the task asks for, on a node that still passes every filter. `candidates` are
    used up, from the end; those that others took meanwhile are no longer `left`."""
    ask = view.ask
    while candidates:
        earmark = candidates.pop()
        row, charge = earmark
        state = session.snapshot.states[row]
        if (
            earmark not in left
            or state is None
            or view.codes[row]
            or not view.admits(row)
            or charge.cpu != ask.cpu
            or charge.mem != ask.mem
            or not state.holds(charge)
        ):
            continue
        if len(charge.gpus) != ask.count:
            continue
        if any((g.milli, g.mib) != ask.grant(state.dev_mib[g.index]) for g in charge.gpus):
            continue
        if ask.models and any(state.models[g.index] not in ask.models for g in charge.gpus):
            continue
        if any(
            line.short_of(charge.gpu_milli, charge.cpu, charge.mem)
            or (line.limit_models and line.short_of_model(state.by_model(charge)))
            for line in chain
        ):
            continue
        return earmark
    return None
