"""Label and field selectors, exactly as Kubernetes evaluates them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from libs.domain.rules import NodeTerm, PodTerm, Requirement, Selector

Labels = Mapping[str, str]
#: Labels of a namespace by its name.
Namespaces = Callable[[str], Labels]

_DIGITS: Final = 19
_MOST: Final = 2**63


def integer(text: str) -> int | None:
    """A 64-bit decimal number, else None: of longer ones no more than their length is looked at."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal()):
        return None
    digits = digits.lstrip("0") or "0"
    if len(digits) > _DIGITS:
        return None
    value = -int(digits) if text[0] == "-" else int(digits)
    return value if -_MOST <= value < _MOST else None


def holds(part: Requirement, labels: Labels) -> bool:
    """An absent key satisfies NotIn; an operator or a number that cannot be read satisfies nothing."""
    said = labels.get(part.key)
    match part.operator:
        case "In":
            return said is not None and said in part.values
        case "NotIn":
            return said is None or said not in part.values
        case "Exists":
            return said is not None
        case "DoesNotExist":
            return said is None
        case "Gt" | "Lt":
            if said is None or len(part.values) != 1:
                return False
            left, right = integer(said), integer(part.values[0])
            if left is None or right is None:
                return False
            return left > right if part.operator == "Gt" else left < right
        case _:
            return False


def selects(selector: Selector | None, labels: Labels) -> bool:
    """None selects nothing, an empty selector everything."""
    return selector is not None and all(holds(part, labels) for part in selector)


def node_matches(terms: tuple[NodeTerm, ...], labels: Labels, name: str) -> bool:
    """Whether one of the terms matches; a term that asks for nothing matches nothing."""
    fields = {"metadata.name": name}
    return any(
        (term.labels or term.fields) and selects(term.labels, labels) and selects(term.fields, fields) for term in terms
    )


def means(term: PodTerm, namespace: str, labels: Labels, namespaces: Namespaces) -> bool:
    """Whether a term of pod affinity means a pod of this namespace with these labels."""
    if namespace not in term.namespaces:
        chosen = term.namespace_selector
        if chosen is None or (chosen and not selects(chosen, namespaces(namespace))):
            return False
    return selects(term.selector, labels)
