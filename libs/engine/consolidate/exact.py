"""All ways to let the job in with a few moves, moves that make room for moves included.

Iterative deepening: with no more than n moves, then n + 1. A task goes where it fits, or where it fits once a set of
tasks of which none can stay has left; these are then placed in the same way. Nodes that are alike in everything that
matters here are tried once. Complete unless the work runs out, but for rules between pods: they are kept in every step,
though moves in another order might do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from libs.domain.jobs import Task
from libs.engine.api import RunningTask
from libs.engine.consolidate.board import Board, Exhausted, Landing, Place, Solution, Work
from libs.engine.consolidate.choice import pods_of, sets
from libs.engine.consolidate.movers import Unit

#: Sets of units that are tried on one node at a time.
TRIED: Final = 1_000
#: Nodes whose looks cost about as much as one look at the units of a node.
_ROWS: Final = 8

#: Go on from a task on a row, with those that left for it and the moves that remain; whether that ends well.
_There = Callable[[int, list[RunningTask], int], bool]


def shorter(board: Board, least: int, most: int, work: Work) -> tuple[Solution | None, bool]:
    """The shortest plan of `least` to `most` moves, and whether none that is shorter was overlooked. Nothing is left on
    the board."""
    search = _Search(board, work)
    try:
        for moves in range(max(least, 0), most + 1):
            if search.run(moves):
                return search.found, True
    except Exhausted:
        return None, False
    finally:
        board.back()
    return None, True


class _Search:
    def __init__(self, board: Board, work: Work) -> None:
        self._board = board
        self._work = work
        self._tokens: dict[str, int] = {}
        self._known: dict[Hashable, int] = {}
        self.found = Solution()

    def run(self, moves: int) -> bool:
        self.found = Solution()
        return self._job(0, [], moves)

    def _job(self, at: int, left: list[RunningTask], moves: int) -> bool:
        """Tasks of the job from the `at`-th on, then those that had to leave."""
        if at == len(self._board.tasks):
            return self._moved(left, moves)
        task = self._board.tasks[at]

        def there(row: int, more: list[RunningTask], budget: int) -> bool:
            mark = self._board.mark()
            charge = self._board.seat(task, row)
            if charge is None:
                return False
            self.found.placed.append(Place(task, row, charge))
            if self._job(at + 1, left + more, budget):
                return True
            self.found.placed.pop()
            self._board.back(mark)
            return False

        return self._somewhere(task, moves, there)

    def _moved(self, left: list[RunningTask], moves: int) -> bool:
        if not left:
            return True
        pod = min(left, key=lambda p: (-p.charge.gpu_milli, -p.charge.cpu, p.uid))
        rest = [other for other in left if other is not pod]

        def there(row: int, more: list[RunningTask], budget: int) -> bool:
            mark = self._board.mark()
            charge = self._board.land(pod, row)
            if charge is None:
                return False
            self.found.landed.append(Landing(pod, row, charge))
            if self._moved(rest + more, budget):
                return True
            self.found.landed.pop()
            self._board.back(mark)
            return False

        return self._somewhere(self._board.movers.as_task(pod), moves, there)

    def _somewhere(self, task: Task, moves: int, there: _There) -> bool:
        board = self._board
        view = board.view(task)
        self._work.spend(1 + len(view.keys) // _ROWS)
        rows = view.top(len(view.keys))
        tried: set[Hashable] = set()
        for row in rows:
            looks = self._looks(row)
            if looks in tried:
                continue
            tried.add(looks)
            self._work.spend()
            if there(row, [], moves):
                return True
        if not moves:
            return False
        self._work.spend(len(view.keys) // _ROWS)
        direct = set(rows)
        for row, state in enumerate(board.session.snapshot.states):
            if state is None or row in direct or view.codes[row] or (view.ask.count and state.shut):
                continue
            looks = self._looks(row)
            if looks in tried:
                continue
            tried.add(looks)
            units = board.movers.units_on(state.name)
            for count in range(1, moves + 1):
                self._work.spend()
                for some in sets(state, view.ask, units, count, TRIED):
                    self._work.spend()
                    if self._with(task, row, some, moves - count, there):
                        return True
        return False

    def _with(self, task: Task, row: int, units: tuple[Unit, ...], moves: int, there: _There) -> bool:
        board = self._board
        mark = board.mark()
        for unit in units:
            board.evict(unit)
        self.found.units.extend(units)
        if board.view(task).fits(row) and there(row, list(pods_of(units).values()), moves):
            return True
        del self.found.units[len(self.found.units) - len(units) :]
        board.back(mark)
        return False

    def _looks(self, row: int) -> Hashable:
        """Equal for nodes between which nothing here makes a difference."""
        board = self._board
        session = board.session
        state = session.snapshot.states[row]
        if state is None or not board.plain:
            return row
        stays, tokens = session.running.stays, self._tokens
        pods = [
            tokens.get(pod.uid) or self._token(pod)
            for pod in session.running.by_node.get(state.name, {}).values()
            if stays(pod)
        ]
        pods.sort()
        return (state.kind, state.cpu, state.mem, state.pods, tuple(state.milli), tuple(state.mib), tuple(state.usable),
                state.node.taints, state.shut, state.node.open, tuple(pods))  # fmt: skip

    def _token(self, pod: RunningTask) -> int:
        """Equal for pods of equal charge and wishes that stand alone."""
        wishes = pod.wishes
        alone = pod.gang_min <= 1 and self._board.movers.may(pod) and wishes is not None
        looks = (pod.charge, wishes.request, wishes.tolerations) if alone and wishes is not None else pod.uid
        token = self._tokens[pod.uid] = self._known.setdefault(looks, len(self._known) + 1)
        return token
