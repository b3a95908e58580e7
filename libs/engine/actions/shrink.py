"""Shrink: elastic jobs that run with more tasks than they need give these up, one by one, before anybody is evicted."""

from __future__ import annotations

from libs.engine.actions.room import SHRINK, make_room
from libs.engine.api import Decision, PendingJob
from libs.engine.session import Session


def shrink(session: Session, job: PendingJob, refused: Decision | None) -> Decision:
    if refused is None:
        return Decision(job.head.key, session.fits)
    return make_room(session, job, refused, SHRINK) or refused
