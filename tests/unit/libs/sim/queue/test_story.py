"""The committed story, and its remedies on jobs of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.simulate.story import story
from libs.sim.queue.figures import figures
from libs.sim.queue.story import OURS, URGENT_WAIT_S, Place, Workload, make, remedies
from libs.sim.queue.study import simulate
from libs.sim.queue.trace import TraceJob


def test_on_the_story_as_committed_the_cluster_is_used_and_no_urgent_job_waits_beyond_its_bound() -> None:
    workload = Workload()
    jobs = make(workload)
    base, ours = (
        figures(simulate(next(s for s in remedies(workload.place, jobs) if s.label == label), jobs))
        for label in ("base", OURS)
    )
    assert ours["offered_load"] >= 0.80
    assert ours["by_priority"]["1"]["max_wait_s"] <= URGENT_WAIT_S
    assert base["by_priority"]["1"]["max_wait_s"] > URGENT_WAIT_S
    assert base["busy_utilisation_pct"] < 35
    assert ours["busy_utilisation_pct"] >= 72
    assert ours["mean_wait_s"] <= 0.42 * base["mean_wait_s"]


def test_remedies_that_do_not_apply_to_a_trace_are_left_out() -> None:
    whole = [TraceJob("a", "t", 0, 10, 1000)]
    shares = [TraceJob("a", "t", 0, 10, 500)]
    fence = (("t", 1),)
    assert [s.label for s in remedies(Place(1, 8), whole)] == [
        "base", "+ packing", OURS, "ours without packing", "ours without ordering", "ours, services' order",
    ]  # fmt: skip
    assert not any(s.fenced or s.whole for s in remedies(Place(1, 8), whole))
    assert [s.label for s in remedies(Place(1, 8, fence), shares)][:4] == [
        "base",
        "+ sharing",
        "+ packing",
        "+ pooling",
    ]
    base = remedies(Place(1, 8, fence), shares)[0]
    assert (base.fenced, base.whole, base.spread, base.policy) == (True, True, True, "fifo")


def test_the_remedies_of_a_trace_are_printed_one_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "jobs.csv"
    rows = [f"{n * 10},{600 + n % 7 * 300},{1 + n % 8},{'ab'[n % 3 > 0]}" for n in range(60)]
    path.write_text("submit_s,duration_s,num_gpus,vc\n" + "\n".join(rows) + "\n")
    told = {
        "jobs": path,
        "nodes": 3,
        "gpus_per_node": 8,
        "fence": "a=1,b=2",
        "days": 0.5,
        "processes": 1,
        "as_json": False,
    }
    story(**told, services=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0].strip() for line in lines] == [
        "base", "+ packing", "+ pooling", OURS, "ours without packing", "ours without pooling",
        "ours without ordering", "ours, services' order",
    ]  # fmt: skip
    assert all("of the load" in line for line in lines)
    story(**told, policy="fifo-backfill,services-without-moves", services=False)
    alone = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0].strip() for line in alone] == ["fifo-backfill", "services-without-moves"]
