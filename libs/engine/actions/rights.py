"""Who may take room from whom, and how much of it.

Two rights. **Priority**: from a lower one of the same queue, or of another queue where nothing is deserved on either
side, from where the two part in the tree down to them. **Reclaim**: a job whose queue, with this request, stays within
what it deserves, from queues that stand above what they deserve, whatever the priorities; settled where they part.

What reclaim takes is what its owner could not claim back: a unit that, put beside what its queue keeps, exceeds what
the queue deserves, there and in every queue below. So no queue falls below its share but by a unit that is larger than
the share itself, and evicted pods that come again at once find no right to the room that they left.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final

from libs.domain.queues import Queue, Quota, ancestors
from libs.domain.resources import Charge
from libs.engine.api import RunningTask
from libs.engine.running import workload
from libs.engine.session import Session

#: Milli GPUs, milli CPU, MiB.
Amounts = tuple[int, int, int]
NOTHING: Final[Amounts] = (0, 0, 0)


class Right(enum.Enum):
    NONE = 0
    PRIORITY = 1
    RECLAIM = 2


def amounts_of(charges: Sequence[Charge]) -> Amounts:
    return sum(c.gpu_milli for c in charges), sum(c.cpu for c in charges), sum(c.mem for c in charges)


class Rights:
    """Of one queue with one request, at one priority. `asked` is the least that the request takes."""

    def __init__(self, session: Session, queue: str, priority: int, asked: Amounts) -> None:
        self._session = session
        self.queue = queue
        self.priority = priority
        self.asked = asked
        self._specs = session.queues.specs
        self._own = _down(queue)
        self._rights: dict[str, Right] = {}
        self._levels: dict[str, tuple[str, ...]] = {}
        self._within: dict[str, bool] = {}
        self._above: dict[tuple[str, int], int] = {}
        self._parted: dict[str, int] = {}
        # What queues use is looked at now, before the decision that this is for changes it.
        for path in self._own:
            self.within(path)
        for path in session.running.by_queue:
            self._rights[path] = self._right(path)
            if self._rights[path] is Right.RECLAIM:
                for level in self.levels(path):
                    self.above(level, 0), self.above(level, 1)

    @property
    def claims(self) -> bool:
        """Whether the queue, or one above it, may claim anything back."""
        return any(self.within(path) for path in self._own)

    def any(self, rights: frozenset[Right]) -> bool:
        """Whether some running pod may be taken by one of these, protection aside."""
        held = set(self._rights.values()) & rights
        if Right.RECLAIM in held or Right.PRIORITY not in held:
            return bool(held)
        floors = self._session.running.floors()
        return bool(floors) and min(floors.values()) < self.priority

    def of(self, task: RunningTask) -> Right:
        """By what right the room of this pod may be taken, protection aside."""
        right = self._rights[task.queue]
        if right is Right.PRIORITY and task.priority >= self.priority:
            return Right.NONE
        return right

    def _right(self, theirs: str) -> Right:
        other = _down(theirs)
        at = 0
        while at < len(self._own) and at < len(other) and self._own[at] == other[at]:
            at += 1
        ours_at, theirs_at = self._own[at : at + 1], other[at : at + 1]
        if ours_at and theirs_at and self.within(ours_at[0]):
            self._parted[theirs] = at
            if self.above(theirs_at[0], self._main) > 0:
                return Right.RECLAIM
        if any(self._deserves(path) for path in (*self._own[at:], *other[at:])):
            return Right.NONE
        return Right.PRIORITY

    @property
    def _main(self) -> int:
        return 0 if self.asked[0] else 1

    def _deserves(self, path: str) -> bool:
        spec = self._specs.get(path)
        return spec is not None and spec.deserved != Quota()

    def within(self, path: str) -> bool:
        """Whether a queue of ours deserves what is asked, beside what it uses."""
        known = self._within.get(path)
        if known is None:
            known = self._within[path] = self.still_within(path, self.asked)
        return known

    def still_within(self, path: str, asked: Amounts) -> bool:
        deserved = deserved_of(self._specs.get(path))
        if deserved[self._main] is None:
            return False
        used = self._use(path)
        return all(
            d is None or not a or u + a <= d for d, a, u in zip(deserved, asked, used, strict=True)
        )  # fmt: skip

    def confirmed(self, asked: Amounts, taken: Sequence[RunningTask]) -> bool:
        """Whether the claim holds for what is really charged: a part of a GPU asked for by memory is known late."""
        return all(
            self.still_within(self._own[self._parted[task.queue]], asked)
            for task in taken
            if self.of(task) is Right.RECLAIM
        )

    # -- the other side -----------------------------------------------------------------------------------------------
    def levels(self, theirs: str) -> tuple[str, ...]:
        """Where of a queue that is reclaimed from something is deserved: from where the two part down to it."""
        known = self._levels.get(theirs)
        if known is None:
            known = tuple(path for path in _down(theirs)[self._parted[theirs] :] if self._deserves(path))
            self._levels[theirs] = known
        return known

    def above(self, path: str, side: int) -> int:
        """How far a queue stands above what it deserves of one side; what is leaving has left. A side that is not named
        is not deserved."""
        known = self._above.get((path, side))
        if known is None:
            deserved = deserved_of(self._specs.get(path))[side] or 0
            known = self._above[path, side] = self._use(path)[side] - deserved
        return known

    def _use(self, path: str) -> Amounts:
        line = self._session.queues.line(path)
        if line is None:
            return NOTHING
        away = self._session.running.leaving(path)
        return (
            line.milli + line.taken_milli - away[0],
            line.cpu + line.taken_cpu - away[1],
            line.mem + line.taken_mem - away[2],
        )

    def names(self, path: str, side: int) -> bool:
        return deserved_of(self._specs.get(path))[side] is not None


class Tally:
    """What a decision takes from queues above their share, unit by unit, and from workloads that may be evicted a few
    more times."""

    def __init__(self, rights: Rights, allowance: Callable[[RunningTask], int]) -> None:
        self._rights = rights
        self._allowance = allowance
        self._taken: dict[tuple[str, int], list[int]] = {}
        self._pods: dict[str, int] = {}

    def allows(self, more: Sequence[tuple[RunningTask, ...]]) -> bool:
        """Whether these units may go together, beside what is taken."""
        rights = self._rights
        added: dict[tuple[str, int], list[int]] = {}
        pods: dict[str, int] = {}
        for unit in more:
            for level, side, amount in self._claims(unit):
                added.setdefault((level, side), []).append(amount)
            if unit[0].gang_min <= 1:
                key = workload(unit[0])
                pods[key] = pods.get(key, 0) + 1
                if pods[key] + self._pods.get(key, 0) > self._allowance(unit[0]):
                    return False
        for (level, side), amounts in added.items():
            every = amounts + self._taken.get((level, side), [])
            # Each of them put back beside what is left would stand above the share.
            if sum(every) - min(every) >= rights.above(level, side):
                return False
        return True

    def take(self, unit: tuple[RunningTask, ...]) -> None:
        for level, side, amount in self._claims(unit):
            self._taken.setdefault((level, side), []).append(amount)
        if unit and unit[0].gang_min <= 1:
            self._pods[workload(unit[0])] = self._pods.get(workload(unit[0]), 0) + 1

    def _claims(self, unit: tuple[RunningTask, ...]) -> list[tuple[str, int, int]]:
        rights = self._rights
        sizes: dict[str, list[int]] = {}
        for task in unit:
            if rights.of(task) is Right.RECLAIM:
                sums = sizes.setdefault(task.queue, [0, 0])
                sums[0] += task.charge.gpu_milli
                sums[1] += task.charge.cpu
        found: list[tuple[str, int, int]] = []
        for queue, sums in sizes.items():
            side = 0 if sums[0] else 1
            found += [(level, side, sums[side]) for level in rights.levels(queue) if rights.names(level, side)]
        return found


def deserved_of(spec: Queue | None) -> tuple[int | None, int | None, int | None]:
    if spec is None:
        return None, None, None
    deserved = spec.deserved
    return deserved.gpu_milli, deserved.cpu, deserved.mem


def _down(path: str) -> list[str]:
    """The queue and all above it, the highest first."""
    return ancestors(path)[::-1]
