"""`drystone bench`: run a measurement, print its figures."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any


def pipeline(nodes: int, pods: int, against: str, runs: int, as_json: bool) -> int:
    from bench.pipeline import run
    from cli.errors import CommandError

    if against not in ("", "kube-scheduler"):
        raise CommandError(f"--against knows kube-scheduler, not {against!r}")
    return _print(
        asyncio.run(run(nodes, pods, against=against or None, runs=runs, directory=None, report=_note)), as_json
    )


def jobs(trials: int, nodes: int, as_json: bool) -> int:
    from bench.jobs import run

    return _print(asyncio.run(run(trials, nodes, report=_note)), as_json)


def gang(size: int, nodes: int, runs: int, as_json: bool) -> int:
    from bench.gang import run

    return _print(asyncio.run(run(size, nodes, runs, report=_note)), as_json)


def _note(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _print(result: dict[str, Any], as_json: bool) -> int:
    if as_json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    else:
        for key, value in result.items():
            sys.stdout.write(f"{key}: {json.dumps(value)}\n")
    return 0
