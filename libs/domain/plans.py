"""Plans: what placement decided for one job, with what it was decided against."""

from __future__ import annotations

import msgspec

from libs.domain.resources import Charge


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One task to one node. `claim` is unique for ever: a late write under an old claim finds itself refused.

    `node_spec` is the node's digest that the decision saw. `version` is the pod's resourceVersion (empty: to create).
    """

    claim: str
    task: str
    name: str
    node: str
    node_spec: str
    charge: Charge
    version: str = ""
    create: bool = False
    role: str = ""
    index: int = 0
    #: Volume claims of the task that wait for first use: they are bound for this node before the task is.
    claims: tuple[str, ...] = ()


class Victim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A running task that yields. `uid` is its precondition; `guarded` says that a PodDisruptionBudget selects it. Its
    queue has it told `notice_s` seconds before it goes."""

    uid: str
    name: str
    namespace: str
    node: str
    job: str
    priority: int
    guarded: bool = False
    notice_s: int = 0


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Assignments of one job. With `gang` the ledger takes all of them or none. `together`: the job holds together, so
    none of it yields to others while a plan of it is being carried out.

    `partition`, `epoch` and `generation` are fences: a plan of an owner that lost its partition, or of a ledger that
    was rebuilt since, is refused. `cause` is the id of the event that led here.
    """

    id: str
    job: str
    job_uid: str
    namespace: str
    queue: str
    partition: int
    epoch: int
    generation: int
    gang: bool
    assignments: tuple[Assignment, ...]
    cause: str = ""
    priority: int = 0
    tenant: str = ""
    attempt: int = 0
    traceparent: str = ""
    #: Above 0: its tasks end within so many seconds, as declared: they may be lent room that gathers for who starts
    #: later.
    ends_s: int = 0
    together: bool = False
    #: Its tasks yield to whoever room gathers for as soon as that one lacks no other: they may be lent such room.
    yields: bool = False


class EvictionPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Victims that make room for `assignments` of a waiting job. The commit marks the victims and creates one earmark
    per assignment (its charge on its node), so that the room belongs to the beneficiary from the first moment. Without
    assignments the victims are on room that gathers for the job already, and that goes back to it."""

    id: str
    job: str
    job_uid: str
    namespace: str
    queue: str
    partition: int
    epoch: int
    generation: int
    priority: int
    victims: tuple[Victim, ...]
    assignments: tuple[Assignment, ...]
    rule: str = "priority"
    cause: str = ""
    tenant: str = ""
    #: Above 0: nobody is evicted; the earmarks gather room as it comes free, for that many seconds at most. A queue has
    #: one such gatherer, the one of the lesser `place` in its line.
    gather_s: int = 0
    #: Of a gatherer: it starts in so many seconds at the soonest; 0: not known. `since`: when it was decided, seconds
    #: since the epoch: who starts on its devices later is there on loan.
    start_s: int = 0
    since: float = 0.0
    place: tuple[int, int, float, str] = (1, 0, 0.0, "")
    traceparent: str = ""
