"""What placement believes now: nodes and their free room, as exact per-node values and as numpy vectors over all.

The per-node values (`devices.NodeState`) are the truth; the vectors mirror them and are brought up to date only for the
rows that changed, and only when somebody asks for vectors. Two logs say which rows changed: `changes` (room) and
`spec_changes` (facts). A reader keeps its own position and catches up from there, so one changed node costs every class
of alike tasks one rescoring and nobody else anything.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import numpy as np

from libs.domain.nodes import Node, Taint
from libs.domain.resources import WHOLE, Charge
from libs.domain.usage import NodeUse
from libs.engine.columns import Bools, Columns, Ints
from libs.engine.devices import NodeState
from libs.engine.looks import Looks

#: Changes that a log may hold beyond four per node.
LOG: Final = 16_384


class Snapshot:
    def __init__(self) -> None:
        self.states: list[NodeState | None] = []
        self.rows: dict[str, int] = {}
        self.uses: dict[str, NodeUse] = {}
        #: job key -> names of nodes where room is earmarked for it
        self.earmarks: dict[str, set[str]] = {}
        self.changes: list[int] = []
        self.spec_changes: list[int] = []
        #: Grows whenever rows are added or renumbered: readers then start from the beginning.
        self.shape = 0
        self.version = 0  # counts every change of room or facts
        #: Free milli GPU of all nodes.
        self.gpu_free = 0
        self._free_rows: list[int] = []
        self._looks = Looks()
        self._total = (0, 0, 0)
        self._total_at = self._models_at = (-1, -1, -1)
        self._total_of_models: dict[str, int] = {}
        self._stale: set[int] = set()
        self._stale_spec: set[int] = set()
        self._columns = Columns()
        self._capacity = 0
        self._width = 0
        self._models: dict[str, int] = {"": 0}
        self._kinds: dict[tuple[object, ...], int] = {}
        self._frames: dict[tuple[object, ...], int] = {}
        self._taints: dict[tuple[Taint, ...], int] = {(): 0}
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self.taint: Ints = np.zeros(0, np.int64)
        #: Order by name, the last tie-break of every choice: lower rank, earlier name. Not alive: -1.
        self.rank: Ints = np.zeros(0, np.int64)
        self.alive: Bools = np.zeros(0, np.bool_)
        self.ready: Bools = np.zeros(0, np.bool_)
        self.cordoned: Bools = np.zeros(0, np.bool_)
        self.closed: Bools = np.zeros(0, np.bool_)
        self._ranked = True
        self._begins_at = 0.0
        self._grow(64, 1)

    # -- facts ------------------------------------------------------------------------------------------------------
    def node_seen(self, node: Node) -> bool:
        """Whether anything that placement looks at changed."""
        row = self.rows.get(node.name)
        if row is not None:
            state = self.states[row]
            if state is not None and _same(state.node, node):
                state.node = node
                return False
            if state is not None:
                self.gpu_free -= state.gpu_free
            self.states[row] = self._state(row, node)
        else:
            if self._free_rows:
                row = self._free_rows.pop()
                self.states[row] = self._state(row, node)
            else:
                row = len(self.states)
                self.states.append(self._state(row, node))
            self.rows[node.name] = row
            self._ranked = False
        self.touched_spec(row)
        return True

    def begin_at(self, share: float) -> None:
        """On every node (see `NodeState.begin_at`). What fits, and how well, is the same wherever one begins."""
        self._begins_at = share
        for state in self.states:
            if state is not None:
                state.begin_at(share)

    def _state(self, row: int, node: Node) -> NodeState:
        state = NodeState(row, node, self.uses.get(node.name))
        state.begin_at(self._begins_at)
        state.codes = [self._models.setdefault(model, len(self._models)) for model in state.models]
        self.gpu_free += state.gpu_free
        frame = (node.cpu, tuple([(gpu.index, gpu.mib, gpu.model) for gpu in node.gpus]))
        state.frame = self._frames.setdefault(frame, len(self._frames))
        state.kind = self._kinds.setdefault((state.frame, node.mem), len(self._kinds))
        return state

    def node_gone(self, name: str) -> bool:
        row = self.rows.pop(name, None)
        if row is None:
            return False
        state = self.states[row]
        if state is not None:
            self.gpu_free -= state.gpu_free
        self.states[row] = None
        self._free_rows.append(row)
        self.touched_spec(row)
        self._forget_gone(name)
        return True

    def use_seen(self, use: NodeUse) -> bool:
        old = self.uses.get(use.node)
        if old is not None and old.revision >= use.revision:
            return False
        self.uses[use.node] = use
        if old is not None and old.earmarked:
            for job in old.earmarked:
                names = self.earmarks.get(job)
                if names is not None:
                    names.discard(use.node)
                    if not names:
                        del self.earmarks[job]
        for job in use.earmarked:
            self.earmarks.setdefault(job, set()).add(use.node)
        row = self.rows.get(use.node)
        if row is not None:
            state = self.states[row]
            if state is not None:
                self.gpu_free -= state.gpu_free
                state.reset(use)
                self.gpu_free += state.gpu_free
                if (old is not None and old.gone) != use.gone:
                    self.touched_spec(row)
                else:
                    self.touched(row)
        if use.gone:
            self._forget_gone(use.node)
        return True

    def _forget_gone(self, name: str) -> None:
        """A node that is no more, and of which nobody holds anything, is not remembered: where nodes come and go under
        ever new names, what is kept of them would grow for ever."""
        use = self.uses.get(name)
        if use is None or not use.gone or name in self.rows or use.earmarked:
            return
        if not (use.cpu or use.mem or use.pods or use.blind or any(milli or mib for milli, mib in use.gpus)):
            del self.uses[name]

    def state(self, name: str) -> NodeState | None:
        row = self.rows.get(name)
        return None if row is None else self.states[row]

    def reset(self, row: int) -> None:
        """The ledger's truth again."""
        state = self.states[row]
        if state is not None:
            self.gpu_free -= state.gpu_free
            state.reset(self.uses.get(state.name))
            self.gpu_free += state.gpu_free
            self.touched(row)

    # -- room -------------------------------------------------------------------------------------------------------
    def take(self, row: int, charge: Charge, pods: int = 1) -> None:
        state = self.states[row]
        if state is not None:
            self.gpu_free -= state.gpu_free
            state.take(charge, pods)
            self.gpu_free += state.gpu_free
            self.touched(row)

    def give(self, row: int, charge: Charge, pods: int = 1) -> None:
        state = self.states[row]
        if state is not None:
            self.gpu_free -= state.gpu_free
            state.give(charge, pods)
            self.gpu_free += state.gpu_free
            self.touched(row)

    def touched(self, row: int) -> None:
        self.version += 1
        self.changes.append(row)
        self._stale.add(row)
        self._looks.changed(row)

    def touched_spec(self, row: int) -> None:
        self.spec_changes.append(row)
        self._stale_spec.add(row)
        self.touched(row)

    def trim(self) -> None:
        """Forget logs that are longer than rebuilding costs. Readers notice by `shape`."""
        if len(self.changes) > 4 * len(self.states) + LOG or len(self.spec_changes) > 4 * len(self.states) + LOG:
            self.changes.clear()
            self.spec_changes.clear()
            self.shape += 1
        if self._looks.trim(len(self.states)):
            self._stale.update(range(len(self.states)))

    # -- looks ------------------------------------------------------------------------------------------------------
    def look_at_memory(self) -> None:
        """From now on nodes look alike only where their memory is equal too: for policies that score by it."""
        if not self._looks.by_memory:
            self._looks.by_memory = True
            self._stale.update(range(len(self.states)))
            self._looks.anew(len(self.states))

    def looks(self) -> list[int]:
        """Which nodes look alike: a number for each row (see `looks.Looks`), up to date."""
        return self._looks.follow(self.states)

    @property
    def look_count(self) -> int:
        """Looks are less than this."""
        return self._looks.count

    @property
    def look_generation(self) -> int:
        """Grows when looks are numbered anew."""
        return self._looks.generation

    # -- vectors ----------------------------------------------------------------------------------------------------
    def columns(self) -> Columns:
        """Vectors of all rows, up to date."""
        if self._stale_spec or not self._ranked:
            self._flush_spec()
        columns = self._columns
        if self._stale:
            width, looks = self._width, self.looks()
            for row in self._stale:
                columns.look[row] = looks[row]
                state = self.states[row]
                if state is None:
                    continue
                columns.cpu[row] = state.cpu
                columns.mem[row] = state.mem
                columns.pods[row] = state.pods
                columns.gpu_free[row] = state.gpu_free
                columns.idle[row] = state.idle
                columns.shut[row] = bool(state.shut)
                if state.index:
                    n = len(state.milli)
                    columns.milli[row, :n] = state.milli
                    columns.mib[row, :n] = state.mib
                    columns.usable[row, :n] = state.usable
                    if n < width:
                        columns.usable[row, n:] = False
            self._stale.clear()
        return columns

    def total(self) -> tuple[int, int, int]:
        """Milli GPUs, milli CPU and MiB of all nodes, whatever state they are in."""
        at = (self.shape, len(self.spec_changes), len(self.states))
        if self._total_at != at:
            columns = self.columns()
            at = (self.shape, len(self.spec_changes), len(self.states))
            self._total = (int(columns.gpu_cap.sum()), int(columns.cap_cpu.sum()), int(columns.cap_mem.sum()))
            self._total_at = at
        return self._total

    def total_of_models(self) -> dict[str, int]:
        """Milli GPUs of all nodes, by model, as far as nodes name one."""
        at = (self.shape, len(self.spec_changes), len(self.states))
        if self._models_at != at:
            columns = self.columns()
            at = (self.shape, len(self.spec_changes), len(self.states))
            counts = np.bincount(columns.model[columns.exists], minlength=len(self._models)).tolist()
            self._total_of_models = {m: counts[code] * WHOLE for m, code in self._models.items() if m and counts[code]}
            self._models_at = at
        return self._total_of_models

    def model_codes(self, models: Container[str]) -> list[int]:
        """Of the models seen so far that are among these."""
        return [code for name, code in self._models.items() if name in models]

    @property
    def model_count(self) -> int:
        return len(self._models)

    @property
    def kind_count(self) -> int:
        return len(self._kinds)

    @property
    def width(self) -> int:
        """Devices that the matrices have room for."""
        return self._width

    def model_names(self) -> list[str]:
        """Names of all models seen so far, by code; code 0 is the empty name."""
        return list(self._models)

    def _flush_spec(self) -> None:
        needed = max((len(s.milli) for s in self.states if s is not None), default=0)
        if len(self.states) > self._capacity or needed > self._width:
            self._grow(max(len(self.states), 64), max(needed, self._width, 1))
        columns = self._columns
        for row in self._stale_spec:
            state = self.states[row]
            self.alive[row] = state is not None
            columns.exists[row] = False
            columns.usable[row] = False
            columns.milli[row] = 0
            columns.mib[row] = 0
            columns.dev_mib[row] = 0
            columns.model[row] = 0
            if state is None:
                for name in Columns.SINGLE:
                    getattr(columns, name)[row] = 0
                continue
            node = state.node
            use = self.uses.get(state.name)
            self.ready[row] = node.ready and not (use is not None and use.gone)
            self.cordoned[row] = node.unschedulable
            self.closed[row] = bool(node.gpus_closed)
            self.taint[row] = self._taint_code(node.taints)
            columns.cap_cpu[row] = state.cap_cpu
            columns.cap_mem[row] = state.cap_mem
            columns.cap_pods[row] = state.cap_pods
            columns.gpu_cap[row] = state.gpu_cap
            columns.devices[row] = state.devices
            columns.kind[row] = state.kind
            columns.main[row] = state.codes[state.index[0]] if state.index else 0
            for i in state.index:
                columns.exists[row, i] = True
                columns.dev_mib[row, i] = state.dev_mib[i]
                columns.model[row, i] = state.codes[i]
        self._stale_spec.clear()
        if not self._ranked:
            self.rank[:] = -1
            order = [self.rows[name] for name in sorted(self.rows)]
            self.rank[np.asarray(order, np.int64)] = np.arange(len(order), dtype=np.int64)
            self._ranked = True
            self.shape += 1

    def _taint_code(self, taints: tuple[Taint, ...]) -> int:
        code = self._taints.get(taints)
        if code is None:
            code = self._taints[taints] = len(self.taint_sets)
            self.taint_sets.append(taints)
        return code

    def _grow(self, rows: int, width: int) -> None:
        capacity = max(rows, self._capacity) if rows <= self._capacity else max(rows, 2 * self._capacity)
        columns = Columns()
        columns.hold(np.zeros((len(Columns.SINGLE), capacity), np.int64))
        for name in ("milli", "mib", "dev_mib", "model"):
            setattr(columns, name, np.zeros((capacity, width), np.int64))
        for name in ("usable", "exists"):
            setattr(columns, name, np.zeros((capacity, width), np.bool_))
        columns.shut = np.zeros(capacity, np.bool_)
        columns.row = np.arange(capacity, dtype=np.int64)
        self._columns = columns
        self._capacity, self._width = capacity, width
        self.taint = np.zeros(capacity, np.int64)
        self.rank = np.full(capacity, -1, np.int64)
        self.alive, self.ready = np.zeros(capacity, np.bool_), np.zeros(capacity, np.bool_)
        self.cordoned, self.closed = np.zeros(capacity, np.bool_), np.zeros(capacity, np.bool_)
        self._stale.update(range(len(self.states)))
        self._stale_spec.update(range(len(self.states)))
        self._ranked = False

    @property
    def capacity(self) -> int:
        return self._capacity


def _same(left: Node, right: Node) -> bool:
    """Equal in everything that placement looks at; versions move with every heartbeat."""
    return (
        left.spec == right.spec
        and left.gpus == right.gpus
        and left.cpu == right.cpu
        and left.mem == right.mem
        and left.pods == right.pods
        and left.ready == right.ready
        and left.unschedulable == right.unschedulable
        and left.gpus_closed == right.gpus_closed
        and left.labels == right.labels
        and left.taints == right.taints
        and left.extra == right.extra
        and left.nvlink == right.nvlink
    )
