"""Queue objects (`queues.drystone.dev`) read into the tree of queues.

A queue's place follows from its parents. One whose parent is missing, or that is its own ancestor, stands at the top.
Amounts are spelled as Kubernetes spells them, under the names "nvidia.com/gpu", "cpu", "memory", and
"nvidia.com/gpu:<model>" for devices of one model. What the CRD's rules would refuse may still stand in objects older
than the rules: it is left out, and `Placed.problems` says so. An amount beyond all that is real is cut: a limit of so
much is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from libs.domain import keys
from libs.domain.bounds import MOST_QUOTA, MOST_SECONDS
from libs.domain.queues import Queue, Quota, Weights
from libs.kube.objects import Quantities, QueueSpec
from libs.kube.quantities import Quantity, mib, milli, units

#: Before the model, in the name of an amount of devices of one model.
OF_MODEL: Final = keys.GPU_RESOURCE + ":"
MOST_WEIGHT: Final = 1000
#: Evictions that a queue may allow of a workload.
_MOST: Final = 10**6
LEAST_HALF_LIFE_S: Final = 60
MOST_HALF_LIFE_S: Final = 90 * 86_400


@dataclass(slots=True)
class Placed:
    """One queue at its place. `problems` has (reason in CamelCase, sentence) of what its owner should know."""

    name: str
    queue: Queue
    problems: list[tuple[str, str]] = field(default_factory=list)


def tree(specs: Mapping[str, tuple[QueueSpec, str]]) -> dict[str, Placed]:
    """Every queue by name, from specs by name with the version that each was last changed in."""
    placed = {}
    for name, (spec, version) in specs.items():
        problems: list[tuple[str, str]] = []
        path = _path(name, specs, problems)
        try:
            queue = _queue(path, spec, version, problems)
        except (ArithmeticError, TypeError, ValueError) as error:
            queue = Queue(path, version=version)
            problems.append(("Unreadable", f"nothing of it can be read: {type(error).__name__}: {error}"[:200]))
        placed[name] = Placed(name, queue, problems)
    _children(specs, placed)
    _spaces(placed)
    return placed


def of_namespaces(queues: Iterable[Queue]) -> dict[str, str]:
    """Namespace -> path. Of two queues that name a namespace the one with the first path has it, whoever asks."""
    found: dict[str, str] = {}
    for queue in sorted(queues, key=lambda queue: queue.path):
        for namespace in queue.namespaces:
            found.setdefault(namespace, queue.path)
    return found


def spaces_of(queues: Iterable[Queue]) -> dict[str, frozenset[str]]:
    """Path -> the namespaces that may name the queue, of those that say any."""
    return {queue.path: frozenset(queue.namespaces) for queue in queues if queue.namespaces}


def amounts(quota: Quota) -> dict[str, str]:
    """As Kubernetes spells them, the reverse of reading."""
    said = {}
    if quota.gpu_milli is not None:
        said[keys.GPU_RESOURCE] = spelled(quota.gpu_milli)
    if quota.cpu is not None:
        said["cpu"] = spelled(quota.cpu)
    if quota.mem is not None:
        said["memory"] = f"{quota.mem}Mi"
    return said | {OF_MODEL + model: spelled(amount) for model, amount in sorted(quota.models.items())}


def spelled(thousandths: int) -> str:
    """2500 -> "2500m", 2000 -> "2"."""
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def weights_of(queue: Queue) -> dict[str, int]:
    """Weights that are not one, by the names that objects spell them under; of models all that are said."""
    weights = queue.weights
    fixed = {keys.GPU_RESOURCE: weights.gpu, "cpu": weights.cpu, "memory": weights.mem}
    said = {name: weight for name, weight in fixed.items() if weight != 1}
    return said | {OF_MODEL + model: weight for model, weight in sorted(weights.models.items())}


def limits_of(queue: Queue) -> Quota:
    return Quota(queue.gpu_milli, queue.cpu, queue.mem, queue.models)


def _path(name: str, specs: Mapping[str, tuple[QueueSpec, str]], problems: list[tuple[str, str]]) -> str:
    chain: list[str] = []
    at: str | None = name
    while at is not None and at in specs and at not in chain:
        chain.append(at)
        at = specs[at][0].parent or None
    if at in chain:
        if at == name:
            problems.append(("ParentCycle", f"{' under '.join([*chain, name])}: this queue stands at the top"))
        del chain[chain.index(at) + 1 :]
    elif len(chain) == 1 and at is not None:
        problems.append(("ParentMissing", f"there is no queue {at}: this one stands at the top"))
    return "/".join(reversed(chain))


def _queue(path: str, spec: QueueSpec, version: str, problems: list[tuple[str, str]]) -> Queue:
    limits = _quota(spec.limits, "limits", problems)
    evictions = spec.evictions
    return Queue(
        path=path,
        gpu_milli=limits.gpu_milli,
        cpu=limits.cpu,
        mem=limits.mem,
        models=limits.models,
        namespaces=tuple(spec.namespaces or ()),
        version=version,
        deserved=_quota(spec.deserved, "deserved", problems),
        weights=_weights(spec.weights or {}),
        half_life_s=_half_life(spec.usage_half_life_seconds),
        preemptible=spec.preemptible is not False,
        min_run_s=_seconds(spec.min_run_seconds),
        notice_s=_seconds(spec.evict_notice_seconds),
        **({} if evictions is None or evictions.most is None else {"evictions": min(max(evictions.most, 0), _MOST)}),
        **(
            {}
            if evictions is None or not evictions.window_seconds
            else {"evictions_window_s": max(_seconds(evictions.window_seconds), 1)}
        ),
    )


def _quota(said: Quantities | None, where: str, problems: list[tuple[str, str]]) -> Quota:
    if not said:
        return _NOTHING

    def read(name: str, how: Callable[[Quantity], int]) -> int | None:
        if name not in said:
            return None
        try:
            return min(max(how(said[name]), 0), MOST_QUOTA)
        except ValueError:
            problems.append(("Unreadable", f"{where}.{name}: {str(said[name])[:40]!r} is no amount and is left out"))
            return None

    models = {}
    for name in sorted(said):
        if name.startswith(OF_MODEL) and (amount := read(name, _thousandths)) is not None:
            models[name[len(OF_MODEL) :]] = amount
    return Quota(
        gpu_milli=read(keys.GPU_RESOURCE, _thousandths),
        cpu=read("cpu", _thousandths),
        mem=read("memory", lambda amount: mib(units(amount, up=False), up=False)),
        models=models,
    )


_NOTHING: Final = Quota()


def _thousandths(amount: Quantity) -> int:
    return milli(amount, up=False)


def _weights(said: Mapping[str, int]) -> Weights:
    def weight(name: str) -> int:
        return min(max(said.get(name, 1), 0), MOST_WEIGHT)

    models = {name[len(OF_MODEL) :]: weight(name) for name in sorted(said) if name.startswith(OF_MODEL)}
    return Weights(weight(keys.GPU_RESOURCE), weight("cpu"), weight("memory"), models)


def _seconds(said: int | None) -> int:
    return min(max(said or 0, 0), MOST_SECONDS)


def _half_life(said: int | None) -> int:
    return min(max(said, LEAST_HALF_LIFE_S), MOST_HALF_LIFE_S) if said else 0


def _children(specs: Mapping[str, tuple[QueueSpec, str]], placed: Mapping[str, Placed]) -> None:
    """Children that deserve more than their parent in sum: allowed, since not all of them ask at a time, and said."""
    below: dict[str, list[Queue]] = {}
    for name, place in placed.items():
        parent = specs[name][0].parent
        if parent and "/" in place.queue.path:
            below.setdefault(parent, []).append(place.queue)
    for parent, children in below.items():
        has = amounts_by_name(placed[parent].queue.deserved)
        sums: dict[str, int] = {}
        for child in children:
            for name, amount in amounts_by_name(child.deserved).items():
                sums[name] = sums.get(name, 0) + amount
        for name in sorted(sums.keys() & has.keys()):
            if sums[name] > has[name]:
                together, own = _words(name, sums[name]), _words(name, has[name])
                said = f"its children deserve {together} of {name} together, this queue {own}"
                placed[parent].problems.append(("ChildrenDeserveMore", said))


def amounts_by_name(quota: Quota) -> dict[str, int]:
    """Amounts that are said, in the units of `Quota`, by the names that objects spell them under."""
    fixed = {keys.GPU_RESOURCE: quota.gpu_milli, "cpu": quota.cpu, "memory": quota.mem}
    return {
        **{name: amount for name, amount in fixed.items() if amount is not None},
        **{OF_MODEL + model: amount for model, amount in quota.models.items()},
    }


def _words(name: str, amount: int) -> str:
    return f"{amount}Mi" if name == "memory" else spelled(amount)


def _spaces(placed: Mapping[str, Placed]) -> None:
    has = of_namespaces(place.queue for place in placed.values())
    for place in placed.values():
        for namespace in place.queue.namespaces:
            if has[namespace] != place.queue.path:
                said = f"the namespace {namespace} belongs to {has[namespace]}, which names it too"
                place.problems.append(("NamespaceTaken", said))
