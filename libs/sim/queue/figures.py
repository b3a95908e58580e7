"""Figures of a run: waits, completion times, utilisation, evictions and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from libs.sim.queue.cluster import WHOLE
from libs.sim.queue.demand import by_demand
from libs.sim.queue.loop import History, Outcome

Step = tuple[float, float, int]


def merge_steps(series: Sequence[Sequence[Step]]) -> list[Step]:
    """Sums of step functions: busy GPUs and waiting jobs of several clusters."""
    if len(series) == 1:
        return list(series[0])
    changes: list[tuple[float, float, int]] = []
    for steps in series:
        busy, waiting = 0.0, 0
        for at, now_busy, now_waiting in steps:
            changes.append((at, now_busy - busy, now_waiting - waiting))
            busy, waiting = now_busy, now_waiting
    changes.sort(key=lambda change: change[0])
    merged: list[Step] = []
    busy, waiting = 0.0, 0
    for at, more_busy, more_waiting in changes:
        busy += more_busy
        waiting += more_waiting
        if merged and merged[-1][0] == at:
            merged[-1] = (at, busy, waiting)
        else:
            merged.append((at, busy, waiting))
    return merged


def busy_between(steps: Sequence[Step], start: float, end: float) -> float:
    """GPU seconds in use between two moments."""
    total = 0.0
    for (at, busy, _), (until, _, _) in pairwise([*steps, (max(end, steps[-1][0]), 0.0, 0)]):
        total += busy * max(0.0, min(until, end) - max(at, start))
    return total


def waiting_span(steps: Sequence[Step]) -> tuple[float, float] | None:
    """From the first to the last moment at which some job waits."""
    at = [index for index, step in enumerate(steps) if step[2]]
    return (steps[at[0]][0], steps[at[-1] + 1][0]) if at else None


@dataclass(frozen=True, slots=True)
class Result:
    """One run, on one cluster or on one per tenant. Outcomes stand by submit time."""

    policy: str
    gpus: int
    outcomes: list[Outcome]
    steps: list[Step]
    seconds: float
    #: GPUs that queues deserve, where any does.
    deserved: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(
        policy: str, histories: Sequence[History], seconds: float, deserved: Mapping[str, float] | None = None
    ) -> Result:
        outcomes = sorted((o for h in histories for o in h.outcomes), key=lambda o: (o.job.submit, o.job.id))
        steps = merge_steps([h.steps for h in histories])
        return Result(policy, sum(h.gpus for h in histories), outcomes, steps, seconds, dict(deserved or {}))


def waits(outcomes: Iterable[Outcome]) -> dict[str, float]:
    wait = np.asarray([o.wait for o in outcomes])
    return {
        "mean_wait_s": round(float(wait.mean()), 1),
        "p99_wait_s": round(float(np.percentile(wait, 99)), 1),
        "max_wait_s": round(float(wait.max()), 1),
    }


def figures(result: Result, tenants: bool = True) -> dict[str, Any]:
    """What `simulate queue` prints. Utilisation is GPUs held, as far as they were asked for: over the time in which
    jobs arrive (`utilisation_pct`), over the time in which some job waits (`busy_`), and that as a share of
    min(offered load, 1). `gpu_time_lost_pct`: share of the GPU time held that evictions cost."""
    outcomes = result.outcomes
    jct = np.asarray([o.end - o.job.submit for o in outcomes])
    gpus = np.asarray([o.job.milli / WHOLE for o in outcomes])
    held = float(np.dot(gpus, [o.held for o in outcomes]))
    lost = float(np.dot(gpus, [o.lost for o in outcomes]))
    work = sum((o.job.useful or o.job.milli) / WHOLE * o.job.duration for o in outcomes)
    first, last = outcomes[0].job.submit, outcomes[-1].job.submit
    end = max(o.end for o in outcomes)
    window = (first, last) if last > first else (first, end)
    evictions = sum(o.evictions for o in outcomes)
    span = waiting_span(result.steps)
    load = _share(work, result.gpus, window)
    answer: dict[str, Any] = {
        "policy": result.policy,
        "jobs": len(outcomes),
        "gpus": result.gpus,
        "offered_load": round(load, 4),
        **waits(outcomes),
        "mean_jct_s": round(float(jct.mean()), 1),
        "p99_jct_s": round(float(np.percentile(jct, 99)), 1),
        "makespan_s": round(end - first, 1),
        "utilisation_pct": round(100 * _used(result, window), 2),
        "busy_utilisation_pct": round(100 * _used(result, span), 2) if span else None,
        "busy_utilisation_of_load_pct": round(100 * _used(result, span) / min(load, 1.0), 2) if span else None,
        "busy_s": round(span[1] - span[0], 1) if span else 0.0,
        "evictions": evictions,
        "evictions_per_job": round(evictions / len(outcomes), 4),
        "most_evictions_of_a_job": max(o.evictions for o in outcomes),
        "most_evictions_of_a_job_in_a_day": max(o.most_in(86_400.0) for o in outcomes),
        "gpu_time_lost_pct": round(100 * lost / held, 3) if held else 0.0,
        "seconds": round(result.seconds, 2),
    }
    fair = fairness(outcomes)
    if fair is not None:
        answer |= fair
    if result.deserved and (classes := by_demand(outcomes, result.deserved)):
        answer["by_demand_of_share"] = classes
    priorities = sorted({o.job.priority for o in outcomes})
    if len(priorities) > 1:
        answer["by_priority"] = {str(p): waits(o for o in outcomes if o.job.priority == p) for p in priorities}
    names = sorted({o.job.tenant for o in outcomes})
    if tenants and len(names) > 1:
        answer["by_tenant"] = {name: _tenant([o for o in outcomes if o.job.tenant == name]) for name in names}
    return answer


#: Jobs shorter than this count as this long, so that a wait of a minute before a run of a second is no disaster.
BOUNDED_S = 600.0


def fairness(outcomes: Sequence[Outcome]) -> dict[str, float] | None:
    """How alike tenants fare. `worst_tenant_mean_wait_s`; and of the tenants' mean bounded slowdowns (completion time
    over run time) the greatest and Jain's index (1: all alike, 1/n: one has it all). None with one tenant."""
    of_tenant: dict[str, list[Outcome]] = {}
    for o in outcomes:
        of_tenant.setdefault(o.job.tenant, []).append(o)
    if len(of_tenant) < 2:
        return None
    slow = np.asarray(
        [np.mean([(o.wait + max(o.job.duration, BOUNDED_S)) / max(o.job.duration, BOUNDED_S) for o in theirs])
         for theirs in of_tenant.values()]
    )  # fmt: skip
    waits_of = [float(np.mean([o.wait for o in theirs])) for theirs in of_tenant.values()]
    return {
        "worst_tenant_mean_wait_s": round(max(waits_of), 1),
        "worst_tenant_slowdown": round(float(slow.max()), 3),
        "jain_of_tenant_slowdowns": round(float(slow.sum() ** 2 / len(slow) / (slow**2).sum()), 4),
    }


def _tenant(outcomes: list[Outcome]) -> dict[str, float]:
    evictions = sum(o.evictions for o in outcomes)
    return {"jobs": len(outcomes), **waits(outcomes), "evictions_per_job": round(evictions / len(outcomes), 4)}


def _used(result: Result, window: tuple[float, float]) -> float:
    return _share(busy_between(result.steps, *window), result.gpus, window)


def _share(gpu_seconds: float, gpus: int, window: tuple[float, float]) -> float:
    span = window[1] - window[0]
    return gpu_seconds / gpus / span if span > 0 else 0.0
