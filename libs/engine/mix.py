"""The typical mix: what tasks ask for here, learned from the jobs that came before and from nothing else.

A job counts once, when it is first decided, whatever the decision was; how often it is tried again does not matter.
Counts are whole numbers, halved when they have grown large, so that an old mix fades. What one owner may contribute is
capped: of two owners each is half of it, of three a third, of four or more nobody is more than a quarter. So a crash
loop, or a tenant with very many jobs, moves the mix by no more than that; one owner alone is all of it.

The same jobs in the same order give the same mix in every process.

A mix is kept in **slots**, by a hash of the job's key, and is the sum of them. `state` and `restore` carry one slot
over a restart or to other replicas: who decides the jobs of a slot counts them, the others take over what it has
counted. A slot is replaced as a whole, so doing that twice does no harm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from libs.domain.jobs import partition_of
from libs.domain.resources import Request
from libs.engine.api import PendingJob
from libs.engine.precision.demand import DemandState
from libs.engine.recent import Recent

#: Halve all counts when they sum to this: what came about this many tasks ago counts half.
FADE: Final = 16_384
#: Job keys remembered at the least, so that a job counts once.
REMEMBERED: Final = 65_536
#: One owner may be a quarter of the mix, where there are so many; of two a half, of three a third.
OWNER_PARTS: Final = 4
#: At most so many shapes are kept; the rarest are forgotten when the counts are halved.
SHAPES: Final = 1_024
#: The most tasks between two versions of the mix.
RENEWED: Final = 2_048
#: What weights sum to.
ONE: Final = 1 << 20
#: A task counts so much, so that what is rare lasts some halvings.
COUNT: Final = 16
#: Counts that a state carries at most: the largest.
CARRIED: Final = 4_096


class Shape(NamedTuple):
    """What a typical task asks for: CPU in milli-cores; so many GPUs, of each `milli` (1..999), `mib`, or all (both 0);
    models that will do, empty for any. Memory and other resources are no part of it."""

    cpu: int
    gpus: int
    milli: int
    mib: int
    models: tuple[str, ...]


def shape_of(request: Request) -> Shape:
    gpu = request.gpu
    models = tuple(sorted(set(gpu.models))) if len(gpu.models) > 1 else gpu.models
    return Shape(request.cpu, gpu.count, gpu.milli, 0 if gpu.milli else gpu.mib, models if gpu.count else ())


class Share(NamedTuple):
    """A shape's part of the mix, in ONE-ths."""

    shape: Shape
    weight: int


def name_of(shares: Iterable[Share]) -> str:
    """Eight hex digits that name a mix by what it is: the same in every process, for the same shapes and weights."""
    told = hashlib.blake2b(digest_size=4)
    for shape, weight in shares:
        told.update(b"%d %d %d %d %d " % (weight, shape.cpu, shape.gpus, shape.milli, shape.mib))
        if shape.models:
            told.update("\0".join(shape.models).encode())
    return told.hexdigest()


class MixState(NamedTuple):
    """All that a slot is: counts by owner and shape (COUNT for one task), how many tasks it has seen, and when the
    newest job of those was created. `demand` is what an engine has learned beside it, of the same jobs."""

    counts: tuple[tuple[str, Shape, int], ...]
    seen: int
    until: float = 0.0
    demand: DemandState = DemandState()


class _Slot:
    """`before`: jobs created by then were counted before the slot was taken over, or never will be."""

    __slots__ = ("before", "counts", "seen", "total", "until")

    def __init__(self) -> None:
        self.counts: dict[str, dict[Shape, int]] = {}
        self.total = 0
        self.seen = 0
        self.until = 0.0
        self.before = float("-inf")

    def fade(self) -> None:
        self.total = 0
        for owner in list(self.counts):
            halved = {shape: count >> 1 for shape, count in self.counts[owner].items() if count > 1}
            if halved:
                self.counts[owner] = halved
                self.total += sum(halved.values())
            else:
                del self.counts[owner]


