"""Why a node does not take a task: one reason per node, the first that applies.

Lasting reasons come first, so that "never" is not hidden behind a cordon that ends tomorrow. Static reasons depend on a
node's facts alone and are kept per class of alike tasks; dynamic ones depend on free room and are computed when a
refusal has to be explained.

Taints that Kubernetes itself derives from a node's conditions (`node.kubernetes.io/...`) are no lasting reason: they
come and go with the condition and are told as such.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import numpy as np

from libs.domain.nodes import Taint, Toleration
from libs.domain.resources import WHOLE
from libs.domain.verdicts import LASTING, Reason
from libs.engine.ask import Ask
from libs.engine.columns import Bools, Columns, Ints
from libs.engine.matrix import row_any, row_minima
from libs.engine.rules.match import node_matches
from libs.engine.snapshot import Snapshot

#: Reasons by code; code 0 is "none".
CODES: Final[tuple[Reason | None, ...]] = (
    None,
    Reason.SELECTOR,
    Reason.AFFINITY,
    Reason.GPU_CLOSED,
    Reason.GPU_TOTAL,
    Reason.GPU_MODEL,
    Reason.PRECISION,
    Reason.GPU_MEMORY_TOTAL,
    Reason.CPU_TOTAL,
    Reason.MEMORY_TOTAL,
    Reason.EXTRA_TOTAL,
    Reason.TOPOLOGY,
    Reason.DOMAIN,
    Reason.VOLUME_NODE,
    Reason.VOLUME_STATIC,
    Reason.TAINT,
    Reason.NOT_READY,
    Reason.CORDONED,
    Reason.GPU_FOREIGN,
    Reason.PODS,
    Reason.CPU,
    Reason.MEMORY,
    Reason.GPU_COUNT,
    Reason.GPU_SHARE,
    Reason.EXTRA,
    Reason.PORTS,
    Reason.VOLUME_LIMIT,
    Reason.VOLUME_IN_USE,
    Reason.VOLUME_UNBOUND,
    Reason.SPREAD,
    Reason.POD_AFFINITY,
    Reason.ANTI_AFFINITY,
    Reason.REPELLED,
)
CODE: Final[dict[Reason, int]] = {reason: code for code, reason in enumerate(CODES) if reason is not None}
LASTING_CODES: Final = frozenset(CODE[r] for r in LASTING)
DEAD: Final = -1  # a row without a node

_CORDON_TAINT: Final = "node.kubernetes.io/unschedulable"
_CORDON: Final = Taint(_CORDON_TAINT, "", "NoSchedule")
_CONDITION_TAINTS: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


def taint_code(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> int:
    """0 or the worst of TAINT, NOT_READY, CORDONED."""
    worst = 0
    for taint in taints:
        if taint.effect == "PreferNoSchedule" or any(t.tolerates(taint) for t in tolerations):
            continue
        if taint.key == _CORDON_TAINT:
            worst = worst or CODE[Reason.CORDONED]
        elif taint.key.startswith(_CONDITION_TAINTS):
            worst = CODE[Reason.NOT_READY]
        else:
            return CODE[Reason.TAINT]
    return worst


def ignores_cordon(tolerations: tuple[Toleration, ...]) -> bool:
    """Daemons tolerate what a cordon taints a node with, and are placed on cordoned nodes."""
    return any(t.tolerates(_CORDON) for t in tolerations)


def disliked(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> bool:
    """Whether a PreferNoSchedule taint asks this task to stay away."""
    return any(t.effect == "PreferNoSchedule" and not any(o.tolerates(t) for o in tolerations) for t in taints)


def eligible(snapshot: Snapshot, columns: Columns, ask: Ask) -> Bools:
    """Devices that exist and are of a model that will do."""
    if not ask.models:
        return columns.exists
    found: Bools = columns.exists & _accepted(snapshot, ask.models).take(columns.model)
    return found


def _accepted(snapshot: Snapshot, models: Container[str]) -> Bools:
    """By code, whether a model is among these."""
    accepted = np.zeros(snapshot.model_count, np.bool_)
    accepted[snapshot.model_codes(models)] = True
    return accepted


def _set(codes: Ints, where: Bools, reason: Reason) -> None:
    codes[where & (codes == 0)] = CODE[reason]


def static_codes(snapshot: Snapshot, ask: Ask, rows: Ints) -> Ints:
    """The first static reason per row."""
    columns = snapshot.columns().take(rows)
    codes = np.zeros(len(rows), np.int64)
    codes[~snapshot.alive[rows]] = DEAD
    if ask.selector:
        states = [*snapshot.states, *[None] * (snapshot.capacity - len(snapshot.states))]
        wanted = ask.selector
        misfits = [
            state is None or any(state.node.labels.get(k) != v for k, v in wanted)
            for state in map(states.__getitem__, rows.tolist())
        ]
        _set(codes, np.asarray(misfits, np.bool_), Reason.SELECTOR)
    # Selector and affinity come before everything else: topology spread asks which nodes pass them.
    terms = ask.rules.node if ask.rules is not None else None
    if terms is not None:
        alive = [snapshot.states[row] if row < len(snapshot.states) else None for row in rows.tolist()]
        misfits = [s is not None and not node_matches(terms, s.node.labels, s.name) for s in alive]
        _set(codes, np.asarray(misfits, np.bool_), Reason.AFFINITY)
    if ask.count:
        fit = eligible(snapshot, columns, ask)
        _set(codes, snapshot.closed[rows], Reason.GPU_CLOSED)
        _set(codes, columns.devices < ask.count, Reason.GPU_TOTAL)
        if ask.models:
            if ask.gpu.models or not ask.gpu.precision_required:
                named = columns.exists & _accepted(snapshot, ask.gpu.models).take(columns.model)
                _set(codes, named.sum(axis=1) < ask.count, Reason.GPU_MODEL)
            _set(codes, fit.sum(axis=1) < ask.count, Reason.PRECISION)
        if ask.mib:
            _set(codes, (fit & (columns.dev_mib >= ask.mib)).sum(axis=1) < ask.count, Reason.GPU_MEMORY_TOTAL)
    _set(codes, columns.cap_cpu < ask.cpu, Reason.CPU_TOTAL)
    _set(codes, columns.cap_mem < ask.mem, Reason.MEMORY_TOTAL)
    if ask.extra:
        alive = [snapshot.states[row] if row < len(snapshot.states) else None for row in rows.tolist()]
        lacks = [s is not None and any(s.node.extra.get(name, 0) < n for name, n in ask.extra) for s in alive]
        _set(codes, np.asarray(lacks, np.bool_), Reason.EXTRA_TOTAL)
    table = np.asarray([taint_code(taints, ask.tolerations) for taints in snapshot.taint_sets], np.int64)
    by_taint = table[snapshot.taint[rows]]
    _set(codes, by_taint == CODE[Reason.TAINT], Reason.TAINT)
    _set(codes, (by_taint == CODE[Reason.NOT_READY]) | ~snapshot.ready[rows], Reason.NOT_READY)
    _set(codes, by_taint == CODE[Reason.CORDONED], Reason.CORDONED)
    if not ignores_cordon(ask.tolerations):
        _set(codes, snapshot.cordoned[rows], Reason.CORDONED)
    return codes


def disliked_rows(snapshot: Snapshot, ask: Ask, rows: Ints) -> Bools:
    table = np.asarray([disliked(taints, ask.tolerations) for taints in snapshot.taint_sets], np.bool_)
    return np.asarray(table[snapshot.taint[rows]], np.bool_)


def device_fit(snapshot: Snapshot, columns: Columns, ask: Ask, exactly: bool = True) -> tuple[Bools, Ints]:
    """(which rows have enough fitting devices, milli left on the tightest of them: not `exactly`, 0 instead). Whether
    nodes are shut is not looked at."""
    if not ask.count:
        return np.ones(len(columns.cpu), np.bool_), np.zeros(len(columns.cpu), np.int64)
    if not ask.share:
        if not ask.models:
            return columns.idle >= ask.count, np.zeros(len(columns.cpu), np.int64)
        idle = columns.usable & (columns.milli == WHOLE) & (columns.mib == columns.dev_mib)
        fit = (idle & eligible(snapshot, columns, ask)).sum(axis=1) >= ask.count
        return fit, np.zeros(len(columns.cpu), np.int64)
    asked, fits = share_fit(snapshot, columns, ask)
    enough = row_any(fits) if ask.count == 1 else fits.sum(axis=1) >= ask.count
    if not exactly:
        return enough, np.zeros(len(enough), np.int64)
    # More than a whole device may look free, where room was given back twice.
    return enough, np.minimum(row_minima(np.where(fits, columns.milli - asked, WHOLE + 1)), WHOLE + 1)


def share_fit(snapshot: Snapshot, columns: Columns, ask: Ask) -> tuple[Ints | int, Bools]:
    """(milli that one share of the task takes of each device, devices on which it fits). Worked out once for a copy of
    some rows: fitting and scoring both ask for it."""
    if columns.shares is not None and ask in columns.shares:
        return columns.shares[ask]
    asked: Ints | int = ask.milli
    if ask.milli:
        # This is MiB >= milli x device // WHOLE without its division, which is slow on matrices.
        fits = columns.mib * WHOLE + (WHOLE - 1) >= ask.milli * columns.dev_mib
    else:
        size = columns.dev_mib
        asked = np.where(size > 0, ask.mib * WHOLE // np.maximum(size, 1), WHOLE)
        fits = columns.mib >= ask.mib
    fits &= columns.milli >= asked
    fits &= columns.usable
    if ask.models:
        fits &= eligible(snapshot, columns, ask)
    if columns.shares is not None:
        columns.shares[ask] = asked, fits
    return asked, fits


def dynamic_codes(snapshot: Snapshot, ask: Ask, codes: Ints) -> Ints:
    """All rows' first reason, given the static ones; 0 is left where the task fits now."""
    columns = snapshot.columns()
    codes = codes.copy()
    if ask.count:
        _set(codes, columns.shut, Reason.GPU_FOREIGN)  # closed ones have their static reason already
    _set(codes, columns.pods < 1, Reason.PODS)
    if ask.cpu:
        _set(codes, columns.cpu < ask.cpu, Reason.CPU)
    if ask.mem:
        _set(codes, columns.mem < ask.mem, Reason.MEMORY)
    fit, _ = device_fit(snapshot, columns, ask, exactly=False)
    _set(codes, ~fit, Reason.GPU_SHARE if ask.share else Reason.GPU_COUNT)
    return codes


