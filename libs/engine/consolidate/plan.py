"""The fewest moves of running tasks that let a waiting job in.

Guarantees, for any snapshot: after the moves the job's minimum fits, with every filter and exact device indices, and so
does every moved task on the node that is named for it, all at once; only tasks that may move are moved (`movers`); a
gang that would fall below its minimum moves whole; no move can be left out; the same facts give the same plan; the
work is bounded by `Limits`, so that a plan is sometimes not found, or found with a move too many, but never late.

How: nodes are cleared in the order of what that takes, then what was cleared is placed elsewhere (`clear`); where few
moves may do, all ways are searched for a shorter plan, moves that make room for moves included (`exact`).

The session is left as it was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from libs.domain.jobs import Task
from libs.domain.resources import Charge
from libs.engine import gang
from libs.engine.api import PendingJob, Placement, RunningTask
from libs.engine.consolidate.board import Board, Exhausted, Landing, Solution, Work
from libs.engine.consolidate.clear import cleared
from libs.engine.consolidate.exact import shorter
from libs.engine.consolidate.movers import Movers
from libs.engine.consolidate.prune import pruned
from libs.engine.session import Session


@dataclass(frozen=True, slots=True)
class Limits:
    """`work`: how many looks at a node or a task one plan may take, 0.1 to 0.3 ms each. `searched`: up to so
    many moves a shorter plan is searched for; `search_work`: what that may take of it."""

    work: int = 12_000
    searched: int = 4
    search_work: int = 4_000


LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Move:
    """One running task: from its node to the one where it fits afterwards, with what it then holds there. Source and
    target are the same only where a gang moves whole."""

    pod: RunningTask
    target: str
    charge: Charge

    @property
    def source(self) -> str:
        return self.pod.node


@dataclass(frozen=True, slots=True)
class Moves:
    """A plan. `placements` is where the job's minimum goes afterwards. `lost`: GPU seconds of work that the moved tasks
    do again, where the time is known. `fewest`: proven that no plan has fewer moves, among those that `exact` knows."""

    moves: tuple[Move, ...]
    placements: tuple[Placement, ...]
    lost: float = 0.0
    fewest: bool = False


def plan_moves(
    session: Session, job: PendingJob, movers: Movers, limits: Limits = LIMITS, work: Work | None = None
) -> Moves | None:
    """None where no plan was found. A job that fits as it is gets a plan without moves. `work`, if given, tells
    afterwards what was done."""
    need = gang.minimum(job)
    door = gang.door(job, need)
    if door.refused is not None or not door.usable:
        return None
    chain = session.queues.chain(job.head.queue)
    tasks = least(gang.order(door.usable, need), need)
    if session.regions is None and any(task.topology is not None and task.topology.required for task in tasks):
        return None  # where they may lie together is for the caller to say
    if gang.quota_now(tasks, need, chain) is not None or _too_much(session, tasks):
        return None
    work = work if work is not None else Work(limits.work)
    board = Board(session, movers, tasks, chain, work)
    try:
        found, bound = cleared(board)
    except Exhausted:
        found, bound = None, 0
    fewest = found is not None and found.moves <= bound
    if not fewest:
        most = limits.searched if found is None else min(found.moves - 1, limits.searched)
        if most >= bound:
            better, complete = shorter(board, bound, most, work.part(limits.search_work))
            if better is not None:
                found, fewest = better, complete
            else:
                fewest = complete and found is not None and found.moves - 1 <= limits.searched
    if found is None:
        return None
    found = pruned(board, found)
    return _told(session, movers, found, fewest)


def least(ordered: list[Task], need: gang.Minimum) -> list[Task]:
    """The tasks of the minimum, or the first one of a job whose tasks stand alone."""
    if not need.together:
        return ordered[:1]
    kept: list[Task] = []
    for task in ordered:
        if need.met(kept):
            break
        kept.append(task)
    return kept


def _too_much(session: Session, tasks: list[Task]) -> bool:
    """Moves free nothing in sum: what is idle in all must suffice."""
    snapshot = session.snapshot
    if sum(task.request.gpu_milli for task in tasks) > snapshot.gpu_free:
        return True
    columns = snapshot.columns()
    return sum(task.request.cpu for task in tasks) > int(columns.cpu.clip(min=0).sum())


def _told(session: Session, movers: Movers, found: Solution, fewest: bool) -> Moves:
    states = session.snapshot.states

    def name(row: int) -> str:
        state = states[row]
        if state is None:
            raise LookupError(f"no node at row {row}")
        return state.name

    placements = tuple(session.placement(task, row, charge) for task, row, charge in found.placed)
    landings: list[Landing] = sorted(found.landed, key=lambda landing: (landing.pod.node, landing.pod.uid))
    moves = tuple(Move(pod, name(row), charge) for pod, row, charge in landings)
    return Moves(moves, placements, sum(movers.lost(move.pod) for move in moves), fewest)
