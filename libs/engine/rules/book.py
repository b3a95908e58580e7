"""Every pod that is on a node, as far as other pods' rules speak of it: running, assumed, or placed in this pass.

Guarantees: a count asked for once is exact from then on, whatever pods come, go or change; adding and removing the same
pod are inverses. A pod that nobody's rule speaks of costs one dictionary entry.

`assumed` pods are placed and accepted but not seen running yet; they make way for what is seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from libs.domain.jobs import Task
from libs.domain.rules import HostPort, PodTerm, Selector
from libs.domain.volumes import Claim
from libs.engine.rules.counts import Counts, Topology
from libs.engine.rules.match import means, selects
from libs.engine.rules.volumes import VolumeBook
from libs.engine.snapshot import Snapshot

#: Counts kept; what was not asked for longest goes first, and costs one look at all pods when it is asked for again.
TABLES: Final = 256
_NAME_LABEL: Final = "kubernetes.io/metadata.name"
K = TypeVar("K")


class Resident(Protocol):
    """A pod on a node."""

    @property
    def uid(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def terminating(self) -> bool: ...
    @property
    def extra(self) -> tuple[tuple[str, int], ...]: ...
    @property
    def ports(self) -> tuple[HostPort, ...]: ...
    @property
    def anti_affinity(self) -> tuple[PodTerm, ...]: ...
    @property
    def claims(self) -> tuple[str, ...]: ...


class Placed(msgspec.Struct, frozen=True, gc=False):
    """A task on the node that was chosen for it."""

    uid: str
    namespace: str
    node: str
    labels: Mapping[str, str]
    extra: tuple[tuple[str, int], ...] = ()
    ports: tuple[HostPort, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    claims: tuple[str, ...] = ()
    terminating: bool = False
    task: Task | None = None


def placed(task: Task, node: str) -> Placed:
    rules = task.rules
    return Placed(
        task.id,
        task.namespace,
        node,
        task.labels,
        task.request.extra,
        rules.ports if rules is not None else (),
        rules.anti_affinity if rules is not None else (),
        rules.claims if rules is not None else (),
        task=task,
    )


@dataclass(frozen=True, slots=True)
class Kind:
    """The pods that a count counts: meant by all `terms`; or, for spreading, of `namespace`, selected and staying."""

    terms: tuple[PodTerm, ...] = ()
    namespace: str = ""
    selector: Selector | None = None


def _spaces(kind: Kind) -> tuple[str, ...] | None:
    """Namespaces outside of which the kind counts nobody; None: it may count anybody."""
    if not kind.terms:
        return (kind.namespace,)
    return next((term.namespaces for term in kind.terms if term.namespace_selector is None), None)


class _BySpace(Generic[K]):
    """Things by the namespaces that they may concern, so that one pod meets few of them."""

    def __init__(self) -> None:
        self._of: dict[str, dict[K, None]] = {}
        self._anywhere: dict[K, None] = {}

    def add(self, thing: K, spaces: tuple[str, ...] | None) -> None:
        if spaces is None:
            self._anywhere[thing] = None
        for space in set(spaces or ()):
            self._of.setdefault(space, {})[thing] = None

    def drop(self, thing: K, spaces: tuple[str, ...] | None) -> None:
        if spaces is None:
            del self._anywhere[thing]
        for space in set(spaces or ()):
            there = self._of[space]
            del there[thing]
            if not there:
                del self._of[space]

    def concerning(self, space: str) -> Iterator[K]:
        yield from self._anywhere
        yield from self._of.get(space, ())


class Book:
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.topology = Topology(snapshot)
        self.volumes = VolumeBook()
        #: Terms of required anti-affinity that pods on nodes have, with how many of them each node has.
        self.repelling: dict[PodTerm, Counts] = {}
        #: Grows when the set of such terms changes.
        self.repelling_version = 0
        #: Names of nodes whose ports or other resources changed, in order.
        self.log: list[str] = []
        self.epoch = 0
        self._pods: dict[str, Resident] = {}
        self._assumed: dict[str, Placed] = {}
        self._tables: dict[Kind, Counts] = {}
        self._kinds: _BySpace[Kind] = _BySpace()
        self._terms: _BySpace[PodTerm] = _BySpace()
        #: Keys of labels that repelling terms select on, by namespace; forgotten when the terms change.
        self._repelling_keys: dict[str, frozenset[str]] = {}
        self._ports: dict[str, dict[HostPort, int]] = {}
        self._extra: dict[str, dict[str, int]] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}

    # -- namespaces -------------------------------------------------------------------------------------------------
    def namespace_seen(self, name: str, labels: Mapping[str, str]) -> None:
        if self._namespaces.get(name) == labels:
            return
        self._namespaces[name] = dict(labels)
        self._forget_tables()

    def namespace_gone(self, name: str) -> None:
        if self._namespaces.pop(name, None) is not None:
            self._forget_tables()

    def namespace(self, name: str) -> Mapping[str, str]:
        """A namespace that was not told of has the one label that the API server gives to each."""
        known = self._namespaces.get(name)
        return {_NAME_LABEL: name} if known is None else known

    def _forget_tables(self) -> None:
        """Counts that select on labels of namespaces are made anew when they are asked for again."""
        for kind in [kind for kind in self._tables if any(term.namespace_selector for term in kind.terms)]:
            self._drop(kind)
        self.repelling_version += 1
        self.epoch += 1
        self.snapshot.version += 1

    def _drop(self, kind: Kind) -> None:
        del self._tables[kind]
        self._kinds.drop(kind, _spaces(kind))

    # -- volumes ------------------------------------------------------------------------------------------------------
    def claim_seen(self, claim: Claim) -> None:
        if self.volumes.claim_seen(claim):
            self._volumes_changed()

    def claim_gone(self, namespace: str, name: str) -> None:
        if self.volumes.claim_gone(namespace, name):
            self._volumes_changed()

    def volume_limits(self, node: str, limits: Mapping[str, int]) -> None:
        if self.volumes.limits_seen(node, limits):
            self._volumes_changed()

    def _volumes_changed(self) -> None:
        self.epoch += 1
        self.snapshot.version += 1

    # -- pods -------------------------------------------------------------------------------------------------------
    def seen(self, pod: Resident) -> None:
        """A pod is on a node (anew: replaces what was known of it)."""
        old = self._pods.get(pod.uid)
        if old is not None:
            if _same(old, pod):
                self._pods[pod.uid] = pod
                return
            self._shift(old, -1)
        self._assumed.pop(pod.uid, None)
        self._pods[pod.uid] = pod
        self._shift(pod, 1)

    def gone(self, uid: str) -> Resident | None:
        """The pod that was there, if any."""
        pod = self._pods.pop(uid, None)
        self._assumed.pop(uid, None)
        if pod is not None:
            self._shift(pod, -1)
        return pod

    def assume(self, pod: Placed) -> None:
        """Counts until the pod is seen, or until `forget`."""
        if pod.uid not in self._pods:
            self._assumed[pod.uid] = pod
            self._pods[pod.uid] = pod
            self._shift(pod, 1)

    def forget(self, uid: str) -> None:
        """The task was not placed after all, or is seen under another uid."""
        if uid in self._assumed:
            self.gone(uid)

    @property
    def assumed(self) -> Mapping[str, Placed]:
        return self._assumed

    def _shift(self, pod: Resident, by: int) -> None:
        node = pod.node
        if self._tables:
            for kind in self._kinds.concerning(pod.namespace):
                if self._counts(kind, pod):
                    self._tables[kind].shift(node, by)
        for term in pod.anti_affinity:
            self._repel(term, node, by)
        if pod.ports or pod.extra or pod.claims:
            self.log.append(node)
            self.volumes.shift(node, pod, by)
            for port in pod.ports:
                _add(self._ports, node, port, by)
            for name, amount in pod.extra:
                _add(self._extra, node, name, by * amount)
        self.snapshot.version += 1

    def _repel(self, term: PodTerm, node: str, by: int) -> None:
        counts = self.repelling.get(term)
        if counts is None:
            counts = self.repelling[term] = Counts()
            self._terms.add(term, _spaces(Kind((term,))))
            self._repelling_changed()
        counts.shift(node, by)
        if not counts.total:
            del self.repelling[term]
            self._terms.drop(term, _spaces(Kind((term,))))
            self._repelling_changed()

    def _repelling_changed(self) -> None:
        self.repelling_version += 1
        self._repelling_keys.clear()

    def _keys(self, namespace: str) -> frozenset[str]:
        found = self._repelling_keys.get(namespace)
        if found is None:
            terms = self._terms.concerning(namespace)
            found = frozenset(part.key for term in terms for part in term.selector or ())
            self._repelling_keys[namespace] = found
        return found

    def speaking_of(self, task: Task) -> frozenset[str] | None:
        """Keys of labels that make a difference to pods that keep others away, None where none of them means the task
        (or its own rules bring it into one class with its likes anyhow)."""
        if not self.repelling:
            return None
        labels, namespace = task.labels, task.namespace
        if task.rules is not None and task.rules.between_pods:
            return self._keys(namespace)
        for term in self._terms.concerning(namespace):
            if means(term, namespace, labels, self.namespace):
                return self._keys(namespace)
        return None

    # -- answers ----------------------------------------------------------------------------------------------------
    def repelled(self, namespace: str, labels: Mapping[str, str]) -> list[tuple[PodTerm, Counts]]:
        """Anti-affinity of pods on nodes that means a pod like this."""
        return [
            (term, self.repelling[term])
            for term in self._terms.concerning(namespace)
            if means(term, namespace, labels, self.namespace)
        ]

    def table(self, kind: Kind) -> Counts:
        """The live counts of a kind of pods."""
        found = self._tables.pop(kind, None)
        if found is None:
            while len(self._tables) >= TABLES:
                self._drop(next(iter(self._tables)))
            self._kinds.add(kind, _spaces(kind))
            found = Counts()
            for pod in self._pods.values():
                if self._counts(kind, pod):
                    found.shift(pod.node, 1)
        self._tables[kind] = found  # the last one is the one asked for last
        return found

    def counts(self, kind: Kind, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether all terms of the kind mean a pod like this."""
        return all(means(term, namespace, labels, self.namespace) for term in kind.terms)

    def _counts(self, kind: Kind, pod: Resident) -> bool:
        if kind.terms:
            return self.counts(kind, pod.namespace, pod.labels)
        # An empty selector counts no pod when spreading, unlike everywhere else.
        if not kind.selector or pod.namespace != kind.namespace or pod.terminating:
            return False
        return selects(kind.selector, pod.labels)

    def port_taken(self, node: str, ports: tuple[HostPort, ...]) -> bool:
        taken = self._ports.get(node)
        return taken is not None and any(port.clashes(other) for port in ports for other in taken)

    def extra_used(self, node: str, name: str) -> int:
        used = self._extra.get(node)
        return used.get(name, 0) if used else 0

    def trim(self) -> None:
        """Forget a log that is longer than starting anew costs; readers notice by `epoch`."""
        if len(self.log) > 4 * len(self.snapshot.states) + 4096:
            self.log.clear()
            self.epoch += 1


def _add(into: dict[str, dict[K, int]], node: str, key: K, by: int) -> None:
    held = into.setdefault(node, {})
    count = held.get(key, 0) + by
    if count:
        held[key] = count
        return
    held.pop(key, None)
    if not held:
        del into[node]


def _same(old: Resident, new: Resident) -> bool:
    return (
        old.node == new.node
        and old.namespace == new.namespace
        and old.terminating == new.terminating
        and old.labels == new.labels
        and old.extra == new.extra
        and old.ports == new.ports
        and old.anti_affinity == new.anti_affinity
        and old.claims == new.claims
    )
