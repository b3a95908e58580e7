"""What is asked of an API server: one call, one watch. The real client and the embedded cluster both serve it, so
everything above (reflector, lease, writes, services) runs unchanged against either."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` is the HTTP code, 0 when none came. `unsure` says that a write may or may not have happened (time-out,
    connection lost after sending, 5xx): only reading the object tells."""

    status: int
    body: bytes
    unsure: bool = False
    retry_after_s: float | None = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


class Kube(Protocol):
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
        """One request, sent once, never retried here. Never raises for HTTP or network faults: the Answer says it.
        The server is told the same limit (`timeout=`), so that a write cannot land much later than we stop waiting."""
        ...

    def watch(
        self, path: str, *, params: Mapping[str, str], silence_s: float = 60.0
    ) -> AsyncIterator[tuple[str, bytes]]:
        """(type, object JSON) as they come: ADDED, MODIFIED, DELETED, BOOKMARK. Ends when the server ends it; raises
        WatchGone on 410 (in the status code or in the stream) and WatchBroken on anything else, silence included."""
        ...

    async def close(self) -> None: ...


class WatchGone(Exception):
    """The version is too old: list again."""


class WatchBroken(Exception):
    """The stream failed or fell silent: watch again from the last version, after a pause."""
