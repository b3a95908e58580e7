"""Pods as the leader remembers them, and what is said as they change: pure.

A pod that holds room is told to the ledger and on the cluster's topic, with what it is charged; one of ours that waits
is told to placement as a task of its job, and again once a PodGroup that it waits for is there. Versions that change
nothing are not said. Who holds room stays with the queue that it began in until it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from libs.contracts.events import PodFact
from libs.domain import keys
from libs.domain.jobs import JobHead
from libs.domain.nodes import Node, newer
from libs.domain.queues import Eviction
from libs.kube.declared import notes, saved_at
from libs.kube.grouping import job_of
from libs.kube.pods import PodView, parse_pod
from libs.store.port import TaskSeen
from services.watcher import metrics
from services.watcher.catalog import Catalog
from services.watcher.changes import Changes
from services.watcher.tally import Tally

#: Reasons of kubelets that refuse a pod that was bound to them; further resources are counted as one.
_OUT_OF: Final = frozenset({"OutOfcpu", "OutOfmemory", "OutOfpods", f"OutOf{keys.GPU_RESOURCE}"})
_KUBELETS: Final = frozenset({"UnexpectedAdmissionError", "NodeAffinity", "NodePorts", "AdmissionFailed"})
#: Gangs of which it is remembered when they saved their work last.
_REMEMBERED: Final = 20_000


@dataclass(slots=True)
class _Pod:
    """What is remembered of a pod: what was last said of it, enough to tell what a change means, and who is told when
    it is gone. `version` is the newest seen; versions that change nothing are not said."""

    view: PodView
    head: JobHead | None  # None: foreign
    holds: bool
    version: str
    preempted: bool = False
    #: For whom, and by which rule.
    evicted_for: tuple[str, str] = ("", "")


class Pods:
    """One way in: (kind of event, raw object). `nodes` is the leader's own, by name: what a pod is charged depends on
    its node's devices. `ignored` is told of annotations that cannot be read and so say nothing."""

    def __init__(
        self,
        term: int,
        nodes: Mapping[str, Node],
        catalog: Catalog,
        tally: Tally,
        changes: Callable[[], Changes],
        ignored: Callable[[PodView, str], None],
    ) -> None:
        self.by_uid: dict[str, _Pod] = {}
        self._term = term
        self._nodes = nodes
        self._catalog = catalog
        self._tally = tally
        self._changes = changes
        self._ignored = ignored
        #: Whose jobs are barred: told again as soon as they are not.
        self._barred: set[str] = set()
        #: When gangs saved their work last, as one of their pods said, by job.
        self._saved: dict[str, float] = {}

    # --- what happens to them ---------------------------------------------------------------------------------------

    def event(self, kind: str, raw: bytes) -> None:
        view = parse_pod(raw)
        old = self.by_uid.get(view.uid)
        if kind == "DELETED":
            if old is not None:
                self._evicted(view.uid, old, view)
            self.gone(view.uid)
        elif old is None or newer(view.version, old.version):
            self._changed(view, old)

    def version_of(self, uid: str) -> str:
        """The newest version seen of a pod; empty where it is not known."""
        pod = self.by_uid.get(uid)
        return pod.version if pod is not None else ""

    def gone(self, uid: str) -> None:
        pod = self.by_uid.pop(uid, None)
        self._barred.discard(uid)
        if pod is None:
            return
        changes = self._changes()
        if pod.holds:
            changes.freed(uid)
            self._tally.left(uid)
        elif pod.head is not None:
            changes.gone.add(uid)
        if pod.head is not None:
            hint = changes.hint(pod.head)
            hint.tasks.pop(uid, None)
            hint.gone[pod.view.task_id] = None

    def groups_changed(self) -> None:
        """Who waits for a PodGroup is told anew once it is there."""
        for uid in list(self._barred):
            pod = self.by_uid[uid]
            head = job_of(pod.view, self._catalog.known)
            if head.barred is None:
                self._barred.discard(uid)
                pod.head = head
                self._changes().hint(head).tasks[uid] = pod.view.to_task()

    def queues_changed(self, moves: Mapping[str, str]) -> None:
        """What waits follows at once; what holds room only where its queue moved: `moves`, old path to new."""
        for uid, pod in self.by_uid.items():
            if pod.head is None:
                continue
            if pod.holds:
                if pod.head.queue in moves:
                    pod.head = msgspec.structs.replace(pod.head, queue=moves[pod.head.queue])
                    self._bound(uid, pod)
            elif pod.view.pending:
                head = job_of(pod.view, self._catalog.known)
                if head.queue != pod.head.queue or head.barred != pod.head.barred:
                    pod.head = head
                    (self._barred.add if head.barred is not None else self._barred.discard)(uid)
                    self._changes().hint(head).tasks[uid] = pod.view.to_task()

    def devices_changed(self, node: str) -> None:
        """A node's devices became known or changed: what its pods were charged depends on them."""
        for uid, pod in self.by_uid.items():
            if pod.holds and pod.view.node == node and pod.view.request.gpu.count:
                self._bound(uid, pod)

    # --- what is true of them ---------------------------------------------------------------------------------------

    def fact_keys(self) -> set[str]:
        return {"pod/" + uid for uid, pod in self.by_uid.items() if pod.holds}

    def fact(self, uid: str) -> PodFact | None:
        pod = self.by_uid.get(uid)
        return self._fact(pod, self._seen(uid, pod)) if pod is not None and pod.holds else None

    def say_again(self, uid: str) -> None:
        """To the ledger."""
        if (pod := self.by_uid.get(uid)) is not None:
            changes = self._changes()
            changes.gone.discard(uid)
            changes.bound[uid] = self._seen(uid, pod)

    def bound(self) -> list[str]:
        return [uid for uid, pod in self.by_uid.items() if pod.holds]

    # --- inside -----------------------------------------------------------------------------------------------------

    def _changed(self, view: PodView, old: _Pod | None) -> None:
        uid, holds = view.uid, view.holds
        preempted = view.preempted or (view.disrupted and old is not None and old.preempted)
        evicted_for = view.evicted_for
        if not any(evicted_for) and view.disrupted and old is not None:
            evicted_for = old.evicted_for
        if holds and old is not None and old.holds and not _differs(old.view, view):
            old.version, old.preempted, old.evicted_for = view.version, preempted, evicted_for
            return
        if old is not None and _only_its_status(old.view, view):
            # A word about why it waits, mostly placement's own, which has the version from the answer to its write. A
            # version that it misses costs the binder one more look at the pod.
            old.view, old.version, old.preempted, old.evicted_for = view, view.version, preempted, evicted_for
            return
        changes = self._changes()
        self._barred.discard(uid)
        head = job_of(view, self._catalog.known) if view.ours else None
        if head is not None:
            if old is None or old.view.annotations != view.annotations:
                for note in notes(view.annotations):
                    self._ignored(view, note)
            if holds and old is not None and old.holds and old.head is not None and old.head.queue != head.queue:
                head = msgspec.structs.replace(head, queue=old.head.queue)
        pod = self.by_uid[uid] = _Pod(view, head, holds, view.version, preempted, evicted_for)
        if head is not None and old is None and not view.ended:
            self._tally.came(head.queue, head.key, head.workload, view.created)
        self._evicted(uid, pod, view)
        if holds:
            self._bound(uid, pod)
            if head is not None and (old is None or not old.holds):
                changes.hint(head).bound[view.task_id] = None
            return
        if old is not None and old.holds:
            changes.freed(uid)
            self._tally.left(uid)
        if head is None:
            if view.ended:
                # A foreign pod that has ended holds nothing and is nobody's task.
                del self.by_uid[uid]
        elif view.ended:
            if old is None or not old.view.ended:
                if reason := _kubelets(view):
                    metrics.KUBELET.labels(reason).inc()
                changes.freed(uid)
                changes.hint(head).gone[view.task_id] = None
        elif view.terminating:
            changes.hint(head).gone[view.task_id] = None
        else:
            if head.barred is not None:
                self._barred.add(uid)
            hint = changes.hint(head)
            hint.gone.pop(view.task_id, None)
            hint.tasks[uid] = view.to_task()

    def _evicted(self, uid: str, pod: _Pod, view: PodView) -> None:
        """The API server writes a reason of its own over ours as it evicts: what was said before is remembered, and a
        notice names our plan."""
        if pod.head is None or not view.deleted or not view.disrupted:
            return
        if not (pod.preempted or view.preempted or view.annotations.get(keys.EVICT_PLAN)):
            return
        head, (beneficiary, rule) = pod.head, view.evicted_for if any(view.evicted_for) else pod.evicted_for
        reason = Eviction(head.key, beneficiary, rule, int(view.deleted)) if beneficiary else None
        saved = max(saved_at(view.annotations), self._saved.get(head.key, 0.0))
        counted = self._tally.evicted(
            uid,
            head.queue,
            head.workload,
            view.deleted,
            reason,
            head.checkpoint_s,
            saved,
            head.gang_min > 1,
            view.created,
        )
        if counted and reason is not None:
            self._changes().evicted(head, reason, f"{view.namespace}/{view.name}")

    def held_by(self, jobs: Collection[str]) -> dict[str, int]:
        """How many pods of each of these jobs hold room and stay."""
        found = dict.fromkeys(jobs, 0)
        for pod in self.by_uid.values():
            if pod.holds and pod.head is not None and pod.head.key in found and not pod.view.terminating:
                found[pod.head.key] += 1
        return found

    def _bound(self, uid: str, pod: _Pod) -> None:
        seen = self._seen(uid, pod)
        if pod.head is not None:
            node = self._nodes.get(pod.view.node)
            models = {gpu.index: gpu.model for gpu in node.gpus} if node is not None and seen.charge.gpus else None
            self._tally.held(uid, pod.head.queue, seen.charge, pod.view.started, models)
            self._says_saved(pod.head, saved_at(pod.view.annotations))
        changes = self._changes()
        changes.gone.discard(uid)
        changes.bound[uid] = seen
        changes.say(self._fact(pod, seen))

    def _says_saved(self, head: JobHead, saved: float) -> None:
        if saved and head.gang_min > 1:
            self._saved[head.key] = max(saved, self._saved.pop(head.key, 0.0))
            if len(self._saved) > _REMEMBERED:
                del self._saved[next(iter(self._saved))]

    def _seen(self, uid: str, pod: _Pod) -> TaskSeen:
        view, head = pod.view, pod.head
        node = self._nodes.get(view.node)
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

    def _fact(self, pod: _Pod, seen: TaskSeen) -> PodFact:
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
            term=self._term,
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
            saved=saved_at(view.annotations) if head else 0.0,
            workload=head.workload if head else "",
            wishes=view.wishes if head else None,
        )


def _kubelets(view: PodView) -> str:
    """Why the node's kubelet did not admit the pod: somebody was quicker, or the node is not as it was said to be."""
    reason = view.status_reason
    if not reason.startswith("OutOf"):
        return reason if reason in _KUBELETS else ""
    return reason if reason in _OUT_OF else "OutOfAnother"


def _only_its_status(old: PodView, new: PodView) -> bool:
    """Whether a pod that waits still asks for the very same."""
    return old.pending and new.pending and msgspec.structs.replace(old, version=new.version) == new


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
