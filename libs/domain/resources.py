"""What a task asks for and what a node holds, in exact integers."""

from __future__ import annotations

import msgspec

from libs.domain.precision import Precision

WHOLE = 1000  # milli of one device


class GpuRequest(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """GPUs of one task. Exactly one of the three forms: whole devices, a share, or memory of a device.

    `count` devices are taken; with `milli` (1..999) a share of each; with `mib` that much memory of each; with neither
    they are taken whole. `models` lists the device models that will do; empty means any. `precision` is what the task
    computes in; where it is required, models that are known not to support it do not do.
    """

    count: int = 0
    milli: int = 0
    mib: int = 0
    models: tuple[str, ...] = ()
    precision: Precision = ""
    precision_required: bool = False

    @property
    def whole(self) -> bool:
        return self.count > 0 and not self.milli and not self.mib

    @property
    def shared(self) -> bool:
        return self.count > 0 and bool(self.milli or self.mib)

    def grant(self, device_mib: int) -> tuple[int, int]:
        """(milli, MiB) charged on a device of `device_mib` MiB.

        The side that was not asked for follows in proportion, cut down, so that shares that sum to one device by the
        side that was asked for always fit by the other.
        """
        if self.milli:
            return self.milli, self.milli * device_mib // WHOLE
        if self.mib:
            return (self.mib * WHOLE // device_mib if device_mib else WHOLE), self.mib
        return WHOLE, device_mib


class Request(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Effective request of one task: CPU in milli-cores, memory in MiB, GPUs; `extra` has every other resource by name,
    in its base unit (bytes, devices), sorted, none of them zero."""

    cpu: int = 0
    mem: int = 0
    gpu: GpuRequest = GpuRequest()
    extra: tuple[tuple[str, int], ...] = ()

    @property
    def gpu_milli(self) -> int:
        """What a queue is charged, milli GPUs. A request by memory is charged when a device is known."""
        return self.gpu.count * (self.gpu.milli or WHOLE) if not self.gpu.mib else 0


class GpuGrant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of one device: its index on the node, milli, MiB."""

    index: int
    milli: int
    mib: int


class Charge(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What one task takes from one node. `blind` counts whole GPUs of a foreign pod whose indices are unknown."""

    cpu: int = 0
    mem: int = 0
    gpus: tuple[GpuGrant, ...] = ()
    blind: int = 0

    @property
    def gpu_milli(self) -> int:
        return sum(g.milli for g in self.gpus) + WHOLE * self.blind
