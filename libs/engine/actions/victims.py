"""Whom to evict on one node so that a task fits there: the least of what running pods lose.

Units are what leaves together: a single pod, or a whole gang where taking one more member would leave it below its
minimum. A unit can only be taken if all of it may be: ours, of lower priority, not leaving already.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from libs.engine.api import RunningTask
from libs.engine.ask import Ask
from libs.engine.devices import NodeState
from libs.engine.running import RunningBook

#: (highest priority taken, victims, guarded ones, longest run as minus its start, node): less is better.
Cost = tuple[int, int, int, float, str]


@dataclass(frozen=True, slots=True)
class Choice:
    node: str
    units: tuple[tuple[RunningTask, ...], ...]
    cost: Cost


def units_on(running: RunningBook, node: str, below: int) -> list[tuple[RunningTask, ...]]:
    """What may be taken on the node, cheapest first: lower priority, unguarded, younger, then by uid."""
    pods = [t for t in running.by_node.get(node, {}).values() if t.ours and t.priority < below and running.stays(t)]
    pods.sort(key=_preference)
    units: list[tuple[RunningTask, ...]] = []
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


def choose_on(running: RunningBook, state: NodeState, ask: Ask, below: int) -> Choice | None:
    """The cheapest set found on this node, or None. No unit of the set can be left out."""
    units = units_on(running, state.name, below)
    if not units:
        return None
    best: Choice | None = None
    by_size = sorted(units, key=lambda u: (max(t.priority for t in u), len(u), -_size(u, state.name)))
    for ordered in (units, by_size):
        found = _enough(state, ask, ordered)
        if found is None:
            return None  # the order does not matter to that
        choice = Choice(state.name, tuple(found), _cost(found, state.name))
        if best is None or choice.cost < best.cost:
            best = choice
    return best


def _size(unit: tuple[RunningTask, ...], node: str) -> int:
    return sum(t.charge.gpu_milli * 1_000_000 + t.charge.cpu + t.charge.mem for t in unit if t.node == node)


def _enough(state: NodeState, ask: Ask, units: list[tuple[RunningTask, ...]]) -> list[tuple[RunningTask, ...]] | None:
    scratch = state.copy()
    taken: list[tuple[RunningTask, ...]] = []
    for unit in units:
        _move(scratch, unit, give=True)
        taken.append(unit)
        if scratch.tight(ask) >= 0:
            break
    else:
        return None
    for unit in reversed(taken[:-1]):  # the last one is needed: without it the task did not fit
        _move(scratch, unit, give=False)
        if scratch.tight(ask) >= 0:
            taken.remove(unit)
        else:
            _move(scratch, unit, give=True)
    return taken


def _move(scratch: NodeState, unit: Iterable[RunningTask], give: bool) -> None:
    for task in unit:
        if task.node == scratch.name:
            if give:
                scratch.give(task.charge)
            else:
                scratch.take(task.charge)


def _cost(units: list[tuple[RunningTask, ...]], node: str) -> Cost:
    victims = {t.uid: t for unit in units for t in unit}.values()
    return (
        max(t.priority for t in victims),
        len(victims),
        sum(t.guarded for t in victims),
        -min(t.started for t in victims),
        node,
    )
