"""Compare feasible nodes with the real kube-scheduler on random clusters; ends with 1 where they differ."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from libs.kube.client import KubeClient
from tools.differential.compare import Result, run
from tools.differential.oracle import Extender, free_port, stack


async def _compare(kubeconfig: Path, port: int, cases: int, seed: int) -> Result:
    kube = KubeClient.from_kubeconfig(kubeconfig)
    extender = Extender()
    try:
        async with extender.serving(port):
            return await run(kube, extender, cases, seed)
    finally:
        await kube.close()


def differential(directory: Path, cases: int, seed: int) -> Result:
    """Start what is needed in the folder, compare, end it."""
    port = free_port()
    with stack(directory, port) as info:
        return asyncio.run(_compare(info.kubeconfig, port, cases, seed))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.differential", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="of the first world; each world is one seed on")
    parser.add_argument("--json", action="store_true", help="everything about every difference")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        result = differential(Path(folder), given.cases, given.seed)
    if given.json:
        sys.stdout.write(json.dumps(asdict(result), indent=1) + "\n")
    else:
        sys.stdout.write(
            f"{result.cases} cases ({result.gated} gated, {result.placeable} with a node), "
            f"{len(result.differences)} differences, {result.seconds:.1f} s\n"
        )
        for difference in result.differences:
            sys.stdout.write(
                f"seed {difference.seed} {difference.pod['metadata']['name']}: scheduler {difference.scheduler}, "
                f"engine {difference.engine}, {difference.why}\n"
            )
    return 1 if result.differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
