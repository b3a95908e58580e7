"""What the binder counts. Labels are bounded: calls, codes, reasons; never pods or jobs."""

from __future__ import annotations

from functools import cache
from typing import Final

from prometheus_client import Counter

from libs.contracts.events import Landed
from libs.observe.metrics import counter, gauge, histogram

WRITE_SECONDS: Final = histogram("drystone_binder_write_seconds", "Latency of Bindings and pod creations.")
PLAN_SECONDS: Final = histogram("drystone_binder_plan_seconds", "From reading a plan to its last task landed.")
CALLS: Final = counter("drystone_binder_calls", "Requests to the API server.", ("call", "code"))
RETRIES: Final = counter("drystone_binder_retries", "Writes sent again, by what the last one met.", ("code",))
REFUSALS: Final = counter("drystone_binder_refusals", "Writes finally refused by the API server.", ("code",))
UNSURE: Final = counter("drystone_binder_unsure", "Writes whose effect was unknown.")
RESOLVED: Final = counter("drystone_binder_resolved", "Unsure writes resolved by reading the pod.", ("found",))
LANDED: Final = counter("drystone_binder_tasks", "Tasks by how they landed.", ("landed",))
#: By how they landed, looked up once: one is counted per task.
LANDED_AS: Final = {landed: LANDED.labels(landed=landed.value) for landed in Landed}
LEDGER_REFUSED: Final = counter("drystone_binder_ledger_refusals", "Claims that could not be begun.", ("reason",))
OBJECTIONS: Final = counter("drystone_binder_objections", "Plans or tasks whose node no longer admitted them.")
EXPIRED: Final = counter("drystone_binder_expired", "Claims past their deadline, by state.", ("state",))
DEAD_LETTERS: Final = counter("drystone_binder_dead_letters", "Messages that could not be read.")
WINDOW: Final = gauge("drystone_binder_window", "Writes that may be in flight at once.")
IN_FLIGHT: Final = gauge("drystone_binder_in_flight", "Calls in flight.")
QUEUED: Final = gauge("drystone_binder_queued", "Writes waiting for the window.")
PLANS: Final = gauge("drystone_binder_plans_in_hand", "Plans taken and not finished.")


@cache
def _calls(call: str, code: int) -> Counter:
    return CALLS.labels(call=call, code=str(code))


def called(call: str, code: int) -> None:
    """One request of a kind that there is one of per task. Its counter is looked up once."""
    _calls(call, code).inc()
