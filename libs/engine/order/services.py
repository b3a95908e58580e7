"""The services' order in the queue simulator, as far as the loop needs one.

Where a job stands within its queue, which queue goes next, what fits, whose room is kept and who yields are not an
order's to say there: the loop that drives this order (`libs.sim.queue.services`) asks the services' line and engine.
"""

from __future__ import annotations

from libs.engine.fair.little import LittleService
from libs.engine.order.base import Order


class Services(Order):
    """With `little`, the services' default, attained service counts; without, jobs go by age. `lends`: room that is
    kept for one job is lent to others meanwhile."""

    by_tenant = True

    def __init__(self, little: LittleService | None, *, lends: bool = False) -> None:
        self.little = little
        self.lends = lends
        self.name = ("services-by-age" if little is None else "services") + ("-lending" if lends else "")
