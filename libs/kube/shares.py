"""A part of a GPU as a pod asks for it: in our annotations, in KAI's, or in HAMi's resources.

- Ours, annotations: `drystone.dev/gpu-fraction`, `drystone.dev/gpu-memory`: a share, or MiB, of one device.
- KAI, annotations: `gpu-fraction`, `gpu-memory`: the same, of each of `gpu-fraction-num-devices` devices (else one).
- HAMi, resources of a container: `nvidia.com/gpumem` MiB, `nvidia.com/gpumem-percentage` of the memory,
  `nvidia.com/gpucores` percent of the cores, of one device.

HAMi gives all memory of a device to whom names only its cores, so such a pod takes it whole. Its manifests often name
`nvidia.com/gpu` beside: that counts devices at HAMi's own plugin, which hands out parts, and at NVIDIA's, which hands
out whole ones; such a pod is refused with a sentence, as one that says the same in our words is.

Sources: KAI `pkg/common/constants/constants.go`, HAMi `docs/config.md` and `pkg/device/nvidia/device.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import msgspec

from libs.domain import keys
from libs.domain.bounds import MOST_DEVICES
from libs.kube.objects import Container, PodSpec
from libs.kube.quantities import units

KAI_FRACTION: Final = "gpu-fraction"
KAI_MEMORY: Final = "gpu-memory"
KAI_DEVICES: Final = "gpu-fraction-num-devices"
HAMI_MEMORY: Final = "nvidia.com/gpumem"
HAMI_PERCENT: Final = "nvidia.com/gpumem-percentage"
HAMI_CORES: Final = "nvidia.com/gpucores"
#: Resources that are no devices of their own but say how much of one.
HAMI: Final = frozenset({HAMI_MEMORY, HAMI_PERCENT, HAMI_CORES})
#: How HAMi's users choose among devices: not understood, so named.
_HAMI_CHOICES: Final = (
    "nvidia.com/use-gputype",
    "nvidia.com/nouse-gputype",
    "nvidia.com/use-gpuuuid",
    "nvidia.com/nouse-gpuuuid",
    "nvidia.com/numa-bind",
    "nvidia.com/vgpu-mode",
)


class Share(msgspec.Struct, frozen=True):
    """What was said, as text: at most one of `fraction` and `memory`. `key` is where, for sentences."""

    key: str
    fraction: str | None = None
    memory: str | None = None
    devices: int = 1
    whole: bool = False


def share_of(spec: PodSpec, annotations: Mapping[str, str], problems: list[str]) -> Share | None:
    """The share that the pod asks for; None where it asks for none. Several that contradict each other are a problem
    and the first of them counts."""
    problems.extend(f"annotation {choice}" for choice in _HAMI_CHOICES if choice in annotations)
    found = [s for s in (*_annotated(annotations, problems), _hami(spec, problems)) if s is not None]
    if not found:
        return None
    first, *others = found
    for other in others:
        if (other.fraction, other.memory, other.devices) != (first.fraction, first.memory, first.devices):
            problems.append(f"both {first.key} and {other.key}: ask by one of them")
            break
    return first


def _annotated(annotations: Mapping[str, str], problems: list[str]) -> list[Share]:
    found = []
    if keys.GPU_FRACTION in annotations:
        found.append(Share(keys.GPU_FRACTION, fraction=annotations[keys.GPU_FRACTION]))
    if keys.GPU_MEMORY in annotations:
        found.append(Share(keys.GPU_MEMORY, memory=annotations[keys.GPU_MEMORY]))
    if KAI_FRACTION in annotations or KAI_MEMORY in annotations:
        devices = _whole_number(annotations.get(KAI_DEVICES, "1"))
        if not 1 <= devices <= MOST_DEVICES:
            problems.append(f"{KAI_DEVICES}: {annotations[KAI_DEVICES][:40]!r} is not a number of devices")
            devices = 1
        if KAI_FRACTION in annotations:
            found.append(Share(KAI_FRACTION, fraction=annotations[KAI_FRACTION], devices=devices))
        if KAI_MEMORY in annotations:
            found.append(Share(KAI_MEMORY, memory=annotations[KAI_MEMORY], devices=devices))
    return found


def _hami(spec: PodSpec, problems: list[str]) -> Share | None:
    asking = [
        said
        for containers in (spec.containers, spec.init_containers)
        for container in containers or ()
        if (said := _amounts(container))
    ]
    if not asking:
        return None
    if len(asking) > 1:
        problems.append(f"{min(asking[1])} in several containers: each would have a device of its own")
    said = asking[0]
    memory, percent, cores = (said.get(name, 0) for name in (HAMI_MEMORY, HAMI_PERCENT, HAMI_CORES))
    if percent > 100 or cores > 100:
        key = HAMI_PERCENT if percent > 100 else HAMI_CORES
        problems.append(f"{key}: {max(percent, cores)} is more than 100 percent of one device")
        return Share(key, whole=True)
    if memory:
        if percent or cores:
            key = HAMI_PERCENT if percent else HAMI_CORES
            problems.append(f"{key} beside {HAMI_MEMORY}: a share is asked by one of them")
        return Share(HAMI_MEMORY, memory=str(memory))
    if not percent:
        return Share(HAMI_CORES, whole=True)
    # Both are held by a share as large as the larger of them.
    return Share(HAMI_PERCENT, fraction=str(Decimal(max(percent, cores)) / 100))


def _amounts(container: Container) -> dict[str, int]:
    """HAMi's resources of a container that are above zero; limits stand before requests, as HAMi reads them."""
    if container.resources is None:
        return {}
    said = {**(container.resources.requests or {}), **(container.resources.limits or {})}
    found = {}
    for name in HAMI & said.keys():
        try:
            amount = units(said[name], True)
        except ValueError:
            continue  # told where all resources are read
        if amount > 0:
            found[name] = amount
    return found


def _whole_number(text: str) -> int:
    return int(text) if len(text) <= 6 and text.isascii() and text.isdecimal() else 0
