"""Settings of the binder, read from the environment beside the common ones."""

from __future__ import annotations

from pydantic import Field

from libs.host.settings import CommonSettings


class BinderSettings(CommonSettings):
    #: Most writes in flight to the API server, and what a burst starts with.
    window_cap: int = Field(default=64, ge=2, le=1024)
    window_start: int = Field(default=32, ge=2, le=1024)
    #: An answer slower than this halves the window.
    slow_write_s: float = Field(default=1.0, gt=0, le=60)
    #: Limit of one request, told to the server too.
    write_timeout_s: float = Field(default=5.0, gt=0, le=5)
    #: Beyond the limit of a request whose effect is unknown: how much later its effect may still show.
    settle_s: float = Field(default=1.0, ge=0, le=60)
    #: How long a task is tried before its claim is taken back and placement decides again.
    give_up_s: float = Field(default=8.0, gt=0, le=300)
    #: Pauses between tries grow from the first to the second, drawn at random below.
    backoff_base_s: float = Field(default=0.05, gt=0, le=10)
    backoff_cap_s: float = Field(default=2.0, gt=0, le=60)
    #: Tasks in hand at which no more plans are taken.
    tasks_in_hand: int = Field(default=8192, ge=1)
    #: How often claims are looked for that nobody finished.
    expire_every_s: float = Field(default=1.0, gt=0, le=60)
    #: Of the time to stop, what is kept for finishing writes that are in hand.
    finish_s: float = Field(default=10.0, gt=0, le=600)
