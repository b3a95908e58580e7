"""What the cluster is, and what has to be said about each change: pure. Raw objects in, changes out.

`Picture` keeps the newest version of every object that matters and drops older ones. What it found to say is collected
until `take`, merged per object, so that a burst becomes one call and one publish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from libs.contracts.events import (
    ClusterFact,
    JobChanged,
    NodeFact,
    PdbFact,
    PodFact,
    PriorityClassFact,
    QueueFact,
    cluster_key,
)
from libs.domain import keys
from libs.domain.jobs import JobHead, Task
from libs.domain.nodes import Node, newer
from libs.domain.queues import Queue
from libs.kube import objects, trainingjobs
from libs.kube.grouping import Known, job_of, unresolved
from libs.kube.nodes import parse_node
from libs.kube.pods import PodView, parse_pod
from libs.kube.quantities import mib, milli, units
from libs.store.port import TaskSeen

_EMPTY: Mapping[str, str] = {}


@dataclass(slots=True)
class Changes:
    """What to say: to the ledger first, then on the topics. `facts` None: the thing is gone."""

    nodes: dict[str, Node] = field(default_factory=dict)
    nodes_gone: set[str] = field(default_factory=set)
    queues: dict[str, Queue] = field(default_factory=dict)
    queues_gone: set[str] = field(default_factory=set)
    bound: dict[str, TaskSeen] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    facts: dict[str, ClusterFact | None] = field(default_factory=dict)
    hints: dict[str, Hint] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.nodes or self.nodes_gone or self.queues or self.queues_gone or self.bound or self.gone
                    or self.facts or self.hints)  # fmt: skip


@dataclass(slots=True)
class Hint:
    """One job's part of a `JobChanged`, still growing."""

    head: JobHead
    tasks: dict[str, Task] = field(default_factory=dict)
    bound: dict[str, None] = field(default_factory=dict)
    gone: dict[str, None] = field(default_factory=dict)
    deleted: bool = False

    def event(self, seen: str) -> JobChanged:
        head = self.head
        return JobChanged(
            head,
            tuple(self.tasks.values()),
            tuple(self.bound),
            tuple(self.gone),
            cause=f"{head.key}@{seen}",
            deleted=self.deleted,
            seen=seen,
        )


@dataclass(slots=True)
class _Pod:
    """What is remembered of a pod: enough to tell what a change means, and who is told when it is gone."""

    view: PodView
    head: JobHead | None  # None: foreign
    holds: bool


