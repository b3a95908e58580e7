"""Stopping in named phases, each with a budget, logged in order: an operator who reads why a pod took 20 s to end finds
the phase that took them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from libs.runtime.clock import Clock, SystemClock

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    budget_s: float
    act: Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class PhaseResult:
    name: str
    seconds: float
    fault: str = ""  # "" | "over budget" | the exception


async def run_phases(phases: Sequence[Phase], clock: Clock | None = None) -> list[PhaseResult]:
    """Run the phases in order. One that fails or exceeds its budget never keeps a later one from running."""
    clock = clock or SystemClock()
    results: list[PhaseResult] = []
    for phase in phases:
        began = clock.monotonic()
        fault = ""
        try:
            async with asyncio.timeout(phase.budget_s):
                await phase.act()
        except TimeoutError:
            fault = "over budget"
        except Exception as error:
            fault = repr(error)
        result = PhaseResult(phase.name, clock.monotonic() - began, fault)
        results.append(result)
        say = log.warning if fault else log.info
        say("shutdown phase", phase=phase.name, seconds=round(result.seconds, 3), fault=fault or None)
    return results
