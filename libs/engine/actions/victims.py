"""What leaves together, what that costs, and whom to evict on one node so that a task fits there.

Units are what leaves together: a single pod, one task of an elastic job above its minimum, or a whole gang where one
more member would leave it below its minimum. A unit can only be taken if all of it may be. The cost of a unit is what
its job loses: nothing but its speed where the minimum stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from libs.domain.saving import unsaved
from libs.engine.actions.rights import Tally
from libs.engine.api import RunningTask
from libs.engine.devices import NodeState
from libs.engine.feasible import Feasibility
from libs.engine.queues import Chain, by_model
from libs.engine.rules.book import Book, Resident
from libs.engine.running import RunningBook

#: Whether one pod may be taken.
May = Callable[[RunningTask], bool]


class Cost(NamedTuple):
    """Of several units together; less is better, field by field. `priority`: the highest that is taken, where that
    comes first. `lost`: milli GPU seconds since the last checkpoints. `jobs`: how many end. `cpu`: lost milli CPU
    seconds. `highest`: the highest priority that is taken, whatever comes first. `guarded`: by disruption budgets.
    `longest`: minus the earliest start."""

    priority: int
    lost: int
    jobs: int
    pods: int
    cpu: int
    highest: int
    guarded: int
    longest: float
    last: str


class Unit(NamedTuple):
    tasks: tuple[RunningTask, ...]
    #: The job ends with it.
    ends: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """Units that make room for one task on `node`."""

    node: str
    units: tuple[Unit, ...]
    cost: Cost


@dataclass(frozen=True, slots=True)
class Appraiser:
    """What units cost. `now`: seconds since the epoch, 0 where nobody knows, and then no work counts as lost.
    `by_size`: all lose about as much, so what counts is how much room they hold."""

    now: float
    priority_first: bool
    by_size: bool = False

    def cost(self, units: Sequence[Unit], last: str = "") -> Cost:
        # Units may overlap: a worker above its gang's minimum, and the whole gang.
        ending = {t.uid for unit in units if unit.ends for t in unit.tasks}
        victims = {t.uid: t for unit in units for t in unit.tasks}
        ended = [victims[uid] for uid in ending]
        top = max(t.priority for t in victims.values())
        return Cost(
            top if self.priority_first else 0,
            sum(t.charge.gpu_milli * self.seconds(t) for t in ended),
            len({t.job or t.uid for t in ended}),
            len(victims),
            sum(t.charge.cpu * self.seconds(t) for t in ended),
            top,
            sum(t.guarded for t in victims.values()),
            -min(t.started for t in victims.values()),
            last or min(victims),
        )

    def seconds(self, task: RunningTask) -> int:
        """Work that is lost with the pod, by the clock: what it did since its last checkpoint."""
        if self.by_size:
            return 1
        return int(unsaved(self.now, task.started, task.saved, task.checkpoint_s)) if self.now else 0

    def least(self, task: RunningTask, ends: bool) -> Cost:
        """What a unit with this pod costs at least."""
        lost = task.charge.gpu_milli * self.seconds(task) if ends else 0
        first = task.priority if self.priority_first else 0
        return Cost(first, lost, int(ends), 1, 0, task.priority, 0, float("-inf"), "")


#: Of a job whose key says that the pod stands alone, no task is above a minimum.
_ALONE: Final = "pod/"
_OBJECT: Final = "job/"


def elastic(task: RunningTask) -> bool:
    """Whether the pod is of a job that may run with fewer tasks than it has."""
    return task.gang_min > 1 or task.job.startswith(_OBJECT)


def units_on(running: RunningBook, node: str, may: May, appraiser: Appraiser, surplus_only: bool = False) -> list[Unit]:
    """What may be taken on the node, cheapest first."""
    pods = [t for t in running.by_node.get(node, {}).values() if may(t)]
    pods.sort(key=_preference)
    units: list[tuple[Cost, Unit]] = []
    taken: dict[str, int] = {}
    whole: set[str] = set()
    for pod in pods:
        if not pod.job or not elastic(pod):
            if not surplus_only:
                unit = Unit((pod,), True)
                units.append((appraiser.cost((unit,)), unit))
            continue
        if pod.job in whole:
            continue
        members = [t for t in running.by_job[pod.job].values() if running.stays(t)]
        if len(members) - taken.get(pod.job, 0) > pod.gang_min:
            taken[pod.job] = taken.get(pod.job, 0) + 1
            unit = Unit((pod,), False)
            units.append((appraiser.cost((unit,)), unit))
            continue
        whole.add(pod.job)
        # What is a whole gang as far as it is seen may be the part above the minimum of one that is just starting.
        if not surplus_only and not running.settles_at(pod.job) and all(map(may, members)):
            unit = Unit(tuple(sorted(members, key=_preference)), True)
            units.append((appraiser.cost((unit,)), unit))
    units.sort(key=_by_cost)
    return [unit for _, unit in units]


def _by_cost(priced: tuple[Cost, Unit]) -> Cost:
    return priced[0]


def _preference(task: RunningTask) -> tuple[int, bool, float, str]:
    return task.priority, task.guarded, -task.started, task.uid


class Finder:
    """Whom to evict on a node for tasks of one class."""

    def __init__(
        self,
        running: RunningBook,
        view: Feasibility,
        chain: Chain,
        book: Book,
        may: May,
        appraiser: Appraiser,
        surplus_only: bool = False,
        single: bool = False,
    ) -> None:
        self.running = running
        self.view = view
        self.chain = chain
        self.book = book
        self.may = may
        self.appraiser = appraiser
        self.surplus_only = surplus_only
        self.single = single

    def on(self, state: NodeState, tally: Tally) -> Choice | None:
        """The cheapest set found on this node, or None. No unit of the set can be left out."""
        units = units_on(self.running, state.name, self.may, self.appraiser, self.surplus_only)
        if not units:
            return None
        if self.single:
            return self._one(state, units, tally)
        best: Choice | None = None
        orders = [units]
        if len(units) > 1:
            orders.append(sorted(units, key=lambda u: (self._top(u), len(u.tasks), -_size(u, state.name))))
        for ordered in orders:
            found = self._enough(state, ordered, tally)
            if found is None:
                continue
            choice = Choice(state.name, tuple(found), self.appraiser.cost(found, state.name))
            if best is None or choice.cost < best.cost:
                best = choice
        return best

    def _one(self, state: NodeState, units: list[Unit], tally: Tally) -> Choice | None:
        """The cheapest unit that is enough alone."""
        trial = _Trial(state, self.view, self.chain, self.book)
        try:
            for unit in units:
                if tally.allows([unit.tasks]):
                    trial.take(unit.tasks)
                    if trial.fits():
                        return Choice(state.name, (unit,), self.appraiser.cost((unit,), state.name))
                    trial.spare(unit.tasks)
            return None
        finally:
            trial.end()

    def _top(self, unit: Unit) -> int:
        return max(t.priority for t in unit.tasks) if self.appraiser.priority_first else 0

    def _enough(self, state: NodeState, units: list[Unit], tally: Tally) -> list[Unit] | None:
        trial = _Trial(state, self.view, self.chain, self.book)
        taken: list[Unit] = []
        try:
            for unit in units:
                if not tally.allows([u.tasks for u in (*taken, unit)]):
                    continue
                trial.take(unit.tasks)
                taken.append(unit)
                if trial.fits():
                    break
            else:
                return None
            for unit in _dearest_first(taken[:-1]):  # the last one is needed: without it the task did not fit
                trial.spare(unit.tasks)
                if trial.fits():
                    taken.remove(unit)
                else:
                    trial.take(unit.tasks)
            return taken
        finally:
            trial.end()


def _dearest_first(units: list[Unit]) -> list[Unit]:
    return units[::-1]


def _size(unit: Unit, node: str) -> int:
    return sum(t.charge.gpu_milli * 1_000_000 + t.charge.cpu + t.charge.mem for t in unit.tasks if t.node == node)


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
        #: The same by model, of pods on this node, where a queue has limits by model.
        self._back_models: list[dict[str, int]] | None = [{} for _ in chain] if by_model(chain) else None
        self._gone: dict[str, int] = {}

    def take(self, unit: Sequence[RunningTask]) -> None:
        for task in unit:
            times = self._gone[task.uid] = self._gone.get(task.uid, 0) + 1
            if times == 1:
                self._move(task, 1)

    def spare(self, unit: Sequence[RunningTask]) -> None:
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
        if charge is None or any(
            line.short_of(charge.gpu_milli, charge.cpu, charge.mem, *back)
            for line, back in zip(self._chain, self._back, strict=True)
        ):
            return False
        if self._back_models is None:
            return True
        amounts = self._node.by_model(charge)
        return not any(
            line.short_of_model({model: milli - back.get(model, 0) for model, milli in amounts.items()})
            for line, back in zip(self._chain, self._back_models, strict=True)
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
        if self._back_models is not None and task.node == self._node.name:
            for line, models in zip(self._chain, self._back_models, strict=True):
                if line.covers(task.queue):
                    for model, milli in self._node.by_model(charge).items():
                        models[model] = models.get(model, 0) + sign * milli
