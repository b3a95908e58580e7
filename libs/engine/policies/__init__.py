"""Scoring policies: one small file each, one line of registration here.

A policy is a pure formula from a node (or all nodes at once) to an integer 0..100; weights are bound outside. Ties end
at the node's name.
"""

from __future__ import annotations

from typing import Final

from libs.engine.policies.base import Policy
from libs.engine.policies.best_fit import BestFit
from libs.engine.policies.first_fit import FirstFit

POLICIES: Final[dict[str, Policy]] = {
    policy.name: policy
    for policy in (
        BestFit(),
        FirstFit(),
    )
}


def chosen(weights: dict[str, int]) -> tuple[tuple[Policy, int], ...]:
    """The policies that configuration names, by name. An unknown name is an error with one clear sentence."""
    unknown = sorted(set(weights) - set(POLICIES))
    if unknown:
        raise ValueError(f"unknown placement policy {unknown[0]!r}; known: {', '.join(sorted(POLICIES))}")
    if any(weight < 0 for weight in weights.values()):
        raise ValueError("weights of placement policies must not be negative")
    return tuple((POLICIES[name], weight) for name, weight in sorted(weights.items()) if weight)
