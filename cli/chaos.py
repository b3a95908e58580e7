"""`drystone chaos`: rounds of faults on real parts under load, and the laws afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cli import ends
from cli.errors import CommandError
from cli.out import logs_aside, note, say, show


def chaos(rounds: int, seed: int, only: str, keep: Path | None, as_json: bool) -> int:
    from bench.chaos.faults import FAULTS
    from bench.chaos.run import run

    unknown = [name for name in only.split(" + ") if name and name not in FAULTS]
    if unknown:
        raise CommandError(f"no fault {unknown[0]!r}; there are: {', '.join(sorted(FAULTS))}")
    ends.in_order()
    logs_aside()
    result = asyncio.run(run(rounds, seed, only=only, keep=keep, report=note))
    if as_json:
        show(result)
    else:
        say(f"{result['rounds']} rounds, {result['accepted']} accepted, {result['broken']} broken")
    return 1 if result["broken"] else 0
