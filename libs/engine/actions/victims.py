"""Whom to evict on one node so that a task fits there: the least of what running pods lose.

Units are what leaves together: a single pod, or a whole gang where taking one more member would leave it below its
minimum. A unit can only be taken if all of it may be: ours, of lower priority, not leaving already.
"""

from __future__ import annotations

from dataclasses import dataclass

from libs.engine.api import RunningTask
from libs.engine.devices import NodeState
from libs.engine.feasible import Feasibility
from libs.engine.queues import Chain
from libs.engine.rules.book import Book, Resident
from libs.engine.running import RunningBook

Unit = tuple[RunningTask, ...]
#: (highest priority taken, victims, guarded ones, longest run as minus its start, node): less is better.
Cost = tuple[int, int, int, float, str]


@dataclass(frozen=True, slots=True)
class Choice:
    node: str
    units: tuple[Unit, ...]
    cost: Cost


def units_on(running: RunningBook, node: str, below: int) -> list[Unit]:
    """What may be taken on the node, cheapest first: lower priority, unguarded, younger, then by uid."""
    pods = [t for t in running.by_node.get(node, {}).values() if t.ours and t.priority < below and running.stays(t)]
    pods.sort(key=_preference)
    units: list[Unit] = []
    taken: dict[str, int] = {}
    whole: set[str] = set()
    for pod in pods:
        if pod.gang_min <= 1 or not pod.job:
            units.append((pod,))
            continue
        if pod.job in whole:
            continue
        members = [t for t in running.by_job[pod.job].values() if running.stays(t)]
        if len(members) - taken.get(pod.job, 0) > pod.gang_min:
            taken[pod.job] = taken.get(pod.job, 0) + 1
            units.append((pod,))
            continue
        whole.add(pod.job)
        if all(t.ours and t.priority < below for t in members):
            units.append(tuple(sorted(members, key=_preference)))
    return units


def _preference(task: RunningTask) -> tuple[int, bool, float, str]:
    return task.priority, task.guarded, -task.started, task.uid


def choose_on(
    running: RunningBook, state: NodeState, view: Feasibility, below: int, chain: Chain, book: Book
) -> Choice | None:
    """The cheapest set found on this node, or None. No unit of the set can be left out."""
    units = units_on(running, state.name, below)
    if not units:
        return None
    best: Choice | None = None
    by_size = sorted(units, key=lambda u: (max(t.priority for t in u), len(u), -_size(u, state.name)))
    for ordered in (units, by_size):
        found = _enough(state, view, ordered, chain, book)
        if found is None:
            return None  # the order does not matter to that
        choice = Choice(state.name, tuple(found), _cost(found, state.name))
        if best is None or choice.cost < best.cost:
            best = choice
    return best


def _size(unit: Unit, node: str) -> int:
    return sum(t.charge.gpu_milli * 1_000_000 + t.charge.cpu + t.charge.mem for t in unit if t.node == node)


def _enough(state: NodeState, view: Feasibility, units: list[Unit], chain: Chain, book: Book) -> list[Unit] | None:
    trial = _Trial(state, view, chain, book)
    taken: list[Unit] = []
    try:
        for unit in units:
            trial.take(unit)
            taken.append(unit)
            if trial.fits():
                break
        else:
            return None
        for unit in reversed(taken[:-1]):  # the last one is needed: without it the task did not fit
            trial.spare(unit)
            if trial.fits():
                taken.remove(unit)
            else:
                trial.take(unit)
        return taken
    finally:
        trial.end()


class _Trial:
    """A copy of the node without some of its pods, and what their queues get back. Units may overlap (a worker above
    its gang's minimum, and the whole gang): a pod is gone as long as one unit with it is."""

    def __init__(self, state: NodeState, view: Feasibility, chain: Chain, book: Book) -> None:
        self._node = state.copy()
        self._ask = view.ask
        self._view = view
        #: Pods that rules of this task no longer see, to be put back; None where the task has no such rules.
        self._hidden: dict[str, Resident] | None = {} if view.ruled else None
        self._book = book
        self._chain = chain
        self._back = [[0, 0, 0] for _ in chain]
        self._gone: dict[str, int] = {}

    def take(self, unit: Unit) -> None:
        for task in unit:
            times = self._gone[task.uid] = self._gone.get(task.uid, 0) + 1
            if times == 1:
                self._move(task, 1)

    def spare(self, unit: Unit) -> None:
        for task in unit:
            self._gone[task.uid] -= 1
            if not self._gone[task.uid]:
                self._move(task, -1)

    def fits(self) -> bool:
        if self._node.tight(self._ask) < 0:
            return False
        if self._hidden is not None:
            self._view.refresh()
            if not self._view.admits(self._node.row):
                return False
        if not self._chain:
            return True
        charge = self._node.charge(self._ask)
        return charge is not None and not any(
            line.short_of(charge.gpu_milli, charge.cpu, charge.mem, *back)
            for line, back in zip(self._chain, self._back, strict=True)
        )

    def end(self) -> None:
        """Rules see again what is there."""
        for pod in (self._hidden or {}).values():
            self._book.seen(pod)

    def _move(self, task: RunningTask, sign: int) -> None:
        charge = task.charge
        if self._hidden is not None:
            if sign > 0:
                pod = self._book.gone(task.uid)
                if pod is not None:
                    self._hidden[task.uid] = pod
            elif task.uid in self._hidden:
                self._book.seen(self._hidden.pop(task.uid))
        if task.node == self._node.name:
            if sign > 0:
                self._node.give(charge)
            else:
                self._node.take(charge)
        for line, back in zip(self._chain, self._back, strict=True):
            if line.covers(task.queue):
                back[0] += sign * charge.gpu_milli
                back[1] += sign * charge.cpu
                back[2] += sign * charge.mem


def _cost(units: list[Unit], node: str) -> Cost:
    victims = {t.uid: t for unit in units for t in unit}.values()
    return (
        max(t.priority for t in victims),
        len(victims),
        sum(t.guarded for t in victims),
        -min(t.started for t in victims),
        node,
    )
