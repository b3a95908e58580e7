"""What of a run is saved, by what its owner declared and said.

A job that declares how often it saves its work is taken to do so at full multiples of that time from the start of its
pod: what is true of it only where its work begins with the pod. Whoever says when it last saved (or, made again, when
it had loaded what it saved) is counted from there instead.
"""

from __future__ import annotations


def unsaved(now: float, started: float, saved: float, every: float) -> float:
    """Seconds since the work of a run was saved last. `started`: of the pod; `saved`: as it said last, 0 where it said
    nothing; `every`: seconds between two of its checkpoints, 0 where it saves nothing or nobody knows. What was said
    of a time to come is of now, and what was said before the pod started is of another one."""
    run = max(0.0, now - max(started, min(saved, now)))
    return run % every if every > 0 else run
