"""Least attained service: who has had little goes first, who has had much yields.

For run times whose hazard falls with age (training jobs: many short, few very long) this is the Gittins order, without
knowing any run time. Few levels instead of a continuum keep alike jobs from evicting each other in turns (Tiresias,
NSDI'19). Service is counted in GPU seconds, so that a level costs the same whatever the gang.
"""

from __future__ import annotations

from bisect import bisect_right

from libs.engine.order.base import NEVER, Item, Order, Rank


class Attained(Order):
    """Levels begin at the given GPU seconds; first come, first served within one. A run of less than `protect` seconds
    is not evicted; below the time between two checkpoints, jobs that never save anything could evict each other for
    ever. Everything else yields at once, whatever that costs."""

    name = "las"
    evicts = True

    def __init__(self, levels: tuple[float, ...], protect: float = 1800.0) -> None:
        self.levels = levels
        self.protect = protect

    def level(self, item: Item, now: float) -> int:
        return bisect_right(self.levels, item.service(now) * item.gpus)

    def rank(self, item: Item, now: float) -> Rank:
        return (-item.priority, self.level(item, now), item.submitted)

    def claims_from(self, item: Item, now: float) -> float:  # noqa: ARG002
        return now

    def offers(self, victim: Item, now: float) -> bool:
        return now - victim.begins >= self.protect

    def yields(self, victim: Item, to: Item, now: float) -> bool:
        if victim.priority != to.priority:
            return victim.priority < to.priority
        return self.level(victim, now) > self.level(to, now)

    def ripens(self, victim: Item, to: Item, now: float) -> float:
        until = victim.begins + self.protect
        level = self.level(to, now)
        if victim.priority < to.priority or self.level(victim, now) > level:
            return until if until > now else NEVER
        if victim.priority > to.priority or level >= len(self.levels):
            return NEVER
        return max(until, now + self.levels[level] / victim.gpus - victim.service(now))


HOUR = 3600.0
#: From one GPU hour on, each eight times the one before.
LEVELS = tuple(HOUR * 8.0**k for k in range(6))


def two_levels() -> Attained:
    """As much as one GPU does in an hour, then the rest."""
    return Attained((HOUR,))


def many_levels() -> Attained:
    return Attained(LEVELS)
