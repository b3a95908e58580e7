"""What would change the answer for a job that waits: moves, nodes, quota, a smaller request, a wish less.

Each remedy is tried by the engine on the present snapshot before it is named, so that what is said is so: with that one
change, and nothing else, the job's minimum fits now. (More nodes are tried as empty nodes like one that is there; rules
between pods are then left out of account.)

Not for the hot path: a question costs up to a few hundred placements. It is asked between passes, and leaves the
session as `settle` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from libs.domain.jobs import Task
from libs.domain.nodes import Toleration
from libs.domain.resources import WHOLE, Request
from libs.domain.verdicts import Reason
from libs.engine import gang
from libs.engine.actions.allocate import allocate
from libs.engine.actions.protect import protection
from libs.engine.api import PendingJob
from libs.engine.ask import Ask
from libs.engine.consolidate.movers import Movers
from libs.engine.consolidate.plan import LIMITS, Limits, Moves, least, plan_moves
from libs.engine.devices import NodeState
from libs.engine.filters import CODE
from libs.engine.rules.feasible import HOST
from libs.engine.session import Session

#: Nodes that are added to answer a question, at most.
MOST_NODES: Final = 4_096
#: Shapes of nodes that are tried: those that most nodes have.
SHAPES: Final = 8
_PASSING: Final = (0, CODE[Reason.NOT_READY], CODE[Reason.CORDONED])


@dataclass(frozen=True, slots=True)
class MoreNodes:
    """So many empty nodes like `like` (the first by name of its shape), with `gpus` devices of `model` each."""

    count: int
    like: str
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class MoreQuota:
    """What the limit of a queue lacks: milli GPUs, milli CPU, MiB."""

    queue: str
    gpu_milli: int
    cpu: int
    mem: int


@dataclass(frozen=True, slots=True)
class SmallerRequest:
    """The most that would fit now with all else as it is, of one side: "gpus" (per task), "gpu-milli" (of one GPU),
    "gpu-mib", "cpu" (milli), "mem" (MiB), "tasks" (of a gang)."""

    side: str
    amount: int
    asked: int


@dataclass(frozen=True, slots=True)
class FewerWishes:
    """A wish to drop: "selector" with the label's key, "toleration" of a taint to add, "affinity", "models"."""

    wish: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """`fits`: it fits as things are. `moves` None: no plan was found."""

    fits: bool
    moves: Moves | None = None
    nodes: tuple[MoreNodes, ...] = ()
    quota: tuple[MoreQuota, ...] = ()
    request: tuple[SmallerRequest, ...] = ()
    wishes: tuple[FewerWishes, ...] = ()


def what_if(session: Session, job: PendingJob, now: float = 0.0, limits: Limits = LIMITS) -> WhatIf:
    config = session.config
    session.config = dataclasses.replace(config, explain=False)
    session.begin(now)
    try:
        return _answer(session, job, limits)
    finally:
        session.config = config
        session.settle()


def _answer(session: Session, job: PendingJob, limits: Limits) -> WhatIf:
    if not job.tasks or _fits(session, job):
        return WhatIf(True)
    need = gang.minimum(job)
    door = gang.door(job, need)
    if door.refused is not None or not door.usable:
        return WhatIf(False)  # pods are missing, or are not understood: no room would help
    tasks = least(gang.order(door.usable, need), need)
    quota = _quota(session, job, tasks)
    if quota:
        return WhatIf(False, quota=quota, request=tuple(_smaller(session, job)))
    shields = protection(session)
    movers = Movers(session, job.head, session.config.consolidate_after_s, lambda pod: shields.of(pod) is not None)
    moves = plan_moves(session, job, movers, limits)
    return WhatIf(
        False,
        moves if moves is not None and moves.moves else None,
        tuple(_more_nodes(session, tasks)),
        (),
        tuple(_smaller(session, job)),
        tuple(_fewer_wishes(session, job)),
    )


