"""Which units must leave one node so that a task fits there: the fewest, and of these what loses least work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from math import comb
from typing import Final, NamedTuple

from libs.engine.api import RunningTask
from libs.engine.ask import Ask
from libs.engine.consolidate.movers import Movers, Unit
from libs.engine.devices import NodeState

#: Sets of units that are tried on one node, beyond the obvious ones.
TRIED: Final = 300
#: Of sets that turn out to move another number of tasks, so many are looked at for each that may be tried.
LOOKED: Final = 16


class Cost(NamedTuple):
    """Less is better."""

    moves: int
    lost: float
    milli: int
    name: str


class Choice(NamedTuple):
    """`exact`: no fewer moves do, as far as room goes."""

    cost: Cost
    units: tuple[Unit, ...]
    exact: bool = True


def pods_of(units: Iterable[Unit]) -> dict[str, RunningTask]:
    return {pod.uid: pod for unit in units for pod in unit}


def enough(state: NodeState, ask: Ask, units: Iterable[Unit]) -> bool:
    """Whether the task fits, as far as room goes, once these have left."""
    bare = state.copy()
    for pod in pods_of(units).values():
        if pod.node == state.name:
            bare.give(pod.charge)
    return bare.tight(ask) >= 0


def choose(state: NodeState, ask: Ask, movers: Movers) -> Choice | None:
    units = movers.units_on(state.name)
    if not units or not enough(state, ask, units):
        return None
    least = _least(state, ask, units)
    best: list[Unit] = []
    for ordered in _orders(state, ask, units, movers):
        found_ = _thinned(state, ask, ordered, movers)
        if not best or cost_of(found_, state.name, movers) < cost_of(best, state.name, movers):
            best = found_
        if len(pods_of(best)) <= least:
            break
    size = len(pods_of(best))
    exact = True
    for fewer in range(least, size):
        exact = exact and sum(comb(len(units), count) for count in range(1, fewer + 1)) <= TRIED
        found = next(sets(state, ask, units, fewer, TRIED), None)
        if found is not None:
            best = list(found)
            break
    best = _cheaper(state, ask, best, units, movers)
    return Choice(cost_of(best, state.name, movers), tuple(best), exact)


def sets(state: NodeState, ask: Ask, units: Sequence[Unit], moves: int, tried: int) -> Iterator[tuple[Unit, ...]]:
    """Sets of units that move exactly so many tasks, suffice, and of which none can stay; at most `tried` are tried,
    and not many more are looked at."""
    sizes = sorted(map(len, units), reverse=True)
    # What a set would leave idle in all, at most; where that is too little no copy of the node is needed to know.
    gives = [sum(pod.charge.gpu_milli for pod in unit if pod.node == state.name) for unit in units]
    lacks = 0 if ask.charge_depends else ask.gpu_milli - sum(state.milli)
    looked = LOOKED * tried
    for count in range(1, moves + 1):
        if sum(sizes[:count]) < moves:
            continue  # of single tasks so many are too few
        for chosen in combinations(range(len(units)), count):
            if tried <= 0 or looked <= 0:
                return
            looked -= 1
            some = tuple(units[n] for n in chosen)
            if len(pods_of(some)) != moves:
                continue
            tried -= 1
            if sum(gives[n] for n in chosen) < lacks:
                continue
            if enough(state, ask, some) and not any(
                enough(state, ask, [u for u in some if u is not unit]) for unit in some if count > 1
            ):
                yield some


def cost_of(units: Iterable[Unit], name: str, movers: Movers) -> Cost:
    pods = pods_of(units).values()
    return Cost(len(pods), sum(map(movers.lost, pods)), sum(p.charge.gpu_milli for p in pods), name)


def _orders(state: NodeState, ask: Ask, units: list[Unit], movers: Movers) -> Iterator[list[Unit]]:
    def frees(unit: Unit) -> tuple[int, int, int]:
        here = [p.charge for p in unit if p.node == state.name]
        return sum(c.gpu_milli for c in here), sum(c.cpu for c in here), sum(c.mem for c in here)

    largest = sorted(units, key=lambda u: (len(u), *(-x for x in frees(u)), sum(map(movers.lost, u)), u[0].uid))
    yield largest
    if ask.count:
        yield _by_device(state, largest)
    yield sorted(units, key=lambda u: (len(u), -frees(u)[1], sum(map(movers.lost, u)), u[0].uid))


def _by_device(state: NodeState, units: list[Unit]) -> list[Unit]:
    """Devices that few hold are cleared first."""
    on: dict[int, list[Unit]] = {}
    for unit in units:
        for index in {g.index for pod in unit if pod.node == state.name for g in pod.charge.gpus}:
            on.setdefault(index, []).append(unit)
    ordered: list[Unit] = []
    for index in sorted(on, key=lambda i: (sum(map(len, on[i])), i)):
        ordered += [unit for unit in on[index] if unit not in ordered]
    return ordered + [unit for unit in units if unit not in ordered]


def _thinned(state: NodeState, ask: Ask, ordered: list[Unit], movers: Movers) -> list[Unit]:
    """The shortest beginning that suffices, without those that can stay."""
    taken: list[Unit] = []
    for unit in ordered:
        taken.append(unit)
        if enough(state, ask, taken):
            break
    for unit in sorted(taken, key=lambda u: (-len(u), -sum(map(movers.lost, u)), u[0].uid)):
        rest = [other for other in taken if other is not unit]
        if enough(state, ask, rest):
            taken = rest
    return taken


def _least(state: NodeState, ask: Ask, units: list[Unit]) -> int:
    """No fewer moves can do: a bound by whole devices where whole devices are asked for."""
    if not ask.count or ask.share:
        return 1
    missing = ask.count - state.idle
    for count, gain in enumerate(
        sorted((sum(len(p.charge.gpus) for p in unit if p.node == state.name) for unit in units), reverse=True), 1
    ):
        missing -= gain
        if missing <= 0:
            return count
    return 1


def _cheaper(state: NodeState, ask: Ask, taken: list[Unit], units: list[Unit], movers: Movers) -> list[Unit]:
    """The same number of moves with less work lost: one unit for another, as long as that helps."""

    def loses(unit: Unit) -> tuple[float, int, str]:
        return sum(map(movers.lost, unit)), sum(p.charge.gpu_milli for p in unit), unit[0].uid

    for unit in sorted(taken, key=loses, reverse=True):
        for other in sorted(units, key=loses):
            if loses(other) >= loses(unit):
                break
            if len(other) != len(unit) or other in taken:
                continue
            swapped = [other if one is unit else one for one in taken]
            if len(pods_of(swapped)) == len(pods_of(taken)) and enough(state, ask, swapped):
                taken = swapped
                break
    return taken
