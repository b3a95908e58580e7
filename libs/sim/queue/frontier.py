"""The frontier between mean wait, longest wait and evictions: Drystone's own order under other parameters, and others.

Each parameter is halved and doubled alone, so the same table shows how much the result hangs on it. The frontier
between fairness and efficiency is the same order with the one knob between them at several settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from libs.engine.order import Parameters
from libs.sim.queue.study import Setup

OTHERS: Final = ("fifo", "fifo-backfill", "two-level", "las", "sjf")
VARIED: Final = ("base", "factor", "per_job", "patience", "window", "overdue", "reserve")


def knob(setup: Setup, settings: Sequence[int]) -> list[Setup]:
    """Drystone's order with its knob from efficiency (0) to fairness (100) at these settings."""
    return [
        replace(setup, policy="drystone", parameters=replace(setup.parameters, fairness=at), label=f"fairness {at}")
        for at in settings
    ]


def frontier(setup: Setup) -> list[Setup]:
    """`setup` gives cluster, tenants and costs."""
    ours = Parameters()
    runs = [replace(setup, policy=name, label="") for name in OTHERS]
    runs.append(replace(setup, policy="drystone", label="drystone"))
    for name in VARIED:
        for times in (0.5, 2.0):
            parameters = replace(ours, **{name: getattr(ours, name) * times})
            runs.append(replace(setup, policy="drystone", parameters=parameters, label=f"drystone {name} x{times:g}"))
    return runs
