"""When the binder reports what landed: the first at once, what is bound in a burst together, refusals soon."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise

from libs.bus.port import Outgoing
from libs.bus.positions import Positions
from libs.contracts.events import Landed
from libs.domain.plans import Assignment, Plan
from libs.domain.resources import Charge
from services.binder.emit import BOUND_EVERY_S, FLUSH_EVERY_S, Emitter
from services.binder.hand import PlanInHand, Write

STEP_S = 0.001


class Virtual:
    """Time goes on when everybody sleeps; what is due at a time happens then."""

    def __init__(self) -> None:
        self.now = 100.0
        self.turned = asyncio.Event()

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        await asyncio.sleep(0)
        while self.now < until - STEP_S / 2:
            await self.turned.wait()

    def turn(self, now: float) -> None:
        self.now = now
        turned, self.turned = self.turned, asyncio.Event()
        turned.set()


class Everybody:
    """Ledger and broker, who take what they are told at once."""

    def __init__(self, clock: Virtual) -> None:
        self.clock = clock
        self.told: list[float] = []

    async def confirm(self, _claims: Mapping[str, str], _generation: int) -> None: ...

    async def release(self, _claims: Sequence[str], _generation: int) -> None: ...

    async def publish(self, _records: Sequence[Outgoing]) -> None:
        self.told.append(self.clock.now)


def write(claim: str, now: float) -> Write:
    assignment = Assignment(claim, f"task-{claim}", claim, "n1", "spec", Charge(cpu=1000))
    plan = Plan(f"plan-{claim}", f"pod/team/{claim}", "", "team", "", 0, 1, 1, False, (assignment,))
    return Write(PlanInHand(plan, None, now), assignment, now, 8.0)


async def reported(at: Mapping[float, Landed]) -> list[float]:
    """Seconds at which reports leave, of tasks that land so many seconds after the beginning, over a second."""
    clock = Virtual()
    others = Everybody(clock)
    emitter = Emitter(others, others, Positions(), clock, random.Random(1))  # type: ignore[arg-type]
    task = asyncio.create_task(emitter.forever())
    begun, due = clock.now, sorted(at.items())
    try:
        for step in range(1000):
            clock.turn(begun + step * STEP_S)
            while due and due[0][0] <= step * STEP_S + 1e-9:
                after, landed = due.pop(0)
                one = write(f"c{after}", clock.now)
                if landed is Landed.BOUND:
                    emitter.bound(one, one.assignment.task)
                else:
                    emitter.freed(one, landed, "refused")
            for _ in range(20):
                await asyncio.sleep(0)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return [when - begun for when in others.told]


async def test_of_a_burst_that_is_bound_the_first_is_reported_at_once_and_the_others_together() -> None:
    told = await reported({n * 0.005: Landed.BOUND for n in range(60)})
    assert told[0] == 0.0
    assert all(b - a >= BOUND_EVERY_S - STEP_S for a, b in pairwise(told))
    assert len(told) <= 5


async def test_a_refusal_in_a_burst_does_not_wait_as_long_as_what_is_bound() -> None:
    told = await reported({0.0: Landed.BOUND, 0.01: Landed.BOUND, 0.04: Landed.REPLAN})
    assert told[0] == 0.0
    assert told[1] <= 0.04 + FLUSH_EVERY_S + STEP_S


async def test_after_a_pause_the_next_is_reported_at_once() -> None:
    told = await reported({0.0: Landed.BOUND, 0.5: Landed.BOUND})
    assert len(told) == 2 and abs(told[1] - 0.5) <= STEP_S
