"""Tasks that come, wait, run and leave, on clusters small enough to follow by hand."""

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.simulate import simulate_app
from libs.domain.resources import WHOLE, GpuRequest, Request
from libs.engine.draw import Draw
from libs.sim.departures import Coming, _World, run_departures, shortened, stream
from libs.sim.errors import SimulationError
from libs.sim.lists import NodeRow, TaskRow, TimedRow, read_timed

NODES = [NodeRow("n", 8000, 80_000, 2, "A")]
S = 1_000_000


def task(gpus: int, milli: int = 0) -> TaskRow:
    return TaskRow("t", Request(1000, 1000, GpuRequest(gpus, milli)))


def run(*coming: tuple[int, TaskRow, int], nodes: list[NodeRow] = NODES):
    stream_ = [Coming(at * S, what, ran * S) for at, what, ran in coming]
    return _World(nodes, stream_, (), "first-fit", 1, 1.0, "listed").run(None)


def test_who_does_not_fit_waits_and_starts_when_room_comes_free():
    one = run((0, task(2), 10), (4, task(1), 5), (20, task(1), 1))

    assert one.wait_s == {"1": 3.0, "2": 0.0}  # six seconds by one of two
    assert one.waited == 1
    assert one.idle_pct == 0.0  # while it waited, both GPUs were taken
    assert one.waiting_pct == pytest.approx(30.0)


def test_what_lies_idle_while_somebody_waits_is_measured():
    one = run((0, task(1), 10), (2, task(2), 5), (12, task(1), 1))

    assert one.idle_pct == pytest.approx(50.0)
    assert one.waiting_pct == pytest.approx(100 * 8 / 12)


def test_a_smaller_one_overtakes_and_among_alike_the_older_goes_first():
    one = run((0, task(1), 10), (1, task(2), 5), (2, task(1), 3), (30, task(1), 1))

    assert one.wait_s["2"] == pytest.approx(9.0)
    assert one.wait_s["1"] == 0.0


def test_a_task_that_fits_nowhere_is_told():
    with pytest.raises(SimulationError, match="fits on no node"):
        run((0, task(4), 10), (1, task(1), 1))


def test_the_load_is_what_was_asked_for():
    rows = [TimedRow(task(1), at, 50 + 10 * (at % 7)) for at in range(40)]
    coming = stream(rows, 100 * WHOLE, 0.5, 7, 20_000)
    start = [one for one in coming if one.at == 0]
    after = [one for one in coming if one.at > 0]

    assert sum(one.task.gpu_milli for one in start) == 50 * WHOLE
    asked = sum(one.task.gpu_milli * one.ran for one in after) / (coming[-1].at * 100 * WHOLE)
    assert asked == pytest.approx(0.5, rel=0.03)
    assert stream(rows, 100 * WHOLE, 0.5, 7, 20_000) == coming
    assert all(0 < one.ran <= 110 * S for one in coming)


def test_long_runs_are_drawn_for_the_start_as_often_as_they_would_be_there():
    rows = [TimedRow(task(1), 0, 900), TimedRow(task(1, 500), 1, 100)]
    start = [one for one in stream(rows, 1000 * WHOLE, 1.0, 3, 1) if one.at == 0]

    assert sum(not one.task.request.gpu.milli for one in start) / len(start) == pytest.approx(0.9, abs=0.03)


def test_runs_are_cut_where_that_is_wanted():
    rows = [TimedRow(task(1), 0, 900)]
    assert shortened(rows, 100)[0].ran == 100
    assert shortened(rows, 0) == rows


def trace(path: Path, rows: int = 60) -> Path:
    draw = Draw(5)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time",
                      "scheduled_time"])  # fmt: skip
        for i in range(rows):
            ran = 10 + draw.below(200)
            out.writerow([f"p{i}", 500, 100, 1 + draw.below(2), 1000, i, i + ran, i])
        out.writerow(["never", 500, 100, 1, 1000, 5, 9, ""])
    return path


def test_tasks_that_never_ran_are_left_out(tmp_path):
    assert len(read_timed(trace(tmp_path / "t.csv"))) == 60


def test_times_in_the_wrong_order_are_told_with_their_line(tmp_path):
    path = tmp_path / "t.csv"
    columns = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"
    path.write_text(f"{columns}\np,500,100,1,1000,0,50,99\n")
    with pytest.raises(SimulationError, match="line 2: created at 0"):
        read_timed(path)


@pytest.mark.parametrize("policy", ["drystone", "fgd"])
def test_the_same_seed_gives_the_same_run_and_everything_is_given_back(tmp_path, policy):
    rows = read_timed(trace(tmp_path / "t.csv"))
    nodes = [NodeRow(f"n{i}", 8000, 80_000, 4, "A") for i in range(4)]

    first, second = (run_departures(nodes, rows, policy, 9, 0.95, 300) for _ in range(2))

    assert first == second
    assert sum(first.tasks.values()) > 300


def test_the_command_prints_what_was_measured(tmp_path):
    nodes = tmp_path / "n.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\na,8000,80000,4,A\nb,8000,80000,4,A\n")
    asked = ["departures", "--nodes", str(nodes), "--tasks", str(trace(tmp_path / "t.csv")), "--arrivals", "200",
             "--policy", "drystone,first-fit", "--loads", "1.05", "--seeds", "1-2", "--processes", "1"]  # fmt: skip

    done = CliRunner().invoke(simulate_app, asked)

    assert done.exit_code == 0, done.output
    assert "load 1.05, drystone:" in done.output
    assert "load 1.05, first-fit:" in done.output
