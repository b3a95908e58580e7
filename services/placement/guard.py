"""The engine, with one job's fault kept from all others.

Where deciding a job raises, that job is told so, as a verdict of its own; what the call left half done is undone, and
the others are decided as if it had not been among them. It is tried again after AGAIN_S, and when it changes. Questions
about one job that are asked beside decisions have the answer then that nobody knows. What is no matter of one job (the
settling of a pass, the line without anybody in it) is not caught. An array that no memory holds is a fault like others:
nothing was allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

from libs.domain.jobs import Task
from libs.domain.verdicts import Kind, Reason, Verdict, Wake
from libs.engine.api import Borrowing, Decision, PendingJob, Placement, Reserved
from libs.engine.core import PlacementEngine
from libs.observe.faults import Faults, words
from services.placement import measures

T = TypeVar("T")

#: Seconds until a job on which the engine failed is decided again.
AGAIN_S: Final = 300.0


FAULTS: Final = Faults(measures.FAULTS)


def faulty(error: Exception, now: float) -> Verdict:
    """What a job is told on which deciding fails. `now`: seconds since the epoch, 0: unknown."""
    return Verdict(
        Kind.NOT_NOW,
        Reason.FAULT,
        message=f"deciding it fails by a fault of Drystone's own ({words(error)}); tried again in {AGAIN_S:.0f} s",
        wakes_on=(Wake.TIME, Wake.SPEC_CHANGED),
        helps=("the job said in another way", "a release of Drystone without this fault"),
        until=now + AGAIN_S if now else 0.0,
    )


class GuardedEngine(PlacementEngine):
    #: Key of the job that is being decided.
    _deciding = ""

    def _decide(self, job: PendingJob) -> Decision:
        self._deciding = job.head.key
        decision = super()._decide(job)
        self._deciding = ""
        return decision

    def decide(self, jobs: list[PendingJob], now: float = 0.0) -> list[Decision]:
        """As the engine does. Where jobs fail together of which each can be decided by itself, some are not mentioned
        at all: they are to come again."""
        faults: list[Decision] = []
        while True:
            self._deciding = ""
            try:
                return [*super().decide(jobs, now), *faults]
            except Exception as error:
                if not jobs:
                    raise  # of the whole, and no job's
                self.abandon()
                failed = [job for job in jobs if job.head.key == self._deciding] or self._by_itself(jobs, now)
                if not failed and len(jobs) > 1:
                    FAULTS.seen("decision", f"{len(jobs)} jobs together", error)
                    jobs = jobs[: len(jobs) // 2]
                    continue
                faults += [self._fault(job, error, now) for job in failed or jobs]
                left = {job.head.key for job in failed or jobs}
                jobs = [job for job in jobs if job.head.key not in left]

    def _by_itself(self, jobs: list[PendingJob], now: float) -> list[PendingJob]:
        """Those of which not even their place in line can be told."""
        failed = []
        for job in jobs:
            try:
                super().decide([job], now)
                self.settle()
            except Exception:
                self.abandon()
                failed.append(job)
        return failed

    def _fault(self, job: PendingJob, error: Exception, now: float) -> Decision:
        FAULTS.seen("decision", job.head.key, error)
        return Decision(job.head.key, faulty(error, now))

    def reserve(self, job: PendingJob, now: float) -> Reserved | None:
        return self._aside("reservation", job.head.key, lambda: super(GuardedEngine, self).reserve(job, now), None)

    def backfill(self, job: PendingJob, lenders: Sequence[str], now: float) -> tuple[Placement, ...]:
        return self._aside("loan", job.head.key, lambda: super(GuardedEngine, self).backfill(job, lenders, now), ())

    def borrows(self, job: PendingJob, now: float) -> Borrowing | None:
        return self._aside("loan", job.head.key, lambda: super(GuardedEngine, self).borrows(job, now), None)

    def owed(self, jobs: Sequence[PendingJob], now: float) -> str:
        of = jobs[-1].head.key if jobs else ""
        return self._aside(
            "forecast", of, lambda: super(GuardedEngine, self).owed(jobs, now), "it cannot be worked out"
        )

    def helps(self, job: PendingJob, now: float = 0.0) -> tuple[str, ...]:
        return self._aside("advice", job.head.key, lambda: super(GuardedEngine, self).helps(job, now), ())

    def scope_of(self, task: Task) -> Hashable:
        """Of a task that cannot be looked at nobody is alike."""
        try:
            return super().scope_of(task)
        except Exception as error:
            FAULTS.seen("looks", task.id, error)
            return task.id

    def _aside(self, what: str, of: str, ask: Callable[[], T], unknown: T) -> T:
        try:
            return ask()
        except Exception as error:
            self.abandon()
            FAULTS.seen(what, of, error)
            return unknown
