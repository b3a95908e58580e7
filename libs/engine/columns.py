"""Nodes as numpy vectors, one row a node: what formulas over a whole cluster are written against."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from libs.engine.ask import Ask

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Columns:
    """Vectors over rows, the same names as on `NodeState`, so that one formula serves a node and a cluster.

    Of shape (rows,): row (its own number), cpu, mem, pods, cap_cpu, cap_mem, cap_pods, gpu_free, gpu_cap, idle,
    devices, main (model code of the first device), kind (equal for nodes of equal capacity and devices), look (see
    `looks`), shut.
    Of shape (rows, widest node): milli, mib (free), dev_mib, usable, exists, model (code).
    """

    SINGLE = (
        "cpu",
        "mem",
        "pods",
        "cap_cpu",
        "cap_mem",
        "cap_pods",
        "gpu_free",
        "gpu_cap",
        "idle",
        "devices",
        "main",
        "kind",
        "look",
    )

    __slots__ = (*SINGLE, "_together", "dev_mib", "exists", "mib", "milli", "model", "row", "shares", "shut", "usable")

    _together: Ints
    row: Ints
    cpu: Ints
    mem: Ints
    pods: Ints
    cap_cpu: Ints
    cap_mem: Ints
    cap_pods: Ints
    gpu_free: Ints
    gpu_cap: Ints
    idle: Ints
    devices: Ints
    main: Ints
    kind: Ints
    look: Ints
    milli: Ints
    mib: Ints
    dev_mib: Ints
    model: Ints
    usable: Bools
    exists: Bools
    shut: Bools
    #: Of a copy of some rows, what `filters.share_fit` found; None: these change.
    shares: dict[Ask, tuple[Ints | int, Bools]] | None

    def __init__(self) -> None:
        self.shares = None

    def hold(self, together: Ints) -> None:
        """The vectors named in SINGLE, one after the other: (names, rows). They are views of it."""
        self._together = together
        (
            self.cpu,
            self.mem,
            self.pods,
            self.cap_cpu,
            self.cap_mem,
            self.cap_pods,
            self.gpu_free,
            self.gpu_cap,
            self.idle,
            self.devices,
            self.main,
            self.kind,
            self.look,
        ) = together

    def take(self, rows: Ints) -> Columns:
        """The same columns for some rows only; matrices are copied when they are first looked at."""
        return _Part(self, rows)


class _Part(Columns):
    __slots__ = ("_rows", "_whole")

    def __init__(self, whole: Columns, rows: Ints) -> None:
        self._whole = whole
        self._rows = rows
        self.shares = {}
        self.hold(whole._together.take(rows, axis=1))

    def __getattr__(self, name: str) -> Any:
        column = getattr(self._whole, name).take(self._rows, axis=0)
        setattr(self, name, column)
        return column
