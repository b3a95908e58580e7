"""`drystone chaos`: rounds of faults on real parts under load, and the laws afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cli.errors import CommandError
from cli.out import note, say, show


def chaos(rounds: int, seed: int, only: str, keep: Path | None, as_json: bool) -> int:
    from bench.chaos.faults import FAULTS
    from bench.chaos.run import run

    if only and only not in FAULTS:
        raise CommandError(f"no fault {only!r}; there are: {', '.join(sorted(FAULTS))}")
    result = asyncio.run(run(rounds, seed, only=only, keep=keep, report=note))
    if as_json:
        show(result)
    else:
        say(f"{result['rounds']} rounds, {result['accepted']} accepted, {result['broken']} broken")
    return 1 if result["broken"] else 0
