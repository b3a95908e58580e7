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
from libs.domain.bounds import MOST_ASKED, MOST_DEVICES, MOST_EXTRA
from libs.domain.nodes import Toleration
from libs.domain.resources import WHOLE, GpuRequest, Request
from libs.kube.effective import effective
from libs.kube.near import precision_of
from libs.kube.objects import PodSpec, PodStatus, present
from libs.kube.quantities import mib, units
from libs.kube.shares import HAMI, Share, share_of

#: Volumes that any node can mount, without limits per node, and those that are claims (`libs.kube.rules`).
_PLAIN_VOLUMES: Final = frozenset(
    {"name", "emptyDir", "configMap", "secret", "projected", "downwardAPI", "hostPath", "nfs", "image", "csi"}
    | {"persistentVolumeClaim", "ephemeral"}
)
#: Resources with a place of their own in a request.
_OF_THEIR_OWN: Final = frozenset({"cpu", "memory", keys.GPU_RESOURCE, *HAMI})
#: Models that one pod may name, tolerations and node labels that it may ask by: each is held against every node.
_MOST_MODELS: Final = 64
_MOST_TOLERATIONS: Final = 256
_MOST_SELECTED: Final = 256


class Asked(msgspec.Struct, frozen=True):
    request: Request
    unsupported: tuple[str, ...]


def asked(spec: PodSpec, annotations: Mapping[str, str], status: PodStatus | None = None) -> Asked:
    """Effective request of a pod (or of a template's pods), with all reasons why it cannot be served as asked."""
    problems: list[str] = []
    amounts = effective(spec, status, problems)
    problems.extend(_features(spec))
    share = share_of(spec, annotations, problems)
    models = models_of(annotations)
    if len(models) > _MOST_MODELS:
        problems.append(f"{keys.GPU_MODELS}: {len(models)} models, at most {_MOST_MODELS} can be named")
        models = models[:_MOST_MODELS]
    gpu = _gpu(_whole(amounts.get(keys.GPU_RESOURCE)), share, models, problems)
    if keys.PRECISION in annotations:
        kind, required = precision_of(annotations, problems)
        if kind and gpu.count:
            gpu = msgspec.structs.replace(gpu, precision=kind, precision_required=required)
    rest = ((n, _whole(amount)) for n, amount in amounts.items() if amount and n not in _OF_THEIR_OWN)
    extra = tuple(sorted((name, _at_most(MOST_EXTRA, amount, name, problems)) for name, amount in rest))
    request = Request(
        cpu=_at_most(MOST_ASKED, _whole(amounts.get("cpu"), 1000), "cpu", problems),
        mem=_at_most(MOST_ASKED, mib(_whole(amounts.get("memory")), up=True), "memory", problems),
        gpu=gpu,
        extra=extra,
    )
    return Asked(request, tuple(dict.fromkeys(problems)))


def _at_most(most: int, amount: int, name: str, problems: list[str]) -> int:
    """Sums of larger amounts would be exact nowhere."""
    if amount <= most:
        return amount
    problems.append(f"resource {name[:80]}: more than any node has")
    return most


def _whole(amount: Decimal | None, scale: int = 1) -> int:
    return 0 if amount is None else int((amount * scale).to_integral_value(ROUND_CEILING))


def tolerations(spec: PodSpec) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(t.key or "", t.operator or "Equal", t.value or "", t.effect or "") for t in spec.tolerations or ()
    )


# --- GPUs ---------------------------------------------------------------------------------------------------


def _gpu(count: int, share: Share | None, models: tuple[str, ...], problems: list[str]) -> GpuRequest:
    if count > MOST_DEVICES:
        problems.append(f"{keys.GPU_RESOURCE}: {count} devices is more than any node has")
        count = MOST_DEVICES
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
    return size if 0 < size <= MOST_ASKED else None


def models_of(annotations: Mapping[str, str]) -> tuple[str, ...]:
    text = annotations.get(keys.GPU_MODELS, "")
    return tuple(sorted({m.strip() for m in text.split(",") if m.strip()})) if text else ()


# --- features -----------------------------------------------------------------------------------------------


def _features(spec: PodSpec) -> Iterable[str]:
    if present(spec.resource_claims):
        yield "resource claims"
    if present(spec.workload_ref) or present(spec.scheduling_group):
        yield "scheduling group of the workload API"
    for volume in spec.volumes or ():
        for kind in volume:
            if kind not in _PLAIN_VOLUMES:
                yield f"volume of kind {kind[:80]}"
    if len(spec.tolerations or ()) > _MOST_TOLERATIONS:
        yield f"{len(spec.tolerations or ())} tolerations, at most {_MOST_TOLERATIONS} are looked at"
    if len(spec.node_selector or ()) > _MOST_SELECTED:
        yield f"{len(spec.node_selector or ())} entries of the node selector, at most {_MOST_SELECTED} are looked at"
