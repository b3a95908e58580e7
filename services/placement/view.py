"""What placement believes about the cluster: facts and used room, fed to the engine, with the news that can wake jobs.

Facts come from `drystone.cluster` (specs, queues, budgets, running pods), measurements from `drystone.gpus`, used
room from the ledger. Each source has its own rule for which of two records is newer; what is older is dropped. The
view keeps what it was told, so that a new engine can be fed at any moment (the ledger may be rebuilt).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from libs.contracts.events import (
    AttachFact,
    ClaimFact,
    ClusterFact,
    GpuFacts,
    HistoryFact,
    NamespaceFact,
    NodeFact,
    PdbFact,
    PodFact,
    PriorityClassFact,
    QueueFact,
)
from libs.domain.bounds import MOST_TASKS
from libs.domain.jobs import Task
from libs.domain.nodes import Node, newer
from libs.domain.queues import Queue, QueueHistory
from libs.domain.resources import Charge
from libs.domain.usage import NodeUse, QueueUse
from libs.domain.verdicts import Wake
from libs.domain.volumes import ClaimState
from libs.engine.api import Engine, RunningTask
from libs.kube.grouping import Known
from libs.kube.queues import of_namespaces, spaces_of
from services.placement.measured import Measurements
from services.placement.wake import News


class View:
    """`version` is the greatest resourceVersion of nodes and queues seen; a Never needs one as new as the event's."""

    def __init__(
        self,
        new_engine: Callable[[], Engine],
        *,
        gpu_max_age_s: float = 120.0,
        tenants: Mapping[str, str] | None = None,
        mix_slots: int = 1,
        most_tasks: int = MOST_TASKS,
    ) -> None:
        self._mix_slots = mix_slots
        self._most_tasks = most_tasks
        self._tenants = dict(tenants or {})
        self._new_engine = new_engine
        self.engine = new_engine()
        self._begins_at = 0.0
        self.news = News()
        self.version = ""
        self.nodes: dict[str, Node] = {}
        self.queues: dict[str, Queue] = {}
        self.histories: dict[str, QueueHistory] = {}
        self.pods: dict[str, PodFact] = {}
        self.priorities: dict[str, PriorityClassFact] = {}
        self.namespaces: dict[str, NamespaceFact] = {}
        self.claims: dict[str, ClaimFact] = {}
        self.attaching: dict[str, AttachFact] = {}
        self._pdbs: dict[str, PdbFact] = {}
        self._uses: dict[str, NodeUse] = {}
        #: What `use` was given last.
        self._taken_in: Iterable[NodeUse] = ()
        self._queue_uses: dict[str, QueueUse] = {}
        self.measured = Measurements(gpu_max_age_s)
        #: uids of pods that make room for somebody.
        self.marked: set[str] = set()
        #: Called with a pod's fact when it is seen to hold room, and with its last fact when it holds none any more.
        self.on_pod: Callable[[PodFact, bool], None] = lambda _fact, _holds: None
        #: Called with workloads of which it came to be known for whom they were evicted.
        self.on_reasons: Callable[[Collection[str]], None] = lambda _workloads: None
        #: Called with the path of a queue of which another amount is used.
        self.on_queue_use: Callable[[str], None] = lambda _path: None
        #: Called with the name of a node on which room came free.
        self.on_freed: Callable[[str], None] = lambda _node: None

    @property
    def known(self) -> Known:
        """What the grouping of listed pods needs to know."""
        return Known(
            tenants=self._tenants,
            namespace_queues=of_namespaces(self.queues.values()),
            queue_namespaces=spaces_of(self.queues.values()),
            queue_paths={path.rsplit("/", 1)[-1]: path for path in self.queues},
            priorities={name: fact.value for name, fact in self.priorities.items()},
            most_tasks=self._most_tasks,
        )

    # -- facts --------------------------------------------------------------------------------------------------------

    def see(self, fact: ClusterFact, now: float) -> None:
        match fact:
            case PodFact():
                self._see_pod(fact)
            case NodeFact():
                self._see_node(fact.node, now)
            case QueueFact():
                self._see_queue(fact.queue)
            case HistoryFact():
                self._see_history(fact.history)
                self.engine.queue_history_seen(fact.history)
            case PriorityClassFact():
                self.priorities[fact.name] = fact
            case PdbFact():
                self._pdbs[f"{fact.namespace}/{fact.name}"] = fact
                self._reguard(fact.namespace)
            case NamespaceFact():
                self.namespaces[fact.name] = fact
                self.engine.namespace_seen(fact.name, fact.labels)
                self.news.kinds.add(Wake.PODS_CHANGED)
            case ClaimFact():
                self.claims[f"{fact.claim.namespace}/{fact.claim.name}"] = fact
                self.engine.claim_seen(fact.claim)
                self.news.kinds.add(Wake.PODS_CHANGED)
            case AttachFact():
                self.attaching[fact.node] = fact
                self.engine.volume_limits(fact.node, fact.limits)
                self.news.kinds.add(Wake.PODS_CHANGED)

    def gone(self, key: str) -> None:
        """A record without value: the thing under this key is no more."""
        kind, _, name = key.partition("/")
        match kind:
            case "pod":
                fact = self.pods.pop(name, None)
                self.marked.discard(name)
                self.engine.pod_gone(name)
                if fact is not None:
                    self.news.kinds.add(Wake.PODS_CHANGED)
                    self.on_pod(fact, False)
            case "node":
                if self.nodes.pop(name, None) is not None:
                    self.engine.node_gone(name)
            case "history":
                self.histories.pop(name, None)
            case "queue":
                if self.queues.pop(name, None) is not None:
                    self.engine.queue_gone(name)
                    self.news.queues.add(name)
            case "priorityclass":
                self.priorities.pop(name, None)
            case "namespace":
                if self.namespaces.pop(name, None) is not None:
                    self.engine.namespace_gone(name)
            case "claim":
                claim = self.claims.pop(name, None)
                if claim is not None:
                    self.engine.claim_gone(claim.claim.namespace, claim.claim.name)
            case "attach":
                if self.attaching.pop(name, None) is not None:
                    self.engine.volume_limits(name, {})
                    self.news.kinds.add(Wake.PODS_CHANGED)
            case "pdb":
                pdb = self._pdbs.pop(name, None)
                if pdb is not None:
                    self._reguard(pdb.namespace)

    def reached(self, version: str) -> None:
        """The sender had seen this version of nodes and queues before it sent what we just read."""
        if version and newer(version, self.version):
            self.version = version

    def first_use(self, task: Task) -> tuple[str, ...]:
        """The task's volume claims that wait for its first use."""
        names = task.rules.claims if task.rules is not None else ()
        facts = ((name, self.claims.get(f"{task.namespace}/{name}")) for name in names)
        return tuple(n for n, fact in facts if fact is not None and fact.claim.state is ClaimState.FIRST_USE)

    def _see_node(self, node: Node, now: float) -> None:
        self.reached(node.version)
        known = self.nodes.get(node.name)
        if known is not None and known.uid == node.uid and newer(known.version, node.version):
            return
        self.nodes[node.name] = node
        self._feed_node(node, now)
        if known is None:
            self.news.kinds.add(Wake.NODE_ADDED)
        elif known.spec != node.spec or known.uid != node.uid:
            self.news.kinds.add(Wake.NODE_CHANGED)

    def _feed_node(self, node: Node, now: float | None) -> None:
        self.engine.node_seen(self.measured.complete(node, now))

    def _see_history(self, history: QueueHistory) -> None:
        old = self.histories.get(history.path)
        self.histories[history.path] = history
        known = old.reasons if old is not None else {}
        if news := {workload for workload, told in history.reasons.items() if known.get(workload) != told}:
            self.on_reasons(news)

    def _see_queue(self, queue: Queue) -> None:
        self.reached(queue.version)
        known = self.queues.get(queue.path)
        if known == queue:
            return
        self.queues[queue.path] = queue
        self.engine.queue_seen(queue)
        self.news.queues.add(queue.path)
        self.news.kinds.add(Wake.SPEC_CHANGED)

    def _see_pod(self, fact: PodFact) -> None:
        known = self.pods.get(fact.uid)
        if known is not None and newer(known.version, fact.version):
            return
        self.pods[fact.uid] = fact
        self.engine.pod_seen(self._running(fact))
        if known is None and fact.ours:
            # A job refused a moment ago may evict this pod, whose fact came after the decision: nothing else wakes it.
            self.news.kinds.add(Wake.ROOM_FREED)
        if known is None or known.labels != fact.labels or known.terminating != fact.terminating:
            self.news.kinds.add(Wake.PODS_CHANGED)
        self.on_pod(fact, True)

    def _running(self, fact: PodFact) -> RunningTask:
        return RunningTask(
            uid=fact.uid,
            name=fact.name,
            namespace=fact.namespace,
            node=fact.node,
            job=fact.job,
            queue=fact.queue,
            priority=fact.priority,
            charge=fact.charge,
            ours=fact.ours,
            gang_min=fact.gang_min,
            guarded=bool(self._pdbs) and self.guards(fact.namespace, fact.labels),
            terminating=fact.terminating,
            started=fact.started,
            marked=fact.uid in self.marked,
            labels=fact.labels,
            extra=fact.extra,
            ports=fact.ports,
            anti_affinity=fact.anti_affinity,
            claims=fact.claims,
            topology=fact.topology,
            task=f"{fact.job_uid}/{fact.task}" if fact.task and fact.job_uid else "",
            preemptible=fact.preemptible,
            expected_s=fact.expected_s,
            checkpoint_s=fact.checkpoint_s,
            saved=fact.saved,
            workload=fact.workload,
            wishes=fact.wishes,
        )

    def mark(self, uids: Iterable[str]) -> None:
        """These pods make room for somebody already: they are nobody else's victims."""
        self._mark([uid for uid in uids if uid not in self.marked and uid in self.pods], True)

    def unmark(self, uids: Iterable[str]) -> None:
        """These stay after all, and may be chosen again."""
        self._mark([uid for uid in uids if uid in self.marked], False)

    def _mark(self, uids: Sequence[str], marked: bool) -> None:
        (self.marked.update if marked else self.marked.difference_update)(uids)
        for uid in uids:
            self.engine.pod_seen(self._running(self.pods[uid]))
        if uids and not marked:
            self.news.kinds.add(Wake.ROOM_FREED)

    def guards(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a disruption budget selects such a pod."""
        for pdb in self._pdbs.values():
            if pdb.namespace != namespace:
                continue
            if pdb.match_labels is None or all(labels.get(k) == v for k, v in pdb.match_labels.items()):
                return True
        return False

    def _reguard(self, namespace: str) -> None:
        """A budget came or went: which pods it guards is told anew."""
        for fact in self.pods.values():
            if fact.namespace == namespace and fact.ours:
                self.engine.pod_seen(self._running(fact))

    # -- measurements -------------------------------------------------------------------------------------------------

    def measure(self, facts: GpuFacts, now: float) -> None:
        """A node that declares enough is left alone."""
        self.measured.take(facts, now)
        node = self.nodes.get(facts.node)
        if node is None or all(g.mib and g.model for g in node.gpus):
            return
        first = facts.node not in self.measured.filled
        self._feed_node(node, now)
        if first and facts.node in self.measured.filled:
            self.news.kinds.add(Wake.NODE_CHANGED)

    def forget_old_measurements(self, now: float) -> None:
        for name in self.measured.forget_old(now):
            node = self.nodes.get(name)
            if node is not None:
                self.engine.node_seen(node)

    def begin_at(self, share: float) -> None:
        """See `Engine.begin_at`."""
        self._begins_at = share
        self.engine.begin_at(share)

    def grantable(self, node: str, charge: Charge) -> Charge:
        """The charge as the ledger can check it (see `Measurements.grantable`)."""
        return self.measured.grantable(node, self.nodes.get(node), charge)

    # -- used room ----------------------------------------------------------------------------------------------------

    def use(self, uses: Iterable[NodeUse], queues: Iterable[QueueUse]) -> None:
        """Used room as the ledger tells it, from its stream, a dump or an answer. The higher revision wins."""
        if uses and uses is self._taken_in:
            return  # answers for many plans share what is fresh: looked at for each, it cost a quarter of a pass
        self._taken_in = uses
        for use in uses:
            if not self.engine.use_seen(use):
                continue
            known = self._uses.get(use.node)
            self._uses[use.node] = use
            if known is not None and freed(known, use):
                self.news.kinds.add(Wake.ROOM_FREED)
                self.on_freed(use.node)
        for queue in queues:
            known_queue = self._queue_uses.get(queue.path)
            if known_queue is not None and queue.revision <= known_queue.revision:
                continue
            self._queue_uses[queue.path] = queue
            self.engine.queue_use_seen(queue)
            self.on_queue_use(queue.path)
            if known_queue is not None and _queue_freed(known_queue, queue):
                self.news.queues.add(queue.path)

    def earmarked_milli(self, job: str, nodes: Iterable[str]) -> int:
        """Milli GPUs that are kept for a job there, and free."""
        uses = [use for node in nodes if (use := self._uses.get(node)) is not None]
        return sum(charge.gpu_milli for use in uses for charge in use.earmarked.get(job, ()))

    def restart_uses(self) -> None:
        """The ledger's data set is another one: forget all used room and feed a new engine what else is known."""
        learned = [(self.engine.learned(slot), slot) for slot in range(self._mix_slots)]
        self.engine = self._new_engine()
        self.engine.begin_at(self._begins_at)
        for mix, slot in learned:
            self.engine.recall(mix, slot)
        self._uses.clear()
        self._queue_uses.clear()
        self._taken_in = ()
        for node in self.nodes.values():
            self._feed_node(node, None)
        for queue in self.queues.values():
            self.engine.queue_seen(queue)
        for history in self.histories.values():
            self.engine.queue_history_seen(history)
        for namespace in self.namespaces.values():
            self.engine.namespace_seen(namespace.name, namespace.labels)
        for claim in self.claims.values():
            self.engine.claim_seen(claim.claim)
        for attaching in self.attaching.values():
            self.engine.volume_limits(attaching.node, attaching.limits)
        for fact in self.pods.values():
            self.engine.pod_seen(self._running(fact))
        self.news.kinds.update((Wake.ROOM_FREED, Wake.NODE_CHANGED))


def freed(before: NodeUse, after: NodeUse) -> bool:
    """Whether some room that was taken is not any more (whatever else was taken meanwhile)."""
    if after.cpu < before.cpu or after.mem < before.mem or after.pods < before.pods or after.blind < before.blind:
        return True
    if before.gone and not after.gone:
        return True
    if after.gpus != before.gpus:
        for (was_milli, was_mib), (milli, mib) in zip(before.gpus, after.gpus, strict=False):
            if milli < was_milli or mib < was_mib:
                return True
        if len(after.gpus) < len(before.gpus):
            return True
    if before.disputed != after.disputed and not set(before.disputed) <= set(after.disputed):
        return True
    # Room that was a victim's and is now kept for its beneficiary changes no sum, only whom it is for.
    return before.earmarked != after.earmarked


def _queue_freed(before: QueueUse, after: QueueUse) -> bool:
    return after.gpu_milli < before.gpu_milli or after.cpu < before.cpu or after.mem < before.mem
