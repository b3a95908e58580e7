"""What is to be said about the cluster, collected until it is sent: merged per object, so a burst is one call."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from libs.contracts.events import ClusterFact, JobChanged, cluster_key
from libs.domain.jobs import JobHead, Task
from libs.domain.nodes import Node
from libs.domain.queues import Queue
from libs.store.port import TaskSeen


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

    def say(self, fact: ClusterFact) -> None:
        self.facts[cluster_key(fact)] = fact

    def node(self, node: Node) -> None:
        self.nodes_gone.discard(node.name)
        self.nodes[node.name] = node

    def node_gone(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.nodes_gone.add(name)
        self.facts["node/" + name] = None

    def queue(self, queue: Queue) -> None:
        self.queues_gone.discard(queue.path)
        self.queues[queue.path] = queue

    def queue_gone(self, path: str) -> None:
        self.queues.pop(path, None)
        self.queues_gone.add(path)
        self.facts["queue/" + path] = None

    def freed(self, uid: str) -> None:
        self.bound.pop(uid, None)
        self.gone.add(uid)
        self.facts["pod/" + uid] = None

    def hint(self, head: JobHead) -> Hint:
        found = self.hints.get(head.key)
        if found is None:
            found = self.hints[head.key] = Hint(head)
        elif head.gang_min > found.head.gang_min:
            found.head = head
        elif head.queue != found.head.queue:
            found.head = msgspec.structs.replace(found.head, queue=head.queue)
        return found


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
