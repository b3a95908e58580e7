"""What jobs are judged by: queues, priority classes, PodGroups, disruption budgets and namespaces, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from libs.contracts.events import ClusterFact, NamespaceFact, PdbFact, PriorityClassFact, QueueFact, cluster_key
from libs.domain.bounds import MOST_TASKS
from libs.domain.queues import Queue
from libs.kube import objects
from libs.kube.declared import KEYS
from libs.kube.grouping import POD_GROUPS, Known
from libs.kube.queues import Placed, of_namespaces, spaces_of, tree
from services.watcher.changes import Changes

Place = tuple[str, str]
_NONE: tuple[int, dict[str, str]] = (0, {})


class Catalog:
    """Each resource has one way in: (kind of event, raw object), which returns the object's identity. A list is all of
    them, and then the end of those that were not among them."""

    def __init__(
        self, term: int, tenants: Mapping[str, str], changes: Callable[[], Changes], most_tasks: int = MOST_TASKS
    ) -> None:
        #: PodGroups by project, with their minima and what they say for all their pods.
        self.groups: dict[str, dict[Place, tuple[int, dict[str, str]]]] = {project: {} for project in POD_GROUPS}
        self.priorities: dict[str, PriorityClassFact] = {}
        self.pdbs: dict[str, PdbFact] = {}
        self.queues: dict[str, Queue] = {}
        #: By plain name, with what their owners should know.
        self.placed: dict[str, Placed] = {}
        self.namespaces: dict[str, NamespaceFact] = {}
        self._term = term
        self._tenants = dict(tenants)
        self._most_tasks = most_tasks
        self._changes = changes
        self._specs: dict[str, tuple[objects.QueueSpec, str]] = {}
        self.known = Known()
        self._learn()

    def priority(self, kind: str, raw: bytes) -> str:
        seen = objects.priority_class_decoder.decode(raw)
        name = seen.metadata.name
        if kind == "DELETED":
            self.priority_gone(name)
        else:
            fact = PriorityClassFact(
                name, seen.value, seen.metadata.resource_version, default=bool(seen.global_default),
                preempts=seen.preempts, term=self._term,
            )  # fmt: skip
            if self.priorities.get(name) != fact:
                self.priorities[name] = fact
                self._changes().say(fact)
                self._learn()
        return name

    def priority_gone(self, name: str) -> None:
        if self.priorities.pop(name, None) is not None:
            self._changes().facts["priorityclass/" + name] = None
            self._learn()

    def pdb(self, kind: str, raw: bytes) -> str:
        seen = objects.pdb_decoder.decode(raw)
        meta = seen.metadata
        fact = PdbFact(meta.name, meta.namespace, meta.uid, meta.resource_version, seen.match_labels,
                       seen.status.disruptions_allowed, self._term)  # fmt: skip
        key = cluster_key(fact)
        if kind == "DELETED":
            self.pdb_gone(key)
        elif self.pdbs.get(key) != fact:
            self.pdbs[key] = fact
            self._changes().say(fact)
        return key

    def pdb_gone(self, key: str) -> None:
        if self.pdbs.pop(key, None) is not None:
            self._changes().facts[key] = None

    def namespace(self, kind: str, raw: bytes) -> str:
        meta = objects.namespace_decoder.decode(raw).metadata
        labels, old = meta.labels or {}, self.namespaces.get(meta.name)
        if kind == "DELETED":
            self.namespace_gone(meta.name)
        elif old is None or old.labels != labels:
            fact = self.namespaces[meta.name] = NamespaceFact(meta.name, meta.resource_version, labels, self._term)
            self._changes().say(fact)
        return meta.name

    def namespace_gone(self, name: str) -> None:
        if self.namespaces.pop(name, None) is not None:
            self._changes().facts["namespace/" + name] = None

    def group(self, project: str, kind: str, raw: bytes) -> Place:
        seen = objects.pod_group_decoder.decode(raw)
        place = (seen.metadata.namespace, seen.metadata.name)
        if kind == "DELETED":
            self.group_gone(project, place)
        else:
            said = {k: v for k, v in (seen.metadata.annotations or {}).items() if k in KEYS}
            self.groups[project][place] = (seen.spec.min_member or 1, said)
        return place

    def group_gone(self, project: str, place: Place) -> None:
        self.groups[project].pop(place, None)

    def _group_min(self, namespace: str, name: str) -> int | None:
        found = [groups[namespace, name][0] for groups in self.groups.values() if (namespace, name) in groups]
        return max(found, default=None)

    def _group_words(self, namespace: str, name: str) -> Mapping[str, str]:
        return next((said for groups in self.groups.values() if (said := groups.get((namespace, name), _NONE)[1])), {})

    def queue(self, kind: str, raw: bytes) -> tuple[str, str]:
        """(name, version that its spec was last seen to change in). `settle` has to be called after one or many."""
        seen = objects.queue_decoder.decode(raw)
        meta = seen.metadata
        if kind == "DELETED":
            self._specs.pop(meta.name, None)
            return meta.name, meta.resource_version
        old = self._specs.get(meta.name)
        if old is None or old[0] != seen.spec:
            # A status is written every minute: the queue is the same all the while, and nobody has to hear of it.
            self._specs[meta.name] = (seen.spec, meta.resource_version)
        return meta.name, self._specs[meta.name][1]

    def queues_are(self, names: set[str]) -> None:
        for name in self._specs.keys() - names:
            del self._specs[name]

    def settle(self) -> None:
        """Paths follow from parents; a queue whose parent is unknown or that is its own ancestor stands at the top."""
        self.placed = tree(self._specs)
        queues = {place.queue.path: place.queue for place in self.placed.values()}
        changes = self._changes()
        for path, queue in queues.items():
            if self.queues.get(path) != queue:
                changes.queue(queue)
                changes.say(QueueFact(queue, self._term))
        for path in self.queues.keys() - queues.keys():
            changes.queue_gone(path)
        self.queues = queues
        self._learn()

    def fact(self, key: str) -> ClusterFact | None:
        kind, _, name = key.partition("/")
        if kind == "queue":
            return QueueFact(self.queues[name], self._term) if name in self.queues else None
        if kind == "namespace":
            return self.namespaces.get(name)
        return self.priorities.get(name) if kind == "priorityclass" else self.pdbs.get(key)

    def fact_keys(self) -> set[str]:
        return {
            *("priorityclass/" + name for name in self.priorities),
            *("queue/" + path for path in self.queues),
            *("namespace/" + name for name in self.namespaces),
            *self.pdbs,
        }

    def _learn(self) -> None:
        self.known = Known(
            tenants=self._tenants,
            namespace_queues=of_namespaces(self.queues.values()),
            queue_namespaces=spaces_of(self.queues.values()),
            queue_paths={path.rsplit("/", 1)[-1]: path for path in self.queues},
            pod_group_min=self._group_min,
            priorities={name: fact.value for name, fact in self.priorities.items()},
            pod_group_annotations=self._group_words,
            most_tasks=self._most_tasks,
        )
