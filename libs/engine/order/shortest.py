"""Shortest first, for run times that are known: the direction in which the others try to go."""

from __future__ import annotations

from libs.engine.order.base import NEVER, Item, Order, Rank


class Shortest(Order):
    """The shortest job first, with backfill; nobody yields."""

    name = "sjf"
    knows = True

    def rank(self, item: Item, now: float) -> Rank:  # noqa: ARG002
        return (-item.priority, item.declared, item.submitted)


class ShortestRemaining(Order):
    """The shortest remaining run time first; whoever has longer to go yields at once, whatever that costs."""

    name = "srtf"
    knows = True
    evicts = True

    def rank(self, item: Item, now: float) -> Rank:
        return (-item.priority, item.declared - item.service(now), item.submitted)

    def claims_from(self, item: Item, now: float) -> float:  # noqa: ARG002
        return now

    def offers(self, victim: Item, now: float) -> bool:  # noqa: ARG002
        return True

    def yields(self, victim: Item, to: Item, now: float) -> bool:
        if victim.priority != to.priority:
            return victim.priority < to.priority
        return victim.declared - victim.service(now) > to.declared - to.service(now)

    def ripens(self, victim: Item, to: Item, now: float) -> float:  # noqa: ARG002
        return NEVER
