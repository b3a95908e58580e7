"""What of a job must start together, and what can be said before looking at free room."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from libs.domain.jobs import GATES, Task
from libs.domain.verdicts import Kind, Verdict
from libs.engine import explain
from libs.engine.api import PendingJob
from libs.engine.feasible import Feasibility
from libs.engine.queues import Chain
from libs.engine.session import Session


@dataclass(frozen=True, slots=True)
class Minimum:
    """`total` tasks, and `roles[r]` of each role, are placed together or nothing is. A total of 0 or 1 without roles
    means that each task stands alone."""

    total: int
    roles: dict[str, int]

    @property
    def together(self) -> bool:
        return self.total > 1 or bool(self.roles)

    def met(self, tasks: list[Task]) -> bool:
        if len(tasks) < self.total:
            return False
        if not self.roles:
            return True
        placed = Counter(task.role for task in tasks)
        return all(placed[role] >= need for role, need in self.roles.items())


ALONE: Final = Minimum(1, {})


def minimum(job: PendingJob) -> Minimum:
    """What is still missing to the job's minima, given what it holds."""
    head = job.head
    if head.gang_min <= 1 and not head.role_min:
        return ALONE
    roles: dict[str, int] = {}
    if head.role_min:
        pending = Counter(task.role for task in job.tasks)
        for role, need in sorted(head.role_min.items()):
            if job.held and not job.held_roles:
                left = min(need, pending[role])  # who holds which role is not known: what is pending is missing
            else:
                left = need - job.held_roles.get(role, 0)
            if left > 0:
                roles[role] = left
    return Minimum(max(head.gang_min - job.held, sum(roles.values()), 1), roles)


def order(tasks: list[Task], need: Minimum, large_first: bool = True) -> list[Task]:
    """What the role minima ask for first, then the rest; within each the large ones first, since they are harder to
    place; then by role, index and name."""
    sign = -1 if large_first else 1

    def weight(task: Task) -> tuple[int, int, int, str, int, str]:
        request = task.request
        gpu = request.gpu_milli or request.gpu.count
        return sign * gpu, sign * request.cpu, sign * request.mem, task.role, task.index, task.name

    ordered = sorted(tasks, key=weight)
    if not need.roles:
        return ordered
    left = dict(need.roles)
    first: list[Task] = []
    rest: list[Task] = []
    for task in ordered:
        if left.get(task.role, 0) > 0:
            left[task.role] -= 1
            first.append(task)
        else:
            rest.append(task)
    return first + rest


@dataclass(slots=True)
class Door:
    """`usable` can be placed at all; `barred` says why others cannot; `refused` ends the decision here."""

    usable: list[Task]
    barred: Verdict | None = None
    refused: Verdict | None = None


def door(job: PendingJob, need: Minimum) -> Door:
    """What can be said of the job and its pods alone. Pods not understood are never placed."""
    if job.head.barred is not None:
        return Door([], None, explain.barred(job.head.barred))
    usable = [task for task in job.tasks if not task.unsupported]
    barred: Verdict | None = None
    if len(usable) < len(job.tasks):
        task = next(task for task in job.tasks if task.unsupported)
        if all(feature == GATES for feature in task.unsupported):
            barred = explain.gated(task.unsupported, task.name)
        else:
            barred = explain.unsupported(task.unsupported, task.name)
    if not need.together:
        return Door(usable, barred, None if usable else barred)
    known = Counter(task.role for task in job.tasks)
    if len(job.tasks) < need.total:
        short = barred or explain.incomplete(job.held + len(job.tasks), job.held + need.total)
        return Door(usable, barred, short)
    for role, count in need.roles.items():
        if known[role] < count:
            return Door(usable, barred, barred or explain.role_incomplete(role, known[role], count))
    return Door(usable, barred, None if need.met(usable) else barred)


