"""What the watcher's leader keeps of a queue, in the simulator: what it uses, and its evictions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from libs.domain.queues import Left, QueueHistory, Served
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
    told: float = 0.0

    def shift(self, milli: int, now: float) -> None:
        """So many milli GPUs more run from now on."""
        passed = now - self.at
        self.used = self.used * left(passed, HALF_LIFE_S) + self.milli * span(passed, HALF_LIFE_S)
        self.at = now
        self.milli += milli

    def evict(self, job: str, uids: Iterable[str], milli: int, run_s: float, now: float) -> None:
        """A job of so many milli GPUs was evicted after `run_s` seconds."""
        self.shift(0, now)
        self.evictions.setdefault(job, []).append(int(now))
        self.recent += uids
        had = self.served.get(job, Served(0, 0, 0))
        self.served[job] = Served(round(had.gpu_milli_s + milli * run_s), round(had.run_s + run_s), int(now))

    def history(self, path: str, now: float, budget: Left | None = None) -> QueueHistory:
        """What is told of the queue now; `budget`: what is left to spend in the whole cluster."""
        self.told = now
        self.shift(0, now)
        kept = {job: tuple(at for at in times if at > now - _WINDOW_S) for job, times in self.evictions.items()}
        evictions = {job: times for job, times in kept.items() if times}
        self.evictions = {job: list(times) for job, times in evictions.items()}
        recent, self.recent = tuple(self.recent), []
        return QueueHistory(
            path, now, HALF_LIFE_S, round(self.used), evictions=evictions, recent=recent, served=dict(self.served),
            left=budget,
        )  # fmt: skip
