"""The effective request of a pod, as kubelet and kube-scheduler compute it, resource by resource.

- Containers are summed. Restartable init containers (sidecars) run beside everything that starts after them; other init
  containers run one at a time, each beside the sidecars before it: the larger of both counts.
- Figures of the pod as a whole take the place of that sum, for CPU, memory and huge pages only; overhead comes on top.
- A container that is being resized in place counts with the most of what its spec asks, what its node allocated and
  what it runs with; without the spec where the node said that the resize is infeasible.

Source: k8s.io/component-helpers/resource, `PodRequests`, v0.36. Sums are exact and rounded up once, at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from libs.kube.objects import Container, ContainerStatus, PodSpec, PodStatus, Quantities, Resources, present
from libs.kube.quantities import exact

Amounts = dict[str, Decimal]

_ZERO: Final = Decimal(0)
_RESIZE: Final = "PodResizePending"


def pod_level(name: str) -> bool:
    """Whether a figure of the pod as a whole means anything for this resource."""
    return name in ("cpu", "memory") or name.startswith("hugepages-")


def effective(spec: PodSpec, status: PodStatus | None, problems: list[str]) -> Amounts:
    """In base units (cores, bytes, devices). What cannot be read is left out and becomes a sentence in `problems`."""
    resizing = _Resizing(status, problems) if status is not None and status.resized else None
    running: Amounts = {}
    for container in spec.containers or ():
        _add(running, _of_container(container, resizing, problems))
    if spec.init_containers:
        sidecars: Amounts = {}
        start: Amounts = {}
        for container in spec.init_containers:
            if container.restart_policy == "Always":
                own = _of_container(container, resizing, problems)
                _add(running, own)
                _add(sidecars, own)
                _most(start, sidecars)
            else:
                own = _of_container(container, None, problems)
                _add(own, sidecars)
                _most(start, own)
        _most(running, start)
    if spec.resources is not None:
        _whole_pod(spec.resources, status, resizing, running, problems)
    if spec.overhead:
        _add(running, _read(spec.overhead, problems))
    return running


def _whole_pod(
    resources: Resources, status: PodStatus | None, resizing: _Resizing | None, running: Amounts, problems: list[str]
) -> None:
    if present(resources.claims):
        problems.append("resource claims")
    asked = _read(resources.requests, problems) if resources.requests else {}
    for name, limit in (_read(resources.limits, problems) if resources.limits else {}).items():
        # As the API server fills in: what containers ask for, else the limit.
        if name not in asked and pod_level(name):
            asked[name] = running.get(name, limit)
    if resizing is not None and status is not None and status.resources is not None:
        asked = {**dict.fromkeys(asked, _ZERO), **resizing.most(asked, status.resources, status.allocated_resources)}
    running.update((name, amount) for name, amount in asked.items() if pod_level(name))


class _Resizing:
    """What the node says about containers whose resources may change while they run."""

    def __init__(self, status: PodStatus, problems: list[str]) -> None:
        self._problems = problems
        listed = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
        self.containers: dict[str, ContainerStatus] = {c.name: c for c in listed}
        pending = next((c for c in status.conditions or () if c.type == _RESIZE), None)
        self._infeasible = pending is not None and pending.reason == "Infeasible"

    def most(self, asked: Amounts, actual: Resources, allocated: Quantities | None) -> Amounts:
        found = {} if self._infeasible else dict(asked)
        _most(found, _read(actual.requests, self._problems) if actual.requests else {})
        _most(found, _read(allocated, self._problems) if allocated else {})
        return found


def _of_container(container: Container, resizing: _Resizing | None, problems: list[str]) -> Amounts:
    resources = container.resources
    if resources is None:
        return {}
    if present(resources.claims):
        problems.append("resource claims")
    # A limit stands for a request that is not there, as the API server's defaulting does.
    asked = _read(resources.limits, problems) if resources.limits else {}
    if resources.requests:
        asked.update(_read(resources.requests, problems))
    if resizing is not None:
        seen = resizing.containers.get(container.name)
        if seen is not None and seen.resources is not None:
            return resizing.most(asked, seen.resources, seen.allocated_resources)
    return asked


def _read(quantities: Quantities, problems: list[str]) -> Amounts:
    found: Amounts = {}
    for name, quantity in quantities.items():
        try:
            amount = exact(quantity)
        except ValueError:
            problems.append(f"resource {name}: {str(quantity)[:40]!r} is not a quantity")
            continue
        if amount < 0:
            problems.append(f"resource {name}: {str(quantity)[:40]!r} is negative")
            continue
        found[name] = amount
    return found


def _add(into: Amounts, other: Mapping[str, Decimal]) -> None:
    for name, amount in other.items():
        into[name] = into.get(name, _ZERO) + amount


def _most(into: Amounts, other: Mapping[str, Decimal]) -> None:
    for name, amount in other.items():
        if name not in into or amount > into[name]:
            into[name] = amount
