"""An API server whose answers go wrong on purpose: lost before or after they took effect, refused, or late.

A `FaultyKube` wraps any `Kube`. Faults are asked in order for every call; the first that matches and is not used up
decides. What it did is counted, so that a test can say that the fault really happened.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from libs.kube.port import Answer, Kube

Matches = Callable[[str, str], bool]


def binding(method: str, path: str) -> bool:
    return method == "POST" and path.endswith("/binding")


def creation(method: str, path: str) -> bool:
    return method == "POST" and path.endswith("/pods")


def eviction(method: str, path: str) -> bool:
    return method == "POST" and path.endswith("/eviction")


def deletion(method: str, path: str) -> bool:
    return method == "DELETE" and "/pods/" in path


def read(method: str, path: str) -> bool:
    return method == "GET" and "/pods/" in path


@dataclass(slots=True)
class Fault:
    """`applied`: the call takes effect before its answer is replaced. `answer` None: the real answer is given, after
    `until` is set. `held` tells the test that a call arrived here."""

    matches: Matches
    times: int = 1
    applied: bool = False
    answer: Answer | None = None
    until: asyncio.Event | None = None
    held: asyncio.Event = field(default_factory=asyncio.Event)
    seen: int = 0


def connection_lost(matches: Matches, *, applied: bool, times: int = 1) -> Fault:
    return Fault(matches, times, applied, Answer(0, b"", unsure=True))


def answers(matches: Matches, status: int, body: bytes = b"", *, times: int = 1, retry_after_s: float | None = None,
            applied: bool = False) -> Fault:  # fmt: skip
    return Fault(matches, times, applied, Answer(status, body, unsure=status >= 500, retry_after_s=retry_after_s))


def held_up(matches: Matches, until: asyncio.Event, times: int = 1) -> Fault:
    """The call does not take effect before `until` is set."""
    return Fault(matches, times, until=until)


class FaultyKube:
    def __init__(self, kube: Kube, *faults: Fault) -> None:
        self.kube = kube
        self.faults = list(faults)
        #: Effects that the server was asked for, by "METHOD last-part-of-path" ("POST binding").
        self.served: Counter[str] = Counter()
        self.most_at_once = 0
        self._now = 0

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float = 5.0,
    ) -> Answer:
        async def serve() -> Answer:
            self.served[f"{method} {path.rsplit('/', 1)[-1]}"] += 1
            return await self.kube.call(
                method, path, body, params=params, content_type=content_type, timeout_s=timeout_s
            )

        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            fault = next((f for f in self.faults if f.seen < f.times and f.matches(method, path)), None)
            if fault is None:
                return await serve()
            fault.seen += 1
            fault.held.set()
            if fault.until is not None:
                await fault.until.wait()
            if fault.answer is None:
                return await serve()
            if fault.applied:
                await serve()
            else:
                await asyncio.sleep(0)
            return fault.answer
        finally:
            self._now -= 1

    def watch(
        self, path: str, *, params: Mapping[str, str], silence_s: float = 60.0
    ) -> AsyncIterator[tuple[str, bytes]]:
        return self.kube.watch(path, params=params, silence_s=silence_s)

    async def close(self) -> None:
        await self.kube.close()