class TypicalMix:
    """Counts per owner and shape. `version` grows when `shares` is to be looked at anew: after each of the first jobs,
    then ever more rarely, at least every RENEWED tasks."""

    def __init__(self, fixed: Iterable[tuple[Request, int]] = (), slots: int = 1) -> None:
        """With `fixed` (requests and how often they come) the mix is that for ever."""
        self._slots = [_Slot() for _ in range(slots)]
        self._full = COUNT * FADE // slots
        self._known = Recent(REMEMBERED)
        self._due = 1
        self._shapes: dict[Request, Shape] = {}
        self.seen = 0
        #: Tasks that were decided, those that wait each time.
        self.decided = 0
        self.version = 0
        self._fixed = False
        for request, count in fixed:
            counts = self._slots[0].counts.setdefault("", {})
            shape = shape_of(request)
            counts[shape] = counts.get(shape, 0) + COUNT * count
            self._fixed = True

    def learn(self, job: PendingJob) -> None:
        """The job was decided: count its tasks, once."""
        self.decided += len(job.tasks)
        if self._fixed:
            return
        head = job.head
        key, known, slots = head.key, self._known, self._slots
        if key in known:
            return
        known.add((key,))
        slot = slots[0] if len(slots) == 1 else slots[partition_of(key, len(slots))]
        if head.created <= slot.before:
            return
        counts = slot.counts.setdefault(head.tenant, {})
        for task in job.tasks:
            request = task.request
            shape = self._shapes.get(request)
            if shape is None:
                if len(self._shapes) > 4 * SHAPES:
                    self._shapes.clear()
                shape = self._shapes[request] = shape_of(request)
            counts[shape] = counts.get(shape, 0) + COUNT
        tasks = len(job.tasks)
        slot.total += COUNT * tasks
        slot.seen += tasks
        if head.created > slot.until:
            slot.until = head.created
        self.seen += tasks
        if slot.total >= self._full:
            slot.fade()
        if self.seen >= self._due:
            self._renew()

    def _renew(self) -> None:
        self.version += 1
        self._due = self.seen + max(1, min(self.seen // 2, RENEWED))

    def shares(self) -> list[Share]:
        """The shapes with their weights, which sum to ONE or a little less; most frequent first."""
        merged = self._slots[0].counts if len(self._slots) == 1 else self._merged()
        sums: dict[Shape, int] = {}
        for counts, (part, of) in zip(merged.values(), _caps(merged), strict=True):
            for shape, count in counts.items():
                sums[shape] = sums.get(shape, 0) + count * ONE * part // of
        total = sum(sums.values())
        if not total:
            return []
        ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:SHAPES]
        return [Share(shape, weight) for shape, amount in ordered if (weight := amount * ONE // total)]

    def _merged(self) -> dict[str, dict[Shape, int]]:
        merged: dict[str, dict[Shape, int]] = {}
        for slot in self._slots:
            for owner, counts in slot.counts.items():
                into = merged.setdefault(owner, {})
                for shape, count in counts.items():
                    into[shape] = into.get(shape, 0) + count
        return merged

    # -- over restarts and between replicas ---------------------------------------------------------------------------
    def state(self, slot: int = 0) -> MixState:
        held = self._slots[slot]
        counts = [(owner, shape, n) for owner, by in held.counts.items() for shape, n in by.items()]
        if len(counts) > CARRIED:
            counts = sorted(counts, key=lambda item: (-item[2], item[0], item[1]))[:CARRIED]
        return MixState(tuple(sorted(counts)), held.seen, held.until)

    def counted(self, slot: int = 0) -> int:
        return self._slots[slot].seen

    def restore(self, state: MixState, slot: int = 0) -> None:
        """Take over what was counted elsewhere, in place of what the slot has. Jobs that were created before the newest
        of those are not counted again."""
        if self._fixed:
            return
        held = self._slots[slot]
        first = not self.seen
        self.seen += state.seen - held.seen
        held.counts = {}
        for owner, shape, count in state.counts:
            held.counts.setdefault(owner, {})[shape] = count
        held.total = sum(count for _, _, count in state.counts)
        held.seen = state.seen
        held.until = state.until
        held.before = state.until or float("-inf")
        if first or self.seen >= self._due:
            self._renew()


def _caps(merged: Mapping[str, Mapping[Shape, int]]) -> list[tuple[int, int]]:
    """By which fraction each owner's counts are scaled, so that nobody exceeds its part of what then remains."""
    totals = [sum(counts.values()) for counts in merged.values()]
    parts = min(OWNER_PARTS, len(totals))
    if parts < 2:
        return [(1, 1)] * len(totals)
    limit = _limit(totals, parts)
    return [(min(total, limit), total) if total else (1, 1) for total in totals]


def _limit(totals: list[int], parts: int) -> int:
    """The largest L such that min(total, L) of the largest owner is at most 1/parts of the sum of all such minima."""
    ordered = sorted(totals, reverse=True)
    rest = sum(ordered)
    for at, total in enumerate(ordered):
        # Owners before `at` are cut to L; with `rest` of the others, L = (at x L + rest) / parts.
        if at >= parts:
            break
        if total * parts <= at * total + rest:
            return total
        rest -= total
        if at + 1 < parts:
            limit = rest // (parts - at - 1)
            following = ordered[at + 1] if at + 1 < len(ordered) else 0
            if limit >= following:
                return max(limit, 1)
    return max(ordered[min(parts, len(ordered)) - 1], 1)
