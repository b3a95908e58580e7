"""The ledger's port. Every method is one call of a Redis Function, idempotent by task id and claim id.

A *charge* is what one task holds of one node (`libs.domain.resources.Charge`). Its holder is a claim (planned, then
writing), a bound task, or an earmark. Moving from one holder to the next never changes what the node has used: a claim
becomes a bound task in one call, a victim's room becomes an earmark in one call. Usage of nodes and of queues (with
every ancestor) changes only where a charge appears or ends.

Fences: every call carries the generation of the data set it speaks to; placement's calls carry the epoch of the
partition; the watcher's carry its term. A call with an older one is refused, never half done.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from libs.domain.nodes import Node
from libs.domain.plans import EvictionPlan, Plan
from libs.domain.queues import Queue
from libs.domain.resources import Charge
from libs.domain.usage import NodeUse, QueueUse


class Refusal(enum.StrEnum):
    """Why the ledger did not take a claim."""

    REBUILDING = "rebuilding"
    GENERATION = "generation"  # plan of an older data set
    EPOCH = "epoch"  # plan of an owner that lost its partition
    TOMBSTONE = "tombstone"  # the task has ended
    HELD = "held"  # another claim holds the task, or it is bound
    NODE_GONE = "node-gone"
    NODE_CHANGED = "node-changed"  # its spec digest differs from the one decided against
    CAPACITY = "capacity"
    BLIND = "blind"  # a foreign pod of unknown indices is there
    DISPUTED = "disputed"  # two pods were seen on one device
    QUOTA = "quota"
    EARMARKED = "earmarked"
    VICTIM_GONE = "victim-gone"
    VICTIM_MARKED = "victim-marked"  # it makes room for somebody else already
    VICTIM_STARTING = "victim-starting"  # others of its gang are being bound at this moment
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    FENCED = "fenced"  # resolver took the claim back
    GATHERING = "gathering"  # somebody before it in its queue gathers room
    GANG = "gang"  # nothing against this one, but another of its gang was refused


class TaskSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod seen bound (foreign pods too). `claim` is what its annotation names."""

    uid: str
    version: str
    node: str
    charge: Charge
    queue: str = ""
    job: str = ""
    claim: str = ""
    namespace: str = ""
    name: str = ""


