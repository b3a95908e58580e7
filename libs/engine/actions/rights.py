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
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from libs.domain.queues import Quota, ancestors
from libs.domain.resources import Charge
from libs.engine.api import Placement, RunningTask
from libs.engine.running import workload
from libs.engine.session import Session

#: Milli GPUs, milli CPU, MiB.
Amounts = tuple[int, int, int]
#: 0: milli GPUs, 1: milli CPU, 2: MiB; a name: milli GPUs of that model.
Side = int | str


class Right(enum.Enum):
    NONE = 0
    PRIORITY = 1
    RECLAIM = 2
    #: Of the same priority where a lower one would yield: something else has to decide.
    ALIKE = 3


_BY_PRIORITY: Final = frozenset({Right.PRIORITY, Right.ALIKE})


def amounts_of(charges: Sequence[Charge]) -> Amounts:
    return sum(c.gpu_milli for c in charges), sum(c.cpu for c in charges), sum(c.mem for c in charges)


def by_models(session: Session, placements: Sequence[Placement]) -> dict[str, int]:
    """Milli GPUs that the placements take, by model."""
    sums: dict[str, int] = {}
    for placement in placements:
        for model, milli in _models(session, placement.node, placement.charge).items():
            sums[model] = sums.get(model, 0) + milli
    return sums


class Rights:
    """Of one queue with one request, at one priority. `asked` is the least that the request takes. What queues use is
    looked at when this is made, before the decision that it is for changes anything."""

    def __init__(self, session: Session, queue: str, priority: int, asked: Amounts) -> None:
        self._session = session
        self.queue = queue
        self.priority = priority
        self.asked = asked
        self._specs = session.queues.specs
        self._by_model = any(spec.deserved.models for spec in self._specs.values())
        self._own = _down(queue)
        self._rights: dict[str, Right] = {}
        self._parted: dict[str, int] = {}
        self._levels: dict[str, tuple[str, ...]] = {}
        self._uses: dict[str, dict[Side, int]] = {}
        self._claimable: dict[tuple[str, str], bool] = {}
        self._within = {path: self.still_within(path, asked) for path in self._own}
        if self.claims:
            for path in self._standing_above():
                self._rights[path] = self._right(path)

    @property
    def claims(self) -> bool:
        """Whether the queue, or one above it, may claim anything back."""
        return any(self._within.values())

    def any(self, rights: frozenset[Right]) -> bool:
        """Whether some running pod may be taken by one of these, protection aside."""
        if Right.RECLAIM in rights and Right.RECLAIM in self._rights.values():
            return True
        if rights.isdisjoint(_BY_PRIORITY):
            return False
        floors = self._session.running.floors()
        lowest = min(floors.values(), default=self.priority + 1)
        return lowest < self.priority or (lowest == self.priority and Right.ALIKE in rights)

    def of(self, task: RunningTask) -> Right:
        """By what right the room of this pod may be taken, protection aside."""
        right = self._rights.get(task.queue)
        if right is None:  # it stood above nothing when this was made, and a decision only takes
            right = self._rights[task.queue] = self._right(task.queue)
        if right is Right.PRIORITY and task.priority >= self.priority:
            return Right.ALIKE if task.priority == self.priority else Right.NONE
        if right is Right.RECLAIM and self._by_model and not self._model_claimable(task):
            return Right.NONE
        return right

    def _right(self, theirs: str) -> Right:
        other = _down(theirs)
        at = 0
        while at < len(self._own) and at < len(other) and self._own[at] == other[at]:
            at += 1
        if at < len(self._own) and at < len(other) and self._within[self._own[at]]:
            self._parted[theirs] = at
            self._levels[theirs] = tuple(path for path in other[at:] if self._deserves(path))
            for path in self._levels[theirs]:
                self._use(path)
            main = 0 if self.asked[0] else 1
            if self.above(other[at], main) > 0 or (self._by_model and main == 0):
                return Right.RECLAIM
        if any(self._deserves(path) for path in (*self._own[at:], *other[at:])):
            return Right.NONE
        return Right.PRIORITY

    def _standing_above(self) -> list[str]:
        """Queues with pods that stand above what they deserve, or of which one above them does; the same for all who
        ask while nothing changes."""
        session = self._session
        if self._by_model:
            return list(session.running.by_queue)
        key = ("standing above", 0 if self.asked[0] else 1)
        known: tuple[int, list[str]] | None = session.memo.get(key)
        if known is None or known[0] != session.snapshot.version:
            above: dict[str, bool] = {}
            found = []
            for path in session.running.by_queue:
                for one in ancestors(path):
                    if one not in above:
                        above[one] = self.above(one, key[1]) > 0
                if any(above[one] for one in ancestors(path)):
                    found.append(path)
            known = session.memo[key] = session.snapshot.version, found
        return known[1]

    def _deserves(self, path: str) -> bool:
        spec = self._specs.get(path)
        return spec is not None and spec.deserved != Quota()

    # -- our side -----------------------------------------------------------------------------------------------------
    def still_within(self, path: str, asked: Amounts, models: Mapping[str, int] | None = None) -> bool:
        """Whether a queue of ours deserves what is asked, beside what it uses. GPUs are claimed by a share of GPUs, or
        by one of their model: which that is (`models`) is known when they are placed."""
        spec = self._specs.get(path)
        if spec is None:
            return False
        deserved = spec.deserved
        sides: dict[Side, int] = {0: asked[0], 1: asked[1], 2: asked[2]}
        if asked[0]:
            if models is None:
                named = deserved.gpu_milli is not None or bool(deserved.models)
            else:
                named = deserved.gpu_milli is not None or models.keys() <= deserved.models.keys()
                sides.update(models)
        else:
            named = deserved.cpu is not None
        return named and all(
            (share := self.share(path, side)) is None or not more or self._use(path).get(side, 0) + more <= share
            for side, more in sides.items()
        )

    def confirmed(self, placements: Sequence[Placement], taken: Sequence[RunningTask]) -> bool:
        """Whether the claim holds for what is really charged: the model of a GPU, and the part of one that is asked for
        by memory, are known late."""
        asked = amounts_of([placement.charge for placement in placements])
        models = by_models(self._session, placements) if self._by_model else None
        levels = {self._own[self._parted[task.queue]] for task in taken if self.of(task) is Right.RECLAIM}
        return all(self.still_within(level, asked, models) for level in levels)

    def _model_claimable(self, task: RunningTask) -> bool:
        """Whether GPUs of the model that the pod has may be claimed, and its queue stands above what it deserves of
        them."""
        for model in self.models(task):
            known = self._claimable.get((task.queue, model))
            if known is None:
                at = self._parted[task.queue]
                ours, top = self._own[at], _down(task.queue)[at]
                share = self.share(ours, model)
                may = share is None or self._use(ours).get(model, 0) + self.asked[0] <= share
                named = share is not None or self.share(ours, 0) is not None
                side = model if self.share(top, model) is not None else 0
                known = self._claimable[task.queue, model] = may and named and self.above(top, side) > 0
            if not known:
                return False
        return True

    # -- the other side -----------------------------------------------------------------------------------------------
    def levels(self, theirs: str) -> tuple[str, ...]:
        """Where of a queue that is reclaimed from something is deserved: from where the two part down to it."""
        return self._levels[theirs]

    def above(self, path: str, side: Side) -> int:
        """How far a queue stands above what it deserves of one side; what is leaving has left. A side that is not named
        is not deserved."""
        return self._use(path).get(side, 0) - (self.share(path, side) or 0)

    def share(self, path: str, side: Side) -> int | None:
        """What a queue deserves of one side; None: nothing is said."""
        spec = self._specs.get(path)
        if spec is None:
            return None
        deserved = spec.deserved
        if isinstance(side, str):
            return deserved.models.get(side)
        return (deserved.gpu_milli, deserved.cpu, deserved.mem)[side]

    def models(self, task: RunningTask) -> dict[str, int]:
        """Milli GPUs that the pod holds, by model, where any queue deserves some of a model."""
        return _models(self._session, task.node, task.charge) if self._by_model else {}

    def _use(self, path: str) -> dict[Side, int]:
        """What is used of a queue, and stays."""
        known = self._uses.get(path)
        if known is not None:
            return known
        line = self._session.queues.line(path)
        use: dict[Side, int] = {}
        if line is not None:
            away = self._session.running.leaving(path)
            use[0] = line.milli + line.taken_milli - away[0]
            use[1] = line.cpu + line.taken_cpu - away[1]
            use[2] = line.mem + line.taken_mem - away[2]
            for model in line.tracked:
                use[model] = line.models.get(model, 0) + line.taken_models.get(model, 0)
            if line.tracked:
                for task in self._session.running.who_leaves(path):
                    for model, milli in self.models(task).items():
                        if model in line.tracked:
                            use[model] -= milli
        self._uses[path] = use
        return use


