"""The life of a service: it is served until it is asked to stop, then it stops in named phases.

A service gets its bus, ledger and API server handed in, opens none of them and closes none of them, so the same object
runs as a process of its own or beside the others in the embedded mode.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Health:
    """`ready`: work is being taken. `alive` False: only a restart helps. `detail` is shown by /readyz."""

    ready: bool
    alive: bool = True
    detail: dict[str, str] = field(default_factory=dict)


class Service(Protocol):
    name: str

    async def serve(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then: stop intake, finish what is in hand, flush, return. Raises only on faults
        that a restart must cure. Cancellation ends it at once, losing nothing that redelivery does not bring back."""
        ...

    def health(self) -> Health: ...
