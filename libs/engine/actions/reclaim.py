"""Reclaim: a queue has back what it deserves, from queues that use more than they deserve, whatever the priorities.

What is taken is the least work lost; see `rights` for how much of a queue may be taken, and why it does not come back
at the cost of who took it.
"""

from __future__ import annotations

from libs.engine.actions.room import RECLAIM, make_room
from libs.engine.api import Decision, PendingJob
from libs.engine.session import Session


def reclaim(session: Session, job: PendingJob, refused: Decision | None) -> Decision:
    if refused is None:
        return Decision(job.head.key, session.fits)
    return make_room(session, job, refused, RECLAIM) or refused
