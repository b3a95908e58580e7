"""Time as something handed in, so that tests and the simulator can run it at their own pace."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never jump; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, for people and records. Never compared with another host's."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
