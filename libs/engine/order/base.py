"""Who goes next, and who must yield: what an ordering policy sees and what it answers.

A policy is pure: it is told of arrivals, starts, ends and evictions, and answers with ranks and permissions. Whoever
drives it (the simulator, a service) owns the clock, the room and the items. Times are seconds; service is seconds of
run that are kept (work since the last checkpoint of an evicted run is not).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

#: Smaller goes first. The driver breaks ties by arrival.
Rank = tuple[float, ...]

NEVER: Final = math.inf


@dataclass(slots=True, eq=False)
class Item:
    """A job that waits or runs. Changed by the driver only; policies read.

    `since`: start of the current wait, or of the current run. `attained`: seconds of run kept from earlier runs.
    `waited`: seconds of earlier waits. `begins`: when useful work of the current run began or will begin (a restart
    comes first). `declared`: the run time, where the policy may know it (`Order.knows`), else not a number.
    """

    key: int
    tenant: str
    gpus: float
    submitted: float
    since: float
    priority: int = 0
    running: bool = False
    attained: float = 0.0
    waited: float = 0.0
    begins: float = 0.0
    evictions: int = 0
    declared: float = math.nan
    rank: Rank = ()

    def service(self, now: float) -> float:
        """Seconds of run so far, the current run included."""
        return self.attained + max(0.0, now - self.begins) if self.running else self.attained

    def waits(self, now: float) -> float:
        """Seconds waited so far, the current wait included."""
        return self.waited if self.running else self.waited + now - self.since


class Order:
    """The base: first come, first served; whoever fits goes ahead of whoever does not; nobody yields."""

    name = "fifo-backfill"
    #: The first that does not fit keeps all behind it waiting.
    blocks = False
    #: Needs run times in advance.
    knows = False
    #: Whether `yields` is ever true.
    evicts = False
    #: Whether the tenant matters to `front`.
    by_tenant = False

    # -- who goes next ----------------------------------------------------------------------------------------------
    def front(self, item: Item, now: float) -> float:  # noqa: ARG002
        """Comes before the rank, and may change with every start and end."""
        return 0.0

    def rank(self, item: Item, now: float) -> Rank:  # noqa: ARG002
        """Place in the line of an item that waits; holds until `turns`, or until `moved` tells otherwise."""
        return (-item.priority, item.submitted)

    def turns(self, item: Item, now: float) -> float:  # noqa: ARG002
        """When the rank of an item that goes on waiting changes by itself."""
        return NEVER

    def moved(self) -> list[int]:
        """Keys of waiting items whose rank changed otherwise; asked after every batch of events, told once."""
        return []

    # -- who must yield ---------------------------------------------------------------------------------------------
    def claims_from(self, item: Item, now: float) -> float:  # noqa: ARG002
        """From when on a waiting item may have others evicted; NEVER: not before the next event."""
        return NEVER

    def most(self, item: Item, now: float) -> float:  # noqa: ARG002
        """How many may be evicted for the item at once."""
        return NEVER

    def offers(self, victim: Item, now: float) -> bool:  # noqa: ARG002
        """Whether the running item may be evicted now for anybody at all."""
        return False

    def fresh(self, victim: Item, now: float) -> bool:  # noqa: ARG002
        """Of one that offers: whether it is at a good moment. Who `needs_fresh` is asked about no others."""
        return True

    def needs_fresh(self, item: Item, now: float) -> bool:  # noqa: ARG002
        """Whether only victims at a good moment can yield to the item."""
        return False

    def yields(self, victim: Item, to: Item, now: float) -> bool:  # noqa: ARG002
        """Whether the running item, which offers, may be evicted for the waiting one."""
        return False

    def price(self, victim: Item, lost: float, now: float) -> float:  # noqa: ARG002
        """What evicting it costs, in any unit; less is taken first. `lost`: GPU seconds."""
        return lost

    def ripens(self, victim: Item, to: Item, now: float) -> float:  # noqa: ARG002
        """When `offers` or `yields` may next turn true by themselves."""
        return NEVER

    # -- what happened ----------------------------------------------------------------------------------------------
    def arrived(self, item: Item, now: float) -> None: ...

    def started(self, item: Item, now: float) -> None: ...

    def ended(self, item: Item, now: float) -> None: ...

    def evicted(self, item: Item, lost: float, now: float) -> None:
        """It waits again. `lost`: GPU seconds to be done again or to go into its restart."""


class Fifo(Order):
    """First come, first served; the first that does not fit keeps all behind it waiting."""

    name = "fifo"
    blocks = True
