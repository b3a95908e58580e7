"""Whether the API server serves anybody: told by the calls that are made anyhow.

An event that cannot be served while nobody can waits for as long as that takes. One that cannot while others are
answered has a fault of its own, and its time is limited.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Final

from libs.kube.outcomes import Outcome, classify, status_of
from libs.kube.port import Answer, Kube
from libs.runtime.clock import Clock


class Answers:
    """The same calls; `at` is when one was last answered for good (monotonic)."""

    def __init__(self, kube: Kube, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self.at = float("-inf")

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
        answer = await self._kube.call(
            method, path, body, params=params, content_type=content_type, timeout_s=timeout_s
        )
        if for_good(answer):
            self.at = self._clock.monotonic()
        return answer

    def watch(
        self, path: str, *, params: Mapping[str, str], silence_s: float = 60.0
    ) -> AsyncIterator[tuple[str, bytes]]:
        return self._kube.watch(path, params=params, silence_s=silence_s)

    async def close(self) -> None:
        await self._kube.close()


def for_good(answer: Answer) -> bool:
    """Whether it says something about what was asked for, and not about the server, its load, a CRD that is not there
    or the rights of our account: those are the operator's to cure, and the same for everybody."""
    outcome = classify(answer)
    if outcome in (Outcome.UNSURE, Outcome.THROTTLED):
        return False
    said = status_of(answer)
    if outcome is Outcome.GONE:
        return said.reason == "NotFound" and not (said.message or "").startswith("the server could not find")
    return not (answer.status == 403 and _OUR_RIGHTS.search(said.message or ""))


_OUR_RIGHTS: Final = re.compile(r" cannot [a-z]+ resource ")
