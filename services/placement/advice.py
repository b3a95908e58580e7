"""What would help a job that waits, added to what is said about it.

Worked out when somebody is about to be told, not when it is decided: at most one question every few seconds, only while
nothing waits to be decided, once for all jobs that look alike, and anew when the reason is another one or the answer
has become old. Until there is an answer the verdict's own words stand.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec

from libs.domain.verdicts import Kind, Reason, Verdict
from libs.runtime.clock import Clock
from services.placement import measures
from services.placement.decide import signature
from services.placement.jobs import Job
from services.placement.settings import PlacementSettings
from services.placement.state import State

#: An answer is good for so long.
_GOOD_S: Final = 120.0
#: Answers kept, and questions that wait.
_KEPT: Final = 512
_UNHELPFUL: Final = frozenset(
    {
        Reason.GANG_INCOMPLETE,
        Reason.UNSUPPORTED,
        Reason.GATED,
        Reason.POD_GROUP,
        Reason.QUEUE_CLOSED,
        Reason.EVICTING,
        Reason.RETRY,
    }
)


@dataclass(frozen=True, slots=True)
class _Advice:
    reason: Reason | None
    helps: tuple[str, ...]
    at: float


class Advisor:
    """`say`: what is said of this job has changed."""

    def __init__(
        self, state: State, settings: PlacementSettings, clock: Clock, say: Callable[[Job, Verdict], None]
    ) -> None:
        self._state = state
        self._settings = settings
        self._clock = clock
        self._say = say
        self._known: dict[Hashable, _Advice] = {}
        self._asked: dict[Hashable, str] = {}

    def advised(self, job: Job, verdict: Verdict) -> Verdict:
        """The verdict with what is known to help; a question is noted where nothing is known."""
        if verdict.kind not in (Kind.NOT_NOW, Kind.NEVER) or verdict.reason in _UNHELPFUL or not job.waiting:
            return verdict
        looks, now = self._looks(job), self._clock.monotonic()
        known = self._known.get(looks)
        fits = known is not None and known.reason is verdict.reason
        if len(self._asked) < _KEPT and (not fits or known is None or now - known.at > _GOOD_S):
            self._asked.setdefault(looks, job.head.key)
        return with_helps(verdict, known.helps) if known is not None and fits else verdict

    async def run(self) -> NoReturn:
        while True:
            await self._clock.sleep(self._settings.placement_advice_s)
            if not self._state.pending.has_dirty:
                self.answer_one()

    def answer_one(self) -> None:
        """Answer the oldest question, between two passes."""
        state = self._state
        while self._asked:
            looks = next(iter(self._asked))
            job = state.pending.jobs.get(self._asked.pop(looks))
            verdict = None if job is None else state.waiting.verdict_of(job.head.key) or job.verdict
            if job is None or verdict is None or not job.waiting or self._looks(job) != looks:
                continue
            began = self._clock.monotonic()
            helps = state.view.engine.helps(state.pending.to_engine(job, may_evict=False), self._clock.wall())
            now = self._clock.monotonic()
            measures.ADVICE_S.observe(now - began)
            if len(self._known) >= _KEPT:
                self._known.clear()
            before = self._known.get(looks)
            self._known[looks] = _Advice(verdict.reason, helps, now)
            if helps and (before is None or before.helps != helps):
                self._say(job, verdict)
            return

    def _looks(self, job: Job) -> Hashable:
        state = self._state
        held = state.pending.held(job)
        return signature(job, job.waiting, held, may_evict=False, scope_of=state.view.engine.scope_of)


def with_helps(verdict: Verdict, helps: tuple[str, ...]) -> Verdict:
    """The verdict, its words included, with more that helps; what it says itself comes first."""
    more = tuple(one for one in helps if one not in verdict.helps)
    if not more:
        return verdict
    text = verdict.message
    said = ", ".join(verdict.helps)
    joint = ", " if verdict.helps and text.endswith(said) else "; helps: "
    return msgspec.structs.replace(
        verdict, message=f"{text}{joint}{', '.join(more)}" if text else "", helps=(*verdict.helps, *more)
    )
