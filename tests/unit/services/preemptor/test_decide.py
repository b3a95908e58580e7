"""Who is evicted, within which budgets, and what an answer to an eviction means."""

from __future__ import annotations

import pytest

from libs.contracts.events import PdbFact
from libs.domain.plans import Victim
from libs.kube.port import Answer
from services.preemptor.decide import (
    Step,
    Target,
    after_evict,
    lasting_refusals,
    most_constrained_first,
    selects,
    short_budgets,
)


def victim(name, guarded=False):
    return Victim("uid-" + name, name, "team", "n1", f"pod/team/{name}", 0, guarded)


def budget(name, allowed, labels=None):
    return PdbFact(name, "team", "u", "1", {"app": name} if labels is None else labels, allowed)


def test_four_victims_of_a_budget_that_allows_two_are_short_before_the_first_is_touched():
    web = budget("web", 2)
    targets = [Target(victim(f"v{n}"), True, (web,)) for n in range(4)]
    assert len(short_budgets(targets)) == 4
    assert short_budgets(targets[:2]) == {}


def test_budgets_are_counted_apart():
    targets = [Target(victim("a"), True, (budget("web", 1),)), Target(victim("b"), True, (budget("db", 0),))]
    assert set(short_budgets(targets)) == {"uid-b"}


def test_a_pod_of_two_budgets_can_never_be_evicted():
    assert set(lasting_refusals([Target(victim("a"), True, (budget("x", 9), budget("y", 9)))])) == {"uid-a"}


def test_guarded_and_tight_come_first():
    free = Target(victim("free"), False)
    wide = Target(victim("wide"), True, (budget("wide", 5),))
    tight = Target(victim("tight"), True, (budget("tight", 1),))
    assert [t.victim.name for t in most_constrained_first([free, wide, tight])] == ["tight", "wide", "free"]


def test_a_budget_with_expressions_guards_its_whole_namespace():
    everything = PdbFact("x", "team", "u", "1", None, 0)
    assert selects(everything, {"any": "thing"})
    assert short_budgets([Target(victim("a"), True, (everything,))]) == {}


@pytest.mark.parametrize(
    ("answer", "step"),
    [
        (Answer(201, b"{}"), Step.ACCEPTED),
        (Answer(404, b"{}"), Step.GONE),
        (Answer(409, b'{"message":"Precondition failed: UID in precondition: a, UID in object meta: b"}'), Step.GONE),
        (Answer(409, b'{"reason":"Conflict"}'), Step.AGAIN),
        (Answer(429, b'{"details":{"causes":[{"reason":"DisruptionBudget"}]}}'), Step.BUDGET),
        (Answer(429, b"{}"), Step.AGAIN),
        (Answer(504, b"", unsure=True), Step.AGAIN),
        (Answer(0, b"", unsure=True), Step.AGAIN),
        (Answer(500, b'{"message":"This pod has more than one PodDisruptionBudget, which"}'), Step.REFUSED),
        (Answer(403, b"{}"), Step.REFUSED),
        (Answer(401, b"{}"), Step.AGAIN),
    ],
)
def test_every_answer_has_one_next_step(answer, step):
    assert after_evict(answer) is step