def said(answer: WhatIf) -> tuple[str, ...]:
    """The remedies in words, the least disruptive first; none of them has a comma."""
    words: list[str] = []
    if answer.moves is not None:
        pods = [move.pod.name for move in answer.moves.moves]
        shown = " and ".join(pods) if len(pods) <= 2 else f"{pods[0]} and {len(pods) - 1} others"
        words.append(f"{len(pods)} running task{_s(len(pods))} moved to other nodes ({shown})")
    if answer.nodes:
        best = min(answer.nodes, key=lambda more: (more.count, more.gpus))
        what = f"{best.gpus} GPUs" + (f" of {best.model}" if best.model else "") if best.gpus else "no GPU"
        words.append(f"{best.count} more node{_s(best.count)} like {best.like} with {what}")
    for line in answer.quota:
        parts = [f"{line.gpu_milli / WHOLE:g} GPUs"] * (line.gpu_milli > 0)
        parts += [f"{line.cpu / WHOLE:g} CPUs"] * (line.cpu > 0) + [f"{line.mem} MiB"] * (line.mem > 0)
        words.append(f"{' and '.join(parts)} more in the limit of queue {line.queue}")
    words += [_smaller_words(smaller) for smaller in answer.request]
    words += [_wish_words(wish) for wish in answer.wishes]
    return tuple(words)


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _smaller_words(smaller: SmallerRequest) -> str:
    amount = smaller.amount
    return {
        "gpus": f"asking for {amount} GPU{_s(amount)} per task",
        "gpu-milli": f"asking for {amount / WHOLE:g} of a GPU",
        "gpu-mib": f"asking for {amount} MiB of a GPU",
        "cpu": f"asking for {amount}m CPU per task",
        "mem": f"asking for {amount} MiB of memory per task",
        "tasks": f"a gang of {amount} task{_s(amount)}",
    }[smaller.side]


def _wish_words(wish: FewerWishes) -> str:
    return {
        "selector": f"no node selector {wish.name}",
        "toleration": f"a toleration of {wish.name}",
        "affinity": "no node affinity",
        "models": "any GPU model",
    }[wish.wish]


# -- trying -----------------------------------------------------------------------------------------------------------


def _fits(session: Session, job: PendingJob) -> bool:
    """Whether the job's minimum fits now; nothing stays of the trial."""
    session.begin(session.now)
    try:
        return bool(allocate(session, job, None).placements)
    finally:
        session.settle()


def _asking(job: PendingJob, change: Callable[[Request], Request]) -> PendingJob:
    tasks = tuple(msgspec.structs.replace(task, request=change(task.request)) for task in job.tasks)
    return msgspec.structs.replace(job, tasks=tasks)


def _quota(session: Session, job: PendingJob, tasks: list[Task]) -> tuple[MoreQuota, ...]:
    milli = sum(task.request.gpu_milli for task in tasks)
    cpu, mem = sum(task.request.cpu for task in tasks), sum(task.request.mem for task in tasks)
    found: list[MoreQuota] = []
    for line in session.queues.chain(job.head.queue):
        if line.short_of(milli, cpu, mem):
            lacks = (
                _lacks(line.milli + line.taken_milli, milli, line.limit_gpu),
                _lacks(line.cpu + line.taken_cpu, cpu, line.limit_cpu),
                _lacks(line.mem + line.taken_mem, mem, line.limit_mem),
            )
            found.append(MoreQuota(line.path, *lacks))
    return tuple(found)


def _lacks(used: int, asked: int, limit: int | None) -> int:
    return 0 if limit is None or not asked else max(0, used + asked - limit)


def _more_nodes(session: Session, tasks: list[Task]) -> Iterator[MoreNodes]:
    """Per shape of nodes the fewest, with what fits now placed where it fits."""
    if any((task.topology is not None and task.topology.required) or _by_name(task) for task in tasks):
        return
    statement = session.statement()
    left: list[Task] = []
    for task in tasks:
        row = session.feasible(task).best()
        state = session.snapshot.states[row] if row >= 0 else None
        charge = None if state is None else state.charge(session.feasible(task).ask, session.choose)
        if charge is None:
            left.append(task)
        else:
            statement.take(row, charge, (), session.resident(task, row))
    statement.rollback()
    views = {id(task): session.feasible(task) for task in left}
    shapes: dict[tuple[int, bool], list[NodeState]] = {}
    for state in session.snapshot.states:
        if state is not None:
            suits = all(view.codes[state.row] in _PASSING for view in views.values())
            shapes.setdefault((state.kind, suits), []).append(state)
    common = sorted(shapes.items(), key=lambda item: (-len(item[1]), item[1][0].name))
    for (_, suits), states in common[:SHAPES]:
        like = min(states, key=lambda s: s.name)
        count = _nodes_for([views[id(task)].ask for task in left], like) if suits else 0
        if count:
            model = like.models[like.index[0]] if like.index else ""
            yield MoreNodes(count, like.name, like.devices, model)


def _by_name(task: Task) -> bool:
    """Whether it asks for nodes by their names: a new one has another."""
    terms = (task.rules.node if task.rules is not None else None) or ()
    named = any(term.fields or any(part.key == HOST for part in term.labels) for term in terms)
    return named or HOST in task.node_selector


def _nodes_for(asks: list[Ask], like: NodeState) -> int:
    """How many empty nodes like this take all of the tasks; 0: none do."""
    fresh: list[NodeState] = []
    last: Ask | None = None
    at = 0
    for ask in asks:
        at = at if ask is last else 0  # where the one before did not fit, its like does not either
        last = ask
        while True:
            if at == len(fresh):
                if at == MOST_NODES:
                    return 0
                fresh.append(_empty(like))
                charge = fresh[at].charge(ask)
                if charge is None:
                    return 0
            else:
                charge = fresh[at].charge(ask)
            if charge is not None:
                fresh[at].take(charge)
                break
            at += 1
    return len(fresh)


