"""The slow pass looks at everything again, in case a word was lost. It is in nobody's way."""

from __future__ import annotations

import asyncio

import pytest

from services.placement import ownership
from tests.component.placement_scene import Scene, binder, placement, running, scene

SLOW_S = 0.6


async def next_pass(s: Scene, owner: ownership.Ownership) -> tuple[float, float]:
    """When the last two lists were begun."""
    before = owner._last_list
    await s.until(lambda: owner._last_list > before)
    return before, owner._last_list


async def test_while_pods_are_being_placed_it_is_put_off_by_a_half_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        service = placement(s, placement_slow_pass_s=SLOW_S)
        async with running(service, binder(s)):
            owner = service._ownership
            await next_pass(s, owner)
            monkeypatch.setattr(ownership, "BUSY_S", 1000.0)
            service.state.claimed_at = owner._clock.monotonic()
            before, after = await next_pass(s, owner)
            assert after - before >= SLOW_S * (1 + ownership.PUT_OFF)


class Watch:
    """A clock that is read as often as it says."""

    def __init__(self, *times: float) -> None:
        self._times = iter(times)

    def monotonic(self) -> float:
        return next(self._times)


@pytest.mark.parametrize(("woke", "due"), [(101.0, 130.0), (121.0, 149.0)], ids=["in time", "stood still for 20 s"])
async def test_time_in_which_the_process_stood_still_does_not_make_it_due(woke: float, due: float) -> None:
    """A replica that goes on after a stop has thousands of records to read; a list of all pods on top is the last thing
    that it needs."""
    owner = object.__new__(ownership.Ownership)
    owner._clock, owner._due, owner._changed = Watch(100.0, woke), 130.0, asyncio.Event()  # type: ignore[assignment]
    owner._changed.set()
    await owner._tick()
    assert owner._due == due
