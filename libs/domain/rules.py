"""Kubernetes' placement rules of one pod as values: node affinity, rules between pods, spreading, host ports.

What the API says by default is said here in full (namespaces of a term, `minDomains` 1), so that two pods whose rules
mean the same compare equal and share one evaluation. Selectors are conjunctions: all requirements must hold.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Requirement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`operator` is In, NotIn, Exists, DoesNotExist, and for nodes Gt or Lt with one value."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


ANY_ADDRESS: Final = "0.0.0.0"

#: Empty: selects everything. Where a selector may be absent, None selects nothing.
Selector = tuple[Requirement, ...]


class NodeTerm(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`fields` speak of metadata.name. A term without any requirement matches no node."""

    labels: Selector = ()
    fields: Selector = ()


class PodTerm(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Pods that are meant: in one of `namespaces` or in a namespace that `namespace_selector` selects, and selected."""

    topology: str
    selector: Selector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: Selector | None = None


class Spread(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A topology spread constraint with DoNotSchedule. `affinity` and `taints`: which nodes count as domains honours
    the pod's node affinity, its tolerations."""

    topology: str
    skew: int
    selector: Selector | None = None
    min_domains: int = 1
    affinity: bool = True
    taints: bool = False


class HostPort(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`ip` 0.0.0.0 stands for every address of the node."""

    port: int
    protocol: str = "TCP"
    ip: str = ANY_ADDRESS

    def clashes(self, other: HostPort) -> bool:
        if self.port != other.port or self.protocol != other.protocol:
            return False
        return self.ip == other.ip or ANY_ADDRESS in (self.ip, other.ip)


class Rules(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """`node` None: any node; a tuple: nodes that match one of the terms."""

    node: tuple[NodeTerm, ...] | None = None
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    ports: tuple[HostPort, ...] = ()
    #: Names of volume claims in the pod's namespace.
    claims: tuple[str, ...] = ()
    #: Nodes that are preferred, each term with its weight (1 to 100); bars nothing.
    preferred: tuple[tuple[int, NodeTerm], ...] = ()

    @property
    def namespaced(self) -> bool:
        """Whether they mean something else for a pod in another namespace or with other labels."""
        return self.between_pods or bool(self.claims)

    @property
    def between_pods(self) -> bool:
        return bool(self.affinity or self.anti_affinity or self.spread)

    @property
    def label_keys(self) -> frozenset[str]:
        """Keys of pod labels that these rules select on."""
        selectors = [term.selector for term in (*self.affinity, *self.anti_affinity)]
        selectors += [constraint.selector for constraint in self.spread]
        return frozenset(part.key for selector in selectors for part in selector or ())
