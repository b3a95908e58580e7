"""A refusal is a value: what is in the way, on how many nodes, what would change it, and whether more nodes would."""

from __future__ import annotations

import enum

import msgspec


class Wake(enum.StrEnum):
    """Kinds of events that can change a verdict."""

    ROOM_FREED = "room-freed"
    NODE_ADDED = "node-added"
    NODE_CHANGED = "node-changed"
    QUOTA_FREED = "quota-freed"
    TASKS_ADDED = "tasks-added"
    #: Pods came to nodes, left them or changed their labels, or volume claims did: what rules may wait for.
    PODS_CHANGED = "pods-changed"
    SPEC_CHANGED = "spec-changed"
    TIME = "time"


class Reason(enum.StrEnum):
    """Why something does not fit. The first block is per node; the second is about the job as a whole."""

    NOT_READY = "node not ready"
    CORDONED = "node cordoned"
    TAINT = "untolerated taint"
    SELECTOR = "node selector does not match"
    AFFINITY = "node affinity does not match"
    TOPOLOGY = "no label of the topology asked for"
    DOMAIN = "in another topology domain"
    POD_AFFINITY = "no pod nearby that affinity asks for"
    ANTI_AFFINITY = "a pod nearby that anti-affinity keeps away from"
    REPELLED = "a pod nearby keeps this one away by anti-affinity"
    SPREAD = "topology spread constraint"
    PORTS = "host port taken"
    VOLUME_NODE = "a volume cannot be reached from there"
    VOLUME_LIMIT = "too many volumes attached"
    VOLUME_IN_USE = "a volume for one pod only is in use"
    VOLUME_UNBOUND = "a volume claim is not there or not bound"
    VOLUME_STATIC = "a volume claim waits for first use in a way that is not supported"
    CPU = "not enough CPU"
    MEMORY = "not enough memory"
    EXTRA = "not enough of another resource"
    PODS = "no pod slot left"
    GPU_COUNT = "not enough free GPUs"
    GPU_SHARE = "no GPU with enough free share or memory"
    GPU_MODEL = "GPU model does not match"
    PRECISION = "GPU does not support the precision"
    GPU_CLOSED = "GPUs cannot be given out by index"
    GPU_FOREIGN = "a foreign pod holds GPUs of unknown index"
    CPU_TOTAL = "node too small: CPU"
    MEMORY_TOTAL = "node too small: memory"
    EXTRA_TOTAL = "node too small: another resource"
    GPU_TOTAL = "node too small: GPUs"
    GPU_MEMORY_TOTAL = "GPUs too small: memory"

    QUOTA = "queue limit"
    QUOTA_NEVER = "request exceeds the queue's limit"
    GANG_INCOMPLETE = "gang has fewer pods than its minimum"
    GANG_ROOM = "not enough room for the whole gang at once"
    DOMAIN_ROOM = "no topology domain has room for all of it"
    UNSUPPORTED = "unsupported pod feature"
    GATED = "scheduling gates"
    POD_GROUP = "PodGroup not seen"
    QUEUE_CLOSED = "queue not open to the namespace"
    NO_NODES = "the cluster has no nodes"
    EVICTING = "waiting for evicted pods to leave"
    RETRY = "changed while being decided; retried"
    FAULT = "could not be decided"
    TOO_MANY_TASKS = "more tasks than are served"
    REFUSED = "refused by the API server"


#: Per-node reasons that no departure of other tasks can remove.
LASTING = frozenset(
    {
        Reason.TAINT,
        Reason.SELECTOR,
        Reason.AFFINITY,
        Reason.TOPOLOGY,
        Reason.VOLUME_NODE,
        Reason.VOLUME_STATIC,
        Reason.EXTRA_TOTAL,
        Reason.GPU_MODEL,
        Reason.PRECISION,
        Reason.GPU_CLOSED,
        Reason.CPU_TOTAL,
        Reason.MEMORY_TOTAL,
        Reason.GPU_TOTAL,
        Reason.GPU_MEMORY_TOTAL,
    }
)


class Kind(enum.StrEnum):
    FITS = "Fits"
    NOT_NOW = "NotNow"
    NEVER = "Never"
    WAIT = "Wait"


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of deciding one job.

    `nodes` counts nodes by the first reason found on each. `more_nodes_help` is what autoscalers ask: it makes the pod
    condition's reason `Unschedulable`. `helps` says in words what would change the verdict. `until`: when TIME wakes,
    seconds since the epoch; 0: not known.
    """

    kind: Kind
    reason: Reason | None = None
    message: str = ""
    nodes: dict[str, int] = {}
    wakes_on: tuple[Wake, ...] = ()
    more_nodes_help: bool = False
    helps: tuple[str, ...] = ()
    task: str = ""  # name of the task that the counts speak of
    policy: str = ""
    until: float = 0.0


FITS = Verdict(kind=Kind.FITS)
