"""A packing study as one HTML file: curves over load, and the table of figures."""

from __future__ import annotations

import statistics
from html import escape
from typing import Any

from libs.sim.pack import PackRun
from libs.sim.plot import Line, lines, page
from libs.sim.study import Study, summary


def report(study: Study, runs: dict[str, list[PackRun]]) -> str:
    allocated = [Line(policy, _curve(found, 0)) for policy, found in runs.items()]
    missing = [Line(policy, [(x, x - y) for x, y in _curve(found, 0) if x <= 100]) for policy, found in runs.items()]
    fragments = [Line(policy, _curve(found, 1)) for policy, found in runs.items()]
    load = "GPU asked by all arrivals, % of the cluster"
    told = (
        f"<p>Nodes: {escape(study.nodes.name)}, order {escape(study.node_order)}. Tasks: {escape(study.tasks.name)}. "
        f"Means over {len(study.seeds)} seeds ({study.seeds[0]} to {study.seeds[-1]}). Tasks arrive one by one, are "
        "placed at once or dropped, and stay.</p>"
    )
    return page(
        "Packing study",
        told
        + _table([summary(policy, found) for policy, found in runs.items()])
        + lines("Allocated GPU", load, "% of the cluster", allocated)
        + lines("Asked and not allocated, up to load 100", load, "% of the cluster", missing)
        + lines("Fragments (measure F)", load, "% of the cluster", fragments),
    )


def _curve(runs: list[PackRun], which: int) -> list[tuple[float, float]]:
    loads = sorted(set.intersection(*(set(run.curve) for run in runs)))
    return [(float(load), statistics.fmean(run.curve[load][which] for run in runs)) for load in loads]


def _table(results: list[dict[str, Any]]) -> str:
    classes = list(results[0]["placed_pct_by_class"])
    head = ["policy", "unallocated % at 100", "sd", "allocated % at end", *(f"placed % {name}" for name in classes)]
    rows = []
    for result in results:
        at_100 = result["unallocated_pct_at_100"]
        cells = [
            escape(result["policy"]),
            "" if at_100 is None else f"{at_100:.2f}",
            f"{result['sd']:.2f}",
            f"{result['allocated_pct_at_end']:.2f}",
            *(f"{result['placed_pct_by_class'].get(name, 0):.1f}" for name in classes),
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return (
        "<table><thead><tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr></thead><tbody>"
        + "".join(rows) + "</tbody></table>"
    )  # fmt: skip
