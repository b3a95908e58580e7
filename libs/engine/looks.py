"""Which nodes look alike: equal capacity, devices and free room, so that a task fits on them equally well.

Memory is no part of a look, unless a policy scores by it (`Policy.by_memory`): every kubelet reserves some MiB more or
less, so that no two nodes of a real cluster would look alike. Whether it suffices is asked node by node.

Most nodes of a cluster look like another one, and a node often comes to look like one that was there before. What a
class of tasks makes of a look is worked out once and kept by the look's number; nothing that is kept so ever has to be
withdrawn because a node changed, since the node then has another look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from libs.engine.devices import NodeState

#: The look of a row without a node, and of a node that takes no pod more.
FULL: Final = 0
#: Looks remembered beyond two per node.
REMEMBERED: Final = 4_096


class Looks:
    """`of[row]` is the look of a row, a number below `count`. Numbers are given once; when there are too many that no
    node has, all are given anew, which `generation` tells."""

    def __init__(self) -> None:
        self.of: list[int] = []
        self.count = FULL + 1
        self.generation = 0
        self.by_memory = False
        self._numbers: dict[tuple[int, ...], int] = {}
        self._changed: set[int] = set()

    def changed(self, row: int) -> None:
        self._changed.add(row)

    def follow(self, states: Sequence[NodeState | None]) -> list[int]:
        """The looks of all rows, up to date."""
        if self._changed:
            looks, numbers, by_memory = self.of, self._numbers, self.by_memory
            if len(looks) < len(states):
                looks.extend([FULL] * (len(states) - len(looks)))
            for row in self._changed:
                state = states[row]
                if state is None or state.pods < 1:
                    looks[row] = FULL
                    continue
                look = state.look(by_memory)
                number = numbers.get(look)
                if number is None:
                    number = numbers[look] = self.count
                    self.count += 1
                looks[row] = number
            self._changed.clear()
        return self.of

    def trim(self, rows: int) -> bool:
        """Number looks anew where there are too many that no node has; whether that was done."""
        if self.count <= 2 * rows + REMEMBERED:
            return False
        self.anew(rows)
        return True

    def anew(self, rows: int) -> None:
        """Number all looks anew."""
        self._numbers.clear()
        self.count = FULL + 1
        self.generation += 1
        self._changed.update(range(rows))
