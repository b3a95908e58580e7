"""Line plots as plain SVG: no script, no font, no other file."""

from __future__ import annotations

import math
from html import escape
from typing import Final, NamedTuple

#: Colours that stay apart for most eyes (Okabe and Ito).
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 170, 20, 50


class Line(NamedTuple):
    name: str
    points: list[tuple[float, float]]


def lines(title: str, x_name: str, y_name: str, drawn: list[Line]) -> str:
    """One plot; axes from the data, round ticks, names at the right."""
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points]
    if not xs:
        return f"<p>{escape(title)}: nothing to show.</p>"
    x_ticks, y_ticks = _ticks(min(xs), max(xs)), _ticks(min(ys), max(ys))
    x_from, x_to, y_from, y_to = x_ticks[0], x_ticks[-1], y_ticks[0], y_ticks[-1]

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x_from) / ((x_to - x_from) or 1)
        up = (y - y_from) / ((y_to - y_from) or 1)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    for x in x_ticks:
        left, bottom = at(x, y_from)
        parts.append(f'<text x="{left:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{x:g}</text>')
    for y in y_ticks:
        left, height = at(x_from, y)
        right, _ = at(x_to, y)
        parts.append(f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{height:.1f}" y2="{height:.1f}" class="grid"/>')
        parts.append(f'<text x="{left - 8:.1f}" y="{height + 4:.1f}" text-anchor="end">{y:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_name)}</text>')
    parts.append(
        f'<text transform="translate(14 {(_TOP + _HEIGHT - _BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_name)}</text>"
    )
    for number, line in enumerate(drawn):
        colour = COLOURS[number % len(COLOURS)]
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line.points))
        dash = ' stroke-dasharray="6 3"' if number >= len(COLOURS) else ""
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        top = _TOP + 10 + 20 * number
        parts.append(
            f'<line x1="{_WIDTH - _RIGHT + 14}" x2="{_WIDTH - _RIGHT + 38}" y1="{top}" y2="{top}" stroke="{colour}" '
            f'stroke-width="2"{dash}/><text x="{_WIDTH - _RIGHT + 44}" y="{top + 4}">{escape(line.name)}</text>'
        )
    parts.append("</svg>")
    return f"<figure><figcaption>{escape(title)}</figcaption>{''.join(parts)}</figure>"


def _ticks(least: float, most: float) -> list[float]:
    """Five to ten round numbers around the range."""
    span = (most - least) or abs(most) or 1.0
    step = 10 ** math.floor(math.log10(span / 5))
    for factor in (1, 2, 5, 10):
        if span / (step * factor) <= 8:
            step *= factor
            break
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return [round(step * at, 10) for at in range(first, max(last, first + 1) + 1)]


def page(title: str, body: str) -> str:
    """A whole document that needs nothing else."""
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:820px;margin:2em auto;padding:0 1em;color:#222}"
        "table{border-collapse:collapse}td,th{border-bottom:1px solid #ddd;padding:4px 10px;text-align:right}"
        "td:first-child,th:first-child{text-align:left}figure{margin:2em 0}figcaption{font-weight:600}"
        "svg{width:100%;height:auto}svg text{font-size:12px;fill:#444}.grid{stroke:#e4e4e4}"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
        f"<body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )
