"""Moves that a plan can do without are left out."""

from __future__ import annotations

from typing import Final

from libs.engine.consolidate.board import Board, Landing, Place, Solution, largest_first
from libs.engine.consolidate.choice import pods_of
from libs.engine.consolidate.movers import Unit
from libs.engine.devices import NodeState

#: Up to so many units, everything is placed anew without each of them; beyond, the rest stays where it was planned.
PLACED_ANEW: Final = 12


def pruned(board: Board, plan: Solution) -> Solution:
    """No unit of the result can be left out: with up to PLACED_ANEW units, however the rest is placed by the engine;
    with more, with all else where it is planned."""
    plan = _kept_in_place(board, plan)
    while 0 < len(plan.units) <= PLACED_ANEW:
        for unit in sorted(plan.units, key=lambda u: _weight(board, u), reverse=True):
            rest = _placed_anew(board, [other for other in plan.units if other is not unit])
            if rest is not None:
                plan = rest
                break
        else:
            break
    return plan


def _weight(board: Board, unit: Unit) -> tuple[int, float, str]:
    return len(unit), sum(map(board.movers.lost, unit)), unit[0].uid


def _placed_anew(board: Board, units: list[Unit]) -> Solution | None:
    found = Solution(units=list(units))
    try:
        for unit in units:
            board.evict(unit)
        for task in board.tasks:
            row = board.view(task).best()
            charge = board.seat(task, row) if row >= 0 else None
            if charge is None:
                return None
            found.placed.append(Place(task, row, charge))
        for pod in largest_first(list(pods_of(units).values())):
            row = board.view(board.movers.as_task(pod)).best()
            charge = board.land(pod, row) if row >= 0 else None
            if charge is None:
                return None
            found.landed.append(Landing(pod, row, charge))
        return found
    finally:
        board.back()


def _kept_in_place(board: Board, plan: Solution) -> Solution:
    """Units whose old places are free even with all else in its new place stay. Not where rules could object."""
    if not plan.units or not board.plain:
        return plan
    states = board.session.snapshot.states
    rows = board.session.snapshot.rows
    copies: dict[int, NodeState] = {}

    def at(row: int) -> NodeState | None:
        if row not in copies:
            state = states[row] if row >= 0 else None
            if state is None:
                return None
            copies[row] = state.copy()
        return copies[row]

    for pod in pods_of(plan.units).values():
        state = at(rows.get(pod.node, -1))
        if state is not None:
            state.give(pod.charge)
    for _, row, charge in (*plan.placed, *plan.landed):
        state = at(row)
        if state is not None:
            state.take(charge)
    landed = {landing.pod.uid: landing for landing in plan.landed}
    kept: list[Unit] = []
    for unit in sorted(plan.units, key=lambda u: _weight(board, u), reverse=True):
        moved = [(pod, at(rows.get(pod.node, -1)), at(landed[pod.uid].row)) for pod in unit]
        for pod, _, target in moved:
            if target is not None:
                target.give(landed[pod.uid].charge)
        done = 0
        for pod, source, _ in moved:
            if source is None or not source.holds(pod.charge):
                break
            source.take(pod.charge)
            done += 1
        if done == len(moved):
            for pod in unit:
                del landed[pod.uid]
            continue
        for pod, source, _ in moved[:done]:
            if source is not None:
                source.give(pod.charge)
        for pod, _, target in moved:
            if target is not None:
                target.take(landed[pod.uid].charge)
        kept.append(unit)
    return Solution(kept, plan.placed, [one for one in plan.landed if one.pod.uid in landed])
