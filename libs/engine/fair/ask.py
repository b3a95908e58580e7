"""What a job asks for at once, and where it stands within its queue."""

from __future__ import annotations

from collections.abc import Sequence

from libs.domain.jobs import JobHead, Task
from libs.domain.resources import WHOLE, Charge, Request
from libs.engine.fair.little import LEVELS
from libs.engine.fair.parts import Amounts
from libs.engine.fair.shares import NOTHING, plus

Place = tuple[int, int, float, str]


def amounts(request: Request) -> Amounts:
    """GPUs asked for by memory count as whole ones: what they are charged is known on a device only."""
    gpu = request.gpu
    return (gpu.count * (gpu.milli or WHOLE) if gpu.count else 0), request.cpu, request.mem


def amounts_of(charge: Charge) -> Amounts:
    return charge.gpu_milli, charge.cpu, charge.mem


def asked(head: JobHead, tasks: Sequence[Task], held: int = 0) -> Amounts:
    """The least that the job takes when its turn comes: what is missing to a gang's minimum, else one task."""
    if not tasks:
        return NOTHING
    missing = min(len(tasks), max(1, head.gang_min - held))
    if missing == 1:
        return amounts(tasks[0].request)
    total = NOTHING
    for task in tasks[:missing]:
        total = plus(total, amounts(task.request))
    return total


def models_of(head: JobHead, tasks: Sequence[Task], held: int = 0) -> tuple[str, ...]:
    """The models that will do for what `asked` says; none where any does for a part of it."""
    found: tuple[str, ...] = ()
    for task in tasks[: max(1, head.gang_min - held)]:
        gpu = task.request.gpu
        if not gpu.count or gpu.models == found:
            continue
        if not gpu.models:
            return ()
        found = tuple(sorted({*found, *gpu.models}))
    return found


def everything(tasks: Sequence[Task]) -> Amounts:
    total = NOTHING
    for task in tasks:
        total = plus(total, amounts(task.request))
    return total


def place(head: JobHead, now: float, overdue_s: float) -> Place:
    """Within its queue: who has waited `overdue_s` goes first, by age; then higher priority, then the older. `now`:
    seconds since the epoch, 0 where nobody knows."""
    return place_of(head, bool(now and head.created and now - head.created >= overdue_s), 0)


def place_of(head: JobHead, overdue: bool, level: int) -> Place:
    """The overdue first, by age; then higher priority, then the lower level of service, then the older. Priority and
    level are one number."""
    if overdue:
        return 0, 0, head.created, head.key
    return 1, level - head.priority * LEVELS, head.created, head.key


def level_of(place: Place) -> int:
    return place[1] % LEVELS
