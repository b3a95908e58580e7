"""Scoring policies: one small file each, one line of registration here.

A policy is a pure formula from a node (or all nodes at once) to an integer; weights are bound outside. Ties end at the
node's name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from libs.engine.policies.base import Base, Policy, Surroundings
from libs.engine.policies.best_fit import BestFit
from libs.engine.policies.clustering import Clustering
from libs.engine.policies.dot_product import DotProduct
from libs.engine.policies.drystone import Drystone
from libs.engine.policies.fgd import Fgd
from libs.engine.policies.first_fit import FirstFit
from libs.engine.policies.first_fit_hash import FirstFitHash
from libs.engine.policies.kube_scheduler import MostAllocated, RequestedToCapacityRatio
from libs.engine.policies.lexicographic import LexicographicBestFit
from libs.engine.policies.packing import Packing
from libs.engine.policies.precision import PrecisionPolicy
from libs.engine.policies.random_fit import RandomFit
from libs.engine.policies.spread import Spread
from libs.engine.policies.weighted_best_fit import WeightedBestFit

_ALL: Final[tuple[type[Base], ...]] = (
    Drystone,
    Fgd,
    BestFit,
    FirstFit,
    FirstFitHash,
    Packing,
    Clustering,
    DotProduct,
    RandomFit,
    LexicographicBestFit,
    WeightedBestFit,
    MostAllocated,
    RequestedToCapacityRatio,
    Spread,
    PrecisionPolicy,
)
POLICIES: Final[dict[str, Callable[[Surroundings], Policy]]] = {policy.name: policy for policy in _ALL}
#: Bits that the weighted sum of all scores may take: a node's rank and a sign share a word with it.
_SCORE_BITS: Final = 37


def chosen(weights: dict[str, int], around: Surroundings | None = None) -> tuple[tuple[Policy, int], ...]:
    """The policies that configuration names, by name, with their weights; where their scales differ, weights are such
    that equal ones mean equal influence. An unknown name is an error with one clear sentence."""
    unknown = sorted(set(weights) - set(POLICIES))
    if unknown:
        raise ValueError(f"unknown placement policy {unknown[0]!r}; known: {', '.join(sorted(POLICIES))}")
    if any(weight < 0 for weight in weights.values()):
        raise ValueError("weights of placement policies must not be negative")
    around = around or Surroundings()
    found = [(POLICIES[name](around), weight) for name, weight in sorted(weights.items()) if weight]
    if any(policy.by_memory for policy, _ in found):
        around.snapshot.look_at_memory()
    top = max((policy.ceiling for policy, _ in found), default=1)
    scaled = tuple((policy, weight * (top // policy.ceiling)) for policy, weight in found)
    if sum(weight * policy.ceiling for policy, weight in scaled) >= 1 << _SCORE_BITS:
        raise ValueError("weights of placement policies are too large")
    return scaled
