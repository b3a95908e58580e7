from __future__ import annotations

import msgspec

from libs.contracts.events import NodeFact
from libs.testkit.builders import node
from services.binder.facts import NodeFacts


def fact(version, term=1, **facts):
    return NodeFact(msgspec.structs.replace(node("n1", **facts), version=version), term)


def test_a_replaced_leader_and_an_older_version_change_nothing():
    facts = NodeFacts()
    assert facts.seen(fact("100", term=2))
    assert not facts.seen(fact("999", term=1, cordoned=True))
    assert not facts.seen(fact("99", term=2, cordoned=True))
    assert facts.now("n1").open
    assert facts.seen(fact("101", term=2, cordoned=True))
    assert not facts.now("n1").open


def test_the_last_few_specs_are_remembered():
    facts = NodeFacts()
    shapes = [node("n1", cpu=1000 * n) for n in range(1, 7)]
    for n, shape in enumerate(shapes):
        facts.seen(NodeFact(msgspec.structs.replace(shape, version=str(n)), 1))
    assert facts.then("n1", shapes[4].spec).cpu == 5000
    assert facts.then("n1", shapes[0].spec) is None
    facts.gone("n1")
    assert facts.now("n1") is None
    assert facts.then("n1", shapes[4].spec) is None


def test_a_state_that_was_never_seen_is_about_to_arrive_and_one_that_went_is_not():
    facts = NodeFacts()
    old, new = node("n1", cpu=1000), node("n1", cpu=2000)
    assert facts.behind("n1", old.spec)
    facts.seen(NodeFact(msgspec.structs.replace(old, version="1"), 1))
    assert not facts.behind("n1", old.spec)
    assert facts.behind("n1", new.spec)
    facts.seen(NodeFact(msgspec.structs.replace(new, version="2"), 1))
    assert not facts.behind("n1", old.spec), "the decision was made before, not after"
    facts.gone("n1")
    assert not facts.behind("n1", new.spec)
    assert facts.behind("n1", node("n1", cpu=3000).spec), "made anew under its name"
