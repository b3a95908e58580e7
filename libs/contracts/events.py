"""Wire types of the internal topics.

Rules of evolution: new fields have defaults; names are never reused or retyped; unknown fields are ignored on read; a
breaking change is a new `type`. Several items of one partition travel in one record, because a record costs more than
an item (about 50 us against 2 us in Python); each item carries its own job key and cause.
"""

from __future__ import annotations

import enum
from typing import Final, get_args

import msgspec

from libs.domain.jobs import JobHead, Phase, Task, Wishes
from libs.domain.line import Turn
from libs.domain.nodes import Node
from libs.domain.plans import EvictionPlan, Plan
from libs.domain.queues import Eviction, Queue, QueueHistory
from libs.domain.resources import Charge
from libs.domain.rules import HostPort, PodTerm
from libs.domain.topology import Topology
from libs.domain.verdicts import Verdict
from libs.domain.volumes import Claim

# --- drystone.tasks: watcher -> placement -------------------------------------------------------------------------


class JobChanged(msgspec.Struct, frozen=True, omit_defaults=True, tag="job"):
    """A hint about one job: pending tasks that are new or changed, and ids of tasks that ended or were bound.

    `template` is set for a TrainingJob (tasks still to be created). Placement merges by task id and version and never
    trusts this to be complete: its slow pass lists the truth.
    """

    head: JobHead
    tasks: tuple[Task, ...] = ()
    bound: tuple[str, ...] = ()  # task ids now bound
    gone: tuple[str, ...] = ()  # task ids deleted, succeeded or failed
    cause: str = ""
    traceparent: str = ""
    deleted: bool = False  # the TrainingJob itself is being deleted
    #: Greatest resourceVersion of nodes and queues that the watcher had seen; Never is said only by a view as new.
    seen: str = ""


class TasksBatch(msgspec.Struct, frozen=True):
    items: tuple[JobChanged, ...]


# --- drystone.cluster: watcher -> placement, binder, preemptor ------------------------------------------------------


class NodeFact(msgspec.Struct, frozen=True, omit_defaults=True, tag="node"):
    node: Node
    term: int = 0


