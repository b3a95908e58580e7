"""What makes tasks alike: two tasks with equal asks share one feasibility, one score vector and one verdict.

An `Ask` is a task's request, node selector and tolerations, compiled once. Everything that depends on the task alone
is precomputed here so that the inner loops touch plain integers only.
"""

from __future__ import annotations

from libs.domain.jobs import Task
from libs.domain.nodes import Toleration
from libs.domain.resources import WHOLE, GpuRequest, Request

AskKey = tuple[Request, tuple[tuple[str, str], ...], tuple[Toleration, ...]]


def ask_key(task: Task) -> AskKey:
    selector = task.node_selector
    return task.request, tuple(sorted(selector.items())) if selector else (), task.tolerations


class Ask:
    """A compiled ask. `count` 0 means no GPU; with `share` each device is taken in part, else wholly."""

    __slots__ = ("count", "cpu", "gpu", "gpu_milli", "key", "mem", "mib", "milli", "models", "request", "selector",
                 "share", "tolerations")  # fmt: skip

    def __init__(self, key: AskKey) -> None:
        request, selector, tolerations = key
        self.key = key
        self.request: Request = request
        self.gpu: GpuRequest = request.gpu
        self.cpu = request.cpu
        self.mem = request.mem
        self.count = request.gpu.count
        self.share = request.gpu.shared
        self.milli = request.gpu.milli
        self.mib = 0 if request.gpu.milli else request.gpu.mib
        self.models = frozenset(request.gpu.models)
        self.selector = selector
        self.tolerations = tolerations
        #: What a queue is charged, or 0 where that depends on the device (a request by memory).
        self.gpu_milli = request.gpu_milli

    @property
    def charge_depends(self) -> bool:
        """Whether the milli GPUs charged depend on the device chosen."""
        return self.share and self.mib > 0

    def grant(self, device_mib: int) -> tuple[int, int]:
        """(milli, MiB) taken of one device: `GpuRequest.grant`, without attribute chains."""
        if self.milli:
            return self.milli, self.milli * device_mib // WHOLE
        if self.mib:
            return (self.mib * WHOLE // device_mib if device_mib else WHOLE), self.mib
        return WHOLE, device_mib

    def per_device(self, device_mib: int) -> int:
        """How many tasks like this an empty device of that size can serve, counted on the side that limits."""
        milli, mib = self.grant(device_mib)
        if not self.share:
            return 1
        by_milli = WHOLE // milli if milli else None
        by_mib = device_mib // mib if mib else None
        bounds = [b for b in (by_milli, by_mib) if b is not None]
        return min(bounds) if bounds else WHOLE
