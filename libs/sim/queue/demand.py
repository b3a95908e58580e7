"""What waiting comes to by how much a queue asks for: within the share that it deserves, and beyond.

A queue's demand is what all of its jobs that wait or run ask for. A job counts by the most that its queue asked for at
once between the job's submit and its end, in parts of what the queue deserves: up to 1 its queue stayed within its
share all the time, so what it waited is what the promise to it amounts to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from libs.sim.queue.cluster import WHOLE
from libs.sim.queue.loop import Outcome

#: Classes of demand end here, in parts of the share.
ENDS: Final = (1.0, 2.0, 4.0, 8.0, float("inf"))


def peaks(outcomes: Sequence[Outcome]) -> list[int]:
    """Of each job of one queue, the most milli GPUs that the queue asked for at once while the job was there."""
    starts = np.asarray([o.job.submit for o in outcomes])
    ends = np.asarray([o.end for o in outcomes])
    milli = np.asarray([o.job.milli for o in outcomes], dtype=np.int64)
    times = np.concatenate((starts, ends))
    changes = np.concatenate((milli, -milli))
    # Who ends leaves before another one comes at the same moment.
    order = np.lexsort((changes, times))
    demand = np.cumsum(changes[order])
    rows = [demand]  # rows[k][i]: the most of the 2 ** k steps from i on
    while 2 * 2 ** (len(rows) - 1) <= len(demand):
        last, half = rows[-1], 2 ** (len(rows) - 1)
        rows.append(np.maximum(last[:-half], last[half:]))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    found = []
    for first, last in zip(place[: len(starts)].tolist(), place[len(starts) :].tolist(), strict=True):
        k = (last - first).bit_length() - 1 if last > first else 0
        found.append(int(max(rows[k][first], rows[k][last - 2**k if last > first else first])))
    return found


def by_demand(outcomes: Sequence[Outcome], deserved: Mapping[str, float]) -> list[dict[str, Any]]:
    """Waits by the demand of the job's queue, for queues that deserve something (`deserved`: GPUs by queue)."""
    of_queue: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if deserved.get(outcome.job.tenant, 0.0) > 0:
            of_queue.setdefault(outcome.job.tenant, []).append(outcome)
    waits: list[list[float]] = [[] for _ in ENDS]
    for queue, theirs in of_queue.items():
        share = deserved[queue] * WHOLE
        for outcome, peak in zip(theirs, peaks(theirs), strict=True):
            at = next(n for n, end in enumerate(ENDS) if peak <= end * share)
            waits[at].append(outcome.wait)
    return [
        {
            "demand_of_share_up_to": None if end == ENDS[-1] else end,
            "jobs": len(found),
            "mean_wait_s": round(float(np.mean(found)), 1),
            "p99_wait_s": round(float(np.percentile(found, 99)), 1),
            "max_wait_s": round(max(found), 1),
        }
        for end, found in zip(ENDS, waits, strict=True)
        if found
    ]