def empty_slots(snapshot: Snapshot, ask: Ask, codes: Ints) -> Ints:
    """How many tasks like this each node would take if it were empty, ready and open: an upper bound, exact where the
    devices of a node are alike. Zero where a lasting reason stands."""
    columns = snapshot.columns()
    big = np.int64(1 << 40)
    slots = np.minimum(columns.cap_pods, big)
    if ask.cpu:
        slots = np.minimum(slots, columns.cap_cpu // ask.cpu)
    if ask.mem:
        slots = np.minimum(slots, columns.cap_mem // ask.mem)
    for name, amount in ask.extra:
        held = [0 if state is None else state.node.extra.get(name, 0) // amount for state in snapshot.states]
        slots[: len(held)] = np.minimum(slots[: len(held)], np.asarray(held, np.int64))
        slots[len(held) :] = 0
    if ask.count:
        sizes, inverse = np.unique(columns.dev_mib, return_inverse=True)
        per_size = np.asarray([ask.per_device(int(size)) for size in sizes], np.int64)
        per_device = np.where(eligible(snapshot, columns, ask), per_size[inverse.reshape(columns.dev_mib.shape)], 0)
        enough = (per_device > 0).sum(axis=1) >= ask.count
        slots = np.where(enough, np.minimum(slots, per_device.sum(axis=1) // ask.count), 0)
    lasting = np.isin(codes, sorted(LASTING_CODES)) | (codes == DEAD)
    return np.where(lasting, 0, slots)
