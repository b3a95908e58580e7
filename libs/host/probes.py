"""Whether the servers that a process needs answer, asked now and then whether or not it has work.

An idle service makes no calls, and one that is stuck makes none either: without being asked for, a Redis or an API
server that went away would show only when somebody waits. A question is one small call with a time limit of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

import structlog

from libs.kube.port import Kube
from libs.observe.metrics import gauge
from libs.runtime.clock import Clock

log = structlog.get_logger()

#: Raises where there was no answer; the words of what it raises are shown.
Ask = Callable[[], Awaitable[object]]

_EVERY_S = 5.0
#: How soon one that does not answer is asked again.
_AGAIN_S = 1.0
_ANSWER_S = 3.0
_UNANSWERED = gauge("drystone_part_unanswered_seconds", "Since when a server gives no answer; 0: it does.", ("part",))


class NoAnswer(Exception):
    """What stands for the answer."""


@dataclass(slots=True)
class _Part:
    ask: Ask
    answered_at: float
    fault: str = ""


class Probes:
    """`limit_s` without an answer make unready; what does not answer shows from the first time on."""

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._parts: dict[str, _Part] = {}

    def add(self, name: str, ask: Ask) -> None:
        """Before `run`. It has just answered, or will be asked at once."""
        self._parts[name] = _Part(ask, self._clock.monotonic())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, part in self._parts.items():
                tasks.create_task(self._watch(name, part), name=f"does {name} answer")

    def failing(self) -> dict[str, str]:
        """What gives no answer, and for how long."""
        now = self._clock.monotonic()
        return {
            name: f"no answer for {now - part.answered_at:.0f} s: {part.fault}"
            for name, part in self._parts.items()
            if part.fault
        }

    @property
    def ready(self) -> bool:
        """Whether no part has failed for so long that it matters."""
        now = self._clock.monotonic()
        return all(not part.fault or now - part.answered_at < self._limit_s for part in self._parts.values())

    async def _watch(self, name: str, part: _Part) -> NoReturn:
        shown = _UNANSWERED.labels(name)
        while True:
            asked_at = self._clock.monotonic()
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await part.ask()
            except TimeoutError:
                fault = f"nothing within {_ANSWER_S:g} s"
            except Exception as error:
                fault = " ".join(str(error).split())[:200] or type(error).__name__
            else:
                if part.fault:
                    log.info("answers again", part=name)
                part.answered_at, part.fault = asked_at, ""
                shown.set(0.0)
                await self._clock.sleep(min(_EVERY_S, self._limit_s / 2))
                continue
            if not part.fault:
                log.warning("does not answer", part=name, fault=fault)
            part.fault = fault
            shown.set(self._clock.monotonic() - part.answered_at)
            await self._clock.sleep(min(_AGAIN_S, self._limit_s / 2))


def api_server(kube: Kube) -> Ask:
    """Its own word on whether it can serve, its store included. What it refuses us only for now, or altogether, is an
    answer; that it does not know us any more is none that helps."""

    async def ask() -> None:
        answer = await kube.call("GET", "/readyz", timeout_s=_ANSWER_S - 1.0)
        if not answer.status or answer.status == 401 or answer.status >= 500:
            said = answer.body.decode("utf-8", "replace")
            raise NoAnswer(f"{answer.status} {said}" if answer.status else said)

    return ask
