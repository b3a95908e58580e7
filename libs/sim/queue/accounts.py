"""What the watcher's leader keeps of a queue, in the simulator: what it uses, its evictions, what is left to spend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from libs.domain.queues import QueueHistory, Served, Spending
from libs.domain.resources import WHOLE
from libs.engine.fair.budget import HALF_LIFE_S as BUDGET_HALF_LIFE_S
from libs.engine.fair.budget import Budget
from libs.engine.fair.decay import left, span

#: Default of the services' setting.
HALF_LIFE_S: Final = 86_400
#: Evictions are remembered for so long, seconds.
_WINDOW_S: Final = 86_400


@dataclass(slots=True)
class Account:
    """Of one queue: milli GPUs that run, and milli GPU seconds as of `at`, in seconds since the epoch. `told`: when its
    history was told last."""

    at: float
    milli: int = 0
    used: float = 0.0
    revision: int = 0
    evictions: dict[str, list[int]] = field(default_factory=dict)
    recent: list[str] = field(default_factory=list)
    served: dict[str, Served] = field(default_factory=dict)
    jobs: float = 0.0
    evicted: float = 0.0
    lost: float = 0.0
    told: float = 0.0
    #: Of all accounts together.
    budget: Budget | None = None

    def came(self, now: float) -> None:
        """A job."""
        self.shift(0, now)
        self.jobs += 1
        if self.budget is not None:
            self.budget.came(now)

    def shift(self, milli: int, now: float) -> None:
        """So many milli GPUs more run from now on."""
        passed = now - self.at
        slowly = left(passed, BUDGET_HALF_LIFE_S)
        self.jobs *= slowly
        self.evicted *= slowly
        self.lost *= left(passed, HALF_LIFE_S)
        if self.budget is not None:
            self.budget.worked(self.milli / WHOLE * passed, now)
        self.used = self.used * left(passed, HALF_LIFE_S) + self.milli * span(passed, HALF_LIFE_S)
        self.at = now
        self.milli += milli

    def evict(self, job: str, uids: Iterable[str], milli: int, run_s: float, lost_s: float, now: float) -> None:
        """A job of so many milli GPUs was evicted after `run_s` seconds, of which `lost_s` were in vain."""
        self.shift(0, now)
        self.evictions.setdefault(job, []).append(int(now))
        self.recent += uids
        self.evicted += 1
        self.lost += lost_s * milli
        if self.budget is not None:
            self.budget.evicted(lost_s * milli / WHOLE, now)
        had = self.served.get(job, Served(0, 0, 0))
        self.served[job] = Served(round(had.gpu_milli_s + milli * run_s), round(had.run_s + run_s), int(now))

    def history(self, path: str, now: float) -> QueueHistory:
        """What is told of the queue now."""
        self.told = now
        self.shift(0, now)
        kept = {job: tuple(at for at in times if at > now - _WINDOW_S) for job, times in self.evictions.items()}
        evictions = {job: times for job, times in kept.items() if times}
        self.evictions = {job: list(times) for job, times in evictions.items()}
        recent, self.recent = tuple(self.recent), []
        spending = Spending(self.jobs, self.evicted, round(self.lost))
        return QueueHistory(
            path, now, HALF_LIFE_S, round(self.used), evictions=evictions, recent=recent, served=dict(self.served),
            spending=spending, left=self.budget.told(now) if self.budget is not None else None,
        )  # fmt: skip
