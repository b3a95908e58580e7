from __future__ import annotations

import random

import pytest

from libs.runtime.insist import Insist


class Leaps:
    """A clock that is asleep at once."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


async def test_an_outage_is_waited_out_with_growing_pauses_and_shows_as_long_as_it_lasts() -> None:
    clock = Leaps()
    insist = Insist("ledger", (ConnectionError,), clock, random.Random(1), base_s=0.1, cap_s=1.0)
    seen: list[float | None] = []

    async def call() -> str:
        seen.append(insist.failing_since)
        if len(seen) <= 12:
            raise ConnectionError("away")
        return "done"

    assert await insist.on(call) == "done"
    assert seen == [None, *[100.0] * 12]
    assert insist.failing_since is None
    for n, pause in enumerate(clock.pauses):
        assert min(1.0, 0.1 * 2**n) / 2 <= pause <= min(1.0, 0.1 * 2**n)


async def test_a_fault_that_does_not_pass_is_an_answer_and_the_callers() -> None:
    insist = Insist("ledger", (ConnectionError,), Leaps(), random.Random(1))
    tries = 0

    async def call() -> None:
        nonlocal tries
        tries += 1
        raise ConnectionError("away") if tries == 1 else ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        await insist.on(call)
    assert tries == 2
    assert insist.failing_since is None
