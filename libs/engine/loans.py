"""Room that was kept for the heads of one queue's line, and who started on it meanwhile: those are there on loan.

The ledger lets nobody onto devices that are kept but who is lent them. A loan lasts as long as the borrower runs, for
whichever job of the queue has room kept there next: else the borrowers of one head would be in the way of the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from libs.domain.resources import Charge
from libs.engine.api import RunningTask

#: Of one node so many are remembered, the latest.
_MOST: Final = 64
#: Starts are told in whole seconds, by the clock of a node or of the API server: a borrower may seem to have started
#: this much before the room was kept. Whoever really did counts as one too.
SKEW_S: Final = 2.0


class _Kept(NamedTuple):
    """Seconds since the epoch."""

    charge: Charge
    since: float
    until: float


class Loans:
    def __init__(self) -> None:
        self._by_node: dict[str, list[_Kept]] = {}

    def keep(self, charges: Iterable[tuple[str, Charge]], since: float) -> None:
        """From now on these are kept (node, charge)."""
        for node, charge in charges:
            kept = self._by_node.setdefault(node, [])
            kept.append(_Kept(charge, since, float("inf")))
            del kept[:-_MOST]

    def end(self, now: float) -> None:
        """Nothing is kept any more."""
        for kept in self._by_node.values():
            kept[:] = [one._replace(until=min(one.until, now)) for one in kept]

    def to(self, task: RunningTask) -> bool:
        """Whether the pod is there on loan."""
        return any(
            kept.since - SKEW_S <= task.started <= kept.until + SKEW_S and touches(task.charge, kept.charge)
            for kept in self._by_node.get(task.node, ())
        )


def touches(one: Charge, other: Charge) -> bool:
    """Whether both are on some device of the same node."""
    return not {grant.index for grant in one.gpus}.isdisjoint(grant.index for grant in other.gpus)
