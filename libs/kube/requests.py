"""What a pod spec asks for: the effective request as kubelet and kube-scheduler compute it, the GPU request, and every
feature that placement does not understand (named, so that it is refused with a reason and never ignored).

Nothing here raises: text that cannot be read becomes an entry of `unsupported` with a sentence for the user.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Final

import msgspec

from libs.domain import keys
from libs.domain.nodes import Toleration
from libs.domain.resources import WHOLE, GpuRequest, Request
from libs.kube.objects import Container, PodSpec, Quantities, Resources, present
from libs.kube.quantities import mib, milli, units
from libs.kube.shares import HAMI, Share, share_of

#: Volumes that any node can mount, without limits per node.
_PLAIN_VOLUMES: Final = frozenset(
    {"name", "emptyDir", "configMap", "secret", "projected", "downwardAPI", "hostPath", "nfs", "image"}
)
_UNDERSTOOD: Final = frozenset({"cpu", "memory", keys.GPU_RESOURCE, *HAMI})
_MOST_DEVICES: Final = 1024
_MOST_MIB: Final = 2**31

Sums = dict[str, int]


class Asked(msgspec.Struct, frozen=True):
    request: Request
    unsupported: tuple[str, ...]


def asked(spec: PodSpec, annotations: Mapping[str, str]) -> Asked:
    """Effective request of a pod (or of a template's pods), with all reasons why it cannot be served as asked."""
    problems: list[str] = []
    sums = _effective(spec, problems)
    problems.extend(_features(spec))
    for name, amount in sums.items():
        if name not in _UNDERSTOOD and amount:
            problems.append(f"resource {name}")
    share = share_of(spec, annotations, problems)
    gpu = _gpu(sums.get(keys.GPU_RESOURCE, 0), share, models_of(annotations), problems)
    request = Request(cpu=sums.get("cpu", 0), mem=mib(sums.get("memory", 0), up=True), gpu=gpu)
    return Asked(request, tuple(dict.fromkeys(problems)))


def tolerations(spec: PodSpec) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(t.key or "", t.operator or "Equal", t.value or "", t.effect or "") for t in spec.tolerations or ()
    )


# --- CPU, memory, extended resources ------------------------------------------------------------------------


def _effective(spec: PodSpec, problems: list[str]) -> Sums:
    """CPU in milli, everything else in base units. Sidecars (restartable init containers) run beside everything that
    starts after them; other init containers run one at a time."""
    running: Sums = {}
    for container in spec.containers or ():
        _add(running, _of_container(container, problems))
    sidecars: Sums = {}
    start: Sums = {}
    for container in spec.init_containers or ():
        own = _of_container(container, problems)
        if container.restart_policy == "Always":
            _add(running, own)
            _add(sidecars, own)
            _most(start, sidecars)
        else:
            _add(own, sidecars)
            _most(start, own)
    _most(running, start)
    if spec.resources is not None:
        if present(spec.resources.claims):
            problems.append("resource claims")
        # A pod-level figure stands in place of the sum of the containers.
        running.update(_of(spec.resources, problems))
    if spec.overhead:
        _add(running, _sums(spec.overhead, problems))
    return running


def _of_container(container: Container, problems: list[str]) -> Sums:
    if container.resources is None:
        return {}
    if present(container.resources.claims):
        problems.append("resource claims")
    return _of(container.resources, problems)


def _of(resources: Resources, problems: list[str]) -> Sums:
    """A limit stands for a request that is not there, as the API server's defaulting does on pods."""
    found = _sums(resources.limits, problems) if resources.limits else {}
    if resources.requests:
        found.update(_sums(resources.requests, problems))
    return found


def _sums(quantities: Quantities, problems: list[str]) -> Sums:
    found: Sums = {}
    for name, quantity in quantities.items():
        try:
            amount = milli(quantity, True) if name == "cpu" else units(quantity, True)
        except ValueError:
            problems.append(f"resource {name}: {str(quantity)[:40]!r} is not a quantity")
            continue
        if amount < 0:
            problems.append(f"resource {name}: {str(quantity)[:40]!r} is negative")
            continue
        found[name] = amount
    return found


