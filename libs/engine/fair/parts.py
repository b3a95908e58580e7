"""What each part of the tree is entitled to: its share, and its part by weight of what nobody deserves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from libs.domain.queues import Queue, Quota, Weights
from libs.engine.fair import models as by
from libs.engine.fair.models import REST

#: Milli GPUs, milli CPU, MiB.
Amounts = tuple[int, int, int]
#: Milli GPUs by model.
Models = Mapping[str, float]
NO_MODELS: Final[Models] = MappingProxyType({})


class Terms(NamedTuple):
    """What a queue says of its share; `models` of it by model."""

    deserved: tuple[int | None, int | None, int | None]
    weights: Amounts
    says: bool
    models: Mapping[str, int]
    #: Of a model that is not named the weight is that of GPUs.
    model_weights: Mapping[str, int]

    def weight_of(self, resource: str) -> int:
        return self.model_weights.get(resource, self.weights[0])


class Part(NamedTuple):
    """Milli GPUs, milli CPU, MiB; and milli GPUs by model, of the models that any queue speaks of."""

    gpu: float
    cpu: float
    mem: float
    models: Models


def terms_of(deserved: Quota, weights: Weights) -> Terms:
    said = (deserved.gpu_milli, deserved.cpu, deserved.mem)
    says = bool(deserved.models) or any(one is not None for one in said)
    return Terms(said, (weights.gpu, weights.cpu, weights.mem), says, deserved.models, weights.models)


NO_TERMS: Final = terms_of(Quota(), Weights())


def divide(whole: Part, named: Sequence[str], all_terms: Sequence[Terms], mine: Terms, spec: Queue | None) -> Part:
    """The part of one queue in what is above it. `named`: models that its siblings speak of; `all_terms`: what they
    say, `mine` included; `spec`: its limits."""
    parts = []
    for at, amount in enumerate(whole[:3]):
        deserved = sum(theirs.deserved[at] or 0 for theirs in all_terms)
        weights = sum(theirs.weights[at] for theirs in all_terms)
        over = max(0.0, amount - deserved)
        parts.append((mine.deserved[at] or 0) + (over * mine.weights[at] / weights if weights else 0.0))
    devices: dict[str, float] = {}
    if named:
        devices = _devices(by.split(whole.gpu, whole.models, named), all_terms, mine)
        for model, limit in spec.models.items() if spec is not None else ():
            if model in devices:
                devices[model] = min(devices[model], limit)
        parts[0] = sum(devices.values())
    limits = (spec.gpu_milli, spec.cpu, spec.mem) if spec is not None else (None, None, None)
    gpu, cpu, mem = (min(part, limit) if limit is not None else part for part, limit in zip(parts, limits, strict=True))
    # Of a model that nobody here speaks of: as much as of all of these together.
    others = whole.gpu - sum(whole.models.get(model, 0.0) for model in named)
    rate = devices.get(REST, gpu) / others if others > 0 else 0.0
    models = {model: min(gpu, devices.get(model, amount * rate)) for model, amount in whole.models.items()}
    return Part(gpu, cpu, mem, models)


def _devices(whole: Models, all_terms: Sequence[Terms], mine: Terms) -> dict[str, float]:
    """The part of GPUs by resource."""
    deserved = [by.deserves((one.deserved[0], one.models), whole) for one in all_terms]
    own = by.deserves((mine.deserved[0], mine.models), whole)
    found = {}
    for one, amount in whole.items():
        over = max(0.0, amount - sum(theirs[one] for theirs in deserved))
        weights = sum(theirs.weight_of(one) for theirs in all_terms)
        found[one] = own[one] + (over * mine.weight_of(one) / weights if weights else 0.0)
    return found
