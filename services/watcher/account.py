"""What one queue used over time, and what its evictions are measured by.

A half is forgotten every half-life: H(t + d) = H(t) 2^(-d/h) + use h/ln 2 (1 - 2^(-d/h)). Where the half-life changes,
the mean use H ln 2/h stays as it is at that moment, so what is kept changes by new/old; from then on it is forgotten at
the new rate. What evictions cost, and the work that this is compared with, go by the cluster's half-life throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from libs.domain.queues import QueueHistory, Spending
from libs.engine.fair import decay
from libs.engine.fair.budget import HALF_LIFE_S as BUDGET_HALF_LIFE_S

_MOST: Final = 2**62


@dataclass(slots=True)
class Account:
    """As of `at`. By the queue's half-life: milli GPU seconds, milli CPU seconds, MiB seconds, and milli GPU seconds by
    model. Of the queue alone: jobs, evictions, and by `cost_half_life_s` milli GPU seconds lost and worked."""

    at: float
    half_life_s: int
    cost_half_life_s: int
    used: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    models: dict[str, float] = field(default_factory=dict)
    jobs: float = 0.0
    evictions: float = 0.0
    lost: float = 0.0
    worked: float = 0.0

    @staticmethod
    def recalled(history: QueueHistory, at: float, cost_half_life_s: int) -> Account:
        """As it was kept, as of `at`. A record that says no half-life was kept by that of the cluster."""
        account = Account(at, history.half_life_s or cost_half_life_s, cost_half_life_s)
        account.used = [float(history.gpu_milli_s), float(history.cpu_milli_s), float(history.mem_mib_s)]
        account.models = {model: float(used) for model, used in history.models.items()}
        spending = history.spending
        account.jobs, account.evictions = spending.jobs, spending.evictions
        kept_by = spending.half_life_s or account.half_life_s
        worked = spending.worked_milli_s if spending.half_life_s else history.gpu_milli_s
        account.lost = spending.lost_milli_s * cost_half_life_s / kept_by
        account.worked = worked * cost_half_life_s / kept_by
        return account

    def forget_by(self, half_life_s: int) -> None:
        """From now on; the mean use stays."""
        if half_life_s != self.half_life_s:
            times = half_life_s / self.half_life_s
            self.used = [used * times for used in self.used]
            self.models = {model: used * times for model, used in self.models.items()}
            self.half_life_s = half_life_s

    def ran(self, amounts: Sequence[int], models: Iterable[tuple[str, int]], seconds: float) -> None:
        """So much was held for so many seconds until `at`, which nobody has counted."""
        span = decay.span(seconds, self.half_life_s)
        self.used = [used + amount * span for used, amount in zip(self.used, amounts, strict=True)]
        for model, milli in models:
            self.models[model] = self.models.get(model, 0.0) + milli * span
        self.worked += amounts[0] * decay.span(seconds, self.cost_half_life_s)

    def advance(self, rate: Sequence[int], models: Mapping[str, int], now: float) -> None:
        """So much was held from `at` until now."""
        # A clock that was set back stops the account until it has caught up: time is never counted twice.
        passed = now - self.at
        if passed <= 0:
            return
        left, span = decay.left(passed, self.half_life_s), decay.span(passed, self.half_life_s)
        self.used = [used * left + amount * span for used, amount in zip(self.used, rate, strict=True)]
        if models or self.models:
            self.models = {
                model: used
                for model in self.models.keys() | models.keys()
                if (used := self.models.get(model, 0.0) * left + models.get(model, 0) * span) > 1e-6
            }
        slowly = decay.left(passed, BUDGET_HALF_LIFE_S)
        self.jobs, self.evictions = self.jobs * slowly, self.evictions * slowly
        left, span = decay.left(passed, self.cost_half_life_s), decay.span(passed, self.cost_half_life_s)
        self.lost, self.worked = self.lost * left, self.worked * left + rate[0] * span
        self.at = now

    def take_over(self, other: Account) -> None:
        """Of the same moment; its mean use comes on top."""
        other.forget_by(self.half_life_s)
        self.used = [ours + theirs for ours, theirs in zip(self.used, other.used, strict=True)]
        for model, used in other.models.items():
            self.models[model] = self.models.get(model, 0.0) + used
        self.jobs, self.evictions = self.jobs + other.jobs, self.evictions + other.evictions
        self.lost, self.worked = self.lost + other.lost, self.worked + other.worked

    def rounded(self) -> tuple[int, int, int]:
        gpu, cpu, mem = map(_whole, self.used)
        return gpu, cpu, mem

    def spending(self) -> Spending:
        return Spending(
            jobs=round(self.jobs, 3),
            evictions=round(self.evictions, 3),
            lost_milli_s=_whole(self.lost),
            half_life_s=self.cost_half_life_s,
            worked_milli_s=_whole(self.worked),
        )


def _whole(used: float) -> int:
    """As a queue's status can hold it."""
    return min(max(0, round(used)), _MOST)
