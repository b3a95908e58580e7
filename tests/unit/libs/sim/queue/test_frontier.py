"""The frontier between mean wait, longest wait and evictions."""

from __future__ import annotations

import csv
import json
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from libs.engine.order import ORDERS, Parameters
from libs.sim.queue.frontier import FAMILIES, VARIED, frontier, knows, told, undominated
from libs.sim.queue.study import Setup


def point(mean: float, longest: float, evictions: float) -> dict[str, float]:
    return {"mean_wait_s": mean, "max_wait_s": longest, "evictions_per_job": evictions}


def test_on_the_frontier_is_whom_nobody_beats_in_one_without_losing_in_another() -> None:
    points = [point(1, 9, 0.5), point(2, 3, 0.5), point(2, 4, 0.5), point(5, 5, 0), point(1, 9, 0.5)]
    assert undominated(points) == [True, True, False, True, True]


def test_who_knows_run_times_is_shown_and_takes_nobody_off_the_frontier() -> None:
    setups = [Setup(1, 8, name) for name in ("fifo", "sjf", "las")]
    tables = [
        {"policy": s.policy, **point(*at)} for s, at in zip(setups, [(9, 9, 0), (1, 1, 0), (5, 20, 1)], strict=True)
    ]
    found = told(setups, tables)
    assert [(one["policy"], one["frontier"], one["knows"]) for one in found] == [
        ("sjf", False, True),
        ("las", True, False),
        ("fifo", True, False),
    ]


def test_every_family_is_played_and_each_of_drystones_parameters_is_halved_and_doubled() -> None:
    setups = frontier(Setup(1, 8, "drystone"))
    names = [setup.label or setup.policy for setup in setups]
    assert {name for family in FAMILIES.values() for name in family} <= set(names) <= {*names, *ORDERS}
    assert "drystone patience x0.5" in names and "drystone patience x2" in names
    of_shares_and_costs = {"checkpoint", "most_evictions", "protection", "fairness"}
    assert set(VARIED) == {field.name for field in fields(Parameters)} - of_shares_and_costs
    assert len(names) == len(set(names))
    assert [knows(name) for name in ("sjf", "srtf", "gittins", "predicted")] == [True, True, False, False]


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    with path.open("w", newline="") as sink:
        write = csv.writer(sink)
        write.writerow(["submit_s", "duration_s", "num_gpus"])
        write.writerows([[0, 9000, 8], *([60 * n, 60, 8] for n in range(1, 6))])
    return path


def test_the_command_prints_the_named_policies_as_a_table(jobs: Path) -> None:
    arguments = ["simulate", "queue", "--jobs", str(jobs), "--nodes", "1", "--processes", "1", "--frontier"]
    done = CliRunner().invoke(app, [*arguments, "--policy", "fifo,las,sjf"])
    assert done.exit_code == 0, done.output
    head, *lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert head.split() == ["POLICY", "MEAN", "WAIT", "S", "LONGEST", "S", "EVICTIONS", "PER", "JOB", "LOST", "%"]
    rows = {line.split()[0]: line for line in lines}
    assert rows["sjf"].endswith("knows run times")
    assert rows["las"].endswith("*") and rows["fifo"].endswith("*")
    done = CliRunner().invoke(app, [*arguments, "--policy", "fifo,las", "--json"])
    las, fifo = json.loads(done.stdout)
    assert (las["policy"], fifo["policy"]) == ("las", "fifo")
    assert las["frontier"] and las["evictions"] > 0 == fifo["evictions"]
