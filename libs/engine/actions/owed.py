"""What a queue is owed: whether its first jobs fit into what others have to give back now.

Proven as evictions are: every task is placed, with all filters, into the room of pods that may be reclaimed together.
Whatever may stay, stays: pods that are not preemptible, or not ours, that have a disruption budget, whose workload was
evicted often enough, or that have a least run time to go, since others may start in the meantime. Nothing is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from libs.domain.jobs import Task
from libs.engine import gang
from libs.engine.actions.protect import Shield, protection
from libs.engine.actions.rights import Right, Rights
from libs.engine.actions.room import Attempt, Rule, least_of, rights_of, wanted
from libs.engine.api import PendingJob, RunningTask
from libs.engine.session import Session
from libs.engine.topology.parts import demanding

#: Its searches are told from those of the actions by the name.
OWED: Final = Rule("owed", frozenset({Right.RECLAIM}))

#: Why pods of others stay, in the order in which it is said.
_WORDS: Final = {
    Shield.NOT_PREEMPTIBLE: "are not preemptible",
    Shield.MIN_RUN: "have a least run time to go",
    Shield.EVICTIONS: "were evicted often enough",
    "budget": "have a disruption budget",
    "ours": "are not placed by us",
}


def owed(session: Session, jobs: Sequence[PendingJob]) -> str:
    """Of jobs of one queue, that stand one behind the other: empty where the minima of all of them fit, else why that
    is not certain."""
    tasks: list[Task] = []
    for job in jobs:
        need = gang.minimum(job)
        door = gang.door(job, need)
        if door.refused is not None or not door.usable:
            return "it may not start yet, or one before it"
        least = wanted(job, need)[: need.total]
        if not least or not job.head.preempts:
            return "nobody is evicted for it, or for one before it"
        tasks += least
    if demanding(tasks):
        return "it demands domains of a topology, or one before it"
    together = gang.Minimum(len(tasks), {})
    rights = rights_of(session, jobs[0], least_of(session, tasks, together))
    if not rights.claims:
        return "its queue may claim back nothing that it asks for"
    if _Claim(session, jobs[0], together, tasks, OWED, rights).fits():
        return ""
    why = {reason for task in session.running.by_uid.values() if (reason := _stays(session, rights, task))}
    if not why:
        return "what others have to give back is no room for it"
    return "pods in the way " + " or ".join(words for reason, words in _WORDS.items() if reason in why)


class _Claim(Attempt):
    def fits(self) -> bool:
        statement = self._session.statement()
        try:
            found = self._first(statement)
            victims = [t for unit in found.units for t in unit.tasks] if found is not None else []
            return found is not None and self._rights.confirmed(found.placements, victims)
        finally:
            statement.rollback()

    def may(self, task: RunningTask) -> bool:
        session, rights = self._session, self._rights
        if not session.running.stays(task) or rights.of(task) is not Right.RECLAIM:
            return False
        return not _stays(session, rights, task)


def _stays(session: Session, rights: Rights, task: RunningTask) -> str:
    """Why a pod that could be claimed stays, whoever waits for it; empty where it does not."""
    if rights.of(task) is not Right.RECLAIM:
        return ""
    if not task.ours:
        return "ours"
    if task.guarded:
        return "budget"
    kept = protection(session).of(task)
    return kept.shield if kept is not None else ""
