"""The table says what was run, and nothing of what was not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from libs.engine.policies import POLICIES
from libs.sim import table
from libs.sim.study import Study, run_study
from libs.sim.table import BASELINES, SEEDS, Cell, bound_key, cells, digest, lists_in, published, write


def result(at_100: float, **classes: float) -> dict[str, Any]:
    return {
        "unallocated_pct_at_100": at_100,
        "unallocated_pct_by_seed": [at_100 - 0.1, at_100 + 0.1],
        "placed_pct_by_class": {"1": 70.0, **classes},
    }


def test_ours_is_set_against_the_best_other_on_each_list() -> None:
    known = {Cell("default", "random", p, SEEDS).key: result(9.0) for p in BASELINES}
    known[Cell("default", "random", "first-fit", SEEDS).key] = result(5.0, **{"8": 60.0})
    known[Cell("default", "random", "drystone", SEEDS).key] = result(4.5, **{"8": 61.0})
    known[bound_key("default")] = {"unallocated_pct_at_100": 3.0}
    told = write(known, ["default", "absent"], {("default", "fgd"): 4.77})
    assert "| default * | 3.00 | **4.50** | 9.00 (4.77) |" in told
    assert "| -0.50 | 0.00 |" in told
    assert "absent" not in told


def test_lists_are_found_by_name_and_published_figures_by_list_and_policy(tmp_path: Path) -> None:
    (tmp_path / "openb_pod_list_zeta.csv").touch()
    (tmp_path / "openb_pod_list_default.csv.gz").touch()
    (tmp_path / "published_fgd_results.csv").write_text(
        "workload,policy,arrived_load_pct,alloc_pct_mean\ndefault,FGD,100,95.25\ndefault,FGD,99,95\nx,Other,100,1\n"
    )
    assert list(lists_in(tmp_path)) == ["default", "zeta"]
    assert published(tmp_path) == {("default", "fgd"): 4.75}
    # Whatever the command knows, but the one that only scores tasks that declare a precision: these lists have none.
    assert {cell.policy for cell in cells(["default"])} == set(POLICIES) - {"precision"}


def test_policies_without_published_figures_have_a_table_of_their_own() -> None:
    known = {Cell("default", "random", p, SEEDS).key: result(9.0) for p in (*BASELINES, "drystone")}
    assert "| spread |" in write(known, ["default"], {})
    known[Cell("default", "random", "spread", SEEDS).key] = result(12.34)
    assert "| default | 9.00 |  |  |  |  |  | 12.34 |" in write(known, ["default"], {})


@pytest.mark.parametrize("source", ["engine/policies/fgd.py", "engine/scores.py", "engine/looks.py", "sim/world.py"])
def test_figures_of_other_sources_are_known_as_such(
    source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = digest()
    assert now == digest()
    copy = tmp_path / "libs"
    shutil.copytree(Path(table.__file__).parent.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(table, "__file__", str(copy / "sim" / "table.py"))
    assert digest() == now
    (copy / source).write_text("")
    assert digest() != now


NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,96000,393216,8,G2\n"
TASKS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "".join(f"p{i},4000,8192,1,470\n" for i in range(30))


def test_the_command_prints_the_figures_that_were_agreed(tmp_path: Path) -> None:
    nodes, tasks, report = tmp_path / "nodes.csv", tmp_path / "tasks.csv", tmp_path / "r.html"
    nodes.write_text(NODES)
    tasks.write_text(TASKS)
    args = ["simulate", "pack", "--nodes", str(nodes), "--tasks", str(tasks), "--seeds", "1-2", "--processes", "1"]
    done = CliRunner().invoke(app, [*args, "--json", "--report", str(report)])
    assert done.exit_code == 0, done.output
    for name in ("policy", "seeds", "unallocated_pct_at_100", "sd", "allocated_pct_at_130", "frag_pct_of_total_at",
                 "placed_pct_by_class", "seconds_per_run"):  # fmt: skip
        assert f'"{name}"' in done.stdout
    assert report.read_text().startswith("<!doctype html>")


def test_the_command_names_what_is_wrong_and_leaves_nothing_behind(tmp_path: Path) -> None:
    nodes, tasks, report = tmp_path / "nodes.csv", tmp_path / "tasks.csv", tmp_path / "r.html"
    nodes.write_text(NODES)
    tasks.write_text(TASKS + "broken,1,1,1\n")
    done = CliRunner().invoke(
        app, ["simulate", "pack", "--nodes", str(nodes), "--tasks", str(tasks), "--report", str(report)]
    )
    assert done.exit_code != 0
    assert "line 32: 4 fields where the header has 5" in str(done.exception)
    assert not report.exists()


def test_runs_side_by_side_give_what_runs_one_after_the_other_give(tmp_path: Path) -> None:
    """Each in a process of its own, whose texts hash in another way; on several nodes, some of them alike."""
    others = "".join(f"n{i},{cpu},393216,8,{model}\n" for i, (cpu, model) in enumerate(
        [(96000, "G2"), (64000, "T4"), (64000, "T4"), (128000, "G3")], 2
    ))  # fmt: skip
    (tmp_path / "nodes.csv").write_text(NODES + others)
    (tmp_path / "tasks.csv").write_text(TASKS)
    study = Study(tmp_path / "nodes.csv", tmp_path / "tasks.csv", ("drystone", "random"), (1, 2))
    done: list[int] = []
    alone, together = run_study(study, 1), run_study(study, 2, lambda: done.append(1))
    assert len(done) == 4
    for policy in study.policies:
        assert [(run.seed, run.curve, run.placements) for run in alone[policy]] == [
            (run.seed, run.curve, run.placements) for run in together[policy]
        ]
