"""What the preemptor concludes, without doing anything: who is left to evict, in which order, within which budgets, and
what an answer means.

A dry run of an eviction does not charge its budget: four dry runs pass where the budget allows one. So the victims of
each budget are counted against what it allows, before the first of them is touched.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from libs.contracts.events import PdbFact
from libs.domain.plans import Victim
from libs.kube.outcomes import Outcome, classify, over_budget
from libs.kube.pods import PodView
from libs.kube.port import Answer

_UNSERVED: Final = b"more than one PodDisruptionBudget"


class Target(msgspec.Struct, frozen=True):
    """A victim that is still there, with the budgets that guard it. `guarded` without any: placement saw one that this
    replica does not know (any more); the API server decides."""

    victim: Victim
    guarded: bool
    budgets: tuple[PdbFact, ...] = ()
    annotations: dict[str, str] = {}
    #: It was said on the pod that it goes.
    announced: bool = False


def left_already(victim: Victim, pod: PodView | None) -> bool:
    """Whether the victim makes room without us: gone, replaced under its name, ended, or on its way out."""
    return pod is None or pod.uid != victim.uid or pod.ended or pod.terminating


def aim(victim: Victim, pod: PodView, budgets: Iterable[PdbFact], *, announced: bool = False) -> Target:
    guards = tuple(b for b in budgets if b.namespace == victim.namespace and selects(b, pod.labels))
    return Target(victim, victim.guarded or bool(guards), guards, pod.annotations, announced)


def selects(budget: PdbFact, labels: Mapping[str, str]) -> bool:
    """A budget that selects by expressions guards every pod of its namespace."""
    if budget.match_labels is None:
        return True
    return all(labels.get(key) == value for key, value in budget.match_labels.items())


def lasting_refusals(targets: Sequence[Target]) -> dict[str, str]:
    """Why some of these can never be evicted, by uid."""
    return {
        t.victim.uid: "selected by more than one PodDisruptionBudget, which evictions do not support"
        for t in targets
        if sum(b.match_labels is not None for b in t.budgets) > 1
    }


def short_budgets(targets: Sequence[Target]) -> dict[str, str]:
    """Why budgets do not allow all of these now, by uid; empty if they do. Budgets that select by expressions are left
    to the dry run, since whom they select is not known here."""
    wanted = Counter(_name(b) for t in targets for b in t.budgets if b.match_labels is not None)
    said: dict[str, str] = {}
    for target in targets:
        for budget in target.budgets:
            if budget.match_labels is not None and wanted[_name(budget)] > budget.allowed:
                said[target.victim.uid] = (
                    f"PodDisruptionBudget {budget.name} allows {budget.allowed} of {wanted[_name(budget)]} evictions"
                )
    return said


def most_constrained_first(targets: Sequence[Target]) -> list[Target]:
    """The one most likely to be refused goes first, so that a refusal costs the fewest of the others."""
    wanted = Counter(_name(b) for t in targets for b in t.budgets)

    def slack(target: Target) -> tuple[int, int, str]:
        spare = min((b.allowed - wanted[_name(b)] for b in target.budgets), default=1 << 30)
        return (0 if target.guarded else 1, spare, target.victim.uid)

    return sorted(targets, key=slack)


def _name(budget: PdbFact) -> tuple[str, str]:
    return budget.namespace, budget.name


class Step(enum.Enum):
    ACCEPTED = "accepted"
    GONE = "gone"  # this very pod is not there any more
    AGAIN = "again"  # a passing fault; evicting twice does no harm, the uid says whom
    BUDGET = "budget"  # a disruption budget does not allow it now
    REFUSED = "refused"


def after_evict(answer: Answer) -> Step:
    if over_budget(answer):
        return Step.BUDGET
    match classify(answer):
        case Outcome.DONE:
            return Step.ACCEPTED
        case Outcome.GONE:
            return Step.GONE
        case Outcome.CONFLICT | Outcome.EXISTS:
            return Step.GONE if b"UID in precondition" in answer.body else Step.AGAIN
        case Outcome.REFUSED:
            return Step.AGAIN if answer.status == 401 else Step.REFUSED
        case Outcome.UNSURE if _UNSERVED in answer.body:
            return Step.REFUSED
        case _:
            return Step.AGAIN
