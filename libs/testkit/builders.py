"""Clusters and jobs in one sentence, for tests and benchmarks.

    cluster().rack("r1", nodes=2, gpus=8).running("low", gpus=8, priority=1)

A `ClusterBuilder` holds facts as the watcher and the ledger would tell them; `into(engine)` tells them to an engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Self, TypeVar

import msgspec

from libs.domain.jobs import JobHead, Task
from libs.domain.nodes import Gpu, Node, Taint, Toleration
from libs.domain.precision import Precision
from libs.domain.queues import Queue, Quota
from libs.domain.resources import WHOLE, Charge, GpuGrant, GpuRequest, Request
from libs.domain.usage import NodeUse, QueueUse
from libs.engine.api import Engine, PendingJob, RunningTask

E = TypeVar("E", bound=Engine)


def node(
    name: str,
    gpus: int = 8,
    mib: int = 81920,
    model: str = "A100",
    cpu: int = 96_000,
    mem: int = 1_000_000,
    pods: int = 110,
    labels: dict[str, str] | None = None,
    taints: Iterable[str] = (),
    cordoned: bool = False,
    ready: bool = True,
    gpus_closed: str = "",
    extra: dict[str, int] | None = None,
    nvlink: tuple[tuple[int, ...], ...] = (),
) -> Node:
    """Taints as "key=value:Effect". The spec digest follows the facts."""
    bare = Node(
        name=name,
        uid="uid-" + name,
        version="1",
        spec="",
        cpu=cpu,
        mem=mem,
        pods=pods,
        gpus=tuple(Gpu(i, mib, model) for i in range(gpus)),
        labels={"kubernetes.io/hostname": name, **(labels or {})},
        taints=tuple(_taint(text) for text in taints),
        unschedulable=cordoned,
        ready=ready,
        gpus_closed=gpus_closed,
        extra=extra or {},
        nvlink=nvlink,
    )
    digest = hashlib.blake2b(msgspec.json.encode(bare, order="sorted"), digest_size=8).hexdigest()
    return msgspec.structs.replace(bare, spec=digest)


def _taint(text: str) -> Taint:
    pair, _, effect = text.partition(":")
    key, _, value = pair.partition("=")
    return Taint(key, value, effect)


def tolerate(text: str) -> Toleration:
    """ "key=value:Effect", "key:Effect" (any value) or "*" (everything)."""
    if text == "*":
        return Toleration("", "Exists", "", "")
    pair, _, effect = text.partition(":")
    key, equals, value = pair.partition("=")
    return Toleration(key, "Equal" if equals else "Exists", value, effect)


def request(
    gpus: int = 0,
    share: int = 0,
    mib: int = 0,
    cpu: int = 1000,
    mem: int = 1024,
    models: Iterable[str] = (),
    extra: dict[str, int] | None = None,
    precision: Precision = "",
    required: bool = False,
) -> Request:
    """`gpus` whole devices; with `share` (milli) or `mib` a part of each (of one where `gpus` is 0). `required`: only
    devices that support the `precision`."""
    count = gpus or (1 if share or mib else 0)
    gpu = GpuRequest(count, share, mib, tuple(models), precision, required)
    return Request(cpu, mem, gpu, tuple(sorted((extra or {}).items())))


def task(name: str, *, namespace: str = "team", index: int = 0, role: str = "", **more: Any) -> Task:
    """A pending pod. `selector`, `tolerations` ("key=value:Effect"), `unsupported`, `labels`, `rules`, `topology` and
    `created` as named; the rest is the request."""
    return Task(
        id="uid-" + name,
        name=name,
        namespace=namespace,
        version="1",
        role=role,
        index=index,
        node_selector=more.pop("selector", {}),
        tolerations=tuple(map(tolerate, more.pop("tolerations", ()))),
        unsupported=tuple(more.pop("unsupported", ())),
        created=more.pop("created", 0.0),
        labels=more.pop("labels", {}),
        rules=more.pop("rules", None),
        topology=more.pop("topology", None),
        request=request(**more),
    )


def pod(name: str, *, queue: str = "default", priority: int = 0, created: float = 0.0, **more: Any) -> PendingJob:
    """A pod that stands alone."""
    preempts, evicting, may_evict = more.pop("preempts", True), more.pop("evicting", False), more.pop("may_evict", True)
    head = JobHead(f"pod/team/{name}", "team", "team", queue, priority=priority, created=created, preempts=preempts)
    return PendingJob(head, (task(name, created=created, **more),), evicting=evicting, may_evict=may_evict)


def gang(
    name: str,
    tasks: int,
    *,
    minimum: int | None = None,
    queue: str = "default",
    priority: int = 0,
    created: float = 0.0,
    held: int = 0,
    **more: Any,
) -> PendingJob:
    """A gang of identical pods; `minimum` counts all of them unless given."""
    least = tasks + held if minimum is None else minimum
    preempts, evicting = more.pop("preempts", True), more.pop("evicting", False)
    head = JobHead(
        f"gang/team/{name}", "team", "team", queue, priority=priority, gang_min=least, declared=tasks + held,
        created=created, preempts=preempts,
    )  # fmt: skip
    pods = tuple(task(f"{name}-{i}", index=i, created=created, **more) for i in range(held, held + tasks))
    return PendingJob(head, pods, held=held, evicting=evicting)


class ClusterBuilder:
    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.uses: dict[str, NodeUse] = {}
        self.queues: dict[str, Queue] = {}
        self.queue_uses: dict[str, QueueUse] = {}
        self.pods: list[RunningTask] = []

    # -- nodes ------------------------------------------------------------------------------------------------------
    def node(self, name: str, **more: Any) -> Self:
        self.nodes[name] = node(name, **more)
        return self

    def rack(self, name: str, nodes: int, gpus: int = 8, **more: Any) -> Self:
        """Nodes "<rack>-0", "<rack>-1", ... with the label rack=<rack>."""
        labels = {"rack": name, **more.pop("labels", {})}
        for i in range(nodes):
            self.node(f"{name}-{i}", gpus=gpus, labels=labels, **more)
        return self

    # -- use --------------------------------------------------------------------------------------------------------
    def used(self, name: str, charge: Charge) -> Self:
        """Room taken on a node, by whomever."""
        old = self._use(name)
        gpus = [list(pair) for pair in old.gpus]
        for grant in charge.gpus:
            gpus[grant.index][0] += grant.milli
            gpus[grant.index][1] += grant.mib
        self.uses[name] = msgspec.structs.replace(
            old,
            revision=old.revision + 1,
            cpu=old.cpu + charge.cpu,
            mem=old.mem + charge.mem,
            pods=old.pods + 1,
            gpus=tuple((m, b) for m, b in gpus),
            blind=old.blind + charge.blind,
        )
        return self

    def _use(self, name: str) -> NodeUse:
        return self.uses.get(name) or NodeUse(name, 1, gpus=((0, 0),) * len(self.nodes[name].gpus))

    def foreign(self, name: str, gpus: int) -> Self:
        """A foreign pod with whole GPUs of unknown index."""
        return self.used(name, Charge(1000, 1024, (), gpus))

    def disputed(self, name: str, *indices: int) -> Self:
        old = self._use(name)
        self.uses[name] = msgspec.structs.replace(old, revision=old.revision + 1, disputed=tuple(indices))
        return self

    def earmarked(self, name: str, job: str, charge: Charge) -> Self:
        """Room that waits for one job (it counts as used)."""
        self.used(name, charge)
        old = self.uses[name]
        marks = {**old.earmarked, job: (*old.earmarked.get(job, ()), charge)}
        self.uses[name] = msgspec.structs.replace(old, earmarked=marks)
        return self

    def running(
        self,
        name: str,
        gpus: int = 0,
        *,
        count: int = 1,
        on: str = "",
        share: int = 0,
        cpu: int = 1000,
        mem: int = 1024,
        priority: int = 0,
        gang_min: int = 1,
        queue: str = "default",
        **more: Any,
    ) -> Self:
        """Running pods of job <name>: each on node `on`, or on the first with enough room. With `gang_min` above 1 all
        `count` of them are one gang; else each is a job of its own. `more` is of RunningTask (started, guarded)."""
        for i in range(count):
            place = on or self._first(gpus, share)
            use, facts = self._use(place), self.nodes[place]
            grants: list[GpuGrant] = []
            for gpu in facts.gpus:
                milli, mib = use.gpus[gpu.index]
                if gpus and len(grants) < gpus and not milli and not mib:
                    grants.append(GpuGrant(gpu.index, WHOLE, gpu.mib))
                elif share and not grants and milli + share <= WHOLE:
                    grants.append(GpuGrant(gpu.index, share, share * gpu.mib // WHOLE))
            charge = Charge(cpu, mem, tuple(grants))
            self.used(place, charge)
            pod_name = f"{name}-{i}" if count > 1 else name
            job = f"gang/team/{name}" if gang_min > 1 else f"pod/team/{pod_name}"
            facts_of_pod: dict[str, Any] = {"ours": True, **more}
            self.pods.append(
                RunningTask("uid-" + pod_name, pod_name, "team", place, job, queue, priority, charge,
                            gang_min=gang_min, **facts_of_pod)
            )  # fmt: skip
            self._charge_queue(queue, charge)
        return self

    def _first(self, gpus: int, share: int) -> str:
        for name in sorted(self.nodes):
            free = [WHOLE - milli for milli, _ in self._use(name).gpus]
            if (gpus and sum(f == WHOLE for f in free) >= gpus) or (share and max(free, default=0) >= share):
                return name
            if not gpus and not share:
                return name
        raise LookupError(f"no node has room for {gpus} GPUs, share {share}")

    # -- queues -----------------------------------------------------------------------------------------------------
    def queue(
        self,
        path: str,
        gpus: int | None = None,
        cpu: int | None = None,
        mem: int | None = None,
        *,
        deserves: int | None = None,
        **more: Any,
    ) -> Self:
        """Limits, and how many GPUs it deserves; `more` is of Queue."""
        if deserves is not None:
            more["deserved"] = Quota(gpu_milli=deserves * WHOLE)
        self.queues[path] = Queue(path, None if gpus is None else gpus * WHOLE, cpu, mem, **more)
        return self

    def _charge_queue(self, path: str, charge: Charge) -> None:
        parts = path.split("/")
        for n in range(1, len(parts) + 1):
            at = "/".join(parts[:n])
            old = self.queue_uses.get(at) or QueueUse(at, 0)
            self.queue_uses[at] = QueueUse(
                at, old.revision + 1, old.gpu_milli + charge.gpu_milli, old.cpu + charge.cpu, old.mem + charge.mem
            )

    # -- out --------------------------------------------------------------------------------------------------------
    def into(self, engine: E) -> E:
        """Tell everything to an engine."""
        for facts in self.nodes.values():
            engine.node_seen(facts)
        for use in self.uses.values():
            engine.use_seen(use)
        for queue in self.queues.values():
            engine.queue_seen(queue)
        for queue_use in self.queue_uses.values():
            engine.queue_use_seen(queue_use)
        for pod_ in self.pods:
            engine.pod_seen(pod_)
        return engine


def cluster() -> ClusterBuilder:
    return ClusterBuilder()