def _add(into: Sums, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        into[name] = into.get(name, 0) + amount


def _most(into: Sums, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        if amount > into.get(name, 0):
            into[name] = amount


# --- GPUs ---------------------------------------------------------------------------------------------------


def _gpu(count: int, share: Share | None, models: tuple[str, ...], problems: list[str]) -> GpuRequest:
    if count > _MOST_DEVICES:
        problems.append(f"{keys.GPU_RESOURCE}: {count} devices is more than any node has")
        count = _MOST_DEVICES
    if share is None:
        return GpuRequest(count=count, models=models) if count else GpuRequest()
    if count:
        problems.append(f"{share.key} beside {keys.GPU_RESOURCE}: the device plugin would hand out whole devices")
        return GpuRequest(count=count, models=models)
    taken = GpuRequest(count=share.devices, models=models)
    if share.fraction is not None:
        part = fraction_milli(share.fraction)
        if part is None:
            problems.append(f"{share.key}: {share.fraction[:40]!r} is not a number above 0 and at most 1")
            return taken
        return msgspec.structs.replace(taken, milli=0 if part == WHOLE else part)
    if share.memory is not None:
        size = memory_mib(share.memory)
        if size is None:
            problems.append(f'{share.key}: {share.memory[:40]!r} is not an amount such as "8192" (MiB) or "8Gi"')
            return taken
        return msgspec.structs.replace(taken, mib=size)
    return taken


def fraction_milli(text: str) -> int | None:
    """Share of one device in milli, rounded up; None where the text is no number in (0, 1]."""
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return None
    if not value.is_finite() or not 0 < value <= 1:
        return None
    return int((value * WHOLE).to_integral_value(ROUND_CEILING))


def memory_mib(text: str) -> int | None:
    """MiB of one device: a bare number is MiB, one with a unit is bytes. None where it is neither or not positive."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        size = int(text) if len(text) < 12 else 0
    else:
        try:
            size = mib(units(text, True), up=True)
        except ValueError:
            return None
        if text[-1:].isdecimal():
            return None  # "1e3" or "0.5": neither MiB nor a unit
    return size if 0 < size < _MOST_MIB else None


def models_of(annotations: Mapping[str, str]) -> tuple[str, ...]:
    text = annotations.get(keys.GPU_MODELS, "")
    return tuple(sorted({m.strip() for m in text.split(",") if m.strip()})) if text else ()


# --- features -----------------------------------------------------------------------------------------------


class _Affinity(msgspec.Struct, frozen=True, rename="camel"):
    node_affinity: msgspec.Raw = msgspec.Raw(b"")
    pod_affinity: msgspec.Raw = msgspec.Raw(b"")
    pod_anti_affinity: msgspec.Raw = msgspec.Raw(b"")


_affinity_decoder: Final = msgspec.json.Decoder(_Affinity)


def _features(spec: PodSpec) -> Iterable[str]:
    if present(spec.affinity):
        try:
            affinity = _affinity_decoder.decode(spec.affinity)
        except msgspec.MsgspecError:
            yield "affinity"
        else:
            if present(affinity.node_affinity):
                yield "node affinity"
            if present(affinity.pod_affinity):
                yield "pod affinity"
            if present(affinity.pod_anti_affinity):
                yield "pod anti-affinity"
    if present(spec.topology_spread_constraints):
        yield "topology spread constraints"
    if present(spec.resource_claims):
        yield "resource claims"
    if present(spec.workload_ref) or present(spec.scheduling_group):
        yield "scheduling group of the workload API"
    for volume in spec.volumes or ():
        for kind in volume:
            if kind not in _PLAIN_VOLUMES:
                yield f"volume of kind {kind}"
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            if container.ports and any(port.host_port for port in container.ports):
                yield "host ports"
