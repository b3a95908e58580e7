"""Which nodes a pod's volume claims let it run on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from libs.domain.nodes import Node
from libs.domain.verdicts import Reason
from libs.domain.volumes import Claim, ClaimState
from libs.engine.rules.match import node_matches

_GA: Final = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
_ZONES: Final = (*_GA, *_GA.values())

Place = tuple[str, str]


class User(Protocol):
    @property
    def namespace(self) -> str: ...
    @property
    def claims(self) -> tuple[str, ...]: ...


class VolumeBook:
    """Claims by (namespace, name), who uses them, and how many volumes nodes attach."""

    def __init__(self) -> None:
        self._claims: dict[Place, Claim] = {}
        self._limits: dict[str, Mapping[str, int]] = {}
        self._uses: dict[Place, int] = {}
        self._on: dict[str, dict[Place, int]] = {}

    def claim_seen(self, claim: Claim) -> bool:
        place = (claim.namespace, claim.name)
        if self._claims.get(place) == claim:
            return False
        self._claims[place] = claim
        return True

    def claim_gone(self, namespace: str, name: str) -> bool:
        return self._claims.pop((namespace, name), None) is not None

    def limits_seen(self, node: str, limits: Mapping[str, int]) -> bool:
        if self._limits.get(node, {}) == limits:
            return False
        if limits:
            self._limits[node] = dict(limits)
        else:
            self._limits.pop(node, None)
        return True

    def shift(self, node: str, pod: User, by: int) -> None:
        for name in pod.claims:
            place = (pod.namespace, name)
            here = self._on.setdefault(node, {})
            for uses in (self._uses, here):
                count = uses.get(place, 0) + by
                if count:
                    uses[place] = count
                else:
                    uses.pop(place, None)
            if not here:
                del self._on[node]

    def barrier(self, namespace: str, claims: Iterable[str]) -> Reason | None:
        """Why no node at all takes a pod with these claims."""
        for name in claims:
            claim = self._claims.get((namespace, name))
            if claim is None or claim.state is ClaimState.UNBOUND:
                return Reason.VOLUME_UNBOUND
            if claim.state is ClaimState.STATIC:
                return Reason.VOLUME_STATIC
            if claim.exclusive and self._uses.get((namespace, name), 0):
                return Reason.VOLUME_IN_USE
        return None

    def objection(self, node: Node, namespace: str, claims: Iterable[str]) -> Reason | None:
        """Why this node does not take it."""
        wanted = [claim for name in claims if (claim := self._claims.get((namespace, name))) is not None]
        for claim in wanted:
            if claim.node is not None and not node_matches(claim.node, node.labels, node.name):
                return Reason.VOLUME_NODE
            if claim.zones and not _in_zone(claim, node.labels):
                return Reason.VOLUME_NODE
        limits = self._limits.get(node.name)
        if limits and self._too_many(node.name, limits, wanted):
            return Reason.VOLUME_LIMIT
        return None

    def _too_many(self, node: str, limits: Mapping[str, int], wanted: list[Claim]) -> bool:
        attached = {
            claim.volume for place in self._on.get(node, ()) if (claim := self._claims.get(place)) and claim.volume
        }
        fresh = {claim.volume for claim in wanted if claim.volume} - attached
        for driver in {volume[0] for volume in fresh if volume}:
            count = sum(1 for volume in attached | fresh if volume and volume[0] == driver)
            if driver in limits and count > limits[driver]:
                return True
        return False


def _in_zone(claim: Claim, labels: Mapping[str, str]) -> bool:
    """A node without any label of zone or region stands for a cluster in one zone."""
    if not any(key in labels for key in _ZONES):
        return True
    for key, values in claim.zones:
        said = labels.get(key, labels.get(_GA.get(key, key)))
        if said is None or said not in values:
            return False
    return True
