"""The services' order in the queue simulator, as far as the loop needs one.

Where a job stands within its queue, which queue goes next, what fits, whose room is kept and who yields are not an
order's to say there: the loop that drives this order (`libs.sim.queue.services`) asks the services' line and engine.
"""

from __future__ import annotations

from libs.engine.fair.little import LittleService
from libs.engine.order.base import Order


class Services(Order):
    """With `little`, the services' default, attained service counts; without, jobs go by age. `lends`: room that is
    kept for one job is lent to others meanwhile; `moves`: running jobs move where that lets one in. The services do
    both unless they are told not to."""

    by_tenant = True

    def __init__(self, little: LittleService | None, *, lends: bool = True, moves: bool = True) -> None:
        self.little = little
        self.lends = lends
        self.moves = moves
        self.name = "services" if little is not None else "services-by-age"
        if not lends:
            self.name += "-without-lending"
        if not moves:
            self.name += "-without-moves"
