"""What the cluster is, and what has to be said about each change: pure. Raw objects in, changes out.

`Picture` keeps the newest version of every object that matters and drops older ones. What it found to say is collected
until `take`, merged per object. An object that cannot be read is counted and left out; it never stops the others.

Queues change live. What waits follows at once. What holds room stays with the queue that it began in until it ends, as
its charge in the ledger does; where that queue moves within the tree, both go along.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from libs.contracts.events import ClusterFact, NodeFact, PodFact
from libs.domain import keys
from libs.domain.jobs import JobHead
from libs.domain.nodes import Node, newer
from libs.kube import objects, trainingjobs
from libs.kube.declared import notes
from libs.kube.grouping import Known, job_of, resolve_queue, unresolved
from libs.kube.nodes import parse_node
from libs.kube.pods import PodView, parse_pod
from libs.store.port import TaskSeen
from services.watcher.catalog import Catalog
from services.watcher.changes import Changes
from services.watcher.storage import Storage
from services.watcher.tally import Tally

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Pod:
    """What is remembered of a pod: what was last said of it, enough to tell what a change means, and who is told when
    it is gone. `version` is the newest seen; versions that change nothing are not said."""

    view: PodView
    head: JobHead | None  # None: foreign
    holds: bool
    version: str
    preempted: bool = False


class Picture:
    """All state of the leader. `term` goes into every fact; `now` gives seconds since the epoch. `ignored` is told of
    annotations that cannot be read and so say nothing."""

    def __init__(
        self,
        term: int,
        tenants: Mapping[str, str],
        unreadable: Callable[[str], None] | None = None,
        *,
        now: Callable[[], float] = lambda: 0.0,
        half_life_s: int = 86_400,
        ignored: Callable[[PodView, str], None] | None = None,
    ) -> None:
        self.term = term
        self.tally = Tally(now, half_life_s, term)
        #: As they were last said; heartbeats are only noted in `_node_versions`.
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, _Pod] = {}
        self.jobs: dict[str, trainingjobs.TrainingJobView] = {}
        self.catalog = Catalog(term, tenants, lambda: self._changes)
        self.storage = Storage(term, lambda: self._changes)
        #: Greatest version of nodes and queues: what a verdict of Never has to have seen.
        self.seen = ""
        self._node_versions: dict[str, str] = {}
        self._waiting_for_group: set[str] = set()
        self._changes = Changes()
        self._unreadable = unreadable or (lambda _: None)
        self._ignored = ignored or (lambda _pod, _note: None)

    @property
    def known(self) -> Known:
        return self.catalog.known

    # --- what arrives ---------------------------------------------------------------------------------------------

    def node_event(self, kind: str, raw: bytes) -> None:
        node = parse_node(raw)
        if kind == "DELETED":
            self._node_gone(node.name)
            return
        old = self.nodes.get(node.name)
        if old is not None and old.uid == node.uid:
            if not newer(node.version, self._node_versions[node.name]):
                return
            if old.spec == node.spec and old.gpus == node.gpus:
                self._node_versions[node.name] = node.version
                return  # a heartbeat
        self.nodes[node.name], self._node_versions[node.name] = node, node.version
        self._saw(node.version)
        self._changes.node(node)
        self._changes.say(NodeFact(node, self.term))
        if old is None or old.gpus != node.gpus:
            self._recharge(node.name)

    def pod_event(self, kind: str, raw: bytes) -> None:
        view = parse_pod(raw)
        if kind == "DELETED":
            if (last := self.pods.get(view.uid)) is not None:
                self._evicted(view.uid, last, view)
            self._pod_gone(view.uid)
            return
        old = self.pods.get(view.uid)
        if old is None or newer(view.version, old.version):
            self._pod(view, old)

    def job_event(self, kind: str, raw: bytes) -> None:
        view = trainingjobs.parse(raw)
        old = self.jobs.get(view.uid)
        if kind == "DELETED" or view.deleting:
            self.jobs.pop(view.uid, None)
            if old is not None or kind != "DELETED":
                self._changes.hint(trainingjobs.head_of(view, view.status.attempt, self.known)).deleted = True
            return
        self.jobs[view.uid] = view
        if (old is None or old.status.attempt != view.status.attempt) and not view.ended:
            self._expand(view)

    def queue_event(self, kind: str, raw: bytes) -> None:
        self._queue(kind, raw)
        self._settle_queues()

    def _settle_queues(self) -> None:
        known = self.known
        before = {name: place.queue.path for name, place in self.catalog.placed.items()}
        self.catalog.settle()
        after = {name: place.queue.path for name, place in self.catalog.placed.items()}
        moves = {path: after[name] for name, path in before.items() if after.get(name, path) != path}
        for old, new in moves.items():
            self.tally.renamed(old, new)
        if (known.queue_paths, known.namespace_queues) == (self.known.queue_paths, self.known.namespace_queues):
            return
        for uid, pod in self.pods.items():
            if pod.head is None:
                continue
            if pod.holds:
                if pod.head.queue in moves:
                    pod.head = msgspec.structs.replace(pod.head, queue=moves[pod.head.queue])
                    self._bound(uid, pod)
            elif pod.view.pending and uid not in self._waiting_for_group:
                head = job_of(pod.view, self.known)
                if head.queue != pod.head.queue:
                    pod.head = head
                    self._changes.hint(head).tasks[uid] = pod.view.to_task()
        for view in self.jobs.values():
            said, space = view.spec.queue, view.namespace
            if not view.ended and resolve_queue(said, space, known) != resolve_queue(said, space, self.known):
                self._expand(view)

    def _expand(self, view: trainingjobs.TrainingJobView) -> None:
        head, tasks = trainingjobs.expand(view, view.status.attempt, self.known)
        self._changes.hint(head).tasks.update((t.id, t) for t in tasks)

    def group_event(self, kind: str, raw: bytes) -> None:
        self.catalog.group(kind, raw)
        # Pods that came before their group were held back: a single is not what they are.
        for uid in list(self._waiting_for_group):
            pod = self.pods.get(uid)
            if pod is None:
                self._waiting_for_group.discard(uid)
            elif not unresolved(pod.view, self.known):
                self._waiting_for_group.discard(uid)
                self._pod(pod.view, None)

    def _queue(self, kind: str, raw: bytes) -> str:
        name, version = self.catalog.queue(kind, raw)
        self._saw(version)
        return name

    # --- lists: what is there, and the end of what is not ----------------------------------------------------------

    def node_list(self, raws: Sequence[bytes]) -> None:
        present = self.all_of(self.node_event, raws, lambda meta: meta.name)
        for name in self.nodes.keys() - present:
            self._node_gone(name)

    def pod_list(self, raws: Sequence[bytes]) -> None:
        present = self.all_of(self.pod_event, raws, lambda meta: meta.uid)
        for uid in self.pods.keys() - present:
            self._pod_gone(uid)

    def job_list(self, raws: Sequence[bytes]) -> None:
        present = self.all_of(self.job_event, raws, lambda meta: meta.uid)
        for uid in self.jobs.keys() - present:
            view = self.jobs.pop(uid)
            self._changes.hint(trainingjobs.head_of(view, view.status.attempt, self.known)).deleted = True

    def queue_list(self, raws: Sequence[bytes]) -> None:
        self.catalog.queues_are(self.all_of(self._queue, raws, lambda meta: meta.name))
        self._settle_queues()

    def all_of(
        self, event: Callable[[str, bytes], object], raws: Iterable[bytes], identity: Callable[[objects.Meta], K]
    ) -> set[K]:
        """What was listed; an object that is there and cannot be read is there all the same."""
        present: set[K] = set()
        for raw in raws:
            self.guarded(event, "ADDED", raw)
            try:
                present.add(identity(objects.bare_decoder.decode(raw).metadata))
            except msgspec.MsgspecError as error:
                self._unreadable(str(error))
        return present

    def guarded(self, event: Callable[[str, bytes], object], kind: str, raw: bytes) -> None:
        try:
            event(kind, raw)
        except msgspec.MsgspecError as error:
            self._unreadable(str(error))

    # --- what is to be said ------------------------------------------------------------------------------------------

    def take(self) -> Changes:
        changes, self._changes = self._changes, Changes()
        return changes

    @property
    def urgent(self) -> bool:
        """Whether somebody waits for what is to be said: tasks to be placed, a job to be ended."""
        return any(hint.tasks or hint.deleted for hint in self._changes.hints.values())

    def everything(self) -> Changes:
        """All of it anew, for a ledger or a topic that was lost; what was not taken yet stays among it."""
        for key in self.fact_keys():
            self.say_again(key)
        return self.take()

    def fact_keys(self) -> set[str]:
        """Keys that the compacted topic ought to have."""
        return {
            *("node/" + name for name in self.nodes),
            *("pod/" + uid for uid, pod in self.pods.items() if pod.holds),
            *self.catalog.fact_keys(),
            *self.storage.fact_keys(),
            *("history/" + path for path in self.tally.told),
        }

    def fact(self, key: str) -> ClusterFact | None:
        """What is true under a key of the topic now; None where nothing is."""
        kind, _, name = key.partition("/")
        if kind == "pod":
            pod = self.pods.get(name)
            return self._pod_fact(pod, self._seen(name, pod)) if pod is not None and pod.holds else None
        if kind == "node":
            return NodeFact(self.nodes[name], self.term) if name in self.nodes else None
        if kind in ("claim", "attach"):
            return self.storage.fact(key)
        if kind == "history":
            return self.tally.told.get(name)
        return self.catalog.fact(key)

    def say_again(self, key: str, *, on_topic: bool = True) -> None:
        """To the ledger, and on the topic unless it is known to have it."""
        kind, _, name = key.partition("/")
        if kind == "pod" and name in self.pods:
            self._changes.gone.discard(name)
            self._changes.bound[name] = self._seen(name, self.pods[name])
        elif kind == "node" and name in self.nodes:
            self._changes.node(self.nodes[name])
        elif kind == "queue" and name in self.catalog.queues:
            self._changes.queue(self.catalog.queues[name])
        fact = self.fact(key) if on_topic else None
        if fact is not None:
            self._changes.say(fact)

    def tell_history(self) -> None:
        """What queues used until now and whom of them was evicted, where that is news."""
        facts, gone = self.tally.tell(self.catalog.queues)
        for fact in facts:
            self._changes.say(fact)
        for path in gone:
            self._changes.facts["history/" + path] = None

    def bound_uids(self) -> list[str]:
        return [uid for uid, pod in self.pods.items() if pod.holds]

    # --- inside -----------------------------------------------------------------------------------------------------

    def _pod(self, view: PodView, old: _Pod | None) -> None:
        uid, holds = view.uid, view.holds
        preempted = view.preempted or (view.disrupted and old is not None and old.preempted)
        if holds and old is not None and old.holds and not _differs(old.view, view):
            old.version, old.preempted = view.version, preempted
            return
        head = job_of(view, self.known) if view.ours else None
        if head is not None:
            if old is None or old.view.annotations != view.annotations:
                for note in notes(view.annotations):
                    self._ignored(view, note)
            if holds and old is not None and old.holds and old.head is not None and old.head.queue != head.queue:
                head = msgspec.structs.replace(head, queue=old.head.queue)
        pod = self.pods[uid] = _Pod(view, head, holds, view.version, preempted)
        self._evicted(uid, pod, view)
        if holds:
            self._bound(uid, pod)
            if head is not None and (old is None or not old.holds):
                self._changes.hint(head).bound[view.task_id] = None
            return
        if old is not None and old.holds:
            self._changes.freed(uid)
            self.tally.left(uid)
        if head is None:
            if view.ended:
                # A foreign pod that has ended holds nothing and is nobody's task.
                del self.pods[uid]
        elif view.ended:
            if old is None or not old.view.ended:
                self._changes.freed(uid)
                self._changes.hint(head).gone[view.task_id] = None
        elif view.terminating:
            self._changes.hint(head).gone[view.task_id] = None
        elif unresolved(view, self.known):
            self._waiting_for_group.add(uid)
        else:
            self._waiting_for_group.discard(uid)
            hint = self._changes.hint(head)
            hint.gone.pop(view.task_id, None)
            hint.tasks[uid] = view.to_task()

    def _evicted(self, uid: str, pod: _Pod, view: PodView) -> None:
        """The API server writes a reason of its own over ours as it evicts: what was said before is remembered, and a
        notice names our plan."""
        if pod.head is None or not view.deleted or not view.disrupted:
            return
        if pod.preempted or view.preempted or view.annotations.get(keys.EVICT_PLAN):
            self.tally.evicted(uid, pod.head.queue, pod.head.workload, view.deleted)

    def _bound(self, uid: str, pod: _Pod) -> None:
        seen = self._seen(uid, pod)
        if pod.head is not None:
            node = self.nodes.get(pod.view.node)
            models = {gpu.index: gpu.model for gpu in node.gpus} if node is not None and seen.charge.gpus else None
            self.tally.held(uid, pod.head.queue, seen.charge, pod.view.started, models)
        self._changes.gone.discard(uid)
        self._changes.bound[uid] = seen
        self._changes.say(self._pod_fact(pod, seen))

    def _seen(self, uid: str, pod: _Pod) -> TaskSeen:
        view, head = pod.view, pod.head
        node = self.nodes.get(view.node)
        return TaskSeen(
            uid=uid,
            version=view.version,
            node=view.node,
            charge=view.charge(node.gpus if node else None),
            queue=head.queue if head else "",
            job=head.key if head else "",
            claim=view.claim if head else "",
            namespace=view.namespace,
            name=view.name,
        )

    def _pod_fact(self, pod: _Pod, seen: TaskSeen) -> PodFact:
        view, head, rules = pod.view, pod.head, pod.view.rules
        return PodFact(
            uid=seen.uid,
            name=view.name,
            namespace=view.namespace,
            version=view.version,
            node=view.node,
            charge=seen.charge,
            job=seen.job,
            queue=seen.queue,
            priority=head.priority if head else 0,
            labels=view.labels,
            ours=head is not None,
            terminating=view.terminating,
            term=self.term,
            task=view.annotations.get(keys.TASK, "") if head else "",
            job_uid=head.uid if head else "",
            gang_min=head.gang_min if head else 1,
            claim=seen.claim,
            started=view.started,
            phase=view.phase,
            extra=view.request.extra,
            ports=rules.ports if rules is not None else (),
            anti_affinity=rules.anti_affinity if rules is not None else (),
            claims=rules.claims if rules is not None else (),
            topology=view.topology if head else None,
            preemptible=head.preemptible if head else True,
            expected_s=head.expected_s if head else 0,
            checkpoint_s=head.checkpoint_s if head else 0,
            workload=head.workload if head else "",
            wishes=view.wishes if head else None,
        )

    def _pod_gone(self, uid: str) -> None:
        pod = self.pods.pop(uid, None)
        self._waiting_for_group.discard(uid)
        if pod is None:
            return
        if pod.holds:
            self._changes.freed(uid)
            self.tally.left(uid)
        elif pod.head is not None:
            self._changes.gone.add(uid)
        if pod.head is not None:
            hint = self._changes.hint(pod.head)
            hint.tasks.pop(uid, None)
            hint.gone[pod.view.task_id] = None

    def _node_gone(self, name: str) -> None:
        if self.nodes.pop(name, None) is not None:
            del self._node_versions[name]
            self._changes.node_gone(name)

    def _recharge(self, name: str) -> None:
        """A node's devices became known or changed: what its pods were charged depends on them."""
        for uid, pod in self.pods.items():
            if pod.holds and pod.view.node == name and pod.view.request.gpu.count:
                self._bound(uid, pod)

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
