"""`drystone bench`: run a measurement, print its figures."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from cli.errors import CommandError
from cli.out import note, say, show


def pipeline(nodes: int, pods: int, against: str, runs: int, as_json: bool) -> int:
    from bench.pipeline import run

    if against not in ("", "kube-scheduler"):
        raise CommandError(f"--against knows kube-scheduler, not {against!r}")
    return _print(
        asyncio.run(run(nodes, pods, against=against or None, runs=runs, directory=None, report=note)), as_json
    )


def jobs(trials: int, nodes: int, as_json: bool) -> int:
    from bench.jobs import run

    return _print(asyncio.run(run(trials, nodes, report=note)), as_json)


def gang(size: int, nodes: int, runs: int, as_json: bool) -> int:
    from bench.gang import run

    return _print(asyncio.run(run(size, nodes, runs, report=note)), as_json)


def fuzz(events: int, seed: int, rate: float, as_json: bool) -> int:
    from bench.fuzz import run

    result = asyncio.run(run(events, seed, rate, report=note))
    _print(result, as_json)
    return 1 if result["broken"] else 0


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
