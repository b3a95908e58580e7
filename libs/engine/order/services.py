"""The services' order in the queue simulator, as far as the loop needs one.

Where a job stands within its queue, which queue goes next, what fits, whose room is kept and who yields are not an
order's to say there: the loop that drives this order (`libs.sim.queue.services`) asks the services' line and engine.
"""

from __future__ import annotations

from libs.engine.order.base import Order


class Services(Order):
    """With `little`, attained service counts, as by the services' defaults; else jobs go by age."""

    by_tenant = True

    def __init__(self, *, little: bool = True) -> None:
        self.little = little
        self.name = "services" if little else "services-by-age"
