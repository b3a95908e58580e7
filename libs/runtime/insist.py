"""A call that has to be made, tried until it is: passing faults are waited out, with growing pauses, and show."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from libs.runtime.backoff import Backoff
from libs.runtime.clock import Clock

log = structlog.get_logger()

T = TypeVar("T")


class Insist:
    """`passing` are the faults that pass; others are answers, and the caller's. Calls must bear to be repeated, and
    several may be tried at a time. `what` names them in the log, which is told when they begin to fail and when one is
    answered again."""

    def __init__(
        self,
        what: str,
        passing: tuple[type[Exception], ...],
        clock: Clock,
        rng: random.Random,
        *,
        base_s: float = 0.05,
        cap_s: float = 2.0,
    ) -> None:
        self._what = what
        self._passing = passing
        self._clock = clock
        self._rng = rng
        self._base_s, self._cap_s = base_s, cap_s
        #: Since when there are no answers (monotonic seconds); None: the last call had one.
        self.failing_since: float | None = None

    async def on(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer to `call`, however long it takes."""
        backoff: Backoff | None = None
        while True:
            try:
                answer = await call()
            except self._passing as fault:
                if self.failing_since is None:
                    self.failing_since = self._clock.monotonic()
                    log.warning("failing, trying on", what=self._what, fault=str(fault))
                backoff = backoff or Backoff(self._base_s, self._cap_s, self._rng)
                await self._clock.sleep(backoff.next())
            except Exception:
                self._answered()
                raise
            else:
                self._answered()
                return answer

    def _answered(self) -> None:
        if self.failing_since is not None:
            log.info("answered again", what=self._what)
            self.failing_since = None
