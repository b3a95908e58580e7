"""The typical mix: what tasks ask for here, learned from the jobs that came before and from nothing else.

A job counts once, when it is first decided, whatever the decision was; how often it is tried again does not matter.
Counts are whole numbers, halved when they have grown large, so that an old mix fades. What one owner may contribute is
capped: a crash loop, or a tenant with very many jobs, moves the mix by no more than its cap.

The same jobs in the same order give the same mix in every process. `state` and `restore` carry it over a restart or to
another replica.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from libs.domain.resources import Request
from libs.engine.api import PendingJob
from libs.engine.recent import Recent

#: Halve all counts when they sum to this: what came about this many tasks ago counts half.
FADE: Final = 16_384
#: Job keys remembered at the least, so that a job counts once.
REMEMBERED: Final = 65_536
#: The largest part of the mix that one owner may be, where there are enough others: one quarter.
OWNER_PARTS: Final = 4
#: At most so many shapes are kept; the rarest are forgotten when the counts are halved.
SHAPES: Final = 1_024
#: The most tasks between two versions of the mix.
RENEWED: Final = 2_048
#: What weights sum to.
ONE: Final = 1 << 20


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


class MixState(NamedTuple):
    """All that a mix is: counts by owner and shape, and how many tasks it has seen."""

    counts: tuple[tuple[str, Shape, int], ...]
    seen: int


class TypicalMix:
    """Counts per owner and shape. `version` grows when `shares` is to be looked at anew: after each of the first jobs,
    then ever more rarely, at least every RENEWED tasks."""

    def __init__(self, fixed: Iterable[tuple[Request, int]] = ()) -> None:
        """With `fixed` (requests and how often they come) the mix is that for ever."""
        self._counts: dict[str, dict[Shape, int]] = {}
        self._total = 0
        self._known = Recent(REMEMBERED)
        self._due = 1
        self._shapes: dict[Request, Shape] = {}
        self.seen = 0
        self.version = 0
        self._fixed = False
        for request, count in fixed:
            counts = self._counts.setdefault("", {})
            shape = shape_of(request)
            counts[shape] = counts.get(shape, 0) + count
            self._fixed = True

    def learn(self, job: PendingJob) -> None:
        """Count the job's tasks, once."""
        if self._fixed:
            return
        key = job.head.key
        if key in self._known:
            return
        self._known.add((key,))
        counts = self._counts.setdefault(job.head.tenant, {})
        for task in job.tasks:
            request = task.request
            shape = self._shapes.get(request)
            if shape is None:
                if len(self._shapes) > 4 * SHAPES:
                    self._shapes.clear()
                shape = self._shapes[request] = shape_of(request)
            counts[shape] = counts.get(shape, 0) + 1
        self._total += len(job.tasks)
        self.seen += len(job.tasks)
        if self._total >= FADE:
            self._fade()
        if self.seen >= self._due:
            self.version += 1
            self._due = self.seen + max(1, min(self.seen // 2, RENEWED))

    def _fade(self) -> None:
        total = 0
        for owner in list(self._counts):
            halved = {shape: count >> 1 for shape, count in self._counts[owner].items() if count > 1}
            if halved:
                self._counts[owner] = halved
                total += sum(halved.values())
            else:
                del self._counts[owner]
        self._total = total

    def shares(self) -> list[Share]:
        """The shapes with their weights, which sum to ONE or a little less; most frequent first."""
        sums: dict[Shape, int] = {}
        for counts, (part, of) in zip(self._counts.values(), self._caps(), strict=True):
            for shape, count in counts.items():
                sums[shape] = sums.get(shape, 0) + count * ONE * part // of
        total = sum(sums.values())
        if not total:
            return []
        ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:SHAPES]
        return [Share(shape, weight) for shape, amount in ordered if (weight := amount * ONE // total)]

    def _caps(self) -> list[tuple[int, int]]:
        """By which fraction each owner's counts are scaled, so that nobody exceeds its part of what then remains."""
        totals = [sum(counts.values()) for counts in self._counts.values()]
        parts = min(OWNER_PARTS, len(totals))
        if parts < 2:
            return [(1, 1)] * len(totals)
        limit = _limit(totals, parts)
        return [(min(total, limit), total) if total else (1, 1) for total in totals]

    # -- over restarts and between replicas ---------------------------------------------------------------------------
    def state(self) -> MixState:
        counts = sorted((owner, shape, n) for owner, by in self._counts.items() for shape, n in by.items())
        return MixState(tuple(counts), self.seen)

    def restore(self, state: MixState) -> None:
        """Take over what another process had learned; jobs counted there and not here may then count twice."""
        self._counts = {}
        for owner, shape, count in state.counts:
            self._counts.setdefault(owner, {})[shape] = count
        self._total = sum(count for _, _, count in state.counts)
        self.seen = state.seen
        self._due = self.seen + max(1, min(self.seen // 2, RENEWED))
        self.version += 1


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
