"""What the cluster is, and what has to be said about each change: pure. Raw objects in, changes out.

`Picture` keeps the newest version of every object that matters and drops older ones. What it found to say is collected
until `take`, merged per object. An object that cannot be read is counted and left out; it never stops the others.
Nodes and job objects are judged here; pods, storage, and what jobs are judged by have modules of their own.

Queues change live. What waits follows at once. What holds room stays with the queue that it began in until it ends, as
its charge in the ledger does; where that queue moves within the tree, both go along.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from libs.contracts.events import ClusterFact, NodeFact
from libs.domain.bounds import MOST_TASKS
from libs.domain.jobs import Barred
from libs.domain.nodes import Node, newer
from libs.engine.fair.budget import Budget
from libs.kube import objects, trainingjobs
from libs.kube.grouping import Known, not_open, resolve_queue
from libs.kube.nodes import parse_node
from libs.kube.pods import PodView
from services.watcher.catalog import Catalog
from services.watcher.changes import Changes
from services.watcher.pods import Pods
from services.watcher.storage import Storage
from services.watcher.tally import Tally

K = TypeVar("K", bound=Hashable)


class Picture:
    """All state of the leader. `term` goes into every fact; `now` gives seconds since the epoch. `ignored` is told of
    annotations that cannot be read and so say nothing, `faulty` of the beginning of an object on which we failed."""

    def __init__(
        self,
        term: int,
        tenants: Mapping[str, str],
        unreadable: Callable[[str], None] | None = None,
        *,
        now: Callable[[], float] = lambda: 0.0,
        half_life_s: int = 86_400,
        budget: Budget | None = None,
        ignored: Callable[[PodView, str], None] | None = None,
        most_tasks: int = MOST_TASKS,
        faulty: Callable[[str, Exception], None] | None = None,
    ) -> None:
        self.term = term
        self.tally = Tally(now, half_life_s, term, budget)
        #: As they were last said; heartbeats are only noted in `_node_versions`.
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, trainingjobs.TrainingJobView] = {}
        self.catalog = Catalog(term, tenants, lambda: self._changes, most_tasks)
        self.storage = Storage(term, lambda: self._changes)
        self.pods = Pods(
            term, self.nodes, self.catalog, self.tally, lambda: self._changes, ignored or (lambda _pod, _note: None)
        )
        #: Greatest version of nodes and queues: what a verdict of Never has to have seen.
        self.seen = ""
        self._node_versions: dict[str, str] = {}
        self._changes = Changes()
        self._unreadable = unreadable or (lambda _: None)
        self._faulty = faulty or (lambda _what, _error: None)

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
            self.pods.devices_changed(node.name)

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
        self.tally.queues_are(self.catalog.queues)
        now = self.known
        if (known.queue_paths, known.namespace_queues, known.queue_namespaces) == (
            now.queue_paths, now.namespace_queues, now.queue_namespaces,
        ):  # fmt: skip
            return
        self.pods.queues_changed(moves)

        def stands(view: trainingjobs.TrainingJobView, known: Known) -> tuple[str, Barred | None]:
            said, space = view.spec.queue, view.namespace
            return resolve_queue(said, space, known), not_open(said, space, known)

        for view in self.jobs.values():
            if not view.ended and stands(view, known) != stands(view, now):
                self._expand(view)

    def _expand(self, view: trainingjobs.TrainingJobView) -> None:
        head, tasks = trainingjobs.expand(view, view.status.attempt, self.known)
        self._changes.hint(head).tasks.update((t.id, t) for t in tasks)

    def group_event(self, project: str, kind: str, raw: bytes) -> None:
        self.catalog.group(project, kind, raw)
        self.pods.groups_changed()

    def _queue(self, kind: str, raw: bytes) -> str:
        name, version = self.catalog.queue(kind, raw)
        self._saw(version)
        return name

    # --- lists: what is there, and the end of what is not ----------------------------------------------------------

    def node_list(self, raws: Sequence[bytes]) -> None:
        present = self.all_of(self.node_event, raws, lambda meta: meta.name)
        for name in self.nodes.keys() - present:
            self._node_gone(name)

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
            except (msgspec.MsgspecError, RecursionError) as error:
                self._unreadable(str(error))
        return present

    def guarded(self, event: Callable[[str, bytes], object], kind: str, raw: bytes) -> None:
        try:
            event(kind, raw)
        except msgspec.MsgspecError as error:
            self._unreadable(str(error))
        except Exception as error:
            self._unreadable(str(error))
            self._faulty(raw[:300].decode(errors="replace"), error)

    # --- what is to be said ------------------------------------------------------------------------------------------

    def take(self) -> Changes:
        changes, self._changes = self._changes, Changes()
        if changes.victims:
            bound = self.pods.held_by({victims.head.key for victims in changes.victims.values()})
            for victims in changes.victims.values():
                victims.bound = bound[victims.head.key]
        return changes

    @property
    def urgent(self) -> bool:
        """Whether somebody waits for what is to be said: tasks to be placed, a job to be ended."""
        return any(hint.tasks or hint.deleted for hint in self._changes.hints.values())

    @property
    def only_bound(self) -> bool:
        return self._changes.only_bound

    def everything(self) -> Changes:
        """All of it anew, for a ledger or a topic that was lost; what was not taken yet stays among it."""
        for key in self.fact_keys():
            self.say_again(key)
        return self.take()

    def fact_keys(self) -> set[str]:
        """Keys that the compacted topic ought to have."""
        return {
            *("node/" + name for name in self.nodes),
            *self.pods.fact_keys(),
            *self.catalog.fact_keys(),
            *self.storage.fact_keys(),
            *("history/" + path for path in self.tally.told),
        }

    def fact(self, key: str) -> ClusterFact | None:
        """What is true under a key of the topic now; None where nothing is."""
        kind, _, name = key.partition("/")
        if kind == "pod":
            return self.pods.fact(name)
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
        if kind == "pod":
            self.pods.say_again(name)
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

    # --- inside -----------------------------------------------------------------------------------------------------

    def _node_gone(self, name: str) -> None:
        if self.nodes.pop(name, None) is not None:
            del self._node_versions[name]
            self._changes.node_gone(name)

    def _saw(self, version: str) -> None:
        if newer(version, self.seen):
            self.seen = version
