"""The limit holds for every run, and is as tight as patterns of single GPUs allow."""

from __future__ import annotations

import pytest

from libs.domain.resources import GpuRequest, Request
from libs.sim.bound import bound_at, cutting_stock
from libs.sim.lists import NodeRow, TaskRow
from libs.sim.pack import run_pack


@pytest.mark.parametrize(
    ("demand", "bins", "milli"),
    [
        ({1000: 5}, 3, 3000),
        ({810: 100}, 10, 8100),
        ({600: 10, 400: 4}, 10, 4 * 1000 + 6 * 600),
        ({470: 100, 810: 100}, 10, 9400),
        ({300: 2}, 10, 600),
    ],
    ids=["whole", "too large for two", "pairs while they last", "pairs beat singles", "few tasks"],
)
def test_what_fits_by_hand(demand: dict[int, int], bins: int, milli: float) -> None:
    found = cutting_stock(demand, bins)
    assert found.status == "optimal"
    assert found.allocated_milli == pytest.approx(milli, abs=1e-3)
    assert found.value_milli == pytest.approx(milli, abs=1e-3)


@pytest.mark.parametrize("policy", ["drystone", "fgd", "best-fit"])
def test_no_run_comes_above_the_bound(policy: str) -> None:
    nodes = [NodeRow(f"n{i}", 96_000, 10**6, 8, "G2") for i in range(20)]
    sizes = [810, 470, 320, 650, 1000]
    tasks = [
        TaskRow(f"t{i}", Request(1000, 1, GpuRequest(1, size if size < 1000 else 0)))
        for i, size in enumerate(sizes * 40)
    ]
    for seed in range(4):
        run = run_pack(nodes, tasks, policy, seed)
        assert 100 - run.curve[100][0] >= bound_at(nodes, tasks, seed).unallocated_pct - 1e-6
