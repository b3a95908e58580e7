"""Where a queue stands against what it deserves, and what each part of the tree is entitled to.

Dominant-resource fairness (Ghodsi, NSDI'11) at every level of the queue tree, among siblings: who stays within what it
deserves with its next request goes before everybody else; then who is below it now, and goes above with one request;
then those above, by what they have beyond it, in parts of the cluster over their weight. The next request is counted
in, so a queue whose share just became 0 does not come first with a request that is larger than what it deserves.

Two knobs, 0 to 100. `fairness`: shares are compared in bands as wide as the rest to 100 %, so at 100 the smallest
difference decides and at 0 none does; within a band the better job goes first, whichever queue it is of. What is
deserved stands at any setting. `history`: how much of what counts as used is the past average instead of the present.
History never takes a queue out of what it deserves; it decides among those that stand alike.

Among siblings of which none says what it deserves or weighs, jobs go as if they stood in one queue. Among siblings of
which one speaks of GPUs of a model, each such model is a resource of its own (`fair.models`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from libs.domain.queues import Queue, QueueHistory, Quota, Weights, ancestors
from libs.engine.fair import models as by
from libs.engine.fair.models import REST, Side
from libs.engine.fair.parts import NO_MODELS, NO_TERMS, Amounts, Models, Part, Terms, divide, terms_of

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


def plus(left: Amounts, right: Amounts) -> Amounts:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]


def parent_of(path: str) -> str:
    """Path of the queue above, empty for one at the top."""
    return path.rpartition("/")[0]


class Shares:
    """Specs and history of all queues. `use` tells what is used of a queue and everything below it, `use_of_models`
    what of that is known by model."""

    def __init__(
        self,
        use: Callable[[str], Amounts],
        *,
        use_of_models: Callable[[str], Models] = lambda _: NO_MODELS,
        fairness: int = 100,
        history: int = 0,
    ) -> None:
        if not (0 <= fairness <= 100 and 0 <= history <= 100):
            raise ValueError(f"fairness and history are 0 to 100, not {fairness} and {history}")
        self.use = use
        self.use_of_models = use_of_models
        self.now = 0.0
        self._width = 1.0 - fairness / 100
        self._past = history / 100
        self._terms: dict[str, Terms] = {}
        self._specs: dict[str, Queue] = {}
        self._histories: dict[str, QueueHistory] = {}
        self._total: Amounts = NOTHING
        self._children: dict[str, set[str]] = {}
        self._total_of_models: Models = NO_MODELS
        self._parts: dict[str, Part] = {}
        self._compared: dict[str, bool] = {}
        self._named: dict[str, tuple[str, ...]] = {}
        self._models: frozenset[str] | None = None
        self._silent: bool | None = None
        #: Grows with everything but use that standings follow from.
        self.version = 0

    # -- facts ------------------------------------------------------------------------------------------------------
    def queue_seen(self, queue: Queue) -> None:
        self._specs[queue.path] = queue
        self._terms[queue.path] = terms_of(queue.deserved, queue.weights)
        self._spoken()

    def queue_gone(self, path: str) -> None:
        if self._specs.pop(path, None) is not None:
            del self._terms[path]
            self._spoken()

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

    def models_seen(self, total: Mapping[str, int]) -> None:
        """What the cluster has of each model; told where `models` are named."""
        if total != self._total_of_models:
            self._total_of_models = dict(total)
            self._changed()

    def _spoken(self) -> None:
        self._models = None
        self._changed()

    @property
    def models(self) -> frozenset[str]:
        """Models that any queue deserves or weighs."""
        if self._models is None:
            self._models = frozenset(name for spec in self._specs.values() for name in _names(spec))
        return self._models

    def _changed(self) -> None:
        self.version += 1
        self._parts.clear()
        self._children.clear()
        self._compared.clear()
        self._named.clear()
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

    def named(self, above: str) -> tuple[str, ...]:
        """The models of which one of the queues right below says what it deserves or weighs."""
        if not self.models:
            return ()
        found = self._named.get(above)
        if found is None:
            specs = (self._specs.get(path) for path in self._siblings(above))
            names = set().union(*(_names(spec) for spec in specs if spec is not None))
            found = self._named[above] = tuple(sorted(names))
        return found

    def standing(
        self,
        path: str,
        ask: Amounts,
        extra: Amounts = NOTHING,
        models: Sequence[str] = (),
        extra_of_models: Models = NO_MODELS,
    ) -> Standing:
        """Of a queue among its siblings, with its next request counted in; `models` are those that will do for it, none
        where any does. `extra` is used beyond what `use` says."""
        used = plus(self.use(path), extra)
        terms = self._terms.get(path)
        felt = self.felt(path, used) if self._past else used
        named = self.named(parent_of(path))
        use = felt_use = NO_MODELS
        if named:
            use = _plus(self.use_of_models(path), extra_of_models)
            felt_use = self._felt_of_models(path, use) if self._past else use
        if terms is None:
            return self._above(felt, ask, NO_TERMS, models, felt_use, named)
        if not terms.says:
            return self._above(felt, ask, terms, models, felt_use, named)
        said = within = below = 0
        share = 0.0
        for have, feels, more, deserves in self._sides(used, felt, ask, terms, models, use, felt_use, named):
            said += 1
            within += have + more <= deserves
            below += have < deserves
            share = max(share, (feels + more) / deserves if deserves else math.inf)
        if said and within == said:
            return Standing(WITHIN, self._band(share), share)
        if said and below == said:
            return Standing(REACHING, self._band(share), share)
        return self._above(felt, ask, terms, models, felt_use, named)

    def standing_of(
        self, above: str, used: Amounts, ask: Amounts, models: Sequence[str] = (), use: Models = NO_MODELS
    ) -> Standing:
        """Of somebody right below `above` who uses this much, deserves nothing and weighs one."""
        return self._above(used, ask, NO_TERMS, models, use, self.named(above))

    def _sides(
        self,
        used: Amounts,
        felt: tuple[float, float, float],
        ask: Amounts,
        terms: Terms,
        models: Sequence[str],
        use: Models,
        felt_use: Models,
        named: Sequence[str],
    ) -> Iterator[Side]:
        """What is both asked for and deserved."""
        first = 0
        if named:
            first = 1
            if ask[0]:
                deserved = terms.deserved[0], terms.models
                yield from by.sides((used[0], use), (felt[0], felt_use), ask[0], models, deserved)
        for at in range(first, 3):
            deserves = terms.deserved[at]
            if ask[at] and deserves is not None:
                yield Side(used[at], felt[at], ask[at], deserves)

    def _above(
        self,
        felt: tuple[float, float, float],
        ask: Amounts,
        terms: Terms,
        models: Sequence[str],
        use: Models,
        named: Sequence[str],
    ) -> Standing:
        share = 0.0
        tier = ABOVE
        if named:
            share, weighs = self._devices_above(felt[0], ask[0], terms, models, use, named)
            if ask[0] and not weighs:
                tier = UNWEIGHTED
        for at in range(1 if named else 0, 3):
            more, weight, total = ask[at], terms.weights[at], self._total[at]
            beyond = felt[at] + more - (terms.deserved[at] or 0)
            if more and not weight:
                tier = UNWEIGHTED
            if beyond > 0 and total > 0:
                share = max(share, beyond / total / (weight or 1))
        return Standing(tier, self._band(share), share)

    def _devices_above(
        self, gpu: float, more: int, terms: Terms, models: Sequence[str], use: Models, named: Sequence[str]
    ) -> tuple[float, bool]:
        """(the largest part beyond the share, over its weight, of any model; whether one that the request may get has a
        weight)."""
        total = by.split(self._total[0], self._total_of_models, named)
        may = by.candidates(models, named, total)
        used = by.split(gpu, use, named)
        if more:
            for one, amount in by.spread(more, may, total).items():
                used[one] += amount
        share = 0.0
        for one, beyond in by.beyond(used, terms.models, terms.deserved[0]):
            if beyond > 0 and total[one] > 0:
                share = max(share, beyond / total[one] / (terms.weight_of(one) or 1))
        return share, any(terms.weight_of(one) for one in may)

    def likely(self, milli: int, models: Sequence[str]) -> Models:
        """What a request for these models may turn out to take of each that is named, before it is known."""
        if not milli or not self.models:
            return NO_MODELS
        named = sorted(self.models)
        total = by.split(self._total[0], self._total_of_models, named)
        spread = by.spread(milli, by.candidates(models, named, total), total)
        return {one: amount for one, amount in spread.items() if one != REST}

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
        rate = self._rate(history)
        seconds = history.gpu_milli_s, history.cpu_milli_s, history.mem_mib_s
        gpu, cpu, mem = ((1 - self._past) * u + self._past * s * rate for u, s in zip(used, seconds, strict=True))
        return gpu, cpu, mem

    def _felt_of_models(self, path: str, use: Models) -> Models:
        history = self._histories.get(path)
        if history is None or history.half_life_s <= 0:
            return use
        past = _plus({}, history.models, self._past * self._rate(history))
        return _plus(past, use, 1 - self._past)

    def _rate(self, history: QueueHistory) -> float:
        """From what was used over time to a mean, as of now."""
        faded: float = 2.0 ** (-max(0.0, self.now - history.at) / history.half_life_s) if self.now else 1.0
        return faded * math.log(2) / history.half_life_s

    # -- what one is entitled to ------------------------------------------------------------------------------------
    def part(self, path: str) -> Part:
        """What the queue deserves and its part, by weight, of what no sibling deserves; at most its limit. Among
        siblings of which none says anything, all of what is above."""
        found = self._parts.get(path)
        if found is None:
            found = self._parts[path] = self._part(path)
        return found

    def _part(self, path: str) -> Part:
        above = parent_of(path)
        total = Part(*self._total, {model: self._total_of_models.get(model, 0) for model in self.models})
        whole = self.part(above) if above else total
        siblings = self._siblings(above) | {path} if self.compared(above) else {path}
        terms = [self._terms.get(sibling, NO_TERMS) for sibling in siblings]
        mine = self._terms.get(path, NO_TERMS)
        return divide(whole, self.named(above), terms, mine, self._specs.get(path))

    def _siblings(self, above: str) -> set[str]:
        if not self._children:
            for path in self._specs:
                for one in ancestors(path):
                    self._children.setdefault(parent_of(one), set()).add(one)
        return self._children.get(above, set())

    def entitled(self, path: str, ask: Amounts, models: Sequence[str] = ()) -> bool:
        """Whether the request is within the part of the queue and of every queue above, and none of them stands above
        its part: then it may wait for room, whoever of its own queue holds that now."""
        for one in ancestors(path):
            use, part = self.use(one), self.part(one)
            if any(a and (u > p + 1e-6 or a > p + 1e-6) for u, a, p in zip(use, ask, part[:3], strict=True)):
                return False
            if ask[0] and models and not self.models.isdisjoint(self.named(parent_of(one))):
                wanted = set(models)
                if wanted <= self.models:
                    held, by_model = self.use_of_models(one), part.models
                    most = sum(by_model[model] for model in wanted) + 1e-6
                    if ask[0] > most or sum(held.get(model, 0) for model in wanted) > most:
                        return False
        return True

    def queues(self) -> Iterator[Queue]:
        return iter(self._specs.values())


def _names(spec: Queue) -> set[str]:
    return {*spec.deserved.models, *spec.weights.models}


def _plus(left: Models, right: Models, times: float = 1.0) -> Models:
    if not right:
        return left
    return {model: left.get(model, 0) + times * right.get(model, 0) for model in left.keys() | right.keys()}


_NO_QUOTA: Final = Quota()
_EQUAL: Final = Weights()
