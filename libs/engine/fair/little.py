"""Little service first: who has had little goes first, and who has had much yields, now and then.

For run times whose hazard falls with age (training jobs: many short, few very long) little attained service first is
the Gittins order without knowing a run time. Few levels, each a factor above the one before, keep alike jobs from
evicting each other in turns (Tiresias, NSDI'19). Service is counted in GPU seconds, so that a level costs the same
whatever the gang. The same rules stand in the engine and in the simulator's lean loop; nothing here keeps any state.

What bounds evictions of this kind, on any workload: only a job two levels up yields, to one who has waited for
`patience_s` when those who wait for as much have waited for `together_s` in all (`fair.together`), just after a
checkpoint, one victim at a time, and within the budget (`fair.budget`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

HOUR: Final = 3600.0
#: Levels begin at so many amounts of service above nothing: the highest at 4 ** 11 times the base.
STEPS: Final = 12
#: A place in line holds the priority and the level in one number: priorities are so far apart.
LEVELS: Final = 16
#: Of those who would be overdue, so many are looked at for one that the room suffices for.
LOOKED_AT: Final = 64


@dataclass(frozen=True, slots=True)
class LittleService:
    """The owner's numbers. `base`: GPU seconds up to which a job counts as new; `factor` from one level to the next.
    `window_s`: an eviction comes so soon after a checkpoint at the latest. `reserve`: see `share_of_overdue`.
    `evictions_per_job` and `lost` (a share of the GPU time worked): see `fair.budget`. `together_s`: see
    `claims`."""

    base: float = 16 * HOUR
    factor: float = 4.0
    patience_s: float = 600.0
    window_s: float = 120.0
    overdue_s: float = 129_600.0
    reserve: float = 2.0
    evictions_per_job: float = 0.3
    lost: float = 0.02
    together_s: float = 7200.0
    _begins: tuple[float, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        if self.base <= 0 or self.factor <= 1:
            raise ValueError(f"levels need a base above 0 and a factor above 1, not {self.base} and {self.factor}")
        object.__setattr__(self, "_begins", tuple(self.base * self.factor**k for k in range(STEPS)))

    # -- levels -----------------------------------------------------------------------------------------------------
    def level(self, service: float) -> int:
        """Of somebody who has had so many GPU seconds; 0 to STEPS."""
        return bisect_right(self._begins, service)

    def reaches(self, level: int) -> float:
        """GPU seconds at which the level begins; infinite where there is none."""
        if level <= 0:
            return 0.0
        return self._begins[level - 1] if level <= STEPS else float("inf")

    def yields(self, theirs: int, ours: int) -> bool:
        """Whether one of level `theirs` yields to one of level `ours`."""
        return theirs > ours + 1

    def claims(self, since: float, together: float) -> float:
        """From when on somebody who waits since `since` may have others evicted, where those who wait for as much will
        have waited for `together_s` in all by `together`."""
        return max(since + self.patience_s, together)

    # -- moments ----------------------------------------------------------------------------------------------------
    def fresh(self, run: float, every: float, since: float | None = None) -> bool:
        """Whether one that has run so long, and saves its work every so many seconds, has saved just now: `since` so
        many seconds, where that is known otherwise than from its run."""
        return every > 0 and run >= every and (run % every if since is None else since) <= self.window_s

    def saves(self, run: float, every: float) -> float:
        """In how many seconds it saves next; infinite for one that saves nothing."""
        return (run // every + 1) * every - run if every > 0 else float("inf")

    # -- overdue ----------------------------------------------------------------------------------------------------
    def share_of_overdue(self, gpus: float, demand: float) -> float:
        """How many of the cluster's GPUs those who have waited for `overdue_s` may have at once, where all who wait or
        run ask for `demand`. With demand above the cluster nobody can promise all of them a time, and order of
        arrival is the worst for the mean: they have `reserve` / demand then, demand counted in clusters."""
        return gpus * min(1.0, self.reserve * gpus / max(demand, 1.0))


def overdue(late: Iterable[float], room: float) -> list[bool]:
    """Which of those who have waited long enough are overdue: the first by arrival, as far as they fit into `room`
    together. `late`: the GPUs of each, whoever came first standing first."""
    taken, found, passed = 0.0, [], 0
    for gpus in late:
        fits = passed < LOOKED_AT and taken + gpus <= room
        taken += gpus if fits else 0.0
        passed += not fits
        found.append(fits)
    return found
