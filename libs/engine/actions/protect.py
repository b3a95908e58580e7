"""What keeps a running pod where it is, whoever asks: it or its queue is not preemptible, it has not run for the least
time that its queue grants, or its workload was evicted as often as its queue allows within the window."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from libs.domain.occasions import MOST
from libs.domain.queues import Queue, ancestors
from libs.domain.verdicts import Verdict, Wake
from libs.engine.api import RunningTask
from libs.engine.running import HISTORY_LAGS_S, RunningBook, workload
from libs.engine.session import Session


class Shield(enum.StrEnum):
    """In the words that a refusal uses."""

    NOT_PREEMPTIBLE = "as not preemptible"
    MIN_RUN = "by minimum run time"
    EVICTIONS = "as evicted often enough"
    STARTING = "as just starting"


class Kept(NamedTuple):
    """`until`: seconds since the epoch, 0 where time does not end it."""

    shield: Shield
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class _Policy:
    """Of a queue, with what those above it add: any of them forbids, the longest minimum holds, the nearest limit of
    evictions counts."""

    preemptible: bool
    min_run_s: int
    evictions: int
    window_s: int
    notice_s: int


class Protection:
    """For the length of one pass."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._policies: dict[str, _Policy] = {}
        self._left: dict[str, tuple[int, float]] = {}

    def of(self, task: RunningTask) -> Kept | None:
        """What protects the pod now; None: nothing."""
        policy = self._policies.get(task.queue) or self._policy(task.queue)
        if not task.preemptible or not policy.preemptible:
            return Kept(Shield.NOT_PREEMPTIBLE)
        now = self._session.now
        if policy.min_run_s and now and task.started + policy.min_run_s > now:
            return Kept(Shield.MIN_RUN, task.started + policy.min_run_s)
        left, until = self._allowance(task, policy)
        return None if left > 0 else Kept(Shield.EVICTIONS, until)

    def starting(self, task: RunningTask) -> Kept | None:
        """Of a pod that only its whole job may go with, while not all of it is seen."""
        until = self._session.running.settles_at(task.job)
        return Kept(Shield.STARTING, until) if until else None

    def notice_s(self, task: RunningTask) -> int:
        """How long before it goes the pod is told, as its queue says."""
        return (self._policies.get(task.queue) or self._policy(task.queue)).notice_s

    def allowance(self, task: RunningTask) -> int:
        """How many more pods of the task's workload may be evicted now; of a gang, how often."""
        return self._allowance(task, self._policies.get(task.queue) or self._policy(task.queue))[0]

    def _allowance(self, task: RunningTask, policy: _Policy) -> tuple[int, float]:
        key = workload(task)
        known = self._left.get(key)
        if known is None:
            running: RunningBook = self._session.running
            history = self._session.queues.histories.get(task.queue)
            times = running.evictions(task, history, policy.window_s)
            most = policy.evictions
            if task.gang_min > 1:
                most = min(most, MOST)
            else:
                most *= max(1, len(running.by_workload.get(key, ())))
            left = most - len(times)
            # Time gives one back when the oldest that still counts leaves the window.
            until = times[-most] + policy.window_s if left <= 0 and most and self._session.now else 0.0
            if until and running.in_doubt(task):
                until = min(until, self._session.now + HISTORY_LAGS_S)
            known = self._left[key] = (left, until)
        return known

    def changed(self) -> None:
        """Pods were marked or unmarked since."""
        self._left.clear()

    def _policy(self, path: str) -> _Policy:
        specs = self._session.queues.specs
        chain = [spec for one in ancestors(path) if (spec := specs.get(one)) is not None]
        nearest = chain[0] if chain else Queue(path)
        policy = self._policies[path] = _Policy(
            all(spec.preemptible for spec in chain),
            max((spec.min_run_s for spec in chain), default=0),
            nearest.evictions,
            nearest.evictions_window_s,
            max((spec.notice_s for spec in chain), default=0),
        )
        return policy


def protection(session: Session) -> Protection:
    """The pass's own, made when it is first asked for."""
    found: Protection | None = session.memo.get(("protection",))
    if found is None:
        found = session.memo[("protection",)] = Protection(session)
    return found


def words(counts: Mapping[Shield, int], until: Mapping[Shield, float]) -> str:
    """ "12 pods protected by minimum run time until 2026-01-02T03:04:05Z, 1 as not preemptible"."""
    said: list[str] = []
    for shield in Shield:
        if counts.get(shield):
            pods = "" if said else f" pod{'s' if counts[shield] > 1 else ''} protected"
            end = f" until {utc(until[shield])}" if shield in until else ""
            said.append(f"{counts[shield]}{pods} {shield}{end}")
    return ", ".join(said)


def told(verdict: Verdict, protected: str, until: float) -> Verdict:
    """The refusal with what is protected, woken also when the first protection ends."""
    if not protected:
        return verdict
    message = f"{verdict.message}; {protected}"
    if not until:
        return msgspec.structs.replace(verdict, message=message)
    wakes = (*verdict.wakes_on, Wake.TIME)
    return msgspec.structs.replace(verdict, message=message, wakes_on=wakes, until=until)


def utc(at: float) -> str:
    """As the API server writes times."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
