"""One node with its devices, in plain integers: the truth that the numpy mirror is copied from.

Python integers are several times faster than numpy scalars, and a decision changes one node at a time, so the exact
arithmetic of a node lives here; vectors over all nodes are made from it in `snapshot`.
"""

from __future__ import annotations

from collections.abc import Callable

from libs.domain.nodes import Node
from libs.domain.resources import WHOLE, Charge, GpuGrant
from libs.domain.usage import NodeUse
from libs.engine.ask import Ask

#: Devices for a task on a node, or None where too few fit.
Choose = Callable[["NodeState", Ask], tuple[GpuGrant, ...] | None]


class NodeState:
    """Free room of one node. Device lists are addressed by the device's index; an index that does not exist, or that
    two pods dispute, is not `usable`.

    Free room may be negative (a node shrank under its pods): nothing fits there, and no sum is clipped, so taking and
    giving back are exact inverses. `shut` says why no GPU of the node is given out, empty where they are. `codes` are
    the numbers that a snapshot gives to the devices' models, `kind` the one it gives to nodes of equal capacity,
    `frame` the one to nodes of equal capacity but for memory. `links` has the NVLink group of each index, None where
    the node does not say.
    """

    __slots__ = (
        "cap_cpu", "cap_mem", "cap_pods", "codes", "cpu", "dev_mib", "devices", "exists", "frame", "gpu_cap",
        "gpu_free", "idle", "index", "kind", "links", "mem", "mib", "milli", "models", "name", "node", "order", "pods",
        "row", "shut", "usable",
    )  # fmt: skip

    def __init__(self, row: int, node: Node, use: NodeUse | None) -> None:
        self.row = row
        self.name = node.name
        self.node = node
        self.cap_cpu = node.cpu
        self.cap_mem = node.mem
        self.cap_pods = node.pods
        width = max((g.index for g in node.gpus), default=-1) + 1
        self.dev_mib = [0] * width
        self.models = [""] * width
        self.codes = [0] * width
        self.kind = self.frame = 0
        self.exists = [False] * width
        for gpu in node.gpus:
            self.dev_mib[gpu.index] = gpu.mib
            self.models[gpu.index] = gpu.model
            self.exists[gpu.index] = True
        self.devices = len(node.gpus)
        self.gpu_cap = WHOLE * self.devices
        self.index = [i for i in range(width) if self.exists[i]]
        #: The devices as whole ones are looked for.
        self.order = self.index
        self.links = _links(node.nvlink, width) if node.nvlink else None
        self.reset(use)

    def begin_at(self, share: float) -> None:
        """Whole devices are looked for from this share of them on, in pairs, instead of from the first."""
        first = int(share * len(self.index)) // 2 * 2
        self.order = self.index[first:] + self.index[:first] if first else self.index

    def by_model(self, charge: Charge) -> dict[str, int]:
        """Milli GPUs that the charge takes of each model that the node names."""
        amounts: dict[str, int] = {}
        for grant in charge.gpus:
            model = self.models[grant.index] if grant.index < len(self.models) else ""
            if model:
                amounts[model] = amounts.get(model, 0) + grant.milli
        return amounts

    def reset(self, use: NodeUse | None) -> None:
        """Free room from the ledger's truth alone."""
        node = self.node
        self.cpu, self.mem, self.pods = node.cpu, node.mem, node.pods
        self.milli = [WHOLE if exists else 0 for exists in self.exists]
        self.mib = list(self.dev_mib)
        self.usable = list(self.exists)
        self.shut = "closed" if node.gpus_closed else ""
        if use is not None:
            self.cpu -= use.cpu
            self.mem -= use.mem
            self.pods -= use.pods
            for index, (milli, mib) in enumerate(use.gpus[: len(self.milli)]):
                self.milli[index] -= milli
                self.mib[index] -= mib
            for index in use.disputed:
                if index < len(self.usable):
                    self.usable[index] = False
            if use.blind and not self.shut:
                self.shut = "foreign"
        # A device that two pods overfill takes nothing away from what is free on the others.
        self.gpu_free = sum(max(milli, 0) for milli in self.milli) - (WHOLE * use.blind if use is not None else 0)
        self.idle = sum(map(self.is_idle, self.index))

    def copy(self) -> NodeState:
        other = NodeState.__new__(NodeState)
        for slot in NodeState.__slots__:
            setattr(other, slot, getattr(self, slot))
        other.milli = list(self.milli)
        other.mib = list(self.mib)
        return other

    def look(self, by_memory: bool = True) -> tuple[int, ...]:
        """Equal for nodes on which every task fits equally well, and that every formula over a node's capacity and room
        values alike, where both take another pod. Without `by_memory`: formulas that do not ask for the node's memory,
        tasks for which it suffices on both."""
        blocked = () if self.usable == self.exists else self.usable
        room = (self.cpu, self.gpu_free, bool(self.shut), *self.milli, *self.mib, *blocked)
        return (self.kind, self.mem, *room) if by_memory else (self.frame, *room)

    def is_idle(self, index: int) -> bool:
        return self.usable[index] and self.milli[index] == WHOLE and self.mib[index] == self.dev_mib[index]

    def take(self, charge: Charge, pods: int = 1) -> None:
        self.cpu -= charge.cpu
        self.mem -= charge.mem
        self.pods -= pods
        for grant in charge.gpus:
            self._shift(grant.index, -grant.milli, -grant.mib)

    def give(self, charge: Charge, pods: int = 1) -> None:
        self.cpu += charge.cpu
        self.mem += charge.mem
        self.pods += pods
        for grant in charge.gpus:
            self._shift(grant.index, grant.milli, grant.mib)

    def _shift(self, index: int, milli: int, mib: int) -> None:
        if index >= len(self.milli):
            return  # the node lost this device
        before, free = self.is_idle(index), max(self.milli[index], 0)
        self.milli[index] += milli
        self.mib[index] += mib
        self.gpu_free += max(self.milli[index], 0) - free
        self.idle += self.is_idle(index) - before

    def _lacks(self, cpu: int, mem: int) -> bool:
        """Only what is asked for is compared: an overfilled node still takes a task that asks for nothing of that."""
        return self.pods < 1 or (cpu > self.cpu and cpu > 0) or (mem > self.mem and mem > 0)

    def holds(self, charge: Charge) -> bool:
        """Whether exactly this charge, device indices included, still fits."""
        if self._lacks(charge.cpu, charge.mem):
            return False
        if charge.gpus and self.shut:
            return False
        for grant in charge.gpus:
            i = grant.index
            if i >= len(self.usable) or not self.usable[i] or self.milli[i] < grant.milli or self.mib[i] < grant.mib:
                return False
        return True

    def choose(self, ask: Ask) -> tuple[GpuGrant, ...] | None:
        """Devices for one task, or None. Whole: idle devices that share NVLink (of the group with fewest idle ones that
        has enough; else of few groups), then the first in `order`. Share: the tightest that fit, by what would be left
        of the side that was asked for, then of the other side, then by index; several of them by NVLink first."""
        if not ask.count:
            return ()
        if self.shut:
            return None
        models = ask.models
        if not ask.share:
            if self.idle < ask.count:
                return None
            if self.links is not None:
                idle = [i for i in self.order if self.is_idle(i) and (not models or self.models[i] in models)]
                return self._linked(idle, ask)
            found: list[GpuGrant] = []
            for i in self.order:
                if self.is_idle(i) and (not models or self.models[i] in models):
                    found.append(GpuGrant(i, WHOLE, self.dev_mib[i]))
                    if len(found) == ask.count:
                        return tuple(found if self.order is self.index else sorted(found, key=_index))
            return None
        fitting: list[tuple[int, int, int, int, int]] = []
        for i in self.index:
            if not self.usable[i] or (models and self.models[i] not in models):
                continue
            milli, mib = ask.grant(self.dev_mib[i])
            left_milli, left_mib = self.milli[i] - milli, self.mib[i] - mib
            if left_milli < 0 or left_mib < 0:
                continue
            if ask.mib:
                fitting.append((left_mib, left_milli, i, milli, mib))
            else:
                fitting.append((left_milli, left_mib, i, milli, mib))
        if len(fitting) < ask.count:
            return None
        fitting.sort()
        if self.links is not None and ask.count > 1:
            return self._linked([i for _, _, i, _, _ in fitting], ask)
        return tuple(sorted((GpuGrant(i, milli, mib) for _, _, i, milli, mib in fitting[: ask.count]), key=_index))

    def _linked(self, fitting: list[int], ask: Ask) -> tuple[GpuGrant, ...] | None:
        """So many of the devices, which stand in order of preference, in as few NVLink groups as can be; the smallest
        rest of a group that is enough is taken before a larger one is broken up."""
        links, left = self.links, ask.count
        if links is None or len(fitting) < left:
            return None
        groups: dict[int, list[int]] = {}
        for i in fitting:
            groups.setdefault(links[i], []).append(i)
        chosen: list[int] = []
        while left:
            enough = [group for group in groups.values() if len(group) >= left]
            group = min(enough, key=len) if enough else max(groups.values(), key=len)
            chosen += group[:left]
            left -= min(left, len(group))
            del groups[links[group[0]]]
        return tuple(GpuGrant(i, *ask.grant(self.dev_mib[i])) for i in sorted(chosen))

    def charge(self, ask: Ask, choose: Choose | None = None) -> Charge | None:
        """The exact charge of one task here, or None where it does not fit. Filters on the node's facts come before.
        `choose` picks the devices, by default the method of that name."""
        if self._lacks(ask.cpu, ask.mem):
            return None
        if not ask.count:
            return Charge(ask.cpu, ask.mem)
        if choose is None or (self.links is not None and (ask.count > 1 or not ask.share)):
            gpus = self.choose(ask)
        else:
            gpus = choose(self, ask)
        return None if gpus is None else Charge(ask.cpu, ask.mem, gpus)

    def tight(self, ask: Ask, exactly: bool = True) -> int:
        """Milli left on the tightest device that fits, -1 where fewer than `count` devices fit; 0 for whole devices.
        Not `exactly`: any amount above -1 will do.

        The scalar twin of the vector in `feasible`; a property test holds them equal.
        """
        if self._lacks(ask.cpu, ask.mem):
            return -1
        if not ask.count:
            return 0
        if self.shut:
            return -1
        if not ask.share:
            if self.idle < ask.count:
                return -1
            if not ask.models:
                return 0
            fit = sum(1 for i in self.index if self.models[i] in ask.models and self.is_idle(i))
            return 0 if fit >= ask.count else -1
        best, fit, enough = WHOLE + 1, 0, -1 if exactly else ask.count
        held, mib, sizes, usable = self.milli, self.mib, self.dev_mib, self.usable
        wanted, models = ask.milli, ask.models
        for i in self.index:
            left = held[i] - wanted
            if left < 0 or not usable[i] or (models and self.models[i] not in models):
                continue
            if wanted:
                if mib[i] < wanted * sizes[i] // WHOLE:
                    continue
            else:
                milli, asked = ask.grant(sizes[i])
                left -= milli
                if left < 0 or mib[i] < asked:
                    continue
            fit += 1
            if left < best:
                best = left
            if fit == enough:
                break
        return best if fit >= ask.count else -1


def _links(groups: tuple[tuple[int, ...], ...], width: int) -> list[int]:
    """The group of each index; a device that no group has shares NVLink with nobody."""
    links = [len(groups) + i for i in range(width)]
    for number, group in enumerate(groups):
        for i in group:
            if i < width:
                links[i] = number
    return links


def _index(grant: GpuGrant) -> int:
    return grant.index
