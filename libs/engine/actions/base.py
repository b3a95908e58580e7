"""The shape of an action."""

from __future__ import annotations

from typing import Protocol

from libs.engine.api import Decision, PendingJob
from libs.engine.session import Session


class Action(Protocol):
    def __call__(self, session: Session, job: PendingJob, refused: Decision | None) -> Decision:
        """Decide the job, or pass `refused` (what the actions before this one said) on. A decision with placements
        ends the line of actions; the action has then kept its statement in the session."""
        ...
