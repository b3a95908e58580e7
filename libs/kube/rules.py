"""Placement rules of a pod, read from its spec into `libs.domain.rules`.

What the API server would fill in is filled in here, since templates have not passed it: a term without namespaces
means the pod's own, `matchLabelKeys` join the selector, `hostNetwork` makes every port a host port. Selectors are put
into one order, so that rules that mean the same are equal. Of preferences only those of nodes are read; preferred pod
affinity and ScheduleAnyway are not.

What the API server would refuse is a problem, named, and so is more of one kind than is looked at: every rule is held
against every node. What is over is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, TypeVar

import msgspec

from libs.domain.rules import ANY_ADDRESS, HostPort, NodeTerm, PodTerm, Requirement, Rules, Selector, Spread
from libs.kube.objects import PodSpec, present

Labels = Mapping[str, str]
T = TypeVar("T")


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Expression(_Part, frozen=True):
    key: str
    operator: str
    values: tuple[str, ...] | None = None


class _Selector(_Part, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[_Expression, ...] | None = None


class NodeTermPart(_Part, frozen=True):
    match_expressions: tuple[_Expression, ...] | None = None
    match_fields: tuple[_Expression, ...] | None = None


class NodeSelector(_Part, frozen=True):
    node_selector_terms: tuple[NodeTermPart, ...] | None = None


class _Preferred(_Part, frozen=True):
    weight: int = 0
    preference: NodeTermPart | None = None


class _NodeAffinity(_Part, frozen=True):
    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: tuple[_Preferred, ...] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class _PodTerm(_Part, frozen=True):
    topology_key: str = ""
    label_selector: _Selector | None = None
    namespaces: tuple[str, ...] | None = None
    namespace_selector: _Selector | None = None
    match_label_keys: tuple[str, ...] | None = None
    mismatch_label_keys: tuple[str, ...] | None = None


class _PodAffinity(_Part, frozen=True):
    required: tuple[_PodTerm, ...] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class _Affinity(_Part, frozen=True):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _Spread(_Part, frozen=True):
    topology_key: str = ""
    max_skew: int = 1
    when_unsatisfiable: str = ""
    label_selector: _Selector | None = None
    match_label_keys: tuple[str, ...] | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


class _ClaimSource(_Part, frozen=True):
    claim_name: str


#: Rules of one pod: terms and expressions about nodes, values in all of them; terms about pods, constraints on
#: spreading, host ports, volume claims.
MOST_NODE_PARTS: Final = 256
MOST_VALUES: Final = 4096
MOST_POD_TERMS: Final = 64
MOST_SPREADS: Final = 64
MOST_PORTS: Final = 1024
MOST_CLAIMS: Final = 256
_MOST_INT: Final = 2**31 - 1
#: A prefix of 253 characters, a slash, a name of 63.
_LONGEST_KEY: Final = 317

_NO_RULES: Final = Rules()
_claim_decoder: Final = msgspec.json.Decoder(_ClaimSource)
_name_decoder: Final = msgspec.json.Decoder(str)
_affinity_decoder: Final = msgspec.json.Decoder(_Affinity)
_spread_decoder: Final = msgspec.json.Decoder(tuple[_Spread, ...])


def rules_of(
    spec: PodSpec, namespace: str, labels: Labels, problems: list[str], name: str | None = None
) -> Rules | None:
    """None where the pod has no rules. What cannot be read is a problem, named. `name` is the pod's, None for a
    template's pods."""
    node: tuple[NodeTerm, ...] | None = None
    preferred: tuple[tuple[int, NodeTerm], ...] = ()
    near: tuple[PodTerm, ...] = ()
    far: tuple[PodTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    if present(spec.affinity):
        try:
            affinity = _affinity_decoder.decode(spec.affinity)
        except msgspec.MsgspecError as error:
            problems.append(f"affinity: {error}"[:200])
        else:
            if affinity.node_affinity is not None and affinity.node_affinity.required is not None:
                node = tuple(map(node_term, affinity.node_affinity.required.node_selector_terms or ()))
            if affinity.node_affinity is not None:
                preferred = _preferred(affinity.node_affinity, problems)
            near = _pod_terms(affinity.pod_affinity, namespace, labels)
            far = _pod_terms(affinity.pod_anti_affinity, namespace, labels)
            if _oversized((*(node or ()), *(term for _, term in preferred)), (*near, *far), problems):
                # Refused for it. What runs already keeps others away by the first few.
                node, preferred, near, far = None, (), (), far[:MOST_POD_TERMS] if len(far) > MOST_POD_TERMS else ()
    if present(spec.topology_spread_constraints):
        try:
            constraints = _spread_decoder.decode(spec.topology_spread_constraints)
        except msgspec.MsgspecError as error:
            problems.append(f"topology spread constraints: {error}"[:200])
        else:
            spread = tuple(_spread(c, labels) for c in constraints if c.when_unsatisfiable != "ScheduleAnyway")
            spread = _sound(spread, problems)
    ports = _few(host_ports(spec), MOST_PORTS, "host ports", problems)
    if any(not 0 < port.port <= 65_535 for port in ports):
        problems.append("host port: not a number from 1 to 65535")
        ports = tuple(port for port in ports if 0 < port.port <= 65_535)
    claims = _few(_claims(spec, name, problems), MOST_CLAIMS, "volume claims", problems) if spec.volumes else ()
    rules = Rules(node, near, far, spread, ports, claims, preferred)
    return None if rules == _NO_RULES else rules


def _few(found: tuple[T, ...], most: int, what: str, problems: list[str]) -> tuple[T, ...]:
    if len(found) > most:
        problems.append(f"{len(found)} {what}, at most {most} are looked at")
    return found[:most]


def _oversized(of_nodes: Collection[NodeTerm], of_pods: Collection[PodTerm], problems: list[str]) -> bool:
    """Whether holding the rules against a cluster could take long, or speaks of what is no label; a problem then."""
    selectors = [*(part for term in of_nodes for part in (term.labels, term.fields))]
    parts = len(of_nodes) + sum(map(len, selectors))
    selectors += [part for term in of_pods for part in (term.selector or (), term.namespace_selector or ())]
    requirements = [requirement for selector in selectors for requirement in selector]
    values = sum(len(requirement.values) for requirement in requirements)
    values += sum(len(term.namespaces) for term in of_pods)
    before = len(problems)
    if parts > MOST_NODE_PARTS:
        problems.append(f"affinity: {parts} terms and expressions about nodes, at most {MOST_NODE_PARTS} are looked at")
    if len(of_pods) > MOST_POD_TERMS or len(requirements) > MOST_NODE_PARTS + 8 * MOST_POD_TERMS:
        problems.append(f"affinity: {len(of_pods)} terms about pods, at most {MOST_POD_TERMS} are looked at")
    if values > MOST_VALUES:
        problems.append(f"affinity: {values} values, at most {MOST_VALUES} are looked at")
    if any(not 0 < len(term.topology) <= _LONGEST_KEY for term in of_pods):
        problems.append("affinity: a topology key that is no key of a label")
    return len(problems) > before


def _sound(spread: tuple[Spread, ...], problems: list[str]) -> tuple[Spread, ...]:
    spread = _few(spread, MOST_SPREADS, "topology spread constraints", problems)
    for constraint in spread:
        if not (0 < constraint.skew <= _MOST_INT and 0 < constraint.min_domains <= _MOST_INT):
            problems.append("topology spread constraints: maxSkew or minDomains is not a number from 1 to 2147483647")
            return ()
        selector = constraint.selector or ()
        if not 0 < len(constraint.topology) <= _LONGEST_KEY:
            problems.append("topology spread constraints: a topology key that is no key of a label")
            return ()
        if len(selector) > MOST_NODE_PARTS or sum(len(part.values) for part in selector) > MOST_VALUES:
            problems.append(f"topology spread constraints: at most {MOST_NODE_PARTS} expressions are looked at")
            return ()
    return spread


def _preferred(affinity: _NodeAffinity, problems: list[str]) -> tuple[tuple[int, NodeTerm], ...]:
    if any(not 0 < term.weight <= 100 for term in affinity.preferred or ()):
        problems.append("affinity: a weight that is not a number from 1 to 100")
    terms = {
        (term.weight, node_term(term.preference))
        for term in affinity.preferred or ()
        if term.preference is not None and 0 < term.weight <= 100
    }
    return tuple(sorted(terms, key=lambda pair: (pair[0], msgspec.json.encode(pair[1]))))


def _claims(spec: PodSpec, name: str | None, problems: list[str]) -> tuple[str, ...]:
    found: set[str] = set()
    for volume in spec.volumes or ():
        try:
            if "persistentVolumeClaim" in volume:
                found.add(_claim_decoder.decode(volume["persistentVolumeClaim"]).claim_name)
            elif "ephemeral" in volume:
                if name is None:
                    problems.append("volume of kind ephemeral in a template, whose claim would come after its pod")
                else:
                    found.add(f"{name}-{_name_decoder.decode(volume['name'])}")
        except (msgspec.MsgspecError, KeyError) as error:
            problems.append(f"volume: {error}"[:200])
    return tuple(sorted(found))


def host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """Of containers that run for the whole of the pod's life."""
    found: set[HostPort] = set()
    sidecars = (c for c in spec.init_containers or () if c.restart_policy == "Always")
    for container in (*(spec.containers or ()), *sidecars):
        for port in container.ports or ():
            number = port.host_port or (port.container_port if spec.host_network else 0)
            if number:
                found.add(HostPort(number, port.protocol or "TCP", port.host_ip or ANY_ADDRESS))
    return tuple(sorted(found, key=lambda port: (port.port, port.protocol, port.ip)))


def _requirement(part: _Expression) -> Requirement:
    return Requirement(part.key, part.operator, tuple(sorted(part.values or ())))


def _ordered(parts: set[Requirement]) -> Selector:
    return tuple(sorted(parts, key=lambda part: (part.key, part.operator, part.values)))


def _selector(said: _Selector | None, more: set[Requirement] | None = None) -> Selector | None:
    if said is None:
        return None
    parts = {Requirement(key, "In", (value,)) for key, value in (said.match_labels or {}).items()}
    parts.update(map(_requirement, said.match_expressions or ()))
    return _ordered(parts | more if more else parts)


def _of_labels(labels: Labels, named: tuple[str, ...] | None, operator: str) -> set[Requirement]:
    return {Requirement(key, operator, (labels[key],)) for key in named or () if key in labels}


def node_term(term: NodeTermPart) -> NodeTerm:
    return NodeTerm(
        _ordered(set(map(_requirement, term.match_expressions or ()))),
        _ordered(set(map(_requirement, term.match_fields or ()))),
    )


def _pod_terms(affinity: _PodAffinity | None, namespace: str, labels: Labels) -> tuple[PodTerm, ...]:
    if affinity is None:
        return ()
    terms = []
    for term in affinity.required or ():
        keys = _of_labels(labels, term.match_label_keys, "In") | _of_labels(labels, term.mismatch_label_keys, "NotIn")
        own = not term.namespaces and term.namespace_selector is None
        terms.append(
            PodTerm(
                term.topology_key,
                _selector(term.label_selector, keys),
                (namespace,) if own else tuple(sorted(term.namespaces or ())),
                _selector(term.namespace_selector),
            )
        )
    return tuple(terms)


def _spread(said: _Spread, labels: Labels) -> Spread:
    return Spread(
        said.topology_key,
        said.max_skew,
        _selector(said.label_selector, _of_labels(labels, said.match_label_keys, "In")),
        1 if said.min_domains is None else said.min_domains,
        said.node_affinity_policy != "Ignore",
        said.node_taints_policy == "Honor",
    )
