"""The frontier between mean wait, longest wait and evictions: families of orders, and Drystone's own varied.

Families, each run by its name too: first come first served with and without backfill, least attained service, Gittins
index over learned service, prediction from history, ageing; with the two that know run times beside them, as a bound
that is no choice. Each of Drystone's parameters is halved and doubled alone, so the same table shows how much the
result hangs on it. The frontier between fairness and efficiency is Drystone's order with the one knob at several
settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from libs.engine.order import ORDERS, Parameters, Scene
from libs.sim.queue.study import Setup

FAMILIES: Final = {
    "first come": ("fifo", "fifo-backfill"),
    "least attained service": ("two-level", "las"),
    "Gittins index": ("gittins-1", "gittins", "gittins-8"),
    "prediction": ("predicted", "predicted-remaining"),
    "ageing": ("ageing-6h", "ageing", "ageing-4d"),
    "known run times": ("sjf", "srtf"),
}
VARIED: Final = (
    "base",
    "factor",
    "per_job",
    "lost",
    "patience",
    "together",
    "window",
    "overdue",
    "reserve",
    "half_life",
)
#: What the frontier is between; less is better.
AXES: Final = ("mean_wait_s", "max_wait_s", "evictions_per_job")


def knob(setup: Setup, settings: Sequence[int]) -> list[Setup]:
    """Drystone's order with its knob from efficiency (0) to fairness (100) at these settings."""
    return [
        replace(setup, policy="drystone", parameters=replace(setup.parameters, fairness=at), label=f"fairness {at}")
        for at in settings
    ]


def frontier(setup: Setup) -> list[Setup]:
    """`setup` gives cluster, tenants and costs."""
    ours = Parameters()
    runs = [replace(setup, policy=name, label="") for names in FAMILIES.values() for name in names]
    runs.append(replace(setup, policy="drystone", label="drystone"))
    for name in VARIED:
        for times in (0.5, 2.0):
            parameters = replace(ours, **{name: getattr(ours, name) * times})
            runs.append(replace(setup, policy="drystone", parameters=parameters, label=f"drystone {name} x{times:g}"))
    return runs


def knows(policy: str) -> bool:
    """Whether the policy is told run times in advance."""
    return ORDERS[policy](Scene(1.0)).knows


def undominated(tables: Iterable[Mapping[str, Any]]) -> list[bool]:
    """Of runs, by their figures: whether no other one is at least as good on every axis and better on one."""
    points = [tuple(float(table[axis]) for axis in AXES) for table in tables]
    return [not any(_better(other, point) for other in points) for point in points]


def _better(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def told(setups: Sequence[Setup], tables: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Figures by mean wait, each with whether it stands on the frontier (`frontier`) and whether it `knows` run times;
    who does is no part of it."""
    known = [knows(setup.policy) for setup in setups]
    there = iter(undominated(table for table, knew in zip(tables, known, strict=True) if not knew))
    found = [
        {**table, "knows": knew, "frontier": not knew and next(there)}
        for table, knew in zip(tables, known, strict=True)
    ]
    return sorted(found, key=lambda table: float(table["mean_wait_s"]))
