"""The best node to make room on, asked again and again."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from libs.engine.actions.rights import Tally
from libs.engine.actions.victims import Choice, Cost, Finder, elastic
from libs.engine.api import RunningTask
from libs.engine.feasible import Feasibility
from libs.engine.session import Session

#: Nodes whose victims are worked out before the best of them is taken; more only while none was found.
LOOKED_AT: Final = 256
#: Costs are compared per task that they make room for: in whole numbers, of this many parts.
_PARTS: Final = 5040


class Search:
    """The best node to take for a class of tasks, asked again and again while tasks are placed.

    A node enters with a bound that its true cost cannot be below, is worked out when it comes up, and again when it
    changed since. After LOOKED_AT nodes the best known one is taken without looking further. Where several tasks are
    wanted, what counts is the cost per task that finds room: ten tasks are better served by one gang of ten than by one
    pod of each of ten gangs, and by ten single pods if these lose less.
    """

    def __init__(
        self, session: Session, view: Feasibility, finder: Finder, nodes: frozenset[str] | None = None
    ) -> None:
        """`nodes`: the only ones that are looked at; None: all."""
        self._session = session
        self._view = view
        self._finder = finder
        self._looked = 0
        view.refresh()
        rows, by_node = session.snapshot.rows, session.running.by_node
        looked = by_node if nodes is None else {name: by_node[name] for name in sorted(nodes & by_node.keys())}
        self._heap: list[tuple[Cost, str, int]] = [
            (least, name, row)
            for name, pods in looked.items()
            if (row := rows.get(name)) is not None
            and not view.codes[row]
            and self._open(row)
            and (least := self._least(pods.values())) is not None
        ]
        heapq.heapify(self._heap)
        self._known: dict[int, _Known] = {}
        #: Most tasks that any known choice serves, and for how many of them the known ones are compared now.
        self._most = 1
        self._by = 1

    def _least(self, pods: Iterable[RunningTask]) -> Cost | None:
        finder = self._finder
        best: Cost | None = None
        for task in pods:
            if finder.may(task):
                least = finder.appraiser.least(task, ends=not elastic(task))
                if best is None or least < best:
                    best = least
        return best

    def _open(self, row: int) -> bool:
        state = self._session.snapshot.states[row]
        return state is not None and not (self._view.ask.count and state.shut)

    def best(self, tally: Tally, wanted: int = 1) -> Choice | None:
        """The node to take next where room for `wanted` more tasks of the class is looked for; None where there is
        none. It may serve another task too: it stays known."""
        known = self._known
        while True:
            if min(wanted, self._most) != self._by:
                self._by = min(wanted, self._most)
                for one in known.values():
                    one.want(wanted)
            row = min(known, key=lambda one: known[one].key, default=-1)
            while self._heap and not (self._looked >= LOOKED_AT and known):
                if row >= 0 and _per_task_at_least(self._heap[0][0], wanted) > known[row].key:
                    break
                _, _, looked = heapq.heappop(self._heap)
                self._looked += 1
                choice = self._choose(looked, tally)
                if choice is not None:
                    known[looked] = self._worked_out(choice, wanted)
                    if row < 0 or known[looked].key < known[row].key:
                        row = looked
            if row < 0:
                return None
            fresh = self._choose(row, tally)
            if fresh is None:
                del known[row]
                continue
            before = known[row]
            known[row] = self._worked_out(fresh, wanted)
            if fresh.cost == before.choice.cost and known[row].serves >= min(before.serves, wanted):
                return fresh

    def _worked_out(self, choice: Choice, wanted: int) -> _Known:
        found = _Known(choice, self._serves(choice, wanted), wanted)
        self._most = max(self._most, found.serves)
        return found

    def _choose(self, row: int, tally: Tally) -> Choice | None:
        state = self._session.snapshot.states[row]
        return None if state is None else self._finder.on(state, tally)

    def _serves(self, choice: Choice, wanted: int) -> int:
        """How many tasks of the class find room when these units are gone, up to `wanted`; one at least."""
        if wanted <= 1:
            return 1
        by_node: defaultdict[str, dict[str, RunningTask]] = defaultdict(dict)
        snapshot, ask = self._session.snapshot, self._view.ask
        served = 0
        for unit in choice.units:
            for task in unit.tasks:
                by_node[task.node][task.uid] = task
        for name, tasks in by_node.items():
            row = snapshot.rows.get(name, -1)
            state = snapshot.states[row] if row >= 0 else None
            if state is None or self._view.codes[row]:
                continue
            trial = state.copy()
            for task in tasks.values():
                trial.give(task.charge)
            while served < wanted and (charge := trial.charge(ask)) is not None:
                trial.take(charge)
                served += 1
        return max(1, served)


_Key = tuple[int, int, int, int, int, int, int, float, str]
#: Below every priority.
_LOWEST: Final = -(1 << 63)


class _Known:
    """A choice that was worked out, with the key that it compares by while so many tasks are wanted."""

    __slots__ = ("by", "choice", "key", "serves")

    def __init__(self, choice: Choice, serves: int, wanted: int) -> None:
        self.choice = choice
        self.serves = serves
        self.by = 0
        self.want(wanted)

    def want(self, wanted: int) -> None:
        by = min(self.serves, wanted)
        if by == self.by:
            return
        self.by = by
        cost = self.choice.cost
        self.key: _Key = (
            cost.priority,
            cost.lost * _PARTS // by,
            cost.jobs * _PARTS // by,
            cost.pods * _PARTS // by,
            cost.cpu * _PARTS // by,
            cost.highest,
            cost.guarded * _PARTS // by,
            cost.longest,
            cost.last,
        )


def _per_task_at_least(cost: Cost, wanted: int) -> _Key:
    by = max(1, wanted)
    return cost.priority, cost.lost * _PARTS // by, cost.jobs * _PARTS // by, 0, 0, _LOWEST, 0, float("-inf"), ""
