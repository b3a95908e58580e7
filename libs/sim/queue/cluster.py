"""A lean cluster of alike nodes: whole GPUs, shares of GPUs, gangs over wholly free nodes.

The placement engine answers richer questions at a higher price; a month of a real trace has some hundred thousand
placements, so the queue simulator keeps only what decides feasibility there. A differential test holds the two against
each other.

Guaranteed: no device is given out above 1000 milli; a task of up to one node goes into the smallest gap that fits, then
to the lowest node number; a larger gang takes whole nodes that are wholly free, its remainder the first part of one
more. Equal calls give equal answers.
"""

from __future__ import annotations

from typing import Final

WHOLE: Final = 1000

#: What one item holds: (node, whole GPUs), or for a share of a GPU (node, 0, device, milli).
Part = tuple[int, ...]
Parts = tuple[Part, ...]


def _first(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


class Cluster:
    """`size` nodes of `width` GPUs. Node numbers are 0..size-1; a set of nodes is the bit mask of its numbers. With
    `spread` an item goes to the emptiest node instead, as Kubernetes' default does."""

    def __init__(self, size: int, width: int, spread: bool = False) -> None:
        if size < 1 or width < 1:
            raise ValueError(f"a cluster needs nodes and GPUs, not {size} x {width}")
        self.size = size
        self.width = width
        self.spreads = spread
        self._gaps = [range(least, width + 1)[:: -1 if spread else 1] for least in range(width + 1)]
        self.free = [width] * size  # wholly idle GPUs per node
        self.all = (1 << size) - 1
        self.by_free = [0] * width + [self.all]  # nodes by number of wholly idle GPUs
        self.idle = size * width
        #: Idle milli of devices that are shared now, by (node, device).
        self.shared: dict[tuple[int, int], int] = {}
        self._spare = [list(range(width)) for _ in range(size)]  # device numbers for shares, last first
        self.used_milli = 0

    # -- questions --------------------------------------------------------------------------------------------------
    def could_ever(self, milli: int) -> bool:
        return milli <= self.size * self.width * WHOLE and (milli < WHOLE or milli % WHOLE == 0)

    def nodes_for(self, gpus: int) -> int:
        """How many nodes a gang of so many whole GPUs takes."""
        return 1 if gpus <= self.width else -(-gpus // self.width)

    def find(self, milli: int, barred: int = 0) -> Parts | None:
        """Where the item would go now, outside the nodes `barred`; None if nowhere."""
        if milli < WHOLE:
            return self._find_share(milli, barred)
        gpus = milli // WHOLE
        if gpus > self.idle:
            return None
        if gpus <= self.width:
            for free in self._gaps[gpus]:
                mask = self.by_free[free] & ~barred
                if mask:
                    return ((_first(mask), gpus),)
            return None
        return self.spread(gpus, self.by_free[self.width] & ~barred)

    def spread(self, gpus: int, nodes: int) -> Parts | None:
        """A gang larger than a node over the lowest of the given wholly free nodes."""
        if nodes.bit_count() < self.nodes_for(gpus):
            return None
        parts: list[Part] = []
        while gpus > 0:
            node = _first(nodes)
            nodes &= nodes - 1
            parts.append((node, min(gpus, self.width)))
            gpus -= self.width
        return tuple(parts)

    def _find_share(self, milli: int, barred: int) -> Parts | None:
        best: tuple[int, int, int] | None = None
        for (node, device), free in self.shared.items():
            if free >= milli and not barred >> node & 1 and (best is None or (free, node, device) < best):
                best = (free, node, device)
        if best is not None:
            return ((best[1], 0, best[2], milli),)
        for free in self._gaps[1]:
            mask = self.by_free[free] & ~barred
            if mask:
                node = _first(mask)
                return ((node, 0, self._spare[node][-1], milli),)
        return None

    # -- moves ------------------------------------------------------------------------------------------------------
    def take(self, parts: Parts) -> None:
        """What `find` answered, and nothing taken in between."""
        for part in parts:
            if part[1]:
                self._move(part[0], -part[1])
                self.used_milli += part[1] * WHOLE
            else:
                node, _, device, milli = part
                left = self.shared.get((node, device))
                if left is None:
                    self._spare[node].remove(device)
                    self._move(node, -1)
                    left = WHOLE
                self.shared[node, device] = left - milli
                self.used_milli += milli

    def give(self, parts: Parts) -> None:
        for part in parts:
            if part[1]:
                self._move(part[0], part[1])
                self.used_milli -= part[1] * WHOLE
            else:
                node, _, device, milli = part
                left = self.shared[node, device] + milli
                self.used_milli -= milli
                if left == WHOLE:
                    del self.shared[node, device]
                    self._spare[node].append(device)
                    self._move(node, 1)
                else:
                    self.shared[node, device] = left

    def _move(self, node: int, change: int) -> None:
        free = self.free[node]
        bit = 1 << node
        self.by_free[free] ^= bit
        self.free[node] = free + change
        self.by_free[free + change] |= bit
        self.idle += change
