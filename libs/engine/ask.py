"""What makes tasks alike: two tasks with equal asks share one feasibility, one score vector and one verdict.

An `Ask` is a task's request, node selector, tolerations and placement rules, compiled once. Everything that depends on
the task alone is precomputed here so that the inner loops touch plain integers only.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

from libs.domain.jobs import Task
from libs.domain.nodes import Toleration
from libs.domain.resources import WHOLE, GpuRequest, Request
from libs.domain.rules import Rules
from libs.engine.precision.table import Allowed, GpuTable, default_table


class Scope(NamedTuple):
    """What rules speak of beyond one node's facts. `labels` are those of the task that some rule selects on; tasks that
    differ in other labels only are alike. Without rules between pods, namespace and labels are empty."""

    namespace: str
    labels: tuple[tuple[str, str], ...]
    rules: Rules | None


AskKey = tuple[Request, tuple[tuple[str, str], ...], tuple[Toleration, ...], Scope | None]


def ask_key(task: Task, selected: frozenset[str] | None = None) -> AskKey:
    """`selected`: keys of labels on which rules of other pods select that may mean this task; None: there are none."""
    selector, rules = task.node_selector, task.rules
    scope: Scope | None = None
    if selected is not None or (rules is not None and rules.namespaced):
        keys = (selected or frozenset()) | (rules.label_keys if rules is not None else frozenset())
        labels = tuple(sorted((k, v) for k, v in task.labels.items() if k in keys))
        scope = Scope(task.namespace, labels, rules)
    elif rules is not None:
        scope = Scope("", (), rules)
    return task.request, tuple(sorted(selector.items())) if selector else (), task.tolerations, scope


class Ask:
    """A compiled ask. `count` 0 means no GPU; with `share` each device is taken in part, else wholly."""

    __slots__ = ("count", "cpu", "extra", "gpu", "gpu_milli", "key", "mem", "mib", "milli", "models", "request",
                 "rules", "scope", "selector", "share", "tolerations")  # fmt: skip

    def __init__(self, key: AskKey, table: GpuTable | None = None) -> None:
        """`table`: what models of GPU support, where that is asked for; by default ours."""
        request, selector, tolerations, scope = key
        self.key = key
        self.request: Request = request
        self.gpu: GpuRequest = request.gpu
        self.cpu = request.cpu
        self.mem = request.mem
        self.count = request.gpu.count
        self.share = request.gpu.shared
        self.milli = request.gpu.milli
        self.mib = 0 if request.gpu.milli else request.gpu.mib
        names = frozenset(request.gpu.models)
        #: Names of models that will do, empty (false) for any.
        self.models: frozenset[str] | Allowed = names
        if request.gpu.precision_required and request.gpu.precision:
            self.models = Allowed(names, request.gpu.precision, table or default_table())
        self.selector = selector
        self.tolerations = tolerations
        self.scope = scope
        self.rules: Rules | None = scope.rules if scope is not None else None
        #: Other resources: (name, amount), none of them zero.
        self.extra = request.extra
        #: What a queue is charged, or 0 where that depends on the device (a request by memory).
        self.gpu_milli = request.gpu_milli

    def without_memory(self) -> Ask:
        """The same, were it to ask for no memory."""
        other = copy(self)
        other.mem = 0
        return other

    @property
    def charge_depends(self) -> bool:
        """Whether the milli GPUs charged depend on the device chosen."""
        return self.share and self.mib > 0

    def supporting(self) -> list[str]:
        """Models that support the precision that is required."""
        return self.models.supporting() if isinstance(self.models, Allowed) else []

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
