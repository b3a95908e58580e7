"""Words about jobs: pod conditions, status of job objects, events on `drystone.status`. Never in the hot path.

A job that is placed at once is never written about: its condition would cost a write per pod. A job that waits gets an
event first, then its pods get `PodScheduled=False`; a Never goes out at once. Writes are merged per object, limited in
rate and number (`letters`), skipped where nothing changed, and give way while there is something to decide. Whether
other figures are worth a word is asked of one job after the other, so that thousands that wait cost no more than a few.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import structlog

from libs.contracts.events import JobStatus
from libs.domain.jobs import Phase
from libs.domain.line import Turn
from libs.domain.nodes import newer
from libs.domain.verdicts import Kind, Verdict
from libs.kube import writes
from libs.kube.outcomes import Outcome, classify, why
from libs.kube.pods import parse_pod
from libs.kube.port import Answer, Kube
from libs.kube.trainingjobs import TrainingJobStatus
from libs.runtime.backoff import Backoff
from libs.runtime.clock import Clock
from libs.runtime.tasks import comes
from services.placement import measures
from services.placement.decide import reason_word, told, words
from services.placement.emit import Emitter
from services.placement.explain import Explainer, sentence
from services.placement.jobs import Job
from services.placement.outbox import Haste, Outbox, Rates
from services.placement.settings import PlacementSettings
from services.placement.state import BUSY_S, State

log = structlog.get_logger()

_AGAIN: Final = frozenset({Outcome.UNSURE, Outcome.THROTTLED})
#: Tries for one write; afterwards the slow pass brings it back.
_TRIES: Final = 5
_YIELD_S: Final = 0.3
#: How the last sentence begins, where it was evicted.
_EVICTED: Final = ". It was evicted for "
#: What is said at a stretch, seconds; then others have the loop.
_STRETCH_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class PodWords:
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    haste: Haste
    queue: str
    job: str = ""


@dataclass(frozen=True, slots=True)
class ObjectWords:
    namespace: str
    name: str
    uid: str
    status: TrainingJobStatus
    haste: Haste
    queue: str


class Teller:
    """`object_status` builds the status of a job object that waits (None where it is not ours to write)."""

    def __init__(self, state: State, kube: Kube, emitter: Emitter, settings: PlacementSettings, clock: Clock) -> None:
        self._state = state
        self._kube = kube
        self._emitter = emitter
        self._settings = settings
        self._clock = clock
        self._due: list[tuple[float, str, str]] = []
        self._planned: set[tuple[str, str]] = set()
        self._some = asyncio.Event()
        self._events: list[JobStatus] = []
        self._started: dict[str, Job] = {}
        self._writes: Outbox[PodWords | ObjectWords] = Outbox(50_000, _newer)
        self._pace = Rates(
            settings.placement_status_per_s, settings.placement_status_busy_per_s, settings.placement_figures_per_s
        )
        self._turn_to_write = asyncio.Lock()
        self._turn_to_look = asyncio.Lock()
        #: When the next job is asked whether it has other figures to tell.
        self._again_at = float("-inf")
        self.explainer = Explainer(state, settings)
        state.view.on_reasons = self.evicted
        #: Adds to a verdict what else is known to help.
        self.advised: Callable[[Job, Verdict], Verdict] = lambda _job, verdict: verdict
        self.waiting_object: Callable[[Job, str, str, Haste], None] = lambda _job, _reason, _message, _haste: None

    # -- what happened ------------------------------------------------------------------------------------------------

    def waits(self, job: Job, verdict: Verdict) -> None:
        """The job was not placed. Cheap: what is said, if it waits still, is worked out when it is due. Of whom the
        same was said before, only figures can have changed."""
        now, key = self._clock.monotonic(), job.head.key
        never = verdict.kind is Kind.NEVER
        begins = reason_word(verdict) + "\n"
        if not job.told.startswith(begins):
            self._plan(now if never else now + self._settings.placement_words_s, key, "event")
        if any(not said.startswith(begins) for said in self._on_objects(job)):
            self._plan(now if never else now + self._settings.placement_condition_s, key, "condition")

    def _on_objects(self, job: Job) -> list[str]:
        """What the job's object says, or each of its waiting pods."""
        if job.head.uid:
            return [job.conditions.get("", "")]
        return [job.conditions.get(task.id, "") for task in job.waiting]

    def bound(self, job: Job) -> None:
        """Some tasks were found bound: said in batches, when there is time."""
        self._started[job.head.key] = job
        self._some.set()

    def say(self, status: JobStatus) -> None:
        self._events.append(status)
        self._some.set()

    def write(self, words_: PodWords | ObjectWords) -> None:
        self._writes.put(words_.uid, words_)

    def forget(self, uid: str) -> None:
        self._writes.discard(uid)

    def retell(self) -> None:
        """The slow pass: everybody who waits is looked at again, one after the other; most will have nothing new."""
        at = max(self._clock.monotonic(), self._again_at)
        for job in self._state.pending.jobs.values():
            key = job.head.key
            if job.verdict is not None and key in self._state.waiting and (key, "again") not in self._planned:
                self._plan(at, key, "again")
                at += 1.0 / self._settings.placement_figures_per_s
        self._again_at = at

    def _plan(self, at: float, key: str, what: str) -> None:
        if (key, what) in self._planned and at > self._clock.monotonic():
            return
        self._planned.add((key, what))
        heapq.heappush(self._due, (at, key, what))
        self._some.set()

    def evicted(self, workloads: Collection[str]) -> None:
        """It came to be known for whom these were evicted: what goes on of them and waits is told soon."""
        now = self._clock.monotonic()
        for key, job in self._state.pending.jobs.items():
            if (job.head.workload or key) in workloads and key in self._state.waiting:
                self._plan(now + self._settings.placement_words_s, key, "event")
                self._plan(now + self._settings.placement_condition_s, key, "condition")

    # -- the loops ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever: say what is due, else wait until something is."""
        while True:
            self._some.clear()
            while True:
                if self._due and self._due[0][0] <= self._clock.monotonic():
                    await self.look()
                if not self._say(self._clock.monotonic() + _STRETCH_S):
                    break
                await asyncio.sleep(0)
                await self._give_way(0.02)
            pause = self._due[0][0] - self._clock.monotonic() if self._due else None
            await comes(self._some, None if pause is None else max(pause, 0.001))
            if self._started:
                await self._give_way(0.02)

    async def look(self) -> None:
        """Where everybody stands, if that was looked at too long ago."""
        async with self._turn_to_look:
            now = self._clock.monotonic()
            if self.explainer.stale(now):
                for _ in self.explainer.look(now, self._clock.wall()):
                    await asyncio.sleep(0)
                    await self._give_way(0.02)

    def flush(self) -> None:
        """All that is due."""
        while self._say(float("inf")):
            pass

    def _say(self, until: float) -> bool:
        """What is due, as long as the time is before `until`; whether there was more."""
        now = self._clock.monotonic()
        more = False
        while self._due and self._due[0][0] <= now:
            if self._clock.monotonic() >= until:
                more = True
                break
            _, key, what = heapq.heappop(self._due)
            self._planned.discard((key, what))
            self._say_of(key, what, now)
        for job in self._started.values():
            phase = Phase.RUNNING if not job.tasks else Phase.STARTING
            self._events.append(told(job, phase))
            job.told = ""
        self._started.clear()
        if self._events:
            self._emitter.statuses(self._events)
            self._events = []
        return more

    def _say_of(self, key: str, what: str, now: float) -> None:
        job = self._state.pending.jobs.get(key)
        if job is None or job.verdict is None or not job.waiting or job.verdict.kind is Kind.WAIT:
            return
        if what == "again" and not job.aged and self._state.pending.place(job)[0] == 0:
            job.aged = True
            self._state.waiting.aged(job)
        verdict = self.advised(job, self._state.waiting.verdict_of(key) or job.verdict)
        turn = self._turn(job, verdict)
        reason = reason_word(verdict)
        message = words(verdict) if turn is None else f"{words(verdict)}. {sentence(turn)}"[:1500]
        message += self._evicted(job)
        if what != "condition":
            self._tell(job, verdict, turn, reason, message, now)
        if what != "event":
            self._condition(job, verdict, reason, message, now)

    def _tell(self, job: Job, verdict: Verdict, turn: Turn | None, reason: str, message: str, now: float) -> None:
        if not self._worth(job.told, reason, message, now - job.told_at):
            return
        job.told, job.told_at = f"{reason}\n{message}", now
        self._events.append(told(job, Phase.PENDING, reason=reason, message=message, verdict=verdict, turn=turn))

    def _evicted(self, job: Job) -> str:
        """For whom its workload was evicted last, as the leader's record of its queue has it."""
        history = self._state.view.histories.get(job.head.queue)
        reasons = history.reasons.get(job.head.workload or job.head.key) if history is not None else None
        return f". It {reasons[-1].sentence()}" if reasons else ""

    def _turn(self, job: Job, verdict: Verdict) -> Turn | None:
        if verdict.kind is not Kind.NOT_NOW:
            return None
        return self.explainer.turn_of(job, self._clock.monotonic(), self._clock.wall())

    def _condition(self, job: Job, verdict: Verdict, reason: str, message: str, now: float) -> None:
        queue = job.head.queue
        if job.head.uid:
            known = job.conditions.get("", "")
            if self._worth(known, reason, message, now - job.conditions_at):
                job.conditions[""], job.conditions_at = f"{reason}\n{message}", now
                self.waiting_object(job, reason, message, _haste(verdict, known, reason))
            return
        text = f"{reason}\n{message}"
        fresh = now - job.conditions_at
        for task in job.waiting:
            known = job.conditions.get(task.id, "")
            if not self._worth(known, reason, message, fresh):
                continue
            job.conditions[task.id] = text
            job.conditions_at = now
            haste = _haste(verdict, known, reason)
            self.write(PodWords(task.namespace, task.name, task.id, reason, message, haste, queue, job.head.key))

    def _worth(self, known: str, reason: str, message: str, age_s: float) -> bool:
        """Another reason is news at once, and so is for whom it was evicted; other figures only after a while."""
        if not known:
            return True
        if known.partition("\n")[0] != reason or known.partition(_EVICTED)[2] != message.partition(_EVICTED)[2]:
            return True
        return known != f"{reason}\n{message}" and age_s >= self._settings.placement_rewrite_s

    # -- writes -------------------------------------------------------------------------------------------------------

    async def writer(self) -> None:
        """One of several: for ever, the next object's words."""
        while True:
            uid, words_ = await self._next()
            try:
                if words_.haste > Haste.NEVER:
                    await self._give_way(_YIELD_S)
                await self._write(words_)
            finally:
                self._writes.done(uid)

    async def _next(self) -> tuple[str, PodWords | ObjectWords]:
        """What is to be written next, when its time has come."""
        outbox, pace = self._writes, self._pace
        async with self._turn_to_write:
            while True:
                outbox.arrived.clear()
                now, haste = self._clock.monotonic(), outbox.first()
                busy = now - self._state.claimed_at < BUSY_S
                wait = None if haste is None else pace.wait(haste, now, busy)
                if haste is not None and not wait:
                    pace.take(haste, now)
                    return outbox.pop(haste)
                await comes(outbox.arrived, wait)  # of more haste, it may be

    async def _write(self, words_: PodWords | ObjectWords) -> None:
        backoff = Backoff(0.4, 5.0)
        for _ in range(_TRIES):
            if isinstance(words_, PodWords) and self._claimed(words_):
                return  # it waits no more, and a write now would be in the way of its binding
            answer = await self._send(words_)
            if answer.ok and isinstance(words_, PodWords):
                self._written(words_, answer)
            kind = "pod" if isinstance(words_, PodWords) else "job"
            outcome = classify(answer)
            measures.STATUS_WRITES.labels(kind, outcome.value).inc()
            if outcome not in _AGAIN:
                if outcome is Outcome.REFUSED:
                    log.warning("status refused", kind=kind, name=words_.name, why=why(answer))
                return
            await self._clock.sleep(max(backoff.next(), answer.retry_after_s or 0.0))

    def _claimed(self, words_: PodWords) -> bool:
        job = self._state.pending.jobs.get(words_.job)
        return job is not None and words_.uid in job.claims

    def _written(self, words_: PodWords, answer: Answer) -> None:
        """Our own write made a new version of the pod: bound by an older one it would be refused and read again."""
        job = self._state.pending.jobs.get(words_.job)
        task = job.tasks.get(words_.uid) if job is not None else None
        if job is None or task is None or words_.uid in job.claims:
            return
        try:
            pod = parse_pod(answer.body)
        except msgspec.MsgspecError:
            return
        if pod.uid == words_.uid and newer(pod.version, task.version):
            job.tasks[words_.uid] = pod.to_task()

    async def _send(self, words_: PodWords | ObjectWords) -> Answer:
        if isinstance(words_, PodWords):
            return await writes.patch_pod_condition(
                self._kube,
                words_.namespace,
                words_.name,
                words_.uid,
                type="PodScheduled",
                status="False",
                reason=words_.reason,
                message=words_.message,
                now=self._clock.wall(),
            )
        return await writes.patch_trainingjob_status(
            self._kube, words_.namespace, words_.name, words_.uid, words_.status
        )

    async def _give_way(self, most_s: float) -> None:
        """Passes first, and the binder's writes that follow them; but words are not put off for ever."""
        until = self._clock.monotonic() + most_s
        while self._state.pending.has_dirty and self._clock.monotonic() < until:
            await self._clock.sleep(0.005)


def _haste(verdict: Verdict, known: str, reason: str) -> Haste:
    if known.partition("\n")[0] == reason:
        return Haste.FIGURES
    return Haste.NEVER if verdict.kind is Kind.NEVER else Haste.FIRST


def _newer(old: PodWords | ObjectWords, new: PodWords | ObjectWords) -> PodWords | ObjectWords:
    """The newer words, with as much haste as either."""
    return new if new.haste <= old.haste else replace(new, haste=old.haste)
