"""What a policy is asked: a score for a task on a node, before it is placed there."""

from __future__ import annotations

from typing import Protocol

from libs.engine.ask import Ask
from libs.engine.devices import NodeState
from libs.engine.snapshot import Columns, Ints


class Policy(Protocol):
    """Only nodes where the task fits are scored (others get a value that nobody reads). `tight` is the milli left on
    the tightest fitting device, 0 for whole devices and for tasks without GPU.

    `one` must equal `many` on the same node; where a formula needs only arithmetic, both are the same code. A policy
    that looks at single devices reads the matrices of `Columns` in `many` and the lists of `NodeState` in `one`.
    """

    @property
    def name(self) -> str: ...

    def one(self, node: NodeState, ask: Ask, tight: int) -> int: ...

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints: ...