def _models(session: Session, node: str, charge: Charge) -> dict[str, int]:
    row = session.snapshot.rows.get(node)
    state = session.snapshot.states[row] if row is not None else None
    return state.by_model(charge) if state is not None else {}


class Tally:
    """What a decision takes from queues above their share, unit by unit, and from workloads that may be evicted a few
    more times."""

    def __init__(self, rights: Rights, allowance: Callable[[RunningTask], int]) -> None:
        self._rights = rights
        self._allowance = allowance
        self._taken: dict[tuple[str, Side], list[int]] = {}
        self._pods: dict[str, int] = {}

    def allows(self, more: Sequence[tuple[RunningTask, ...]]) -> bool:
        """Whether these units may go together, beside what is taken."""
        rights = self._rights
        added: dict[tuple[str, Side], list[int]] = {}
        pods: dict[str, int] = {}
        seen: set[str] = set()
        for unit in sorted(more, key=len, reverse=True):
            if unit[0].uid in seen:
                continue  # a worker above its gang's minimum, and the whole gang goes
            seen.update(task.uid for task in unit)
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

    def _claims(self, unit: tuple[RunningTask, ...]) -> list[tuple[str, Side, int]]:
        """What the unit gives of what its queue, and those above up to where the two part, deserve: by model where the
        share is, else GPUs, else CPU."""
        rights = self._rights
        sizes: dict[str, dict[Side, int]] = {}
        for task in unit:
            if rights.of(task) is Right.RECLAIM:
                sums = sizes.setdefault(task.queue, {0: 0, 1: 0})
                sums[0] += task.charge.gpu_milli
                sums[1] += task.charge.cpu
                for model, milli in rights.models(task).items():
                    sums[model] = sums.get(model, 0) + milli
        found: list[tuple[str, Side, int]] = []
        for queue, sums in sizes.items():
            for level in rights.levels(queue):
                sides: list[Side] = [side for side in sums if isinstance(side, str)]
                sides = [side for side in sides if rights.share(level, side) is not None] or [0 if sums[0] else 1]
                found += [(level, side, sums[side]) for side in sides if rights.share(level, side) is not None]
        return found


def _down(path: str) -> list[str]:
    """The queue and all above it, the highest first."""
    return ancestors(path)[::-1]
