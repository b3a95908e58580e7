"""Counts the writes in an audit log of the API server.

A scheduler that writes often slows the cluster for everyone, so the number of writes for each user is a figure of its
own. Leases are left out: they tell that somebody is alive, and grow with time rather than with work.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Write:
    """One write that the API server answered."""

    user: str
    verb: str
    resource: str
    """With its subresource: `pods`, `pods/binding`."""
    code: int


def writes(log: Path, offset: int = 0) -> Iterator[Write]:
    """The writes in a log, from a byte offset on (its size at the start of a measurement)."""
    with log.open("rb") as lines:
        lines.seek(offset)
        for line in lines:
            # The last line may still be half-written.
            if line.endswith(b"\n") and (write := _parse(line)) is not None:
                yield write


def count_by_user(found: Iterable[Write], *, only_done: bool = True) -> Counter[tuple[str, str]]:
    """How many writes each user made to each resource; refused ones count only without `only_done`."""
    return Counter((write.user, write.resource) for write in found if write.code < 300 or not only_done)


def _parse(line: bytes) -> Write | None:
    entry = json.loads(line)
    target = entry.get("objectRef", {})
    if entry.get("stage") != "ResponseComplete" or target.get("resource") == "leases":
        return None
    resource = "/".join(part for part in (target.get("resource", ""), target.get("subresource", "")) if part)
    # A service that writes as another one is counted as itself.
    user = entry.get("user", {}).get("username", "")
    return Write(user, entry["verb"], resource, entry.get("responseStatus", {}).get("code", 0))
