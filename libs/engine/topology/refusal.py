"""Why a job finds no domains, in words: which part of it, which domain comes closest, and how short that is."""

from __future__ import annotations

import numpy as np

from libs.domain.jobs import Task
from libs.domain.topology import level_of
from libs.domain.verdicts import Kind, Reason, Verdict, Wake
from libs.engine import explain, gang
from libs.engine.columns import Ints
from libs.engine.feasible import Feasibility
from libs.engine.session import Session
from libs.engine.topology.parts import Part
from libs.engine.topology.seating import Seating

_NOW = (*explain.ROOM, Wake.NODE_CHANGED)


def refusal(session: Session, seating: Seating, ordered: list[Task], need: gang.Minimum) -> Verdict:
    """Never only where no domain could take it, were it empty, ready and open; of parts with members somewhere already
    it is never said."""
    root = seating.root
    if seating.quota is not None:
        return seating.quota
    if not session.config.explain:
        return explain.UNEXPLAINED
    never = gang.room_never(session, ordered, need)
    if never is not None:
        return never
    missing = len(ordered) - need.total if need.together else len(ordered) - 1
    for part in root.all():
        if part.near.required:
            said = _never(session, part, missing)
            if said is not None:
                return said
    failed = [part for part in root.all() if part.near.required and part in seating.most]
    if session.feasible(ordered[0]).now().max(initial=-1) < 0:
        return _plain(session, ordered, need)
    if not failed:  # no domain was even looked at: members are in none
        failed = [part for part in root.all() if part.near.required]
    # What is within another part was only tried in domains that would do for that one.
    return _not_now(session, failed[-1], seating, missing)


def _plain(session: Session, ordered: list[Task], need: gang.Minimum) -> Verdict:
    """No node at all takes the first task, or nothing is known of domains."""
    task = ordered[0]
    first = session.refusal(session.feasible(task), task)
    return explain.gang_room(0, need.total, first) if need.together else first


def _not_now(session: Session, part: Part, seating: Seating, missing: int) -> Verdict:
    level = level_of(session.domains.levels, part.near.required)
    tasks = list(part.tasks())
    placed, name = seating.most.get(part, (0, f"no {level.name} domain"))
    partition = session.domains.of(level)
    wanted = max(len(tasks) - missing, 1)
    if placed >= wanted:
        text = f"no choice of {level.name} domains was found that takes all parts of the job at once"
    elif part.held:
        text = f"{name}, where others of {part.name} are, has room for {placed} of {wanted} tasks"
    else:
        text = f"{name} has room for {placed} of {wanted} tasks"
        if len(partition) > 1:
            text += f", none of {len(partition)} has more"
    text = f"{part.name} must share a {level.name} domain: {text}"
    helps = (f"room for {max(wanted - placed, 1)} more tasks in {name}",)
    view = session.feasible(tasks[0])
    nodes: dict[str, int] = {}
    wakes: tuple[Wake, ...] = _NOW
    if int(view.codes_now()[session.snapshot.alive].max(initial=0)) > 0:  # some nodes would not take even one
        first = session.refusal(view, tasks[0])
        nodes, wakes = first.nodes, tuple(dict.fromkeys((*_NOW, *first.wakes_on)))
    elif view.ruled:
        wakes = (*_NOW, Wake.PODS_CHANGED)
    return Verdict(
        Kind.NOT_NOW,
        Reason.DOMAIN_ROOM,
        f"{text}; helps: {helps[0]}",
        nodes,
        wakes,
        view.more_nodes_help(),
        helps,
        tasks[0].name,
    )


def _never(session: Session, part: Part, missing: int) -> Verdict | None:
    """No domain could take enough of the part even if it were empty. `missing` tasks of the job may stay behind."""
    tasks = list(part.tasks())
    wanted = max(len(tasks) - missing, 1)
    level = level_of(session.domains.levels, part.near.required)
    partition = session.domains.of(level)
    task = tasks[0].name if tasks else ""
    if not tasks or (part.held and len(partition)):
        return None
    if not len(partition):
        helps: tuple[str, ...] = (f"nodes labelled with {level.label}",)
        text = f"no node says its {level.name} domain; helps: {helps[0]}"
        return Verdict(Kind.NEVER, Reason.TOPOLOGY, text, {}, explain.FACTS, True, helps, task)
    takes = _empty(session, tasks, partition.codes, len(partition))
    best = int(takes.argmax())
    most = int(takes[best])
    if most >= wanted:
        return None
    helps = (f"nodes for {wanted - most} more tasks in one {level.name} domain", "a smaller gang")
    text = (
        f"{part.name} must share a {level.name} domain: even empty, {partition.names[best]}, the largest of "
        f"{len(partition)}, takes {most} of {wanted} tasks; helps: {', '.join(helps)}"
    )
    return Verdict(Kind.NEVER, Reason.DOMAIN_ROOM, text, {}, explain.FACTS, True, helps, task)


def _empty(session: Session, tasks: list[Task], codes: Ints, count: int) -> Ints:
    """An upper bound of how many of the tasks each domain would take if it were empty."""
    views: dict[Feasibility, int] = {}
    for task in tasks:
        view = session.feasible(task)
        views[view] = views.get(view, 0) + 1
    takes = np.zeros(count, np.int64)
    rows = np.flatnonzero(codes >= 0)
    for view, alike in views.items():
        slots = np.minimum(view.slots()[rows], alike)
        takes += np.minimum(np.bincount(codes[rows], slots, count).astype(np.int64), alike)
    if len(views) > 1:
        columns = session.snapshot.columns()
        for asked, held in (
            (sum(t.request.gpu_milli for t in tasks), columns.gpu_cap),
            (sum(t.request.cpu for t in tasks), columns.cap_cpu),
            (sum(t.request.mem for t in tasks), columns.cap_mem),
        ):
            if asked:
                short = np.bincount(codes[rows], held[rows], count).astype(np.int64) < asked
                takes = np.where(short, np.minimum(takes, len(tasks) - 1), takes)
    return takes
