"""How many tasks of a class each node would take as it is now, before any is placed: an upper bound, exact for alike
tasks without rules between pods (on nodes whose devices are alike where several shares are asked for)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from libs.domain.jobs import Task
from libs.domain.resources import WHOLE
from libs.engine.columns import Columns, Ints
from libs.engine.feasible import Feasibility
from libs.engine.filters import eligible
from libs.engine.rules.feasible import HOST
from libs.engine.rules.match import selects
from libs.engine.session import Session
from libs.engine.topology.domains import Partition, Region

_MANY: Final = np.int64(1 << 20)


@dataclass(slots=True)
class Demand:
    """What some tasks ask for, class by class: how many of each, and how many of it each row takes now."""

    total: int
    classes: list[tuple[int, Ints]]
    milli: int
    cpu: int
    mem: int

    def takes(self, columns: Columns, partition: Partition, within: Region) -> Ints:
        """An upper bound of how many of the tasks each domain takes now."""
        taken = np.zeros(len(partition), np.int64)
        for count, slots in self.classes:
            taken += np.minimum(partition.sums(slots, within), count)
        if len(self.classes) > 1:
            # Different tasks side by side: what all ask for in sum.
            for asked, free in ((self.milli, columns.gpu_free), (self.cpu, columns.cpu), (self.mem, columns.mem)):
                if asked:
                    short = partition.sums(np.maximum(free, 0), within) < asked
                    taken = np.where(short, np.minimum(taken, self.total - 1), taken)
        return taken


def demand_of(session: Session, tasks: Iterable[Task]) -> Demand:
    """Tasks that are not confined."""
    tasks = list(tasks)
    views: Counter[Feasibility] = Counter(session.feasible(task) for task in tasks)
    requests = [task.request for task in tasks]
    return Demand(
        len(tasks),
        [(count, slots_now(session, view)) for view, count in views.items()],
        sum(r.gpu_milli for r in requests),
        sum(r.cpu for r in requests),
        sum(r.mem for r in requests),
    )


def slots_now(session: Session, view: Feasibility) -> Ints:
    snapshot, ask = session.snapshot, view.ask
    columns = snapshot.columns()
    slots = np.minimum(np.maximum(columns.pods, 0), _MANY)
    if ask.cpu:
        slots = np.minimum(slots, np.maximum(columns.cpu, 0) // ask.cpu)
    if ask.mem:
        slots = np.minimum(slots, np.maximum(columns.mem, 0) // ask.mem)
    for name, amount in ask.extra:
        free = [
            0 if state is None else max(state.node.extra.get(name, 0) - session.book.extra_used(state.name, name), 0)
            for state in snapshot.states
        ]
        slots[: len(free)] = np.minimum(slots[: len(free)], np.asarray(free, np.int64) // amount)
    if ask.count:
        slots = np.where(columns.shut, 0, np.minimum(slots, _by_devices(session, view, columns)))
    rules = ask.rules
    if rules is not None and (rules.ports or _apart(view)):
        slots = np.minimum(slots, 1)
    # Company that affinity or spreading asks for may come with the first tasks; all else is as it is.
    waits = rules is not None and bool(rules.affinity or rules.spread)
    found: Ints = np.where((view.keys if waits else view.now()) >= 0, slots, 0)
    return found


def _apart(view: Feasibility) -> bool:
    """Whether likes keep each other off a node."""
    rules, scope = view.ask.rules, view.ask.scope
    if rules is None or scope is None:
        return False
    labels = dict(scope.labels)
    return any(
        term.topology == HOST and scope.namespace in term.namespaces and selects(term.selector, labels)
        for term in rules.anti_affinity
    )


def _by_devices(session: Session, view: Feasibility, columns: Columns) -> Ints:
    snapshot, ask = session.snapshot, view.ask
    if not ask.share:
        if not ask.models:
            return columns.idle // ask.count
        idle = columns.usable & (columns.milli == WHOLE) & (columns.mib == columns.dev_mib)
        whole: Ints = (idle & eligible(snapshot, columns, ask)).sum(axis=1) // ask.count
        return whole
    size = columns.dev_mib
    if ask.milli:
        milli = np.full_like(size, ask.milli)
        mib = ask.milli * size // WHOLE
    else:
        milli = np.where(size > 0, ask.mib * WHOLE // np.maximum(size, 1), WHOLE)
        mib = np.full_like(size, ask.mib)
    by_milli = np.where(milli > 0, np.maximum(columns.milli, 0) // np.maximum(milli, 1), _MANY)
    by_mib = np.where(mib > 0, np.maximum(columns.mib, 0) // np.maximum(mib, 1), _MANY)
    fits = columns.usable & eligible(snapshot, columns, ask)
    per_device = np.where(fits, np.minimum(by_milli, by_mib), 0)
    enough = (per_device > 0).sum(axis=1) >= ask.count
    total: Ints = np.where(enough, np.minimum(per_device.sum(axis=1) // ask.count, _MANY), 0)
    return total
