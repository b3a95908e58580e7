"""What a policy is asked: a score for a task on a node before it is placed there, and which devices of the node.

A policy is made for one engine: what it may look at beyond the node and the task is in its `Surroundings`. It holds no
other state, so that the same facts give the same choice in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from libs.domain.resources import Charge, GpuGrant
from libs.engine.ask import Ask
from libs.engine.columns import Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.draw import Draw
from libs.engine.mix import TypicalMix
from libs.engine.precision.demand import PrecisionDemand
from libs.engine.precision.table import GpuTable, default_table
from libs.engine.snapshot import Snapshot


def _nothing(row: int) -> Iterable[Charge]:  # noqa: ARG001
    return ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What one engine offers to its policies: its nodes, the mix of tasks it has seen, the charges on the node of a
    row, a seeded generator, the precisions that jobs declared, and what models of GPU compute."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    mix: TypicalMix = field(default_factory=TypicalMix)
    charges: Callable[[int], Iterable[Charge]] = _nothing
    draw: Draw = field(default_factory=lambda: Draw(0))
    precisions: PrecisionDemand = field(default_factory=PrecisionDemand)
    table: GpuTable = field(default_factory=default_table)


class Policy(Protocol):
    """Only nodes where the task fits are scored (others get a value that nobody reads). `tight` is the milli left on
    the tightest fitting device, 0 for whole devices and for tasks without GPU.

    `one` must equal `many` on the same node; where a formula needs only arithmetic, both are the same code. A policy
    that looks at single devices reads the matrices of `Columns` in `many` and the lists of `NodeState` in `one`.
    """

    @property
    def name(self) -> str: ...

    @property
    def ceiling(self) -> int:
        """Scores are integers in 0..ceiling."""
        ...

    @property
    def draws(self) -> bool:
        """Whether a node is drawn among all that fit, scores aside."""
        ...

    @property
    def by_look(self) -> bool:
        """Whether nodes that look alike (`looks`) score the same, so that one is scored for all."""
        ...

    @property
    def by_memory(self) -> bool:
        """Whether memory, what a task asks for or what a node has, makes a difference to scores."""
        ...

    @property
    def by_tightness(self) -> bool:
        """Whether `tight` is looked at; else any amount may be told."""
        ...

    @property
    def declared_only(self) -> bool:
        """Whether only tasks that declare a precision are scored by it."""
        ...

    def epoch(self) -> int:
        """Grows when scores change although no node did."""
        ...

    @property
    def learned(self) -> str:
        """Names what was learned and is scored by since `epoch` grew, alike wherever it is alike. Empty: nothing."""
        ...

    def one(self, node: NodeState, ask: Ask, tight: int) -> int: ...

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints: ...

    def choose(self, node: NodeState, ask: Ask) -> tuple[GpuGrant, ...] | None:
        """Devices for the task on this node, in index order; None where too few fit."""
        ...


class Base:
    """What most policies share: scores of 0..100 that follow from the node alone, the tightest device that fits."""

    name = ""
    ceiling = 100
    draws = False
    by_look = True
    by_memory = False
    by_tightness = False
    declared_only = False

    def __init__(self, around: Surroundings) -> None:
        self.around = around

    def epoch(self) -> int:
        return 0

    @property
    def learned(self) -> str:
        return ""

    def choose(self, node: NodeState, ask: Ask) -> tuple[GpuGrant, ...] | None:
        return node.choose(ask)

    def one(self, node: NodeState, ask: Ask, tight: int) -> int:
        raise NotImplementedError

    def many(self, nodes: Columns, ask: Ask, tight: Ints) -> Ints:
        """Node by node: for formulas that no vector can hold."""
        states = self.around.snapshot.states
        scores = np.zeros(len(nodes.cpu), np.int64)
        for at, (row, left) in enumerate(zip(nodes.row.tolist(), tight.tolist(), strict=True)):
            state = states[row] if row < len(states) else None
            if state is not None:
                scores[at] = self.one(state, ask, left)
        return scores


def first_devices(node: NodeState, ask: Ask) -> tuple[GpuGrant, ...] | None:
    """The devices of lowest index that fit."""
    if not ask.share:
        return node.choose(ask)
    found = fitting(node, ask)
    return tuple(found[: ask.count]) if len(found) >= ask.count else None


def fitting(node: NodeState, ask: Ask) -> list[GpuGrant]:
    """Every device that one share of the task would fit on, with what it would take there, in index order."""
    found: list[GpuGrant] = []
    if node.shut:
        return found
    for i in node.index:
        if not node.usable[i] or (ask.models and node.models[i] not in ask.models):
            continue
        milli, mib = ask.grant(node.dev_mib[i])
        if node.milli[i] >= milli and node.mib[i] >= mib:
            found.append(GpuGrant(i, milli, mib))
    return found
