"""Jobs, their tasks, and which states they move through."""

from __future__ import annotations

import enum
import zlib
from typing import Final

import msgspec

from libs.domain.nodes import Toleration
from libs.domain.resources import Request
from libs.domain.rules import Rules
from libs.domain.topology import Topology
from libs.domain.verdicts import Reason

#: The entry of `Task.unsupported` of a pod that waits for its scheduling gates: not now, rather than never.
GATES: Final = "scheduling gates"


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """One pod to be placed: an existing pending pod, or one that the binder will create for a TrainingJob.

    `id` is the pod's uid, or for a pod to be created "<job uid>/<role>/<index>/<attempt>". `version` is the pod's
    resourceVersion, empty for a pod to be created. `created` is the API server's time of creation, seconds since the
    epoch.
    """

    id: str
    name: str
    namespace: str
    version: str = ""
    role: str = ""
    index: int = 0
    request: Request = Request()
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    #: Features of the pod that placement does not understand; any entry makes the verdict Never("unsupported").
    unsupported: tuple[str, ...] = ()
    created: float = 0.0
    #: True where the binder creates the pod already bound.
    create: bool = False
    #: Labels that the pod has or will have, for rules of its own and of other pods.
    labels: dict[str, str] = {}
    rules: Rules | None = None
    #: What it is to be near to; None: it does not care.
    topology: Topology | None = None


class Barred(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why nothing of a job is decided yet, whatever room there is: an object that it names is not there, or does not
    admit it. `never`: only another pod or object changes that, so nobody has to wait for it."""

    reason: Reason
    message: str
    helps: str
    never: bool = False


class JobHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is common to the tasks of a job.

    `key` is "pod/<ns>/<name>", "gang/<ns>/<name>", "podgroup/<ns>/<name>" or "job/<ns>/<name>" (a TrainingJob).
    `uid` is the TrainingJob's uid, else empty. `gang_min` tasks must hold together; 1 means each task stands alone.
    `role_min` gives minima per role where the job names roles. `declared` counts the tasks that the job will have.
    """

    key: str
    tenant: str
    namespace: str
    queue: str = "default"
    uid: str = ""
    priority: int = 0
    gang_min: int = 1
    role_min: dict[str, int] = {}
    declared: int = 1
    #: False: this job's tasks do not evict others (preemptionPolicy: Never).
    preempts: bool = True
    created: float = 0.0
    attempt: int = 0
    external_id: str = ""  # the id that another system gave
    #: False: its tasks are evicted for nobody.
    preemptible: bool = True
    #: Seconds that a task will run, and between two of its checkpoints, as declared; 0: not said.
    expected_s: int = 0
    checkpoint_s: int = 0
    #: What goes on when a pod is evicted and made again: "<kind>/<namespace>/<uid>" of the controlling owner of the
    #: pods, else the job's key. Evictions are counted by it.
    workload: str = ""
    barred: Barred | None = None
    traceparent: str = ""  # W3C trace context of what asked for it


def opens(known: JobHead, later: JobHead) -> bool:
    """Whether what bars the job is another thing by the later words. A member that does not know of a PodGroup that
    others knew, or of a minimum that they said, does not bar it again."""
    if later.barred is not None and later.barred.reason is Reason.POD_GROUP and known.barred is None:
        return False
    return later.barred != known.barred


class Wishes(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a running pod asked of its node: all that decides where else it may run."""

    request: Request = Request()
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    rules: Rules | None = None


class Phase(enum.StrEnum):
    """States of a job as the outside sees them."""

    PENDING = "Pending"
    STARTING = "Starting"  # claimed, being written
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    REJECTED = "Rejected"


def partition_of(job_key: str, partitions: int) -> int:
    """The partition that a job's events travel on; the same in every process and release."""
    return zlib.crc32(job_key.encode()) % partitions
