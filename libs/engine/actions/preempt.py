"""Preempt: lower-priority tasks yield to a job that fits in no other way, the lowest priority first.

The last resort, so this is also where a job that nobody may yield to hears what protects the others, and until when.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from libs.domain.verdicts import Verdict
from libs.engine import explain, gang
from libs.engine.actions.protect import Shield, protection, told, words
from libs.engine.actions.rights import Right, Rights
from libs.engine.actions.room import PRIORITY, least_of, make_room, may_ask, rights_of, room_helps, wanted
from libs.engine.actions.victims import elastic
from libs.engine.api import Decision, PendingJob
from libs.engine.feasible import Feasibility
from libs.engine.session import Session

_ANY: Final = frozenset({Right.PRIORITY, Right.RECLAIM})


def preempt(session: Session, job: PendingJob, refused: Decision | None) -> Decision:
    head = job.head
    if refused is None:
        return Decision(head.key, session.fits)
    if job.evicting and room_helps(refused.verdict):
        return Decision(head.key, explain.still_evicting(refused.verdict))
    found = make_room(session, job, refused, PRIORITY)
    if found is not None:
        return found
    if not may_ask(job, refused):
        return refused
    verdict = _with_protection(session, job, refused.verdict)
    return refused if verdict is refused.verdict else Decision(head.key, verdict)


def _with_protection(session: Session, job: PendingJob, verdict: Verdict) -> Verdict:
    """What is said to the job, and when it is decided anew: with the pods that might yield and are protected."""
    need = gang.minimum(job)
    tasks = wanted(job, need)
    if not tasks:
        return verdict
    rights = rights_of(session, job, least_of(session, tasks, need))
    if not rights.any(_ANY):
        return verdict
    view = session.feasible(tasks[0])
    key = ("protected", view, job.head.queue, job.head.priority, rights.asked)
    found: tuple[str, float] | None = session.memo.get(key)
    if found is None:
        found = session.memo[key] = _protected(session, rights, view)
    return told(verdict, *found)


def _protected(session: Session, rights: Rights, view: Feasibility) -> tuple[str, float]:
    """In words, and until when the first of them is; empty where none is protected."""
    guard = protection(session)
    counts: Counter[Shield] = Counter()
    until: dict[Shield, float] = {}
    for name, pods in session.running.by_node.items():
        row = session.snapshot.rows.get(name)
        if row is None or view.codes[row]:
            continue
        for task in pods.values():
            if not task.ours or not session.running.stays(task) or rights.of(task) is Right.NONE:
                continue
            kept = guard.of(task) or (guard.starting(task) if elastic(task) else None)
            if kept is not None:
                counts[kept.shield] += 1
                if kept.until:
                    until[kept.shield] = min(kept.until, until.get(kept.shield, kept.until))
    return words(counts, until), min(until.values(), default=0.0)
