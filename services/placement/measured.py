"""What exporters measure of devices, where nodes do not declare it: sizes, models and UUIDs, as long as they are fresh.

Declared facts win: they are what the device plugin was configured by, and they do not flicker. Ages count from receipt,
because the exporter's clock is not ours. The ledger knows no size that is only measured, so what is claimed there is
the share alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from libs.contracts.events import GpuFacts
from libs.domain.bounds import MOST_ASKED
from libs.domain.nodes import Gpu, Node
from libs.domain.resources import WHOLE, Charge, GpuGrant


@dataclass(frozen=True, slots=True)
class Measured:
    """What the exporter says of one device; `at` is when we received it (monotonic)."""

    mib: int
    model: str
    uuid: str
    at: float


def filled(node: Node, measured: Mapping[int, Measured], *, now: float, max_age_s: float) -> Node:
    """The node with what it does not declare about its devices taken from fresh measurements; itself where nothing
    is."""
    if not node.gpus or not measured or all(g.mib and g.model for g in node.gpus):
        return node
    gpus: list[Gpu] = []
    for gpu in node.gpus:
        fact = measured.get(gpu.index)
        if fact is None or now - fact.at > max_age_s:
            gpus.append(gpu)
        else:
            gpus.append(
                Gpu(
                    index=gpu.index,
                    mib=gpu.mib or fact.mib,
                    model=gpu.model or fact.model.replace(" ", "-"),
                    uuid=gpu.uuid or fact.uuid,
                )
            )
    return msgspec.structs.replace(node, gpus=tuple(gpus))


class Measurements:
    """By node. Times are monotonic seconds."""

    def __init__(self, max_age_s: float) -> None:
        self._max_age_s = max_age_s
        self._of: dict[str, dict[int, Measured]] = {}
        #: Nodes of which something was filled in.
        self.filled: set[str] = set()

    def take(self, facts: GpuFacts, now: float) -> None:
        self._of[facts.node] = {
            g.index: Measured(min(g.mib_total, MOST_ASKED), g.model, g.uuid, now) for g in facts.gpus
        }

    def complete(self, node: Node, now: float | None) -> Node:
        """The node as the engine is to know it. `now` None: what was fresh when it came."""
        measured = self._of.get(node.name)
        if not measured:
            return node
        if now is None:
            now = min(m.at for m in measured.values())
        made = filled(node, measured, now=now, max_age_s=self._max_age_s)
        (self.filled.discard if made is node else self.filled.add)(node.name)
        return made

    def forget_old(self, now: float) -> list[str]:
        """Facts that aged out no longer fill in; the names of nodes of which the declared sizes are what is left."""
        bare: list[str] = []
        for name, measured in list(self._of.items()):
            if all(now - m.at > self._max_age_s for m in measured.values()):
                del self._of[name]
                if name in self.filled:
                    self.filled.discard(name)
                    bare.append(name)
        return bare

    def note(self) -> str:
        """A word on where device sizes come from, for verdicts; empty where all nodes declare theirs."""
        count = len(self.filled)
        return f"device sizes of {count} node{'s' if count > 1 else ''} are measured, not declared" if count else ""

    def grantable(self, name: str, node: Node | None, charge: Charge) -> Charge:
        """The charge as the ledger can check it. Where a device's memory is measured only, the ledger knows no size to
        hold MiB against, so the share alone bounds it, rounded up so that shares never promise more than there is.
        `node` is as it declares itself; None: it is gone."""
        if name not in self.filled or not charge.gpus:
            return charge
        declared = {g.index: g.mib for g in node.gpus} if node is not None else {}
        measured = self._of.get(name, {})
        gpus = []
        for grant in charge.gpus:
            if declared.get(grant.index) or not grant.mib:
                gpus.append(grant)
                continue
            size = measured[grant.index].mib if grant.index in measured else 0
            milli = max(grant.milli, -(-grant.mib * WHOLE // size)) if size else WHOLE
            gpus.append(GpuGrant(grant.index, min(milli, WHOLE), 0))
        return msgspec.structs.replace(charge, gpus=tuple(gpus))
