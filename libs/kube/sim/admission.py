"""Admission as kubelet does it: what fits beside the pods that have not ended, Terminating ones included.

A correct scheduler is never refused here, so every refusal is a broken law of whoever bound the pod.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from libs.domain import keys
from libs.domain.nodes import Node
from libs.domain.resources import WHOLE, Charge


@dataclass(frozen=True, slots=True)
class Refused:
    """A pod that was bound where it does not fit: a broken law of whoever bound it."""

    pod: str
    node: str
    reason: str
    message: str


class Admission:
    """The doors of all nodes."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        #: pod uid -> (node, charge) of what is admitted and not ended
        self._admitted: dict[str, tuple[str, Charge]] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._admitted

    def admit(self, node: Node, uid: str, charge: Charge) -> tuple[str, str]:
        """Let the pod in; kubelet's (reason, message) where it does not fit, else empty."""
        held = self._held.setdefault(node.name, _Held())
        reason, message = _refuse(node, held, charge)
        if not reason:
            held.change(charge, 1)
            self._admitted[uid] = (node.name, charge)
        return reason, message

    def release(self, uid: str) -> None:
        held = self._admitted.pop(uid, None)
        if held is not None:
            self._held[held[0]].change(held[1], -1)


@dataclass(slots=True)
class _Held:
    """What the pods on one node hold."""

    cpu: int = 0
    mem: int = 0
    pods: int = 0
    blind: int = 0
    gpus: dict[int, tuple[int, int]] = field(default_factory=dict)

    def change(self, charge: Charge, sign: int) -> None:
        self.cpu += sign * charge.cpu
        self.mem += sign * charge.mem
        self.pods += sign
        self.blind += sign * charge.blind
        for grant in charge.gpus:
            milli, mib = self.gpus.get(grant.index, (0, 0))
            self.gpus[grant.index] = (milli + sign * grant.milli, mib + sign * grant.mib)


def _refuse(node: Node, held: _Held, charge: Charge) -> tuple[str, str]:
    """Kubelet's (reason, message) where the pod does not fit, else empty."""
    if held.pods + 1 > node.pods:
        return "OutOfpods", f"Node didn't have enough resource: pods, used: {held.pods}, capacity: {node.pods}"
    for name, asked, used, room in (
        ("cpu", charge.cpu, held.cpu, node.cpu),
        ("memory", charge.mem, held.mem, node.mem),
    ):
        if asked and used + asked > room:
            said = f"requested: {asked}, used: {used}, capacity: {room}"
            return f"OutOf{name}", f"Node didn't have enough resource: {name}, {said}"
    sizes = {gpu.index: gpu.mib for gpu in node.gpus}
    out_of_gpu = f"OutOf{keys.GPU_RESOURCE}"
    for grant in charge.gpus:
        milli, mib = held.gpus.get(grant.index, (0, 0))
        if grant.index not in sizes:
            return out_of_gpu, f"no GPU {grant.index} on {node.name}"
        if milli + grant.milli > WHOLE or mib + grant.mib > sizes[grant.index]:
            return out_of_gpu, f"GPU {grant.index} of {node.name} is given out already: {milli} milli, {mib} MiB"
    touched = {i for i, (milli, _) in held.gpus.items() if milli > 0} | {g.index for g in charge.gpus}
    if (charge.blind or charge.gpus) and len(touched) + held.blind + charge.blind > len(node.gpus):
        said = f"requested: {charge.blind or len(charge.gpus)}, capacity: {len(node.gpus)}"
        return out_of_gpu, f"Node didn't have enough resource: {keys.GPU_RESOURCE}, {said}"
    return "", ""