class Picture:
    """All state of the leader. `term` goes into every fact."""

    def __init__(self, term: int, tenants: Mapping[str, str], brief: Callable[[str], None] | None = None) -> None:
        self.term = term
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, _Pod] = {}
        self.jobs: dict[str, trainingjobs.TrainingJobView] = {}
        self.seen = ""
        self._tenants = dict(tenants)
        self._priorities: dict[str, int] = {}
        self._pdbs: set[str] = set()
        self._queue_specs: dict[str, tuple[objects.QueueSpec, str]] = {}
        self._queues: dict[str, Queue] = {}
        self._groups: dict[tuple[str, str], int] = {}
        self._waiting_for_group: dict[str, str] = {}
        self._known = Known()
        self._changes = Changes()
        self._unreadable = brief or (lambda _: None)
        self._learn()

    # --- what arrives ---------------------------------------------------------------------------------------------

    def node_event(self, kind: str, raw: bytes) -> None:
        node = parse_node(raw)
        if kind == "DELETED":
            self._node_gone(node.name)
            return
        old = self.nodes.get(node.name)
        if old is not None and old.uid == node.uid and not newer(node.version, old.version):
            return
        self.nodes[node.name] = node
        if old is not None and old.uid == node.uid and old.spec == node.spec and old.gpus == node.gpus:
            return  # a heartbeat
        self._saw(node.version)
        self._changes.nodes_gone.discard(node.name)
        self._changes.nodes[node.name] = node
        self._say(NodeFact(node, self.term))
        if (old is not None and old.gpus != node.gpus) or old is None:
            self._recharge(node.name)

    def node_list(self, raws: Sequence[bytes]) -> None:
        present = set()
        for raw in raws:
            self.node_event("ADDED", raw)
            present.add(objects.bare_decoder.decode(raw).metadata.name)
        for name in self.nodes.keys() - present:
            self._node_gone(name)

    def pod_event(self, kind: str, raw: bytes) -> None:
        try:
            view = parse_pod(raw)
        except msgspec.MsgspecError as error:
            self._unreadable(str(error))
            return
        if kind == "DELETED":
            self._pod_gone(view.uid)
            return
        old = self.pods.get(view.uid)
        if old is not None and not newer(view.version, old.view.version):
            return
        self._pod(view, old)

    def pod_list(self, raws: Sequence[bytes]) -> None:
        present = set()
        for raw in raws:
            self.pod_event("ADDED", raw)
            present.add(objects.bare_decoder.decode(raw).metadata.uid)
        for uid in self.pods.keys() - present:
            self._pod_gone(uid)

    def job_event(self, kind: str, raw: bytes) -> None:
        view = trainingjobs.parse(raw)
        old = self.jobs.get(view.uid)
        if kind == "DELETED" or view.deleting:
            self.jobs.pop(view.uid, None)
            if old is not None or kind != "DELETED":
                self._hint(trainingjobs.head_of(view, view.status.attempt, self._known)).deleted = True
            return
        if old is None or old.status.attempt != view.status.attempt:
            self.jobs[view.uid] = view
            if not view.ended:
                head, tasks = trainingjobs.expand(view, view.status.attempt, self._known)
                self._hint(head).tasks.update((t.id, t) for t in tasks)
            return
        self.jobs[view.uid] = view

    def job_list(self, raws: Sequence[bytes]) -> None:
        present = set()
        for raw in raws:
            self.job_event("ADDED", raw)
            present.add(objects.bare_decoder.decode(raw).metadata.uid)
        for uid in self.jobs.keys() - present:
            view = self.jobs.pop(uid)
            self._hint(trainingjobs.head_of(view, view.status.attempt, self._known)).deleted = True

    def priority_event(self, kind: str, raw: bytes) -> None:
        seen = objects.priority_class_decoder.decode(raw)
        name = seen.metadata.name
        if kind == "DELETED":
            self._priorities.pop(name, None)
            self._changes.facts["priorityclass/" + name] = None
        else:
            self._priorities[name] = seen.value
            self._say(PriorityClassFact(name, seen.value, seen.metadata.resource_version,
                                        default=bool(seen.global_default), preempts=seen.preempts,
                                        term=self.term))  # fmt: skip
        self._learn()

    def pdb_event(self, kind: str, raw: bytes) -> None:
        seen = objects.pdb_decoder.decode(raw)
        meta = seen.metadata
        fact = PdbFact(meta.name, meta.namespace, meta.uid, meta.resource_version, seen.match_labels,
                       seen.status.disruptions_allowed, self.term)  # fmt: skip
        if kind == "DELETED":
            self._changes.facts[cluster_key(fact)] = None
            self._pdbs.discard(cluster_key(fact))
        else:
            self._pdbs.add(cluster_key(fact))
            self._say(fact)

    def queue_event(self, kind: str, raw: bytes) -> None:
        seen = objects.queue_decoder.decode(raw)
        if kind == "DELETED":
            self._queue_specs.pop(seen.metadata.name, None)
        else:
            self._queue_specs[seen.metadata.name] = (seen.spec, seen.metadata.resource_version)
            self._saw(seen.metadata.resource_version)
        self._requeue()

    def group_event(self, kind: str, raw: bytes) -> None:
        seen = objects.pod_group_decoder.decode(raw)
        place = (seen.metadata.namespace, seen.metadata.name)
        if kind == "DELETED":
            self._groups.pop(place, None)
            return
        self._groups[place] = seen.spec.min_member or 1
        # Pods that came before their group were held back: a single is not what they are.
        for uid in [u for u, why in self._waiting_for_group.items() if why]:
            pod = self.pods.get(uid)
            if pod is None:
                self._waiting_for_group.pop(uid, None)
            elif not unresolved(pod.view, self._known):
                self._waiting_for_group.pop(uid, None)
                self._pod(pod.view, None)

    # --- what is to be said ------------------------------------------------------------------------------------------

    def take(self) -> Changes:
        changes, self._changes = self._changes, Changes()
        return changes

    def everything(self) -> Changes:
        """All of it anew, for a ledger or a topic that was lost; hints that were not taken yet stay among it."""
        for node in self.nodes.values():
            self._changes.nodes[node.name] = node
            self._say(NodeFact(node, self.term))
        for queue in self._queues.values():
            self._changes.queues[queue.path] = queue
            self._say(QueueFact(queue, self.term))
        for uid, pod in self.pods.items():
            if pod.holds:
                self._bound(uid, pod)
        return self.take()

    def fact_keys(self) -> set[str]:
        """Keys that the compacted topic ought to have."""
        return {
            *("node/" + name for name in self.nodes),
            *("pod/" + uid for uid, pod in self.pods.items() if pod.holds),
            *("priorityclass/" + name for name in self._priorities),
            *("queue/" + path for path in self._queues),
            *self._pdbs,
        }

    def bound_uids(self) -> list[str]:
        return [uid for uid, pod in self.pods.items() if pod.holds]

    # --- inside -----------------------------------------------------------------------------------------------------

    def _pod(self, view: PodView, old: _Pod | None) -> None:
        uid = view.uid
        head = job_of(view, self._known) if view.ours else None
        pod = _Pod(view, head, view.holds)
        self.pods[uid] = pod
        if view.holds:
            if old is None or not old.holds or _differs(old.view, view):
                self._bound(uid, pod)
                if head is not None and (old is None or not old.holds):
                    self._hint(head).bound[view.task_id] = None
            return
        if old is not None and old.holds:
            self._freed(uid)
        if head is None:
            if view.ended or not view.bound:
                # A foreign pod that waits or has ended holds nothing and is nobody's task.
                self.pods.pop(uid, None) if view.ended else None
            return
        if view.ended:
            if old is None or not old.view.ended:
                self._freed(uid)
                self._hint(head).gone[view.task_id] = None
        elif view.terminating:
            self._hint(head).gone[view.task_id] = None
        elif view.pending:
            why = unresolved(view, self._known)
            self._waiting_for_group[uid] = why
            if why:
                return
            self._waiting_for_group.pop(uid, None)
            # The API server's own condition writes change a version and nothing else that matters.
            hint = self._hint(head)
            hint.gone.pop(view.task_id, None)
            hint.tasks[uid] = view.to_task()

    def _bound(self, uid: str, pod: _Pod) -> None:
        view, head = pod.view, pod.head
        node = self.nodes.get(view.node)
        charge = view.charge(node.gpus if node else None)
        changes = self._changes
        changes.gone.discard(uid)
        changes.bound[uid] = TaskSeen(
            uid=uid,
            version=view.version,
            node=view.node,
            charge=charge,
            queue=head.queue if head else "",
            job=head.key if head else "",
            claim=view.claim if head else "",
            namespace=view.namespace,
            name=view.name,
        )
        self._say(
            PodFact(
                uid=uid,
                name=view.name,
                namespace=view.namespace,
                version=view.version,
                node=view.node,
                charge=charge,
                job=head.key if head else "",
                queue=head.queue if head else "",
                priority=head.priority if head else 0,
                labels=view.labels if head else {},
                ours=head is not None,
                terminating=view.terminating,
                term=self.term,
                task=view.annotations.get(keys.TASK, "") if head else "",
                job_uid=head.uid if head else "",
                gang_min=head.gang_min if head else 1,
                claim=view.claim if head else "",
                started=view.started,
                phase=view.phase,
            )
        )

    def _freed(self, uid: str) -> None:
        self._changes.bound.pop(uid, None)
        self._changes.gone.add(uid)
        self._changes.facts["pod/" + uid] = None

    def _pod_gone(self, uid: str) -> None:
        pod = self.pods.pop(uid, None)
        self._waiting_for_group.pop(uid, None)
        if pod is None:
            return
        if pod.holds:
            self._freed(uid)
        elif pod.head is not None:
            self._changes.gone.add(uid)
        if pod.head is not None:
            hint = self._hint(pod.head)
            hint.tasks.pop(uid, None)
            hint.gone[pod.view.task_id] = None

    def _node_gone(self, name: str) -> None:
        if self.nodes.pop(name, None) is not None:
            self._changes.nodes.pop(name, None)
            self._changes.nodes_gone.add(name)
            self._changes.facts["node/" + name] = None

    def _recharge(self, name: str) -> None:
        """A node's devices became known or changed: what its pods were charged depends on them."""
        for uid, pod in self.pods.items():
            if pod.holds and pod.view.node == name and pod.view.request.gpu.count:
                self._bound(uid, pod)

    def _requeue(self) -> None:
        """Paths follow from parents; a queue whose parent is unknown or that is its own ancestor stands at the top."""
        paths: dict[str, str] = {}
        for name in self._queue_specs:
            chain: list[str] = []
            at: str | None = name
            while at is not None and at in self._queue_specs and at not in chain:
                chain.append(at)
                at = self._queue_specs[at][0].parent
            paths[name] = "/".join(reversed(chain))
        queues = {
            paths[name]: _queue(paths[name], spec, version) for name, (spec, version) in self._queue_specs.items()
        }
        for path, queue in queues.items():
            if self._queues.get(path) != queue:
                self._changes.queues_gone.discard(path)
                self._changes.queues[path] = queue
                self._say(QueueFact(queue, self.term))
        for path in self._queues.keys() - queues.keys():
            self._changes.queues.pop(path, None)
            self._changes.queues_gone.add(path)
            self._changes.facts["queue/" + path] = None
        self._queues = queues
        self._learn()

    def _learn(self) -> None:
        self._known = Known(
            tenants=self._tenants,
            namespace_queues={ns: path for path, queue in self._queues.items() for ns in queue.namespaces},
            queue_paths={path.rsplit("/", 1)[-1]: path for path in self._queues},
            pod_group_min=lambda namespace, name: self._groups.get((namespace, name)),
            priorities=self._priorities,
        )

    @property
    def known(self) -> Known:
        return self._known

    def _hint(self, head: JobHead) -> Hint:
        found = self._changes.hints.get(head.key)
        if found is None:
            found = self._changes.hints[head.key] = Hint(head)
        elif head.gang_min > found.head.gang_min:
            found.head = head
        return found

    def _say(self, fact: ClusterFact) -> None:
        self._changes.facts[cluster_key(fact)] = fact

    def _saw(self, version: str) -> None:
        if newer(version, self.seen):
            self.seen = version


