"""Speculation in memory: tentative operations with checkpoint and rollback; every operation stores its undo.

A statement changes the snapshot at once, so that later choices see earlier ones, and either stays (commit: it becomes
part of the pass, until `settle`) or is undone to a checkpoint or entirely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from libs.domain.resources import Charge
from libs.engine.api import RunningTask
from libs.engine.queues import Chain, QueueBook, by_model
from libs.engine.rules.book import Book, Placed, Resident
from libs.engine.running import RunningBook
from libs.engine.snapshot import Snapshot


@dataclass(slots=True)
class Taken:
    """Room of a node given to a task, charged to the queue chain. `pod` is what other pods' rules see of it."""

    row: int
    charge: Charge
    chain: Chain
    pod: Placed | None = None


@dataclass(slots=True)
class Freed:
    """Room given back for the time of the decision: a victim's, or an earmark of the very job being decided (then its
    queue charge too)."""

    row: int
    charge: Charge
    chain: Chain = ()
    victim: RunningTask | None = None
    pod: Resident | None = None


class Statement:
    def __init__(self, snapshot: Snapshot, queues: QueueBook, running: RunningBook, book: Book | None = None) -> None:
        self._snapshot = snapshot
        self._queues = queues
        self._running = running
        self._book = book if book is not None else Book(snapshot)
        self.operations: list[Taken | Freed] = []

    def take(self, row: int, charge: Charge, chain: Chain, pod: Placed | None = None) -> None:
        self._snapshot.take(row, charge)
        if chain:
            self._pay(chain, row, charge, 1)
        if pod is not None:
            self._book.assume(pod)
        self.operations.append(Taken(row, charge, chain, pod))

    def free_earmark(self, row: int, charge: Charge, chain: Chain) -> None:
        self._snapshot.give(row, charge)
        if chain:
            self._pay(chain, row, charge, -1)
        self.operations.append(Freed(row, charge, chain))

    def evict(self, victim: RunningTask, chain: Chain) -> None:
        """The victim's room is seen as free, and the beneficiary's queue chain credited where it holds the victim too:
        the ledger counts so when it takes an eviction plan."""
        chain = tuple(line for line in chain if line.covers(victim.queue))
        row = self._snapshot.rows.get(victim.node, -1)
        if row >= 0:
            self._snapshot.give(row, victim.charge)
        if chain:
            self._pay(chain, row, victim.charge, -1)
        self._running.mark(victim.uid)
        pod = self._book.gone(victim.uid)
        self.operations.append(Freed(row, victim.charge, chain, victim, pod))

    def _pay(self, chain: Chain, row: int, charge: Charge, sign: int) -> None:
        self._queues.charge(chain, sign * charge.gpu_milli, sign * charge.cpu, sign * charge.mem)
        if charge.gpus and by_model(chain):
            state = self._snapshot.states[row] if row >= 0 else None
            if state is not None:
                self._queues.charge_models(chain, state.by_model(charge), sign)

    def checkpoint(self) -> int:
        return len(self.operations)

    def rollback(self, mark: int = 0) -> None:
        while len(self.operations) > mark:
            self._undo(self.operations.pop())

    def spare(self, victims: list[RunningTask], allowed: Callable[[], bool] = lambda: True) -> bool:
        """Let these victims stay if what was placed fits beside them, in the nodes and in the queues, all or none, and
        if it is `allowed` beside them; whether it does."""
        uids = {victim.uid for victim in victims}
        theirs: list[Freed] = []
        milli = cpu = mem = 0
        for op in self.operations:
            if isinstance(op, Taken):
                milli, cpu, mem = milli + op.charge.gpu_milli, cpu + op.charge.cpu, mem + op.charge.mem
            elif op.victim is not None and op.victim.uid in uids:
                theirs.append(op)
        done: list[Freed] = []
        fits = True
        for op in theirs:
            state = self._snapshot.states[op.row] if op.row >= 0 else None
            fits = state is None or state.holds(op.charge)
            if fits:
                self._undo(op)
                done.append(op)
                fits = not any(line.over(milli, cpu, mem) for line in op.chain)
            if not fits:
                break
        else:
            fits = allowed()
        if not fits:
            for back in done:
                self._redo(back)
            return False
        gone = {id(op) for op in theirs}
        self.operations = [op for op in self.operations if id(op) not in gone]
        return True

    def _redo(self, op: Freed) -> None:
        charge = op.charge
        if op.row >= 0:
            self._snapshot.give(op.row, charge)
        if op.chain:
            self._pay(op.chain, op.row, charge, -1)
        if op.victim is not None:
            self._running.mark(op.victim.uid)
            self._book.gone(op.victim.uid)

    def _undo(self, op: Taken | Freed) -> None:
        charge = op.charge
        if isinstance(op, Taken):
            self._snapshot.give(op.row, charge)
            if op.chain:
                self._pay(op.chain, op.row, charge, -1)
            if op.pod is not None:
                self._book.forget(op.pod.uid)
            return
        if op.row >= 0:
            self._snapshot.take(op.row, charge)
        if op.chain:
            self._pay(op.chain, op.row, charge, 1)
        if op.victim is not None:
            self._running.unmark({op.victim.uid})
        if op.pod is not None:
            self._book.seen(op.pod)
