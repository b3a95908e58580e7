"""A tenant's place in the tree of queues: its limit, what it deserves, and how it shares what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import msgspec


class Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """Amounts of room: milli GPUs of any model, milli CPU, MiB, and milli GPUs by model. None: nothing is said."""

    gpu_milli: int | None = None
    cpu: int | None = None
    mem: int | None = None
    models: dict[str, int] = {}


class Weights(msgspec.Struct, frozen=True, omit_defaults=True):
    """Parts in which siblings divide what is over when everyone has what it deserves. 0 takes no part in that. GPUs of
    a model that is not among `models` weigh what `gpu` says."""

    gpu: int = 1
    cpu: int = 1
    mem: int = 1
    models: dict[str, int] = {}


class Queue(msgspec.Struct, frozen=True, omit_defaults=True):
    """`path` is the queue's name preceded by its ancestors, "research/vision". A limit of None means none.

    `gpu_milli`, `cpu` (milli), `mem` (MiB) and `models` (milli GPUs by model) bound used + claimed + earmarked +
    request, request included. `deserved` is the share that the queue has back from others whenever it asks for it.
    `preemptible` False: nothing of this queue is evicted. A task runs at least `min_run_s` before it is evicted. A
    workload is evicted at most `evictions` times in `evictions_window_s`.
    """

    path: str
    gpu_milli: int | None = None
    cpu: int | None = None
    mem: int | None = None
    namespaces: tuple[str, ...] = ()
    version: str = ""
    models: dict[str, int] = {}
    deserved: Quota = Quota()
    weights: Weights = Weights()
    preemptible: bool = True
    min_run_s: int = 0
    evictions: int = 3
    evictions_window_s: int = 86_400
    #: A pod of it is told so long before it is evicted, where it does not ask for longer itself.
    notice_s: int = 0
    #: After so long a half of what it used counts no more; 0: as of the queue above, at the top as the service has it.
    half_life_s: int = 0


class Eviction(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who was evicted for whom: `pods` pods of `job` for the job `beneficiary`, by `rule`; `at` is when the last of
    them was told to go (seconds since the epoch)."""

    job: str
    beneficiary: str
    rule: str
    at: int
    pods: int = 1

    def sentence(self) -> str:
        when = datetime.fromtimestamp(self.at, UTC)
        return f"was evicted for {self.beneficiary} by rule {self.rule} at {when:%Y-%m-%dT%H:%M:%SZ}"


class Served(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a workload had before pods of it were evicted: milli GPU seconds, and seconds of run of the job; `at` is
    when the last of them was told to go (seconds since the epoch)."""

    gpu_milli_s: int
    run_s: int
    at: int


class Spending(msgspec.Struct, frozen=True, omit_defaults=True):
    """What evictions in a queue may be measured by: jobs that came, evictions, and milli GPU seconds that these cost.
    Faded as `at` of its history: jobs and evictions by a half every week, what was lost by a half every `half_life_s`.
    That is the cluster's, whatever the queue's own says, and `worked_milli_s` is what the queue and those below used,
    faded by it. 0, of a record older than the fields: the history's own."""

    jobs: float = 0.0
    evictions: float = 0.0
    lost_milli_s: int = 0
    half_life_s: int = 0
    worked_milli_s: int = 0


class Left(msgspec.Struct, frozen=True, omit_defaults=True):
    """What evictions for little service, and for the overdue, may still cost in the whole cluster, as of `at` (seconds
    since the epoch): evictions, and milli GPU seconds of work. Negative where owed, which does not fade; what is left
    over has faded until then."""

    at: float = 0.0
    evictions: float = 0.0
    gpu_milli_s: int = 0


class QueueHistory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a queue, with everything below it, used over time: resource seconds, of which a half is forgotten every
    `half_life_s`, as of `at` (seconds since the epoch). `evictions` has the times (seconds since the epoch) at which
    pods of a workload were evicted within the window, by the workload's key: of a gang when each occasion began
    (`libs.domain.occasions`), of others one for each pod, or for as many as `pods` says. A workload that is not in
    `pods` has one time for each pod, of a gang too (the release before). `recent` are the uids of those that were
    counted last, so that who decided an eviction sees it in here and counts it no longer himself. `reasons` tells for
    whom, by workload as well: the last few, in order of time. `served` is what workloads had before they were evicted,
    by workload too; one that is not in it counts as new. `spending` is of the queue itself, not of those below it.
    `models` is the part of `gpu_milli_s` that is known by model. `left` is of the cluster, and stands in every record:
    the youngest counts. None: the record is older than the field."""

    path: str
    at: float = 0.0
    half_life_s: int = 0
    gpu_milli_s: int = 0
    cpu_milli_s: int = 0
    mem_mib_s: int = 0
    evictions: dict[str, tuple[int, ...]] = {}
    recent: tuple[str, ...] = ()
    reasons: dict[str, tuple[Eviction, ...]] = {}
    served: dict[str, Served] = {}
    spending: Spending = Spending()
    models: dict[str, int] = {}
    left: Left | None = None
    pods: dict[str, tuple[int, ...]] = {}


def half_lives(queues: Mapping[str, Queue], default_s: int) -> Callable[[str], int]:
    """By path: what the nearest says, from the queue upwards, else the default. The path need not be a queue's."""

    def of(path: str) -> int:
        said = (queues[one].half_life_s for one in ancestors(path) if one in queues)
        return next((half_life for half_life in said if half_life), default_s)

    return of


def ancestors(path: str) -> list[str]:
    """The queue and everything above it: "a/b/c" -> ["a/b/c", "a/b", "a"]."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