def _differs(old: PodView, new: PodView) -> bool:
    """Whether what the ledger or a reader of facts would be told is another thing than before."""
    return (
        old.terminating != new.terminating
        or old.phase != new.phase
        or old.node != new.node
        or old.request != new.request
        or old.annotations != new.annotations
        or old.labels != new.labels
    )


def _queue(path: str, spec: objects.QueueSpec, version: str) -> Queue:
    limits: Mapping[str, Any] = spec.limits or _EMPTY

    def limit(name: str, read: Callable[[Any], int]) -> int | None:
        return read(limits[name]) if name in limits else None

    return Queue(
        path=path,
        gpu_milli=limit(keys.GPU_RESOURCE, lambda q: milli(q, up=False)),
        cpu=limit("cpu", lambda q: milli(q, up=False)),
        mem=limit("memory", lambda q: mib(units(q, up=False), up=False)),
        namespaces=tuple(spec.namespaces or ()),
        version=version,
    )


def handlers(picture: Picture) -> dict[str, tuple[Callable[[Sequence[bytes]], None], Callable[[str, bytes], None]]]:
    """(list, event) by resource, in the order in which a first list is worth having."""

    def each(event: Callable[[str, bytes], None]) -> Callable[[Iterable[bytes]], None]:
        def listed(raws: Iterable[bytes]) -> None:
            for raw in raws:
                event("ADDED", raw)

        return listed

    return {
        "priorityclasses": (each(picture.priority_event), picture.priority_event),
        "queues": (each(picture.queue_event), picture.queue_event),
        "podgroups": (each(picture.group_event), picture.group_event),
        "pdbs": (each(picture.pdb_event), picture.pdb_event),
        "nodes": (picture.node_list, picture.node_event),
        "pods": (picture.pod_list, picture.pod_event),
        "trainingjobs": (picture.job_list, picture.job_event),
    }
