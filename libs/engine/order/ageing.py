"""Least attained service with ageing: each `step` that a job has waited, in all, counts as one level of service less.

So nobody starves behind those who come after it, without any bound on evictions or any promise to the late: what it has
waited stays to its credit while it runs.
"""

from __future__ import annotations

from libs.engine.order.attained import HOUR, LEVELS, Attained
from libs.engine.order.base import Item, Rank

DAY = 24 * HOUR


class Ageing(Attained):
    name = "ageing"

    def __init__(self, step: float = DAY, levels: tuple[float, ...] = LEVELS) -> None:
        super().__init__(levels)
        self.step = step

    def level(self, item: Item, now: float) -> int:
        # A turn comes at the very moment, which rounding may put before it.
        return super().level(item, now) - int((item.waits(now) + 1e-6) / self.step)

    def rank(self, item: Item, now: float) -> Rank:
        return (-item.priority, self.level(item, now), item.submitted)

    def turns(self, item: Item, now: float) -> float:
        waited = item.waits(now) + 1e-6
        return now + (int(waited / self.step) + 1) * self.step - waited + 1e-6

    def ripens(self, victim: Item, to: Item, now: float) -> float:
        until = victim.begins + self.protect
        if until > now:
            return until
        level = super().level(victim, now)
        if level >= len(self.levels):
            return self.turns(to, now)
        return min(self.turns(to, now), now + max(1.0, self.levels[level] / victim.gpus - victim.service(now)))
