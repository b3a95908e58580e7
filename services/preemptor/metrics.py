"""What the preemptor counts. Labels are bounded: rules, outcomes, calls, codes; never pods or jobs."""

from __future__ import annotations

from typing import Final

from libs.observe.metrics import counter, gauge, histogram

EVICTIONS: Final = counter("drystone_preemptor_evictions", "Victims by rule and outcome.", ("rule", "outcome"))
PLANS: Final = counter("drystone_preemptor_plans", "Eviction plans by how they ended.", ("outcome",))
CALLS: Final = counter("drystone_preemptor_calls", "Requests to the API server.", ("call", "code"))
RETRIES: Final = counter("drystone_preemptor_retries", "Requests sent again, by what the last one met.", ("code",))
CALL_SECONDS: Final = histogram("drystone_preemptor_call_seconds", "Latency of evictions and deletions.")
PLAN_SECONDS: Final = histogram("drystone_preemptor_plan_seconds", "From reading a plan to its outcome.")
IN_HAND: Final = gauge("drystone_preemptor_plans_in_hand", "Eviction plans taken and not finished.")
DEAD_LETTERS: Final = counter("drystone_preemptor_dead_letters", "Messages that could not be read.")
