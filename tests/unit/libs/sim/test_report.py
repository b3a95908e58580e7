"""The report is one file that shows every policy and needs nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from libs.domain.resources import GpuRequest, Request
from libs.sim.lists import NodeRow, TaskRow
from libs.sim.pack import run_pack
from libs.sim.plot import Line, lines
from libs.sim.report import report
from libs.sim.study import Study


def test_a_report_shows_every_policy_and_loads_nothing() -> None:
    nodes = [NodeRow(f"n{i}", 96_000, 10**6, 8, "G2") for i in range(3)]
    tasks = [TaskRow(f"t{i}", Request(1000, 1, GpuRequest(1, 400 + i))) for i in range(50)]
    policies = ("drystone", "best-fit")
    study = Study(Path("nodes<1>.csv"), Path("tasks.csv"), policies, (1, 2))
    html = report(study, {p: [run_pack(nodes, tasks, p, seed) for seed in study.seeds] for p in policies})
    assert "nodes&lt;1&gt;.csv" in html
    assert not re.search(r"(src|href|url|import)\s*[=(]|https?:|<script", html)
    plots = re.findall(r"<svg.*?</svg>", html)
    assert len(plots) == 3
    for plot in plots:
        drawn = ElementTree.fromstring(plot)
        assert len(drawn.findall("polyline")) == 2
        assert {"drystone", "best-fit"} <= {text.text for text in drawn.findall("text")}


def test_points_lie_within_the_plot_and_flat_lines_are_drawn() -> None:
    plot = ElementTree.fromstring(
        re.findall(r"<svg.*</svg>", lines("t", "x", "y", [Line("flat", [(0, 5), (9, 5)])]))[0]
    )
    (line,) = plot.findall("polyline")
    for point in line.attrib["points"].split():
        x, y = map(float, point.split(","))
        assert 0 <= x <= 760
        assert 0 <= y <= 420