def _empty(like: NodeState) -> NodeState:
    return NodeState(-1, like.node, None)


def _smaller(session: Session, job: PendingJob) -> Iterator[SmallerRequest]:
    gpu = max((task.request.gpu for task in job.tasks), key=lambda g: (g.count, g.milli, g.mib))
    cpu = max(task.request.cpu for task in job.tasks)
    mem = max(task.request.mem for task in job.tasks)

    def sized(side: str, amount: int) -> PendingJob:
        def change(request: Request) -> Request:
            asked = request.gpu
            if side == "gpus":
                asked = msgspec.structs.replace(asked, count=min(asked.count, amount))
            elif side == "gpu-milli" and asked.milli:
                asked = msgspec.structs.replace(asked, milli=min(asked.milli, amount))
            elif side == "gpu-mib" and asked.mib:
                asked = msgspec.structs.replace(asked, mib=min(asked.mib, amount))
            elif side == "cpu":
                return msgspec.structs.replace(request, cpu=min(request.cpu, amount))
            elif side == "mem":
                return msgspec.structs.replace(request, mem=min(request.mem, amount))
            return msgspec.structs.replace(request, gpu=asked)

        return _asking(job, change)

    sides = [("gpus", gpu.count)] if gpu.count > 1 else []
    sides += [("gpu-milli", gpu.milli)] if gpu.milli else []
    sides += [("gpu-mib", gpu.mib)] if gpu.mib and not gpu.milli else []
    for side, asked in [*sides, ("cpu", cpu), ("mem", mem)]:
        most = _most(asked, lambda amount, side=side: _fits(session, sized(side, amount)))  # type: ignore[misc]
        if most:
            yield SmallerRequest(side, most, asked)
    head = job.head
    need = gang.minimum(job)
    if need.together and not need.roles and not head.role_min:
        ordered = gang.order(list(job.tasks), need)

        def shrunk(count: int) -> PendingJob:
            smaller = msgspec.structs.replace(head, gang_min=job.held + count)
            return msgspec.structs.replace(job, head=smaller, tasks=tuple(ordered[-count:]))

        most = _most(need.total, lambda count: _fits(session, shrunk(count)))
        if most:
            yield SmallerRequest("tasks", most, need.total)


def _most(asked: int, fits: Callable[[int], bool]) -> int:
    """The largest amount below `asked` that fits, to three leading digits; 0 where not even one does."""
    if asked <= 1 or not fits(1):
        return 0
    low, high = 1, asked
    step = max(1, 10 ** (len(str(asked)) - 3))
    while high - low > step:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low if low < step else low // step * step


def _fewer_wishes(session: Session, job: PendingJob) -> Iterator[FewerWishes]:
    def changed(change: Callable[[Task], Task]) -> PendingJob:
        return msgspec.structs.replace(job, tasks=tuple(map(change, job.tasks)))

    def tried(wish: FewerWishes, change: Callable[[Task], Task]) -> Iterator[FewerWishes]:
        if _fits(session, changed(change)):
            yield wish

    for key in sorted({key for task in job.tasks for key in task.node_selector}):
        yield from tried(
            FewerWishes("selector", key),
            lambda task, key=key: msgspec.structs.replace(  # type: ignore[misc]
                task, node_selector={k: v for k, v in task.node_selector.items() if k != key}
            ),
        )
    taints = {taint for some in session.snapshot.taint_sets for taint in some if taint.effect != "PreferNoSchedule"}
    for taint in sorted(taints, key=lambda t: (t.key, t.value, t.effect)):
        if taint.key.startswith(("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")):
            continue
        extra = Toleration(taint.key, "Equal", taint.value, taint.effect)
        yield from tried(
            FewerWishes("toleration", f"{taint.key}={taint.value}:{taint.effect}"),
            lambda task, extra=extra: msgspec.structs.replace(  # type: ignore[misc]
                task, tolerations=(*task.tolerations, extra)
            ),
        )
    if any(task.rules is not None and task.rules.node is not None for task in job.tasks):
        yield from tried(
            FewerWishes("affinity"),
            lambda task: (
                task
                if task.rules is None
                else msgspec.structs.replace(task, rules=msgspec.structs.replace(task.rules, node=None))
            ),
        )
    if any(task.request.gpu.models for task in job.tasks):
        any_model = _asking(
            job, lambda r: msgspec.structs.replace(r, gpu=msgspec.structs.replace(r.gpu, models=()))
        )  # fmt: skip
        if _fits(session, any_model):
            yield FewerWishes("models")