class Committed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer for one plan. For a gang `taken` is all claims or none; else refused ones stand in `refused` by claim id.
    `fresh` has the present use of every node and queue that the plan named, taken or refused, so that the caller's view
    is as new as the answer."""

    plan: str
    taken: tuple[str, ...] = ()
    refused: dict[str, Refusal] = {}
    fresh: tuple[NodeUse, ...] = ()
    queues: tuple[QueueUse, ...] = ()
    #: The queue that was short, where the refusal is QUOTA.
    queue: str = ""


class Taken(msgspec.Struct, frozen=True):
    """Result of taking a partition: its new epoch and the plans with open claims, oldest first. Of each plan only the
    assignments whose claims are still open are left in `assignments`."""

    epoch: int
    planned: tuple[Plan, ...]
    writing: tuple[Plan, ...]
    evictions: tuple[EvictionPlan, ...]


class StreamBatch(msgspec.Struct, frozen=True):
    """Entries after a position. `lost` says that the stream was trimmed past the position: read a dump."""

    position: str
    nodes: tuple[NodeUse, ...] = ()
    queues: tuple[QueueUse, ...] = ()
    lost: bool = False


class Due(msgspec.Struct, frozen=True):
    """A claim past its deadline. Planned ones were freed by the call that returns this; `writing` ones need a
    resolver to read the pod."""

    claim: str
    state: str  # planned | writing | earmark
    plan: Plan | None = None
    task: str = ""


class DumpPage(msgspec.Struct, frozen=True):
    """One page of the whole ledger; `cursor` "" is the last page. `position` is the stream position before page one."""

    cursor: str
    position: str
    nodes: tuple[NodeUse, ...] = ()
    queues: tuple[QueueUse, ...] = ()


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """One charge, for `check` and `why`: who holds what where. `state`: planned | writing | bound | earmark."""

    id: str  # claim id, task uid or earmark id
    state: str
    node: str
    charge: Charge
    job: str = ""
    queue: str = ""
    task: str = ""
    #: Milli GPUs of it that its queue is charged by model.
    models: dict[str, int] = {}


class LedgerState(msgspec.Struct, frozen=True, omit_defaults=True):
    generation: int
    whole: bool
    term: int = 0


class Ledger(Protocol):
    async def open(self) -> LedgerState:
        """Load the function library, check `noeviction`, compare the run id. Raises LedgerMisconfigured."""
        ...

    async def close(self) -> None: ...

    async def state(self) -> LedgerState: ...

    # -- the watcher: reality ---------------------------------------------------------------------------------------
    async def begin_rebuild(self, term: int) -> LedgerState:
        """A new, empty generation in state rebuilding; all claims of older ones are dead."""
        ...

    async def whole(self, term: int) -> LedgerState:
        """The listed reality is loaded: commits are allowed from now on."""
        ...

    async def mark(self) -> int:
        """A sequence number; entries bound after it survive a `sweep` with it (rule for a list older than a bind)."""
        ...

    async def nodes_seen(self, nodes: Sequence[Node], term: int) -> None: ...

    async def nodes_gone(self, names: Sequence[str], term: int) -> None:
        """The nodes have zero room from now on; tasks charged to them stay charged."""
        ...

    async def tasks_seen(self, tasks: Sequence[TaskSeen], term: int) -> Sequence[str]:
        """Charge bound pods; a claim named on a pod is converted, never added beside. Returns uids found disputed."""
        ...

    async def tasks_gone(self, uids: Sequence[str], term: int) -> None:
        """Free, and remember as ended for an hour; a marked victim's room turns into its earmark in this call."""
        ...

    async def sweep(self, mark: int, listed: Sequence[str], term: int) -> Sequence[str]:
        """Free bound tasks that a consistent LIST did not show and that were bound before `mark`; returns their uids.
        Paged inside; no call is O(cluster)."""
        ...

    async def queues_seen(self, queues: Sequence[Queue], gone: Sequence[str], term: int) -> None: ...

    # -- placement --------------------------------------------------------------------------------------------------
    async def take(self, partition: int) -> Taken: ...

    async def commit(self, plans: Sequence[Plan]) -> Sequence[Committed]:
        """Check capacity, spec digests, limits, earmarks and fences, and charge: all of one plan in one step. An
        assignment that fits into its own job's earmarks uses and ends them."""
        ...

    async def commit_evictions(self, plans: Sequence[EvictionPlan]) -> Sequence[Committed]:
        """Mark the victims (one beneficiary each) and create the earmarks, all of a plan or nothing."""
        ...

    async def drop(self, job: str, claims: Sequence[str], generation: int) -> None:
        """Free planned claims and earmarks of a job that no longer wants them (cancelled, decided anew)."""
        ...

    # -- binder -----------------------------------------------------------------------------------------------------
    async def begin(self, plans: Sequence[Plan]) -> Sequence[Mapping[str, Refusal]]:
        """planned -> writing for all claims of each plan, all or none for a gang; returns refusals by claim id, per
        plan. A claim that is writing already is no refusal for the same plan (redelivery)."""
        ...

    async def confirm(self, claims: Mapping[str, str], generation: int) -> None:
        """writing -> bound, by claim id -> pod uid. Never inserts; an unknown claim is ignored (reality was seen
        first, or it ended)."""
        ...

    async def release(self, claims: Sequence[str], generation: int) -> None:
        """Free writing claims whose write cannot land any more."""
        ...

    async def writing(self, claims: Sequence[str]) -> frozenset[str]:
        """Those of the claims that are in state writing: for who stood still, or knows not what became of a write."""
        ...

    # -- preemptor --------------------------------------------------------------------------------------------------
    async def begin_evict(self, plan: EvictionPlan) -> Mapping[str, Refusal]:
        """Check that earmarks live and victims are still marked for this plan; refusals by victim uid ("" = plan)."""
        ...

    async def unmark(self, plan: str, uids: Sequence[str], generation: int) -> None:
        """Take back marks of victims that were finally refused, and the earmarks that relied on them."""
        ...

    # -- anybody ----------------------------------------------------------------------------------------------------
    async def expire(self, limit: int = 256) -> Sequence[Due]: ...

    async def tail(self, position: str, wait_s: float = 0.5) -> StreamBatch: ...

    async def dump(self, cursor: str = "") -> DumpPage: ...

    async def holders(self, cursor: str = "") -> tuple[str, Sequence[Holder]]:
        """One page of every charge; cursor "" ends."""
        ...


class LedgerUnavailable(Exception):
    """Redis did not answer in time. The effect is unknown; every function may be called again with the same ids."""


class LedgerMisconfigured(Exception):
    """The server cannot keep the ledger safely (maxmemory-policy, version). One sentence for the operator."""


class StaleGeneration(Exception):
    """The data set changed under us; the caller re-opens and starts from the new state."""
