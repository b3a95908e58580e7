"""Settings of the preemptor, read from the environment beside the common ones."""

from __future__ import annotations

from pydantic import Field

from libs.host.settings import CommonSettings


class PreemptorSettings(CommonSettings):
    #: Most calls in flight to the API server.
    calls_at_once: int = Field(default=64, ge=1, le=1024)
    #: Eviction plans in hand at which no more are taken.
    plans_in_hand: int = Field(default=256, ge=1)
    #: Limit of one request, told to the server too.
    write_timeout_s: float = Field(default=5.0, gt=0, le=5)
    #: How long a disruption budget that does not allow the evictions now is waited for.
    budget_patience_s: float = Field(default=5.0, ge=0, le=600)
    #: How long passing faults of the API server (504, 429, conflicts, time-outs) are tried against.
    give_up_s: float = Field(default=30.0, gt=0, le=600)
    #: The longest notice that a pod gets before it is evicted, whatever it asks for. (Room is kept for 10 minutes.)
    notice_most_s: float = Field(default=300.0, ge=0, le=480)
    #: How often a pod is looked at that was told and may end or say that it is done.
    notice_look_s: float = Field(default=1.0, gt=0, le=60)
    #: Pauses between tries grow from the first to the second, drawn at random below.
    backoff_base_s: float = Field(default=0.1, gt=0, le=10)
    backoff_cap_s: float = Field(default=3.0, gt=0, le=60)
    #: Of the time to stop, what is kept for finishing evictions that are in hand.
    finish_s: float = Field(default=8.0, gt=0, le=600)
