"""What jobs and running pods have had, and where jobs stand within their queues by it: `fair.little` over the facts.

Service is known of what runs, and, from the histories of queues, of what was evicted; so it survives evictions and
restarts of pods and of services alike. A job of which nothing is known counts as new. Where little service does not
count (no rules), jobs stand by `fair.place`, and nobody yields by these rules.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from libs.domain.jobs import JobHead
from libs.domain.queues import Served
from libs.domain.resources import WHOLE
from libs.domain.saving import unsaved
from libs.engine.api import RunningTask
from libs.engine.fair.ask import Place, place, place_of
from libs.engine.fair.budget import Budget
from libs.engine.fair.little import LittleService
from libs.engine.fair.overdue import Overdue
from libs.engine.fair.together import Together
from libs.engine.queues import QueueBook
from libs.engine.running import RunningBook, workload

#: Who is overdue by the sums of the clock and by those of its turn is so by both.
_ROUNDING_S: Final = 1e-3
#: Who has had much is looked for among all that runs no more often than this.
_LOOKED_S: Final = 30.0


class ServiceBook:
    """`now` of all methods: seconds since the epoch, 0 where nobody knows."""

    def __init__(
        self,
        rules: LittleService | None,
        overdue_s: float,
        running: RunningBook,
        queues: QueueBook,
        gpus: Callable[[], float],
    ) -> None:
        self.rules = rules
        self.overdue = Overdue()
        self.together = Together()
        self._overdue_s = overdue_s
        self._running = running
        self._queues = queues
        #: Of the cluster.
        self.gpus = gpus
        self._served: dict[str, Served | None] = {}
        self._served_at = -1.0
        self._savers: list[tuple[RunningTask, int]] = []
        self._above: dict[int, list[RunningTask]] = {}
        self._looked_at = float("-inf")
        #: As told last.
        self._still_waits: Callable[[str], bool] | None = None
        #: GPUs that all who wait ask for, as told last.
        self.waiting = 0.0
        #: Queue and workload of those who have waited long enough, by the job's key.
        self._whose: dict[str, tuple[str, str]] = {}
        #: Keys of jobs whose place changed without their doing.
        self.moved: set[str] = set()

    # -- where jobs stand -------------------------------------------------------------------------------------------
    def place(self, head: JobHead, now: float, gpus: float = 0.0) -> Place:
        """Within its queue. `gpus`: all that the job asks for, so that it may turn out to be overdue, and counts among
        those who wait for as much; 0 where nobody looked."""
        rules = self.rules
        if rules is None:
            return place(head, now, self._overdue_s)
        if now and 0 < head.created <= now - self._overdue_s:
            self._ages(head, now, gpus)
        found = place_of(head, head.key in self.overdue, self.level(head, now))
        if gpus and now and head.created:
            self._waits(head, now, gpus)
        return found

    def level(self, head: JobHead, now: float) -> int:
        """Of one that waits."""
        had = self._had(head.queue, head.workload or head.key, now)
        return self.rules.level(had.gpu_milli_s / 1000) if had is not None and self.rules is not None else 0

    def waited(self, head: JobHead, now: float) -> float:
        """In all, earlier waits of the same job included as far as they are known; seconds."""
        if not now or not head.created:
            return 0.0
        had = self._had(head.queue, head.workload or head.key, now)
        ran = had.run_s if had is not None and had.at > head.created else 0
        return now - head.created - ran

    def since(self, head: JobHead, now: float) -> float:
        """When its current wait began."""
        had = self._had(head.queue, head.workload or head.key, now)
        return max(head.created, had.at) if had is not None else head.created

    def changed(self) -> None:
        """Of what was looked up at this very moment."""
        self._served.clear()

    def _had(self, queue: str, key: str, now: float) -> Served | None:
        if now != self._served_at:
            self._served.clear()
            self._served_at = now
        if key in self._served:
            return self._served[key]
        had = self._served[key] = self._running.served(key, self._queues.histories.get(queue), now)
        return had

    # -- who waits too long -----------------------------------------------------------------------------------------
    def turns(self, head: JobHead, now: float) -> float:
        """In how many seconds it has waited long enough to be overdue; not above 0 where it has."""
        return self._overdue_s - (self.waited(head, now) if self.rules is not None else now - head.created)

    def _ages(self, head: JobHead, now: float, gpus: float) -> None:
        if not self.overdue.knows(head.key) and self.waited(head, now) >= self._overdue_s - _ROUNDING_S:
            self.overdue.late(head.key, head.created, gpus)
            self._whose[head.key] = head.queue, head.workload or head.key
            self.review(now)

    def keep(self, waits: Callable[[str], bool]) -> None:
        """Who neither waits nor runs any more is overdue no more."""
        self._still_waits = waits
        if self.overdue:
            self.overdue.keep(lambda key: key in self._running.by_job or waits(key))
            self._whose = {key: whose for key, whose in self._whose.items() if self.overdue.knows(key)}

    def review(self, now: float) -> None:
        """Who is overdue, as demand is now; whose place changed by it goes to `moved`."""
        if self._still_waits is not None:
            self.together.keep(self._still_waits, now)
        if self.rules is not None and self.overdue:
            demand = self.waiting + self._running.gpu_milli / WHOLE

            def had(key: str) -> float:
                found = self._had(*self._whose[key], now)
                return found.gpu_milli_s / WHOLE if found is not None else 0.0

            self.moved |= self.overdue.review(self.rules.share_of_overdue(self.gpus(), demand), had)

    # -- who yields -------------------------------------------------------------------------------------------------
    def claims(self, head: JobHead, now: float, gpus: float) -> float:
        """From when on others may yield to one of little service, which waits for so many GPUs."""
        rules = self.rules
        if rules is None:
            return inf
        standing = self._waits(head, now, gpus)
        return rules.claims(self.since(head, now), self.together.reach(gpus, standing, rules.together_s))

    def _waits(self, head: JobHead, now: float, gpus: float) -> int:
        """Where it stands by priority and service, the lesser the higher."""
        standing = place_of(head, False, self.level(head, now))[1]
        self.together.waits(head.key, gpus, standing, self.since(head, now))
        return standing

    def evictions_left(self, now: float) -> int:
        """Evictions for little service and for the overdue that are left, by the records of all queues and what they do
        not have yet."""
        rules = self.rules
        if rules is None:
            return 0
        budget = Budget(rules.evictions_per_job, rules.lost)
        budget.recall(self._queues.histories.values(), now)
        return budget.left(now, self._running.untold(self._queues.histories))

    def level_of(self, task: RunningTask, now: float) -> int:
        had = self._had(task.queue, workload(task), now)
        return self.rules.level(had.gpu_milli_s / 1000) if had is not None and self.rules is not None else 0

    def fresh(self, task: RunningTask, now: float) -> bool:
        since = unsaved(now, task.started, task.saved, task.checkpoint_s)
        return (
            self.rules is not None
            and task.started > 0
            and self.rules.fresh(now - task.started, task.checkpoint_s, since)
        )

    def saves(self, now: float) -> bool:
        """Whether there are pods that save their work."""
        self._look(now)
        return bool(self._savers)

    def savers(self, now: float) -> list[RunningTask]:
        """Pods that save their work, so that little is lost with them."""
        self._look(now)
        return [there for task, _ in self._savers if (there := self.current(task)) is not None]

    def above(self, level: int, now: float) -> list[RunningTask]:
        """Those of them that had so much that they may yield to one of that level, as of a while ago at most; some may
        have left since, or have saved their work (`current`)."""
        self._look(now)
        found = self._above.get(level)
        if found is None:
            rules = self.rules
            found = [task for task, had in self._savers if rules is not None and rules.yields(had, level)]
            self._above[level] = found
        return found

    def current(self, task: RunningTask) -> RunningTask | None:
        """As it is now; None where it has left, or is about to."""
        there = self._running.by_uid.get(task.uid)
        return there if there is not None and self._running.stays(there) else None

    def _look(self, now: float) -> None:
        if not 0 <= now - self._looked_at < _LOOKED_S:
            self._looked_at = now
            self._above.clear()
            self._savers = [
                (task, self.level_of(task, now))
                for task in self._running.by_uid.values()
                if task.ours and task.preemptible and task.checkpoint_s
            ]
