"""Domains for a job as a whole: proven by placing all of it, undone where it does not fit, never task by task.

Guarantees, for any snapshot: the tasks of a part that requires a level lie in one domain of that level, together with
its members that run already; the tightest domain that takes all of a part is taken (least free GPU, then least free
CPU, then by name), and where a minimum is less than all, the one that takes most; a preference bars nothing: from the
level that is preferred outwards the first with a domain that takes all of the part is taken, and on the way back in
from there the fewest domains are filled. What does not fit because of an earlier choice is tried with another choice,
up to TRIALS times. The same facts give the same choice, in whatever order they came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from libs.domain.jobs import Task
from libs.domain.topology import Level, level_of
from libs.domain.verdicts import Reason, Verdict
from libs.engine.actions.fill import Earmark, Filled, fill
from libs.engine.api import PendingJob, Placement
from libs.engine.columns import Ints
from libs.engine.gang import Minimum
from libs.engine.queues import Chain
from libs.engine.session import Session
from libs.engine.statement import Statement
from libs.engine.topology.domains import Partition, Region
from libs.engine.topology.parts import Part, parts_of
from libs.engine.topology.room import Demand, demand_of

#: Choices that may turn out wrong before the search ends. Each costs what placing the part costs.
TRIALS: Final = 64
#: Domains of one level that are tried for a preference.
PREFERRED_TRIED: Final = 4
#: Domains that would take equally many, of which the one with fewest narrower domains is taken.
ALIKE: Final = 4


@dataclass(frozen=True, slots=True)
class Place:
    """A region for one part. `steps`: regions within it that are filled one after the other first. `bounds`: what the
    part may not leave, which is more than the region where that was only preferred."""

    region: Region
    bounds: Region
    steps: tuple[Region, ...] = ()


_Mark = tuple[int, int, int]


def seating_of(
    session: Session, statement: Statement, job: PendingJob, tasks: list[Task], chain: Chain, earmarks: list[Earmark]
) -> Seating:
    return Seating(session, statement, parts_of(session, job, tasks), chain, earmarks)


class Seating:
    """One attempt to place a tree of parts within a statement. `most`: of each part that failed, the most tasks that a
    domain was found to take, with the domain's name. `quota`: what the queue said, where that was in the way."""

    def __init__(
        self,
        session: Session,
        statement: Statement,
        root: Part,
        chain: Chain,
        earmarks: list[Earmark],
        room_now: tuple[Ints, Ints] | None = None,
        banned: frozenset[str] = frozenset(),
    ) -> None:
        """With `room_now` (free GPU and CPU by row) domains with most of it come first, not the tightest. `banned`
        domains are none for the outermost part that requires one."""
        self._session = session
        self._statement = statement
        self.root = root
        self.demands = root.demands
        self._chain = chain
        self._earmarks = earmarks
        self._room_now = room_now
        self._banned = banned
        self._outermost = next((part for part in root.all() if part.near.required), None)
        self._all: dict[Part, list[Task]] = {part: list(part.tasks()) for part in root.all()}
        #: Whether what a queue is charged, and by what it is limited, depends on the devices chosen.
        self._by_device = any(line.limit_models for line in chain) or any(task.request.gpu.mib for task in root.tasks())
        self._goal: set[str] = set()
        self._most_first = False
        self._heeds = True
        self._left = TRIALS
        self._placements: list[Placement] = []
        self._tasks: list[Task] = []
        self._used: list[Earmark] = []
        self.places: dict[Part, Place] = {}
        self.most: dict[Part, tuple[int, str]] = {}
        self.quota: Verdict | None = None

    def attempt(self, ordered: list[Task], need: Minimum) -> Filled:
        """All tasks if that can be, else the minimum and what else fits beside it. What is placed stands in the
        statement; where the minimum is not met, nothing does."""
        session = self._session
        start = self._mark()
        place = {task.id: at for at, task in enumerate(ordered)}
        for part in self._all:
            part.own.sort(key=lambda task: place[task.id])
        everywhere = session.domains.everywhere()
        try:
            for goal, most_first, heeds in self._goals(ordered, need):
                self._goal = {task.id for task in goal}
                self._most_first, self._heeds, self._left = most_first, heeds, TRIALS
                self.places.clear()
                self.quota = None
                if self._part(self.root, everywhere, _nothing):
                    self._more(self.root, everywhere)
                    break
                self._back(start)
            if not need.met(self._tasks):
                self._back(start)
            behind = self._behind(ordered) if self._tasks and len(self._tasks) < len(ordered) else None
            return Filled(list(self._placements), list(self._tasks), behind, list(self._used))
        finally:
            session.confine(None)

    def _behind(self, ordered: list[Task]) -> Verdict | None:
        """Why the first of the tasks that stay behind finds no room."""
        if self.quota is not None or not self._session.config.explain:
            return self.quota
        done = {task.id for task in self._tasks}
        task = next(task for task in ordered if task.id not in done)
        region = self._session.domains.everywhere()
        for part, tasks in self._all.items():
            if part in self.places and task in tasks:
                region = self.places[part].bounds
        self._session.confine({task.id: region} if region.name else None)
        return self._session.refusal(self._session.feasible(task), task)

    def _goals(self, ordered: list[Task], need: Minimum) -> Iterator[tuple[list[Task], bool, bool]]:
        """What must be placed; whether domains that take most go first; whether preferences are heeded."""
        prefers = any(part.near.preferred for part in self._all)
        for heeds in (True, False) if prefers else (True,):
            yield ordered, False, heeds
            if not need.together:
                kinds: dict[object, Task] = {}
                for task in ordered:
                    kinds.setdefault((self._session.feasible(task), task.topology, task.role), task)
                for task in list(kinds.values())[:TRIALS] if len(ordered) > 1 else ():
                    yield [task], True, heeds
            elif need.total < len(ordered):
                short = self._short()
                fitting = [task for task in ordered if task.id not in short]
                for tasks in (fitting, ordered):
                    least = _least(tasks, need)
                    if need.met(least):
                        yield least, True, heeds

    def _short(self) -> set[str]:
        """Tasks of parts that no domain takes wholly now."""
        session = self._session
        found: set[str] = set()
        for part, tasks in self._all.items():
            if part.near.required and tasks:
                partition = session.domains.wished(part.near.required)
                everywhere = session.domains.everywhere()
                takes = demand_of(session, tasks).takes(session.snapshot.columns(), partition, everywhere)
                if int(takes.max(initial=0)) < len(tasks):
                    found.update(task.id for task in tasks)
        return found

    # -- undoing ----------------------------------------------------------------------------------------------------
    def _mark(self) -> _Mark:
        return self._statement.checkpoint(), len(self._tasks), len(self._used)

    def _back(self, mark: _Mark) -> None:
        self._statement.rollback(mark[0])
        del self._tasks[mark[1] :], self._placements[mark[1] :], self._used[mark[2] :]

    # -- one part after the other -----------------------------------------------------------------------------------
    def _part(self, part: Part, within: Region, then: Callable[[], bool]) -> bool:
        """Place what must be placed of a part, and then all that comes after it."""
        tasks = [task for task in self._all[part] if task.id in self._goal]
        if not tasks:
            return then()
        mark = self._mark()
        for place in self._choices(part, tasks, within, len(tasks)):
            self.places[part] = place
            if self._inside(part, place, 0, then):
                return True
            mine = {task.id for task in tasks}
            placed = sum(task.id in mine for task in self._tasks[mark[1] :])
            if placed < len(tasks):
                self._note(part, placed, place.region.name)
            self._back(mark)
            self._left -= 1
            if self._left <= 0 or (self.quota is not None and not self._by_device):
                break
        self.places.pop(part, None)
        return False

    def _inside(self, part: Part, place: Place, at: int, then: Callable[[], bool]) -> bool:
        if at < len(part.parts):
            return self._part(part.parts[at], place.region, lambda: self._inside(part, place, at + 1, then))
        must = [task for task in part.own if task.id in self._goal]
        return self._put(must, place) and then()

    def _put(self, tasks: list[Task], place: Place) -> bool:
        """Whether all of them could be placed; what could is."""
        session = self._session
        left = tasks
        for region in (*place.steps, place.region):
            if not left:
                break
            session.confine({task.id: region for task in left} if region.name else None)
            earmarks = list(self._earmarks)
            for used in self._used:
                earmarks.remove(used)
            filled = fill(session, self._statement, left, self._chain, earmarks, explained=False)
            self._placements += filled.placements
            self._tasks += filled.tasks
            self._used += filled.used
            done = {task.id for task in filled.tasks}
            left = [task for task in left if task.id not in done]
            if filled.first is not None and filled.first.reason is Reason.QUOTA:
                self.quota = filled.first
                break
        session.confine(None)
        return not left

    def _more(self, part: Part, within: Region) -> None:
        """What need not be placed, as far as it fits beside what had to be."""
        done = {task.id for task in self._tasks}
        left = [task for task in self._all[part] if task.id not in done]
        if not left:
            return
        place = self.places.get(part)
        if place is None:
            place = next(self._choices(part, left, within, 1), None)
            if place is None:
                return
            self.places[part] = place
        for inner in part.parts:
            self._more(inner, place.bounds)
        for where in (place, Place(place.bounds, place.bounds)):
            done = {task.id for task in self._tasks}
            self._put([task for task in part.own if task.id not in done], where)
            if where.region is where.bounds:
                break

    # -- choices ----------------------------------------------------------------------------------------------------
    def _choices(self, part: Part, tasks: list[Task], within: Region, least: int) -> Iterator[Place]:
        """Places for a part, the best first; such that take `least` of the tasks as far as can be said beforehand."""
        near = part.near
        preferred = near.preferred if self._heeds else ""
        if not near.required and not preferred:
            yield Place(within, within)
            return
        domains = self._session.domains
        demand = demand_of(self._session, tasks)
        if not near.required:
            yield from self._preferring(part, demand, within, None, preferred, least)
            return
        outer = domains.wished(near.required)
        for code in self._ranked(part, demand, outer, within, least, must=True):
            region = outer.region(code, within)
            if preferred:
                yield from self._preferring(part, demand, region, outer.level, preferred, least)
            else:
                yield Place(region, region)

    def _preferring(
        self, part: Part, demand: Demand, within: Region, outer: Level | None, wish: str, least: int
    ) -> Iterator[Place]:
        """One domain of the level, else one of the next wider level, and so on; then as few as can be."""
        domains = self._session.domains
        inner = level_of(domains.levels, wish)
        for level in domains.outward(inner):
            if level == outer:
                break
            partition = domains.of(level)
            for code in self._ranked(part, demand, partition, within, least, must=False)[:PREFERRED_TRIED]:
                region = partition.region(code, within)
                steps = self._steps(demand, region, domains.inward(level, inner), demand.total)
                yield Place(region, within, () if level == inner else steps)
        yield Place(within, within, self._steps(demand, within, domains.inward(outer, inner), demand.total))

    def _ranked(
        self, part: Part, demand: Demand, partition: Partition, within: Region, least: int, must: bool
    ) -> list[int]:
        """Domains that may take enough of the part, the best first. With `must`, members that are there already leave
        no choice; else they make theirs the first choice."""
        columns = self._session.snapshot.columns()
        takes = demand.takes(columns, partition, within)
        candidates = partition.present(within) & (takes >= least)
        if must and self._banned and part is self._outermost:
            candidates &= np.asarray([name not in self._banned for name in partition.names], np.bool_)
        home = np.zeros(len(partition), np.bool_)
        held = partition.codes[part.held] if part.held else np.zeros(0, np.int64)
        held = held[held >= 0]
        if len(held):
            home[int(np.bincount(held).argmax())] = True
            if must:
                if not (candidates & home).any():
                    self._note(part, int(takes[home].max(initial=0)), partition.names[int(home.argmax())])
                candidates &= home
        if must and not candidates.any() and not len(held) and len(partition):
            best = int(takes.argmax())
            self._note(part, int(takes[best]), partition.names[best])
        marked = np.zeros(len(partition), np.bool_)
        for row, _ in self._earmarks:
            if partition.codes[row] >= 0:
                marked[partition.codes[row]] = True
        sign, (free_gpu, free_cpu) = (
            (1, (columns.gpu_free, columns.cpu)) if self._room_now is None else (-1, self._room_now)
        )
        gpu = sign * partition.sums(np.maximum(free_gpu, 0), within)
        cpu = sign * partition.sums(np.maximum(free_cpu, 0), within)
        first, second = (gpu, cpu) if demand.milli else (cpu, gpu)
        most = np.zeros(len(partition), np.int64)
        if self._most_first:
            done = {task.id for task in self._tasks}
            everybody = demand_of(self._session, [task for task in self._all[part] if task.id not in done])
            most = everybody.takes(columns, partition, within)
        codes = np.flatnonzero(candidates)
        order = np.lexsort((codes, second[codes], first[codes], -most[codes], ~home[codes], ~marked[codes]))
        return [int(code) for code in codes[order]]

    def _steps(self, demand: Demand, within: Region, levels: list[Level], wanted: int) -> tuple[Region, ...]:
        """The fewest domains of the last of these levels that take so many tasks, level by level from the outside: the
        largest first, and for what is left the smallest that takes it."""
        if not levels:
            return (within,)
        partition = self._session.domains.of(levels[0])
        columns = self._session.snapshot.columns()
        takes = demand.takes(columns, partition, within)
        free = partition.sums(np.maximum(columns.gpu_free, 0), within)
        takes[~partition.present(within)] = 0
        found: list[Region] = []
        while wanted > 0 and len(takes):
            enough = np.flatnonzero(takes >= wanted)
            size = int(takes[enough].min() if len(enough) else takes.max())
            if not size:
                break
            share = min(wanted, size)
            alike = np.flatnonzero(takes == size)
            alike = alike[np.lexsort((alike, free[alike]))[: 1 if len(levels) == 1 else ALIKE]]
            ways = [self._steps(demand, partition.region(code, within), levels[1:], share) for code in alike.tolist()]
            best = min(range(len(ways)), key=lambda way: (len(ways[way]), way))
            found += ways[best]
            wanted -= share
            takes[alike[best]] = 0
        return tuple(found)

    def _note(self, part: Part, placed: int, name: str) -> None:
        known = self.most.get(part)
        if name and (known is None or (-placed, name) < (-known[0], known[1])):
            self.most[part] = (placed, name)


def _nothing() -> bool:
    return True


def _least(tasks: list[Task], need: Minimum) -> list[Task]:
    """The first that meet the minimum, in order."""
    left = dict(need.roles)
    found = [task for task in tasks if _counted(left, task.role)]
    ids = {task.id for task in found}
    found += [task for task in tasks if task.id not in ids][: max(need.total - len(found), 0)]
    return found


def _counted(left: dict[str, int], role: str) -> bool:
    if left.get(role, 0) <= 0:
        return False
    left[role] -= 1
    return True
