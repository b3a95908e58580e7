"""A page that needs nothing else: figures as a table, waits and utilisation over time as plain SVG."""

from __future__ import annotations

import html
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final

from libs.sim.queue.figures import Result, figures

COLOURS: Final = ("#1b6ca8", "#c8553d", "#3c8d53", "#7b5ea7", "#b8860b", "#3f3f3f")
WIDTH: Final = 900
HEIGHT: Final = 220
LEFT: Final = 70
SAMPLES: Final = 400

COLUMNS: Final = (
    "policy", "jobs", "mean_wait_s", "p99_wait_s", "max_wait_s", "mean_jct_s", "p99_jct_s", "makespan_s",
    "utilisation_pct", "busy_utilisation_pct", "evictions_per_job", "gpu_time_lost_pct",
)  # fmt: skip

Line = tuple[str, list[tuple[float, float]]]


def render(title: str, results: Sequence[Result]) -> str:
    """HTML of one or more runs of the same jobs."""
    end = max(o.end for result in results for o in result.outcomes)
    day = 86400.0
    busy = [(r.policy, _sampled([(at, 100 * used / r.gpus) for at, used, _ in r.steps], end)) for r in results]
    waiting = [(r.policy, _sampled([(at, float(count)) for at, _, count in r.steps], end)) for r in results]
    spread = [(r.policy, _quantiles([o.wait for o in r.outcomes])) for r in results]
    return "\n".join(
        (
            "<!doctype html><html lang=en><meta charset=utf-8>",
            f"<title>Queue: {html.escape(title)}</title>",
            "<style>body{font:14px system-ui,sans-serif;margin:2em;max-width:72em}td,th{padding:.2em .7em;"
            "text-align:right}th:first-child,td:first-child{text-align:left}svg{display:block;margin:1em 0}</style>",
            f"<h1>Queue: {html.escape(title)}</h1>",
            _table(results),
            _plot("GPUs held, % of all, over days", [(n, [(x / day, y) for x, y in p]) for n, p in busy]),
            _plot("Jobs that wait, over days", [(n, [(x / day, y) for x, y in p]) for n, p in waiting]),
            _plot("Wait in hours, over the share of jobs (%) that waits no longer", spread),
            knob_plot([(result.policy, figures(result, tenants=False)) for result in results]),
            "</html>",
        )
    )


def knob_plot(tables: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """What the knob between efficiency and fairness does, from the figures of its settings ("fairness 50"); nothing
    where fewer than two were run, or there is one tenant."""
    found = sorted((int(name.split()[1]), table) for name, table in tables if name.startswith("fairness "))
    if len(found) < 2 or "worst_tenant_mean_wait_s" not in found[0][1]:
        return ""
    lines = []
    for field, name in (("mean_wait_s", "mean wait"), ("worst_tenant_mean_wait_s", "worst tenant")):
        base = found[0][1][field] or 1.0
        lines.append((name, [(float(at), 100 * table[field] / base) for at, table in found]))
    return _plot(f"Mean wait of all jobs and of the worst tenant, % of that at {found[0][0]}, over fairness", lines)


def _table(results: Sequence[Result]) -> str:
    head = "".join(f"<th>{column}</th>" for column in COLUMNS)
    rows = []
    for result in results:
        table = figures(result, tenants=False)
        rows.append("<tr>" + "".join(f"<td>{html.escape(_shown(table[c]))}</td>" for c in COLUMNS) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


def _sampled(steps: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    times = [at for at, _ in steps]
    points = []
    for k in range(SAMPLES + 1):
        at = end * k / SAMPLES
        index = bisect_right(times, at) - 1
        points.append((at, steps[index][1] if index >= 0 else 0.0))
    return points


def _quantiles(waits: Sequence[float]) -> list[tuple[float, float]]:
    ordered = sorted(waits)
    last = len(ordered) - 1
    return [(100 * k / SAMPLES, ordered[round(last * k / SAMPLES)] / 3600) for k in range(SAMPLES + 1)]


def _plot(title: str, lines: Sequence[Line]) -> str:
    right = max((x for _, points in lines for x, _ in points), default=1.0) or 1.0
    top = max((y for _, points in lines for _, y in points), default=1.0) or 1.0
    parts = [f'<h2>{html.escape(title)}</h2><svg width="{WIDTH}" height="{HEIGHT + 30}" role="img">']
    for k in range(5):
        y = HEIGHT - 10 - (HEIGHT - 30) * k / 4
        x = LEFT + (WIDTH - LEFT - 20) * k / 4
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end" font-size="11">{top * k / 4:,.4g}</text>')
        parts.append(
            f'<text x="{x:.0f}" y="{HEIGHT + 8}" text-anchor="middle" font-size="11">{right * k / 4:,.4g}</text>'
        )
    for index, (name, points) in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(
            f"{LEFT + (WIDTH - LEFT - 20) * x / right:.1f},{HEIGHT - 10 - (HEIGHT - 30) * y / top:.1f}"
            for x, y in points
        )
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
        label = f'x="{LEFT + 110 * index}" y="{HEIGHT + 25}" font-size="12" fill="{colour}"'
        parts.append(f"<text {label}>{html.escape(name)}</text>")
    return "".join(parts) + "</svg>"
