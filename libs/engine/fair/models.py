"""GPUs of several models as resources of their own, where siblings speak of models.

Among siblings of which one deserves or weighs GPUs of a model, each model that is named is a resource of its own, and
GPUs of all other models together are one more (`REST`), so a GPU counts once. What a queue deserves of GPUs, whatever
their model, includes what it deserves by model, as limits do: a share by model protects that model, a share of GPUs
what no share by model names.

Which model a request gets is known late. It stands by the models that will do for it, together: one that names a model
by that model, one that leaves it open by all that its queue uses and deserves. Where shares are compared it counts in
each of them as if spread by what the cluster has of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

#: GPUs of the models that nobody names, and of nodes that name none.
REST: Final = ""


class Side(NamedTuple):
    """One amount that is asked for and deserved: used now, what of it counts, asked for, deserved."""

    have: float
    feels: float
    more: float
    deserves: float


def split(gpu: float, by_model: Mapping[str, float], named: Sequence[str]) -> dict[str, float]:
    """An amount of GPUs, as far as it is known by model, by resource."""
    found = {model: by_model.get(model, 0.0) for model in named}
    found[REST] = max(0.0, gpu - sum(found.values()))
    return found


def candidates(models: Sequence[str], named: Sequence[str], total: Mapping[str, float]) -> list[str]:
    """The resources that a request for these models (none: any) may turn out to be of; those that the cluster has none
    of only where it has none of any."""
    if models:
        may = [model for model in named if model in models]
        if len(may) < len(set(models)):
            may.append(REST)
    else:
        may = [*named, REST]
    return [one for one in may if total.get(one, 0.0) > 0] or may


def spread(gpu: float, may: Sequence[str], total: Mapping[str, float]) -> dict[str, float]:
    """A request by resource, in parts of what the cluster has of each."""
    whole = sum(total.get(one, 0.0) for one in may)
    if whole <= 0:
        return {one: gpu / len(may) for one in may}
    return {one: gpu * total.get(one, 0.0) / whole for one in may}


def beyond(used: Mapping[str, float], deserved: Mapping[str, int], of_all: int | None) -> Iterator[tuple[str, float]]:
    """By resource, what stands above what is deserved. `deserved` by model, `of_all` of GPUs whatever their model: what
    passes that is of the models of which no share is said, in parts of what is used of them."""
    others = sum(amount for one, amount in used.items() if one not in deserved)
    part = 1.0
    if of_all is not None and others > 0:
        part = min(1.0, max(0.0, (sum(used.values()) - of_all) / others))
    for one, amount in used.items():
        yield one, (amount - deserved[one] if one in deserved else amount * part)


def sides(
    have: tuple[float, Mapping[str, float]],
    feels: tuple[float, Mapping[str, float]],
    more: float,
    models: Sequence[str],
    deserved: tuple[int | None, Mapping[str, int]],
) -> Iterator[Side]:
    """By what a request for GPUs is judged to stay within what a queue deserves, or to be below it. `have` and `feels`:
    GPUs in all, and by model."""
    of_all, by_model = deserved
    if of_all is not None:
        yield Side(have[0], feels[0], more, of_all)
    named = bool(models) and all(model in by_model for model in models)
    if named or (of_all is None and by_model):
        if models:
            yield Side(_of(have[1], models), _of(feels[1], models), more, _of(by_model, models))
        else:
            yield Side(have[0], feels[0], more, sum(by_model.values()))


def deserves(deserved: tuple[int | None, Mapping[str, int]], whole: Mapping[str, float]) -> dict[str, float]:
    """What a queue deserves, by resource; what it deserves of GPUs beside its models is spread over the others."""
    of_all, by_model = deserved
    found = {one: float(by_model.get(one, 0)) for one in whole}
    free = max(0, (of_all or 0) - sum(by_model.values()))
    others = [one for one in whole if one not in by_model]
    if free and others:
        for one, amount in spread(free, others, whole).items():
            found[one] += amount
    return found


def _of(amounts: Mapping[str, float], models: Sequence[str]) -> float:
    return sum(amounts.get(model, 0) for model in set(models))
