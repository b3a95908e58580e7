"""Where a queue stands against what it deserves, and what each part of the tree is entitled to.

Dominant-resource fairness (Ghodsi, NSDI'11) at every level of the queue tree, among siblings: who stays within what it
deserves with its next request goes before everybody else; then who is below it now, and goes above with one request;
then those above, by what they have beyond it, in parts of the cluster over their weight. The next request is counted
in, so a queue whose share just became 0 does not come first with a request that is larger than what it deserves.

Two knobs, 0 to 100. `fairness`: shares are compared in bands as wide as the rest to 100 %, so at 100 the smallest
difference decides and at 0 none does; within a band the better job goes first, whichever queue it is of. What is
deserved stands at any setting. `history`: how much of what counts as used is the past average instead of the present.
History never takes a queue out of what it deserves; it decides among those that stand alike.

Among siblings of which none says what it deserves or weighs, jobs go as if they stood in one queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from libs.domain.queues import Queue, QueueHistory, Quota, Weights, ancestors

#: Milli GPUs, milli CPU, MiB.
Amounts = tuple[int, int, int]
NOTHING: Final[Amounts] = (0, 0, 0)

#: Tiers of siblings, first to last.
WITHIN: Final = 0  # stays within what it deserves with the request
REACHING: Final = 1  # is below it, and goes above with the request
ABOVE: Final = 2
UNWEIGHTED: Final = 3  # takes no part in what is over


class Standing(NamedTuple):
    """Compares as siblings go: the lesser first. `share` is what was compared, `band` what it counts as."""

    tier: int
    band: float
    share: float


class _Terms(NamedTuple):
    deserved: tuple[int | None, int | None, int | None]
    weights: Amounts
    says: bool


def plus(left: Amounts, right: Amounts) -> Amounts:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]


def parent_of(path: str) -> str:
    """Path of the queue above, empty for one at the top."""
    return path.rpartition("/")[0]


class Shares:
    """Specs and history of all queues. `use` tells what is used of a queue and everything below it."""

    def __init__(self, use: Callable[[str], Amounts], *, fairness: int = 100, history: int = 0) -> None:
        if not (0 <= fairness <= 100 and 0 <= history <= 100):
            raise ValueError(f"fairness and history are 0 to 100, not {fairness} and {history}")
        self.use = use
        self.now = 0.0
        self._width = 1.0 - fairness / 100
        self._past = history / 100
        self._terms: dict[str, _Terms] = {}
        self._specs: dict[str, Queue] = {}
        self._histories: dict[str, QueueHistory] = {}
        self._total: Amounts = NOTHING
        self._children: dict[str, set[str]] = {}
        self._parts: dict[str, tuple[float, float, float]] = {}
        self._compared: dict[str, bool] = {}
        self._silent: bool | None = None
        #: Grows with everything but use that standings follow from.
        self.version = 0

    # -- facts ------------------------------------------------------------------------------------------------------
    def queue_seen(self, queue: Queue) -> None:
        self._specs[queue.path] = queue
        self._terms[queue.path] = _terms(queue.deserved, queue.weights)
        self._changed()

    def queue_gone(self, path: str) -> None:
        if self._specs.pop(path, None) is not None:
            del self._terms[path]
            self._changed()

    def history_seen(self, history: QueueHistory) -> None:
        known = self._histories.get(history.path)
        if known is None or history.at >= known.at:
            self._histories[history.path] = history
            if self._past:
                self.version += 1

    def total_seen(self, total: Amounts) -> None:
        """What the cluster has."""
        if total != self._total:
            self._total = total
            self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._parts.clear()
        self._children.clear()
        self._compared.clear()
        self._silent = None

    @property
    def total(self) -> Amounts:
        return self._total

    @property
    def silent(self) -> bool:
        """Whether nobody says what it deserves or weighs: then all jobs go as of one queue."""
        if self._silent is None:
            self._silent = not any(s.deserved != _NO_QUOTA or s.weights != _EQUAL for s in self._specs.values())
        return self._silent

    def spec(self, path: str) -> Queue | None:
        return self._specs.get(path)

    # -- who goes first ---------------------------------------------------------------------------------------------
    def compared(self, above: str) -> bool:
        """Whether one of the queues right below says what it deserves or weighs; else their jobs go as of one queue."""
        found = self._compared.get(above)
        if found is None:
            specs = (self._specs.get(path) for path in self._siblings(above))
            found = any(s is not None and (s.deserved != _NO_QUOTA or s.weights != _EQUAL) for s in specs)
            self._compared[above] = found
        return found

    def standing(self, path: str, ask: Amounts, extra: Amounts = NOTHING) -> Standing:
        """Of a queue among its siblings, with its next request counted in. `extra` is used beyond what `use` says."""
        used = plus(self.use(path), extra)
        terms = self._terms.get(path)
        felt = self.felt(path, used) if self._past else used
        if terms is None:
            return self._above(felt, ask, _NO_TERMS)
        if not terms.says:
            return self._above(felt, ask, terms)
        asked = said = within = below = 0
        share = 0.0
        for have, feels, more, deserves in zip(used, felt, ask, terms.deserved, strict=True):
            if not more:
                continue
            asked += 1
            if deserves is None:
                continue
            said += 1
            within += have + more <= deserves
            below += have < deserves
            share = max(share, (feels + more) / deserves if deserves else math.inf)
        if said and within == said:
            return Standing(WITHIN, self._band(share), share)
        if said and below == said:
            return Standing(REACHING, self._band(share), share)
        return self._above(felt, ask, terms)

    def standing_of(self, used: Amounts, ask: Amounts) -> Standing:
        """Of somebody who uses this much, deserves nothing and weighs one."""
        return self._above(used, ask, _NO_TERMS)

    def _above(self, felt: tuple[float, float, float], ask: Amounts, terms: _Terms) -> Standing:
        share = 0.0
        tier = ABOVE
        for have, more, deserves, weight, total in zip(
            felt, ask, terms.deserved, terms.weights, self._total, strict=True
        ):
            beyond = have + more - (deserves or 0)
            if more and not weight:
                tier = UNWEIGHTED
            if beyond > 0 and total > 0:
                share = max(share, beyond / total / (weight or 1))
        return Standing(tier, self._band(share), share)

    def _band(self, share: float) -> float:
        width = self._width
        if width <= 0.0 or math.isinf(share):
            return share
        return 0.0 if width >= 1.0 else float(math.floor(share / width + 1e-9))

    def felt(self, path: str, used: Amounts) -> tuple[float, float, float]:
        """What counts as used: the present and the past average, by the knob."""
        history = self._histories.get(path)
        if history is None or history.half_life_s <= 0:
            return used
        faded: float = 2.0 ** (-max(0.0, self.now - history.at) / history.half_life_s) if self.now else 1.0
        rate = faded * math.log(2) / history.half_life_s
        seconds = history.gpu_milli_s, history.cpu_milli_s, history.mem_mib_s
        gpu, cpu, mem = ((1 - self._past) * u + self._past * s * rate for u, s in zip(used, seconds, strict=True))
        return gpu, cpu, mem

    # -- what one is entitled to ------------------------------------------------------------------------------------
    def part(self, path: str) -> tuple[float, float, float]:
        """What the queue deserves and its part, by weight, of what no sibling deserves; at most its limit. Among
        siblings of which none says anything, all of what is above."""
        found = self._parts.get(path)
        if found is None:
            found = self._parts[path] = self._part(path)
        return found

    def _part(self, path: str) -> tuple[float, float, float]:
        above = parent_of(path)
        whole: tuple[float, ...] = self.part(above) if above else self._total
        siblings = self._siblings(above) | {path} if self.compared(above) else {path}
        spec = self._specs.get(path)
        limits = (spec.gpu_milli, spec.cpu, spec.mem) if spec is not None else (None, None, None)
        mine = self._terms.get(path, _NO_TERMS)
        parts = []
        for at in range(3):
            deserved = weights = 0
            for sibling in siblings:
                terms = self._terms.get(sibling, _NO_TERMS)
                deserved += terms.deserved[at] or 0
                weights += terms.weights[at]
            over = max(0.0, whole[at] - deserved)
            part = (mine.deserved[at] or 0) + (over * mine.weights[at] / weights if weights else 0.0)
            limit = limits[at]
            parts.append(min(part, limit) if limit is not None else part)
        return parts[0], parts[1], parts[2]

    def _siblings(self, above: str) -> set[str]:
        if not self._children:
            for path in self._specs:
                for one in ancestors(path):
                    self._children.setdefault(parent_of(one), set()).add(one)
        return self._children.get(above, set())

    def entitled(self, path: str, ask: Amounts) -> bool:
        """Whether the request is within the part of the queue and of every queue above, and none of them stands above
        its part: then it may wait for room, whoever of its own queue holds that now."""
        for one in ancestors(path):
            if any(
                a and (u > p + 1e-6 or a > p + 1e-6) for u, a, p in zip(self.use(one), ask, self.part(one), strict=True)
            ):
                return False
        return True

    def queues(self) -> Iterator[Queue]:
        return iter(self._specs.values())


def _terms(deserved: Quota, weights: Weights) -> _Terms:
    """A queue that says its GPUs by model only deserves their sum."""
    gpu = deserved.gpu_milli
    if gpu is None and deserved.models:
        gpu = sum(deserved.models.values())
    said = (gpu, deserved.cpu, deserved.mem)
    return _Terms(said, (weights.gpu, weights.cpu, weights.mem), any(one is not None for one in said))


_NO_QUOTA: Final = Quota()
_EQUAL: Final = Weights()
_NO_TERMS: Final = _terms(_NO_QUOTA, _EQUAL)
