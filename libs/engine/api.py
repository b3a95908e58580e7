"""What callers of the engine see: pending jobs in, decisions out. Services, embedded mode and simulator share it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from libs.domain.jobs import JobHead, Task, Wishes
from libs.domain.nodes import Node
from libs.domain.plans import Victim
from libs.domain.queues import Queue, QueueHistory
from libs.domain.resources import Charge, Request
from libs.domain.rules import HostPort, PodTerm
from libs.domain.topology import LEVELS, Level, Topology
from libs.domain.usage import NodeUse, QueueUse
from libs.domain.verdicts import Verdict
from libs.domain.volumes import Claim
from libs.engine.fair.ask import Place
from libs.engine.fair.little import LittleService
from libs.engine.fair.shares import Shares
from libs.engine.precision.table import GpuModel

if TYPE_CHECKING:
    from libs.engine.loans import Loans
    from libs.engine.mix import MixState


class PendingJob(msgspec.Struct, frozen=True):
    """A job with tasks to place. `held` counts its tasks that are bound or claimed already (they count towards the
    gang's minimum). `evicting`: victims of an earlier decision are still leaving; do not evict more. `held_roles`
    divides `held` among roles where the job has minima per role; without it the missing tasks of a role are all those
    pending. `holds` are ids of held tasks, for jobs that wish to be near each other: those not seen running yet are
    where `assume` said. Room gathers for it as `kept` says (node, charge), and it was to start at `kept_until` at the
    soonest (seconds since the epoch, 0: unknown); `lent` is what is on loan from its queue."""

    head: JobHead
    tasks: tuple[Task, ...]
    held: int = 0
    evicting: bool = False
    may_evict: bool = True
    held_roles: dict[str, int] = {}
    holds: tuple[str, ...] = ()
    kept: tuple[tuple[str, Charge], ...] = ()
    kept_until: float = 0.0
    lent: Loans | None = None


class RunningTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod that holds room: what preemption chooses from. `ours` False is never evicted. `gang_held`/`gang_min` come
    from counting its job's running tasks in the snapshot. `marked`: it makes room for somebody already."""

    uid: str
    name: str
    namespace: str
    node: str
    job: str
    queue: str
    priority: int
    charge: Charge
    ours: bool
    gang_min: int = 1
    guarded: bool = False
    terminating: bool = False
    started: float = 0.0
    marked: bool = False
    #: What rules of other pods speak of: labels, and what the pod holds of its node or keeps others away by.
    labels: dict[str, str] = {}
    extra: tuple[tuple[str, int], ...] = ()
    ports: tuple[HostPort, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    claims: tuple[str, ...] = ()
    #: The id that its task had, where that is not the pod's uid.
    task: str = ""
    #: As of `JobHead`.
    preemptible: bool = True
    expected_s: int = 0
    checkpoint_s: int = 0
    workload: str = ""
    #: What it asks of a node, where it comes again by itself when it is evicted; None: it is never moved.
    wishes: Wishes | None = None
    #: As of `Task`: where it runs decides where the missing ones of a broken gang may.
    topology: Topology | None = None
    #: When its work was saved last, as it said itself; seconds since the epoch, 0: it said nothing.
    saved: float = 0.0


class Placement(msgspec.Struct, frozen=True, gc=False):
    """One task on one node, with the node's spec digest that was seen."""

    task: Task
    node: str
    node_spec: str
    charge: Charge


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome for one job. Verdict Fits: `placements` are to be committed (some tasks may stay pending where the
    job is no gang; `leftover` then says why the first of those does not fit). With `victims`, `placements` are what
    the freed room is earmarked for."""

    job: str
    verdict: Verdict
    placements: tuple[Placement, ...] = ()
    victims: tuple[Victim, ...] = ()
    leftover: Verdict | None = None
    #: Why the victims yield: "priority", or "consolidate" where each has another place to go to.
    rule: str = "priority"


@dataclass(frozen=True, slots=True)
class Start:
    """When a job can start, seconds since the epoch, between `low` and `high`; 0 where nobody knows. `basis` says from
    what that follows."""

    at: float = 0.0
    low: float = 0.0
    high: float = 0.0
    basis: str = "unknown run times"


@dataclass(frozen=True, slots=True)
class Reserved:
    """Where a job is to start, on room that is there or comes free by itself. `yielding`: nobody declared when that is,
    and all who are in the way save their work, so that they yield to the job once it has waited too long."""

    placements: tuple[Placement, ...]
    start: Start
    yielding: bool = False


@dataclass(frozen=True, slots=True)
class Borrowing:
    """Of one task that may be evicted when the room is needed: it `saves` its work, so that this costs little; as those
    before it ran it ends within `runs_s` seconds, in nine of ten cases (0: nobody knows)."""

    saves: bool
    runs_s: float


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`weights` are policy name -> weight. `candidates` > 1 draws among that many best nodes (for replicas that
    contend), with a generator seeded by `seed`. `typical` replaces the mix of tasks that policies learn by a fixed one:
    requests, and how often they come. Without `explain` a refusal says only that nothing fits. `levels` are the kinds
    of topology domains, widest first. `gpu_models` stand before the entries of the table of what GPUs compute.
    With `consolidate` running tasks are moved where that lets a job in, each only after it has run for
    `consolidate_after_s`."""

    weights: dict[str, int] = field(default_factory=lambda: {"drystone": 1, "precision": 1})
    candidates: int = 1
    seed: int = 0
    typical: tuple[tuple[Request, int], ...] = ()
    explain: bool = True
    consolidate: bool = False
    #: Into how many parts the learned mix is divided by job key, so that replicas can each learn some.
    mix_slots: int = 1
    consolidate_after_s: float = 600.0
    #: Knobs, 0 to 100, of the order between queues (see `fair.shares`). A job that has waited `overdue_s` is the first
    #: of its queue.
    fairness: int = 100
    history: int = 0
    overdue_s: float = 129_600.0
    #: Who has had little goes first, and who has had much yields; None: attained service counts for nothing. Of it,
    #: `overdue_s` is the one above.
    little: LittleService | None = None
    levels: tuple[Level, ...] = LEVELS
    gpu_models: tuple[GpuModel, ...] = ()


class Engine(Protocol):
    """Holds a snapshot and decides. All methods are synchronous and bounded by the size of what they are given."""

    def node_seen(self, node: Node) -> None: ...

    def node_gone(self, name: str) -> None: ...

    def use_seen(self, use: NodeUse) -> bool:
        """Apply if newer; whether it was. May precede the node."""
        ...

    def queue_seen(self, queue: Queue) -> None: ...

    def queue_gone(self, path: str) -> None: ...

    def queue_use_seen(self, use: QueueUse) -> None: ...

    def queue_history_seen(self, history: QueueHistory) -> None: ...

    def pod_seen(self, task: RunningTask) -> None: ...

    def pod_gone(self, uid: str) -> None: ...

    def namespace_seen(self, name: str, labels: Mapping[str, str]) -> None:
        """Labels that namespace selectors of pod affinity select on."""
        ...

    def namespace_gone(self, name: str) -> None: ...

    def claim_seen(self, claim: Claim) -> None: ...

    def claim_gone(self, namespace: str, name: str) -> None: ...

    def volume_limits(self, node: str, limits: Mapping[str, int]) -> None:
        """How many volumes of each driver a node attaches; a driver that is not named has no limit."""
        ...

    def begin_at(self, share: float) -> None:
        """Of a node's idle devices, those after this share of them (0 to 1) are given out first. Replicas that begin
        apart are not in each other's way on the same node."""
        ...

    def assume(self, task: Task, node: str) -> None:
        """The task's claim was accepted: rules of other pods see it on the node until its pod is seen, until `forget`,
        or until it is decided again."""
        ...

    def forget(self, task: str) -> None:
        """The task with this id was not placed after all."""
        ...

    def assumed(self) -> frozenset[str]:
        """Ids of the tasks that are assumed."""
        ...

    def scope_of(self, task: Task) -> Hashable:
        """What makes tasks of equal wishes differ in what placement rules say of them; None where no rule does."""
        ...

    def decide(self, jobs: list[PendingJob], now: float = 0.0) -> list[Decision]:
        """Decide in the order of the line over the queues (see `fair.line`; within a queue by priority, age, key),
        whatever order the jobs are given in, later ones seeing what earlier ones took. What was
        taken stays in the snapshot as tentative until `settle`. `now` (seconds since the epoch; 0: unknown) tells how
        long pods have run."""
        ...

    def reserve(self, job: PendingJob, now: float) -> Reserved | None:
        """Where a job that fits nowhere can start soonest with nobody evicted; None where nothing would help."""
        ...

    def backfill(self, job: PendingJob, lenders: Sequence[str], now: float) -> tuple[Placement, ...]:
        """Where a job that fits nowhere fits into room that is kept for the `lenders` (job keys); none where it does
        not. Whether they lend it is the ledger's to say: until `settle` only the next that borrows sees it as taken."""
        ...

    def borrows(self, job: PendingJob, now: float) -> Borrowing | None:
        """On what terms a job that waits may be on room that is kept for others; None where nobody could make it leave
        again."""
        ...

    def in_turn(self, jobs: Sequence[PendingJob], now: float) -> list[Reserved | None]:
        """As `reserve`, of jobs one behind the other, each beside what those before it found; up to the first that
        finds nothing."""
        ...

    def longest_left(self, now: float, *, gpus: bool = True, declared: bool = False) -> float | None:
        """The most seconds that any running task has left, where declared or earlier run times tell of all (`declared`:
        where all declared it); else None. Nothing enforces either. With `gpus` only of those that have some: others are
        not waited for by who asks for GPUs."""
        ...

    def owed(self, jobs: Sequence[PendingJob], now: float) -> str:
        """Of jobs of one queue, one behind the other: empty where the minima of all of them fit into free room and what
        queues above their shares have to give back now; else why that is not certain."""
        ...

    def kept(self) -> Mapping[str, frozenset[str]]:
        """Job key -> nodes on which room is kept for it."""
        ...

    def place(self, head: JobHead, now: float, gpus: float = 0.0) -> Place:
        """Where a job that waits stands within its queue; `gpus` is all that it asks for."""
        ...

    def line_seen(self, gpus: float, waits: Callable[[str], bool], now: float) -> set[str]:
        """All who wait ask for so many GPUs; `waits` knows them by job key. Whose place changed since without their
        doing."""
        ...

    @property
    def shares(self) -> Shares:
        """Where queues stand, by what the ledger says is used."""
        ...

    def keeps(self, workload: str) -> bool:
        """Whether room is kept for a task of this workload, which was moved and is to come again."""
        ...

    def learned(self, slot: int = 0) -> MixState:
        """One slot of the typical mix, to be kept over a restart or given to another replica."""
        ...

    def counted(self, slot: int = 0) -> int:
        """How many tasks that slot has seen: whether `learned`, which costs microseconds per shape, has news."""
        ...

    def recall(self, state: MixState, slot: int = 0) -> None:
        """Take over a slot of a mix that was kept, in place of what the slot has."""
        ...

    def helps(self, job: PendingJob, now: float = 0.0) -> tuple[str, ...]:
        """What would change the answer for a job that waits, in words. Between passes only: it ends with `settle`."""
        ...

    def settle(self) -> None:
        """Forget what `decide` took tentatively: the ledger's answers (`use_seen`) are the truth now."""
        ...
