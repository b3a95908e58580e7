"""Clear the nodes that cost least, then place elsewhere what was cleared.

The nodes for the job's tasks are chosen one after the other, each the cheapest as things then stand. All the moved
tasks are placed afterwards, the largest first, so that none lands on a node that is to be cleared. Where one of them
fits nowhere, the node that it came from is left alone and everything starts anew; where that leads nowhere, room is
made for the moved task in the same way as for the job.
"""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np

from libs.domain.jobs import Task
from libs.engine.api import RunningTask
from libs.engine.consolidate.board import Board, Exhausted, Landing, Place, Solution, largest_first
from libs.engine.consolidate.choice import Choice, Cost, choose
from libs.engine.consolidate.movers import Unit
from libs.engine.feasible import Feasibility

#: Nodes that are looked at for one class of tasks: those with most idle GPUs.
LOOKED_AT: Final = 1_024
#: Starts anew, at most.
STARTS: Final = 24
_ANY: Final = Cost(0, 0.0, 0, "")

Banned = set[tuple[Feasibility, int]]


def cleared(board: Board) -> tuple[Solution | None, int]:
    """A plan or None, and a number of moves that no plan can do without. Nothing is left on the board."""
    banned: Banned = set()
    known: dict[tuple[Feasibility, int], Choice | None] = {}
    bound = 0
    for start in range(STARTS):
        attempt = _Attempt(board, banned, known, chained=False)
        try:
            found = attempt.run()
        except Exhausted:
            board.back()
            break
        board.back()
        if not start:
            bound = attempt.bound
        if isinstance(found, Solution):
            return found, bound
        if found is None or found in banned:
            break
        banned.add(found)
    attempt = _Attempt(board, set(), known, chained=True)
    try:
        found = attempt.run()
    finally:
        board.back()
    return (found if isinstance(found, Solution) else None), bound


class _Attempt:
    def __init__(
        self,
        board: Board,
        banned: Banned,
        known: dict[tuple[Feasibility, int], Choice | None],
        *,
        chained: bool,
    ) -> None:
        self._board = board
        self._banned = banned
        self._known = known
        self._chained = chained
        self._heaps: dict[Feasibility, _Heap] = {}
        self._touched: set[int] = set()
        self._found = Solution()
        self._pending: list[RunningTask] = []
        #: The class of tasks and the node that a pod had to leave for.
        self._cleared_for: dict[str, tuple[Feasibility, int]] = {}
        self._exact = True
        self.bound = 0

    def run(self) -> Solution | tuple[Feasibility, int] | None:
        """A plan; or the node that should not have been cleared; or None where there is no way."""
        board = self._board
        for task in board.tasks:
            board.work.spend()
            view = board.view(task)
            row = view.best()
            if row < 0:
                row = self._clear(task)
                if row < 0:
                    return None
                self.bound = self.bound or (len(self._pending) if self._exact else 1)
            charge = board.seat(task, row)
            if charge is None:
                return None
            self._found.placed.append(Place(task, row, charge))
            self._touch(row)
        if len(board.tasks) > 1:
            self.bound = min(self.bound, 1)  # the cheapest nodes one after the other: no bound for all together
        pending = self._pending
        while pending:
            self._pending = []
            for pod in largest_first(pending):
                blamed = self._land(pod)
                if blamed is not None:
                    return blamed
            pending = self._pending
        return self._found

    def _land(self, pod: RunningTask) -> tuple[Feasibility, int] | None:
        board = self._board
        board.work.spend()
        task = board.movers.as_task(pod)
        view = board.view(task)
        row = view.best()
        if row < 0 and self._chained:
            row = self._clear(task)
        charge = board.land(pod, row) if row >= 0 else None
        if charge is None:
            return self._cleared_for[pod.uid]
        self._found.landed.append(Landing(pod, row, charge))
        self._touch(row)
        return None

    # -- clearing -----------------------------------------------------------------------------------------------------
    def _clear(self, task: Task) -> int:
        """Make room for one task on the cheapest node; its row, or -1."""
        board = self._board
        view = board.view(task)
        heap = self._heaps.get(view)
        if heap is None:
            heap = self._heaps[view] = self._entries(view)
        while (top := heap.pop()) is not None:
            cost, row = top
            choice = self._choice(view, row)
            if choice is None:
                continue
            if choice.cost > cost:
                heap.push(choice.cost, row)
                continue
            mark = board.mark()
            for unit in choice.units:
                board.evict(unit)
            if not board.view(task).fits(row):
                board.back(mark)  # a rule beyond room keeps it away
                continue
            for unit in choice.units:
                self._left(unit, view, row)
            self._touch(row)  # it may take another
            return row
        return -1

    def _left(self, unit: Unit, view: Feasibility, row: int) -> None:
        running, rows = self._board.session.running, self._board.session.snapshot.rows
        self._found.units.append(unit)
        for pod in unit:
            self._pending.append(pod)
            self._cleared_for[pod.uid] = (view, row)
            # The rest of its gang has less to spare now, or none left on nodes elsewhere.
            others = running.by_job.get(pod.job, {}).values() if pod.gang_min > 1 else ()
            for name in {pod.node, *(other.node for other in others)}:
                there = rows.get(name)
                if there is not None:
                    self._touch(there)

    def _touch(self, row: int) -> None:
        """What is known of the row is out of date; it may have become cheaper."""
        self._touched.add(row)
        for heap in self._heaps.values():
            heap.push(_ANY, row)

    def _entries(self, view: Feasibility) -> _Heap:
        session = self._board.session
        snapshot = session.snapshot
        names = session.running.floors()
        rows = [row for name in names if (row := snapshot.rows.get(name)) is not None and not view.codes[row]]
        if len(rows) > LOOKED_AT:
            idle = snapshot.columns().idle[np.asarray(rows)].tolist()
            ranked = sorted(zip(rows, idle, strict=True), key=lambda pair: (-pair[1], int(snapshot.rank[pair[0]])))
            rows = [row for row, _ in ranked[:LOOKED_AT]]
        heap = _Heap()
        for row in rows:
            choice = self._choice(view, row)
            if choice is not None:
                heap.push(choice.cost, row)
        return heap

    def _choice(self, view: Feasibility, row: int) -> Choice | None:
        key = (view, row)
        if key in self._banned:
            return None
        fresh = row not in self._touched
        if fresh and key in self._known:
            choice = self._known[key]
        else:
            state = self._board.session.snapshot.states[row]
            self._board.work.spend()
            shut = state is None or (view.ask.count and state.shut)
            choice = None if state is None or shut else choose(state, view.ask, self._board.movers)
            if fresh:
                self._known[key] = choice
        self._exact = self._exact and (choice is None or choice.exact)
        return choice


class _Heap:
    """Rows by cost; a row's last cost counts."""

    def __init__(self) -> None:
        self._heap: list[tuple[Cost, int]] = []
        self._costs: dict[int, Cost] = {}

    def push(self, cost: Cost, row: int) -> None:
        self._costs[row] = cost
        heapq.heappush(self._heap, (cost, row))

    def pop(self) -> tuple[Cost, int] | None:
        while self._heap:
            cost, row = heapq.heappop(self._heap)
            if self._costs.get(row) == cost:
                del self._costs[row]
                return cost, row
        return None
