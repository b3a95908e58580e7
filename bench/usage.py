"""What processes take, and what the ledger holds, sampled over time: memory, CPU, elements of every key."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.fleet import TICKS

_SIZES: Final = {b"hash": "hlen", b"zset": "zcard", b"stream": "xlen", b"set": "scard", b"list": "llen"}


@dataclass(slots=True)
class Series:
    """One measure over time: (seconds, value)."""

    points: list[tuple[float, float]] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        values = [value for _, value in self.points]
        return {
            "first": round(values[0], 2),
            "last": round(values[-1], 2),
            "most": round(max(values), 2),
            "per_min": round(slope_per_min(self.points), 4),
        }


def slope_per_min(points: Sequence[tuple[float, float]]) -> float:
    """Least-squares slope a minute of what follows the first third of the time; 0 for fewer than three points."""
    if not points:
        return 0.0
    start, end = points[0][0], points[-1][0]
    later = [(t, v) for t, v in points if t >= start + (end - start) / 3]
    if len(later) < 3:
        return 0.0
    slope, _ = statistics.linear_regression([t for t, _ in later], [v for _, v in later])
    return 60 * slope


def memory(pids: Mapping[str, int]) -> dict[str, float]:
    """Resident memory by process, in MiB."""
    found = {}
    for name, pid in pids.items():
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                found[f"{name} MiB"] = int(line.split()[1]) / 1024
    return found


def cpu(pids: Mapping[str, int]) -> dict[str, float]:
    """User and system time by process since its start, in seconds."""

    def seconds(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    return {name: seconds(pid) for name, pid in pids.items()}


async def ledger(client: Any) -> dict[str, float]:
    """Elements of every key of the ledger, and Redis' memory in MiB."""
    found: dict[str, float] = {}
    names = [name async for name in client.scan_iter(count=1000)]
    # All in one call: what is asked must not be what is measured.
    async with client.pipeline(transaction=False) as asked:
        for name in names:
            asked.type(name)
        kinds = await asked.execute()
        sized = [(name, _SIZES[kind]) for name, kind in zip(names, kinds, strict=True) if kind in _SIZES]
        for name, size in sized:
            getattr(asked, size)(name)
        asked.info("memory")
        *sizes, memory = await asked.execute()
    for (name, _), size in zip(sized, sizes, strict=True):
        short = name.decode().removeprefix("{drystone}:")
        # Partitions come and go with what waits in them: together they are one number.
        group = "part:*" if short.startswith("part:") else short
        found[f"redis {group}"] = found.get(f"redis {group}", 0.0) + size
    found["redis used MiB"] = memory["used_memory"] / 2**20
    return found
