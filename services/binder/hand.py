"""What is in hand: plans that were taken and are not finished, and the writes that carry them out."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from libs.contracts.events import Landed, TaskOutcome
from libs.domain.plans import Assignment, Plan

if TYPE_CHECKING:
    from libs.bus.positions import InHand
    from libs.kube.trainingjobs import TrainingJobView


class PlanInHand:
    """A plan whose tasks land one by one. `records` are the messages it came with: a plan that is delivered again
    while it is in hand is not carried out again, its second message just waits for the same end."""

    __slots__ = ("job", "job_bytes", "left", "outcomes", "plan", "records", "taken_at")

    def __init__(self, plan: Plan, record: InHand | None, now: float) -> None:
        self.plan = plan
        self.records: list[InHand] = [] if record is None else [record]
        self.left = len(plan.assignments)
        self.outcomes: list[TaskOutcome] = []
        self.taken_at = now
        self.job: TrainingJobView | None = None  # of a plan whose tasks are created
        self.job_bytes = 0


class Stage(enum.Enum):
    """Where a write stands. Bound and refused ones leave; every other ends in one of these."""

    SEND = "send"
    LOOK = "look"  # read the pod
    FENCE = "fence"  # make a late write impossible, then let go
    SETTLE = "settle"  # wait until a create that nobody can fence cannot land any more, then read
    LANDED = "landed"


class Write:
    """One task of a plan on its way to the API server."""

    __slots__ = (
        "assignment",
        "begun_at",
        "claims_bound",
        "conflicts",
        "end",
        "give_up_at",
        "hand",
        "lasting",
        "same",
        "sent",
        "stage",
        "tries",
        "unsure_until",
        "version",
        "why",
    )

    def __init__(
        self, hand: PlanInHand, assignment: Assignment, now: float, give_up_s: float, stage: Stage = Stage.SEND
    ) -> None:
        self.hand = hand
        self.assignment = assignment
        self.version = assignment.version
        self.stage = stage
        self.begun_at = now
        self.give_up_at = now + give_up_s
        self.claims_bound = not assignment.claims
        self.sent = 0  # how often it was written
        self.conflicts = 0
        self.tries = 0  # pauses taken in a row, for the backoff
        self.unsure_until = 0.0  # until then a write that we stopped waiting for may still land
        self.end = Landed.REPLAN  # how it lands once it is fenced or settled
        self.why = ""
        self.lasting = False  # refused, and will be again
        self.same: list[Write] = []  # the same claim, asked for again: they land with it

    def abandon(self, landed: Landed, why: str) -> None:
        """The task will not be bound under this claim. First its late write has to become impossible, because another
        binder may have sent it, or ours may still be on its way."""
        self.end, self.why = landed, why
        self.tries = 0
        self.stage = Stage.SETTLE if self.assignment.create else Stage.FENCE


class Prepare:
    """The job object of a plan whose tasks are created has to be read before its first write."""

    __slots__ = ("give_up_at", "hand", "tries", "writes")

    def __init__(self, hand: PlanInHand, writes: list[Write], give_up_at: float) -> None:
        self.hand = hand
        self.writes = writes
        self.give_up_at = give_up_at
        self.tries = 0
