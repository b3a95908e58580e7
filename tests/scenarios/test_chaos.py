"""A few rounds of chaos with fixed seeds, on parts and replicas of their own."""

import pytest

from bench.chaos.run import run

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


async def test_whatever_breaks_nothing_is_lost_and_nothing_is_granted_twice() -> None:
    said: list[str] = []
    result = await run(5, 200, report=said.append)
    assert result["rounds"] == 5
    assert result["broken"] == 0, "\n".join(said)
    assert result["accepted"] > 200
