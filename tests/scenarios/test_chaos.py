"""Five rounds of chaos on real parts, as `drystone chaos` runs them by the hundred (docs/chaos.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.chaos.run import run

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ROUNDS = 5
#: Among what it draws is a machine that is lost with its pods, which takes a minute more.
SEED = 300


async def test_nothing_is_lost_and_nothing_is_done_twice_whatever_breaks(tmp_path: Path) -> None:
    """Every round names its seed; `drystone chaos --rounds 1 --seed S` runs it again."""
    told: list[str] = []
    result = await run(ROUNDS, SEED, keep=tmp_path, report=told.append)
    assert result["rounds"] == ROUNDS
    assert result["broken"] == 0, "\n".join(told)
    assert result["accepted"] > ROUNDS * 20, "hardly any work came in: the rounds say little"
    assert result["nodes_registered_anew"], "no node went and came back"
    assert result["machines_lost"], "no machine was lost"
