"""The cheapest node to make room on, asked again and again."""

from __future__ import annotations

import heapq
from typing import Final

from libs.engine.actions.victims import Choice, Cost, choose_on
from libs.engine.feasible import Feasibility
from libs.engine.queues import Chain
from libs.engine.session import Session

#: Nodes whose victims are worked out before the best of them is taken; more only while none was found.
LOOKED_AT: Final = 256

_Entry = tuple[Cost, int, Choice | None]


class Search:
    """The cheapest node to take for a class of tasks, asked again and again while tasks are placed.

    A node enters with a bound that its true cost cannot be below, is worked out when it comes up, and again when it
    changed since. After LOOKED_AT nodes the best known one is taken without looking further.
    """

    def __init__(self, session: Session, view: Feasibility, priority: int, chain: Chain) -> None:
        self._session = session
        self._view = view
        self._priority = priority
        self._chain = chain
        self._looked = 0
        view.refresh()
        rows = session.snapshot.rows
        self._heap: list[_Entry] = [
            ((floor, 0, 0, 0.0, name), row, None)
            for name, floor in session.running.floors().items()
            if floor < priority and (row := rows.get(name)) is not None and not view.codes[row] and self._open(row)
        ]
        heapq.heapify(self._heap)
        self._known: list[_Entry] = []

    def _open(self, row: int) -> bool:
        state = self._session.snapshot.states[row]
        return state is not None and not (self._view.ask.count and state.shut)

    def best(self) -> Choice | None:
        while self._heap or self._known:
            enough = self._looked >= LOOKED_AT and self._known
            if self._heap and not enough and (not self._known or self._heap[0] < self._known[0]):
                _, row, _ = heapq.heappop(self._heap)
                self._look(row)
                continue
            cost, row, choice = heapq.heappop(self._known)
            fresh = self._choose(row)
            if fresh is None:
                continue
            if choice is not None and fresh.cost == cost:
                heapq.heappush(self._known, (cost, row, fresh))  # may serve another task
                return fresh
            heapq.heappush(self._known, (fresh.cost, row, fresh))
        return None

    def _look(self, row: int) -> None:
        self._looked += 1
        choice = self._choose(row)
        if choice is not None:
            heapq.heappush(self._known, (choice.cost, row, choice))

    def _choose(self, row: int) -> Choice | None:
        state = self._session.snapshot.states[row]
        if state is None:
            return None
        session = self._session
        return choose_on(session.running, state, self._view, self._priority, self._chain, session.book)
