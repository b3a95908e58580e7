"""The services' order, as far as one queue goes: who has waited too long first, then priority, then age.

The rule is `fair.place`. Which queue goes next, what fits, whose room is kept and who yields are not an order's to say
there: the loop that drives this order (`libs.sim.queue.services`) asks the services' line and engine.
"""

from __future__ import annotations

from libs.domain.jobs import JobHead
from libs.engine.fair import place
from libs.engine.order.base import NEVER, Item, Order, Rank

#: Who has waited this long is the first of its queue, seconds: the services' default.
OVERDUE_S = 129_600.0
#: `place` takes a time of 0 for unknown.
_EPOCH = 1.0
#: After a turn it is past, whatever rounding makes of sums.
_SLACK = 1e-3


class Services(Order):
    name = "services"
    by_tenant = True

    def rank(self, item: Item, now: float) -> Rank:
        head = JobHead("", item.tenant, "", priority=item.priority, created=_EPOCH + item.submitted)
        return place(head, _EPOCH + now, OVERDUE_S)[:3]

    def turns(self, item: Item, now: float) -> float:
        at = item.submitted + OVERDUE_S + _SLACK
        return at if at > now else NEVER
