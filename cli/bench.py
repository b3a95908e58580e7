"""`drystone bench`: run a measurement, print its figures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from cli import ends
from cli.errors import CommandError
from cli.out import logs_aside, note, say, show


def pipeline(nodes: int, pods: int, against: str, runs: int, as_json: bool) -> int:
    from bench.pipeline import run

    if against not in ("", "kube-scheduler"):
        raise CommandError(f"--against knows kube-scheduler, not {against!r}")
    _end_children_too()
    return _print(
        asyncio.run(run(nodes, pods, against=against or None, runs=runs, directory=None, report=note)), as_json
    )


def jobs(trials: int, nodes: int, as_json: bool) -> int:
    from bench.jobs import run

    _end_children_too()
    return _print(asyncio.run(run(trials, nodes, report=note)), as_json)


def gang(size: int, nodes: int, runs: int, as_json: bool) -> int:
    from bench.gang import run

    _end_children_too()
    result = asyncio.run(run(size, nodes, runs, report=note))
    _print(result, as_json)
    return 0 if result["within"] else 1


def failover(only: str, repeats: int, rate: float, keep: Path | None, as_json: bool) -> int:
    from bench.failover import SCENARIOS, run

    names = [name for name in only.split(" + ") if name]
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        raise CommandError(f"no fault {unknown[0]!r}; there are: {'; '.join(SCENARIOS)}")
    _end_children_too()
    result = asyncio.run(run(names, repeats, rate=rate, keep=keep, report=note))
    _print(result, as_json)
    return 0 if all(row["within"] and not row["problems"] for row in result["faults"].values()) else 1


def rebuild(pods: int, nodes: int, repeats: int, keep: Path | None, as_json: bool) -> int:
    from bench.rebuild import run

    _end_children_too()
    result = asyncio.run(run(pods, nodes, repeats, keep=keep, report=note))
    _print(result, as_json)
    return 0 if result["within"] and not result["problems"] else 1


def rolling(rate: float, jobs_per_s: float, before: str, keep: Path | None, as_json: bool) -> int:
    from bench.rolling import run

    _end_children_too()
    result = asyncio.run(run(rate, jobs_per_s, before=before, keep=keep, report=note))
    _print(result, as_json)
    return 0 if result["within"] and not result["problems"] else 1


def soak(minutes: float, rate: float, source: str, keep: Path | None, as_json: bool) -> int:
    from bench.soak import SOURCES, run

    if source not in SOURCES:
        raise CommandError(f"--source must be one of {', '.join(SOURCES)}")
    _end_children_too()
    result = _quickly(run(minutes, rate, source=source, keep=keep, report=note))
    _print(result, as_json)
    return 1 if result["left"]["holders"] or result["left"]["problems"] or result["unfinished"] else 0


def _quickly(measuring: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """On the loop that services run on, where it is there: it takes less of what is measured."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(measuring)
    return uvloop.run(measuring)


def _end_children_too() -> None:
    """Asked to end, a measurement ends what it started: parts and services are processes of their own. What runs in
    this one logs beside the answer."""
    logs_aside()
    ends.in_order()


def fuzz(events: int, seed: int, rate: float, as_json: bool) -> int:
    from bench.fuzz import run

    _end_children_too()
    result = asyncio.run(run(events, seed, rate, report=note))
    _print(result, as_json)
    return 1 if result["broken"] else 0


def conflicts(
    nodes: int,
    pods: int,
    seconds: float,
    rate: float,
    candidates: list[int],
    fills: list[float],
    replicas: list[int],
    runs: int,
    as_json: bool,
) -> int:
    from bench.conflicts import run

    _end_children_too()
    return _print(asyncio.run(run(nodes, pods, seconds, rate, candidates, fills, replicas, runs, report=note)), as_json)


def reclaim(nodes: int, size: int, singles: int, gangs: int, moves: int, keep: Path | None, as_json: bool) -> int:
    from bench.reclaim import run

    _end_children_too()
    result = asyncio.run(run(nodes, size, singles, gangs, moves, report=note, directory=keep))
    _print(result, as_json)
    return 0 if result["within"] else 1


def hopeless(nodes: int, hopeless: int, pods: int, rate: float, runs: int, settle: float, as_json: bool) -> int:
    from bench.hopeless import run

    _end_children_too()
    result = asyncio.run(run(nodes, hopeless, pods, rate, runs, settle, report=note))
    _print(result, as_json)
    return 0 if result["within"] else 1


def _print(result: dict[str, Any], as_json: bool) -> int:
    if as_json:
        show(result)
    else:
        for key, value in result.items():
            say(f"{key}: {json.dumps(value)}")
    return 0


def engine(runs: int, as_json: bool) -> int:
    from bench.engine import main

    return main(["--runs", str(runs), *(["--json"] if as_json else [])])