def _least(tasks: list[Task], count: int) -> tuple[int, int, int]:
    """The least that any `count` of the tasks ask for, side by side: a bound that never says too much."""
    requests = [task.request for task in tasks]
    if count >= len(requests):
        return sum(r.gpu_milli for r in requests), sum(r.cpu for r in requests), sum(r.mem for r in requests)
    return (
        sum(sorted(r.gpu_milli for r in requests)[:count]),
        sum(sorted(r.cpu for r in requests)[:count]),
        sum(sorted(r.mem for r in requests)[:count]),
    )


def quota_never(job: PendingJob, tasks: list[Task], need: Minimum, chain: Chain) -> Verdict | None:
    """The minimum exceeds a limit even with the queue empty otherwise."""
    if not chain:
        return None
    milli, cpu, mem = _least(tasks, need.total)
    if job.held and need.together:
        least = _least(tasks, 1)
        milli, cpu, mem = milli + job.held * least[0], cpu + job.held * least[1], mem + job.held * least[2]
    for line in chain:
        short = line.above(milli, cpu, mem)
        if not short and line.limit_models:
            short = line.above_models(_models(tasks), milli)
        if short:
            return explain.quota_never(line, short, (milli, cpu, mem), tasks[0].name)
    return None


def _models(tasks: list[Task]) -> frozenset[str]:
    """Models that will do for the tasks together; empty where any will."""
    wishes = [task.request.gpu.models for task in tasks if task.request.gpu.count]
    return frozenset(model for models in wishes for model in models) if all(wishes) else frozenset()


def quota_now(tasks: list[Task], need: Minimum, chain: Chain) -> Verdict | None:
    """The minimum exceeds what is left of a limit."""
    if not chain:
        return None
    amounts = _least(tasks, need.total)
    for line in chain:
        short = line.short_of(*amounts)
        if short:
            return explain.quota(line, short, amounts, tasks[0].name)
    return None


def room_never(session: Session, tasks: list[Task], need: Minimum) -> Verdict | None:
    """These nodes, even empty, ready and open, could not hold the minimum. Said only where it is certain: alike tasks
    are packed exactly (where a node's devices are alike), different ones are each given the whole cluster."""
    views: dict[Feasibility, list[Task]] = {}
    for task in tasks:
        views.setdefault(session.feasible(task), []).append(task)
    possible = 0
    by_role: Counter[str] = Counter()
    most: dict[Feasibility, int] = {}
    for view, alike in views.items():
        slots = int(view.slots().sum())
        most[view] = slots
        possible += min(len(alike), slots)
        for role, count in Counter(task.role for task in alike).items():
            by_role[role] += min(count, slots)
    short = possible < need.total or any(by_role[role] < count for role, count in need.roles.items())
    if not short:
        return _sums_never(session, tasks, need, views)
    worst = min(views, key=lambda view: (most[view], views[view][0].name))
    task = views[worst][0]
    if not most[worst]:
        first = explain.refusal(session.snapshot, worst, task.name)
        return first if first.kind is Kind.NEVER else None
    return explain.gang_never(possible, need.total, True, task.name, {})


def _sums_never(
    session: Session, tasks: list[Task], need: Minimum, views: dict[Feasibility, list[Task]]
) -> Verdict | None:
    """Different tasks together against the sum of the nodes that would take any of them."""
    if len(views) < 2 or need.total < len(tasks):
        return None
    snapshot = session.snapshot
    columns = snapshot.columns()
    usable = sum((view.slots() > 0) for view in views) > 0
    asked = (
        sum(t.request.cpu for t in tasks),
        sum(t.request.mem for t in tasks),
        sum(t.request.gpu_milli for t in tasks),
    )
    held = (
        int(columns.cap_cpu[usable].sum()),
        int(columns.cap_mem[usable].sum()),
        int(columns.gpu_cap[usable].sum()),
    )
    if all(a <= h for a, h in zip(asked, held, strict=True)):
        return None
    share = min(h / a for a, h in zip(asked, held, strict=True) if a)
    return explain.gang_never(int(share * need.total), need.total, True, tasks[0].name, {})