class PodFact(msgspec.Struct, frozen=True, omit_defaults=True, tag="pod"):
    """A pod that holds room on a node: bound and not ended. Terminating pods hold theirs."""

    uid: str
    name: str
    namespace: str
    version: str
    node: str
    charge: Charge
    job: str = ""  # job key, empty for a foreign pod
    queue: str = ""
    priority: int = 0
    labels: dict[str, str] = {}
    ours: bool = False  # schedulerName is ours
    terminating: bool = False
    term: int = 0
    #: "<role>/<index>/<attempt>" on pods that the binder created
    task: str = ""
    job_uid: str = ""
    gang_min: int = 1
    claim: str = ""
    started: float = 0.0  # when it was bound or created, seconds since the epoch
    phase: str = ""
    #: What rules of other pods meet: other resources and host ports held, required anti-affinity.
    extra: tuple[tuple[str, int], ...] = ()
    ports: tuple[HostPort, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    claims: tuple[str, ...] = ()
    #: As of `JobHead`.
    preemptible: bool = True
    expected_s: int = 0
    checkpoint_s: int = 0
    workload: str = ""
    #: Of a pod that comes again by itself when it is evicted, without harm; else None.
    wishes: Wishes | None = None
    #: As of `Task`: what it was to be near to.
    topology: Topology | None = None
    #: When its work was saved last, as it said itself; seconds since the epoch, 0: it said nothing.
    saved: float = 0.0


class PriorityClassFact(msgspec.Struct, frozen=True, omit_defaults=True, tag="priorityclass"):
    name: str
    value: int
    version: str
    default: bool = False
    preempts: bool = True
    term: int = 0


class PdbFact(msgspec.Struct, frozen=True, omit_defaults=True, tag="pdb"):
    """`match_labels` None: the selector uses expressions; every pod of the namespace then counts as guarded."""

    name: str
    namespace: str
    uid: str
    version: str
    match_labels: dict[str, str] | None = None
    allowed: int = 0
    term: int = 0


class QueueFact(msgspec.Struct, frozen=True, omit_defaults=True, tag="queue"):
    queue: Queue
    term: int = 0


class HistoryFact(msgspec.Struct, frozen=True, omit_defaults=True, tag="history"):
    """What a queue used over time and whom of it was evicted; told now and then by the leader."""

    history: QueueHistory
    term: int = 0


class NamespaceFact(msgspec.Struct, frozen=True, omit_defaults=True, tag="namespace"):
    """Labels of a namespace: what namespace selectors of pod affinity select on."""

    name: str
    version: str
    labels: dict[str, str] = {}
    term: int = 0


class ClaimFact(msgspec.Struct, frozen=True, omit_defaults=True, tag="claim"):
    claim: Claim
    version: str = ""
    term: int = 0


class AttachFact(msgspec.Struct, frozen=True, omit_defaults=True, tag="attach"):
    """How many volumes a node attaches, by CSI driver; a driver that is not named has no limit."""

    node: str
    limits: dict[str, int] = {}
    version: str = ""
    term: int = 0


ClusterFact = (
    NodeFact | PodFact | PriorityClassFact | PdbFact | QueueFact | HistoryFact | NamespaceFact | ClaimFact | AttachFact
)


_CLUSTER_KINDS: Final = frozenset(str(kind.__struct_config__.tag) for kind in get_args(ClusterFact))


def known_kind(key: str) -> bool:
    """Whether this release knows what stands under a key of `drystone.cluster`. A newer one may tell more: that is
    passed over and is no fault."""
    return key.partition("/")[0] in _CLUSTER_KINDS


def cluster_key(fact: ClusterFact) -> str:
    """Record key on `drystone.cluster`; a record without value under it says that the thing is gone."""
    match fact:
        case NodeFact():
            return "node/" + fact.node.name
        case PodFact():
            return "pod/" + fact.uid
        case PriorityClassFact():
            return "priorityclass/" + fact.name
        case PdbFact():
            return f"pdb/{fact.namespace}/{fact.name}"
        case QueueFact():
            return "queue/" + fact.queue.path
        case HistoryFact():
            return "history/" + fact.history.path
        case NamespaceFact():
            return "namespace/" + fact.name
        case ClaimFact():
            return f"claim/{fact.claim.namespace}/{fact.claim.name}"
        case AttachFact():
            return "attach/" + fact.node


# --- drystone.gpus: metrics-collector -> placement -------------------------------------------------------------------


class GpuFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """Measured facts of one device. `util_pct` None: the exporter does not say."""

    index: int
    uuid: str = ""
    model: str = ""
    mib_total: int = 0
    mib_used: int = 0
    util_pct: float | None = None


class GpuFacts(msgspec.Struct, frozen=True, omit_defaults=True, tag="gpus"):
    node: str
    gpus: tuple[GpuFact, ...]
    at: float = 0.0  # exporter's time of the sample; ages are counted from receipt


# --- drystone.mix: placement -> placement ----------------------------------------------------------------------------


class MixCount(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How often one owner's tasks asked for so much: CPU milli, GPUs, of each milli or MiB (both 0: all of it), models
    that will do. `count` is in sixteenths of a task, since old ones fade."""

    owner: str
    cpu: int
    gpus: int
    milli: int
    mib: int
    models: tuple[str, ...]
    count: int


class PrecisionCount(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many milli GPUs tasks asked for that declare a precision; old ones fade."""

    precision: str
    required: bool
    milli: int


class Stander(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who waits, and where in the line of its queue in this partition (`rank`, from 1). Its place is (0 where it has
    waited past the limit, else 1; minus its priority; when it was created, seconds since the epoch; its key). `ask` is
    the least that it takes: milli GPUs, milli CPU, MiB; `models` are those that will do for it, none where any does."""

    job: str
    aged: int
    by_priority: int
    created: float
    rank: int
    ask: tuple[int, int, int]
    models: tuple[str, ...] = ()


class QueueLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who waits in one queue, of one partition: how many, what they ask for in all (milli GPUs, milli CPU, MiB), and
    some of them in order."""

    queue: str
    waiting: int
    demand: tuple[int, int, int] = (0, 0, 0)
    standing: tuple[Stander, ...] = ()


class LearnedMix(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the owner of one partition of the jobs has learned of their sizes: `seen` tasks, of jobs created `until`
    then (seconds since the epoch); and of the precisions that `declared` of those tasks declare. `lines`: who waits in
    it, told where there are other replicas."""

    partition: int
    seen: int
    until: float = 0.0
    counts: tuple[MixCount, ...] = ()
    precisions: tuple[PrecisionCount, ...] = ()
    declared: int = 0
    lines: tuple[QueueLine, ...] = ()


# --- drystone.plans, drystone.evictions, drystone.outcomes -----------------------------------------------------------


class PlansBatch(msgspec.Struct, frozen=True):
    items: tuple[Plan, ...]


class EvictionsBatch(msgspec.Struct, frozen=True):
    items: tuple[EvictionPlan, ...]


class Landed(enum.StrEnum):
    """What became of one task of a plan."""

    BOUND = "bound"
    #: Not written, or refused for a reason that a new decision may cure (node changed, pod changed): decide again.
    REPLAN = "replan"
    #: The API server will go on refusing this pod (403, 422): back off per job.
    REFUSED = "refused"
    #: The pod or its job is gone: forget the task.
    GONE = "gone"


class TaskOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    task: str
    landed: Landed
    why: str = ""
    uid: str = ""  # of a pod that was created
    node: str = ""
    #: With REFUSED: it will be refused again as long as the pod's template is what it is.
    lasting: bool = False


class PlanOutcome(msgspec.Struct, frozen=True, omit_defaults=True, tag="plan"):
    plan: str
    job: str
    partition: int
    tasks: tuple[TaskOutcome, ...]
    cause: str = ""
    traceparent: str = ""


class EvictionOutcome(msgspec.Struct, frozen=True, omit_defaults=True, tag="eviction"):
    """`evicted` were accepted by the API server, `refused` finally refused (their marks are taken back)."""

    plan: str
    job: str
    partition: int
    evicted: tuple[str, ...] = ()
    refused: dict[str, str] = {}
    void: str = ""  # why nothing was done at all
    cause: str = ""
    traceparent: str = ""


class OutcomesBatch(msgspec.Struct, frozen=True):
    items: tuple[PlanOutcome | EvictionOutcome, ...]


# --- drystone.status: all -> the world -------------------------------------------------------------------------------


class JobStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the world is told about a job. `id` is the id that the submitter gave, or the job key."""

    id: str
    job: str
    tenant: str
    namespace: str
    phase: Phase
    reason: str = ""
    message: str = ""
    tasks: int = 0
    bound: int = 0
    attempt: int = 0
    verdict: Verdict | None = None
    cause: str = ""
    #: Where it stands in line, while it waits.
    turn: Turn | None = None
    #: With reason Evicted: for whom pods of it were evicted, and by which rule.
    evicted: Eviction | None = None
    #: W3C trace context of what asked for it; the record's header has it too.
    traceparent: str = ""


class EventType:
    """CloudEvents `type` of every record: reverse domain, noun, verb, major version."""

    JOB_SUBMIT: Final = "dev.drystone.job.submit.v1"
    JOB_CANCEL: Final = "dev.drystone.job.cancel.v1"
    TASKS: Final = "dev.drystone.tasks.v1"
    CLUSTER: Final = "dev.drystone.cluster.v1"
    GPUS: Final = "dev.drystone.gpus.v1"
    MIX: Final = "dev.drystone.mix.v1"
    PLANS: Final = "dev.drystone.plans.v1"
    EVICTIONS: Final = "dev.drystone.evictions.v1"
    OUTCOMES: Final = "dev.drystone.outcomes.v1"
    STATUS: Final = "dev.drystone.job.status.v1"
    DEAD_LETTER: Final = "dev.drystone.dead-letter.v1"


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message that cannot be served, with what was wrong and where it stood. `value` is base64 of at most 64 KiB."""

    reason: str
    topic: str
    partition: int
    offset: int
    key: str = ""
    id: str = ""
    value: str = ""
    truncated: bool = False
