"""The board that plans are tried on: one statement on the session, with moves and placements as operations."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import NamedTuple

from libs.domain.jobs import Task
from libs.domain.resources import Charge
from libs.engine.api import RunningTask
from libs.engine.consolidate.movers import Movers, Unit
from libs.engine.feasible import Feasibility
from libs.engine.queues import Chain
from libs.engine.session import Session


class Exhausted(Exception):
    """The work that a plan may take is done."""


class Work:
    """What may be done, in looks at a node or a task. A part of it is bounded by itself and spent by the whole."""

    def __init__(self, most: int, whole: Work | None = None) -> None:
        self.left = most
        self.spent = 0
        self._whole = whole

    def spend(self, amount: int = 1) -> None:
        """Raises Exhausted when nothing is left."""
        self.left -= amount
        self.spent += amount
        if self._whole is not None:
            self._whole.spend(amount)
        if self.left < 0:
            raise Exhausted

    def part(self, most: int) -> Work:
        return Work(min(most, self.left), self)


class Landing(NamedTuple):
    """Where a moved task goes."""

    pod: RunningTask
    row: int
    charge: Charge


class Place(NamedTuple):
    """Where a task of the job goes."""

    task: Task
    row: int
    charge: Charge


@dataclass(slots=True)
class Solution:
    units: list[Unit] = field(default_factory=list)
    placed: list[Place] = field(default_factory=list)
    landed: list[Landing] = field(default_factory=list)

    @property
    def moves(self) -> int:
        return len(self.landed)


class Board:
    def __init__(self, session: Session, movers: Movers, tasks: list[Task], chain: Chain, work: Work) -> None:
        self.session = session
        self.movers = movers
        self.tasks = tasks
        self.chain = chain
        self.work = work
        self.statement = session.statement()

    def view(self, task: Task) -> Feasibility:
        return self.session.feasible(task)

    @functools.cached_property
    def plain(self) -> bool:
        """Whether room, taints and kind of a node are all that matters: no selectors and no rules anywhere."""
        if self.session.book.repelling or self.session.regions is not None:
            return False
        asking = [(t.node_selector, t.rules, t.request.extra) for t in self.tasks]
        pods = self.session.running.by_uid.values()
        asking += [(p.wishes.node_selector, p.wishes.rules, p.wishes.request.extra) for p in pods if p.wishes]
        return not any(selector or rules or extra for selector, rules, extra in asking)

    def evict(self, unit: Unit) -> None:
        for pod in unit:
            self.statement.evict(pod, ())

    def seat(self, task: Task, row: int) -> Charge | None:
        """A task of the job takes its room on the node of a row where it fits; None where its queue forbids that."""
        charge = self._take(task, row, self.chain)
        if charge is not None and any(line.over(charge.gpu_milli, charge.cpu, charge.mem) for line in self.chain):
            self.statement.rollback(self.statement.checkpoint() - 1)
            return None
        return charge

    def land(self, pod: RunningTask, row: int) -> Charge | None:
        """A moved task takes its room. Its queue is charged as before; None where the charge would be a greater one."""
        charge = self._take(self.movers.as_task(pod), row, ())
        if charge is not None and charge.gpu_milli > pod.charge.gpu_milli and self.session.queues.chain(pod.queue):
            self.statement.rollback(self.statement.checkpoint() - 1)
            return None
        return charge

    def _take(self, task: Task, row: int, chain: Chain) -> Charge | None:
        session = self.session
        state = session.snapshot.states[row]
        charge = None if state is None else state.charge(self.view(task).ask, session.choose)
        if charge is not None:
            self.statement.take(row, charge, chain, session.resident(task, row))
        return charge

    def mark(self) -> int:
        return self.statement.checkpoint()

    def back(self, mark: int = 0) -> None:
        self.statement.rollback(mark)


def largest_first(pods: list[RunningTask]) -> list[RunningTask]:
    """The hardest to place first."""
    return sorted(pods, key=lambda p: (-p.charge.gpu_milli, -len(p.charge.gpus), -p.charge.cpu, -p.charge.mem, p.uid))
