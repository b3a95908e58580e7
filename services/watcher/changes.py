"""What is to be said about the cluster, collected until it is sent: merged per object, so a burst is one call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from libs.contracts.events import ClusterFact, JobChanged, JobStatus, cluster_key
from libs.domain.jobs import JobHead, Phase, Task, opens
from libs.domain.nodes import Node
from libs.domain.queues import Eviction, Queue
from libs.store.port import TaskSeen

#: Evicted pods that are named.
_NAMED: Final = 4


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
    #: Jobs of which pods were evicted, by (job, for whom, rule).
    victims: dict[tuple[str, str, str], Victims] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.nodes or self.nodes_gone or self.queues or self.queues_gone or self.bound or self.gone
                    or self.facts or self.hints or self.victims)  # fmt: skip

    @property
    def only_bound(self) -> bool:
        """Whether nothing is to be said but that pods hold the room that was kept for them: the ledger and placement
        know since they were planned, and nobody waits."""
        if (
            self.nodes or self.nodes_gone or self.queues or self.queues_gone or self.gone or self.victims
            or len(self.facts) != len(self.bound)
        ):  # fmt: skip
            return False
        return all(seen.claim and "pod/" + uid in self.facts for uid, seen in self.bound.items()) and not any(
            hint.tasks or hint.gone or hint.deleted for hint in self.hints.values()
        )

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

    def evicted(self, head: JobHead, reason: Eviction, pod: str) -> None:
        key = reason.job, reason.beneficiary, reason.rule
        found = self.victims.setdefault(key, Victims(head, reason))
        found.pods.append(pod)
        if reason.at > found.reason.at:
            found.reason = reason

    def hint(self, head: JobHead) -> Hint:
        found = self.hints.get(head.key)
        if found is None:
            found = self.hints[head.key] = Hint(head)
        elif head.gang_min > found.head.gang_min or opens(found.head, head):
            found.head = head
        elif head.queue != found.head.queue:
            found.head = msgspec.structs.replace(found.head, queue=head.queue)
        return found


@dataclass(slots=True)
class Victims:
    """Pods of one job that were evicted for the same, by namespace/name. `bound` are those that stay."""

    head: JobHead
    reason: Eviction
    pods: list[str] = field(default_factory=list)
    bound: int = 0

    def event(self) -> JobStatus:
        """What the world is told of it."""
        head, names = self.head, sorted(self.pods)
        whole = self.bound >= max(1, head.gang_min)
        said = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        return JobStatus(
            id=head.external_id or head.key,
            job=head.key,
            tenant=head.tenant,
            namespace=head.namespace,
            phase=Phase.RUNNING if whole else Phase.STARTING if self.bound else Phase.PENDING,
            reason="Evicted",
            message=f"{said} {self.reason.sentence()}",
            tasks=max(head.declared, self.bound + len(names)),
            bound=self.bound,
            attempt=head.attempt,
            evicted=msgspec.structs.replace(self.reason, pods=len(names)),
            traceparent=head.traceparent,
        )


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
            traceparent=head.traceparent,
            deleted=self.deleted,
            seen=seen,
        )
