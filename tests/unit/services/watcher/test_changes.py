"""What may be told a little later, because nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from libs.contracts.events import NodeFact, PodFact
from libs.domain.jobs import JobHead, Task
from libs.domain.queues import Eviction
from libs.domain.resources import Charge
from libs.store.port import TaskSeen
from libs.testkit.builders import node
from services.watcher.changes import Changes

HEAD = JobHead("pod/team/a", "team", "team")


def bound(changes: Changes, uid: str = "u1", claim: str = "c1") -> Changes:
    """A pod was seen on its node."""
    charge = Charge(cpu=1000)
    changes.bound[uid] = TaskSeen(uid, "7", "n1", charge, claim=claim)
    changes.say(PodFact(uid, "a", "team", "7", "n1", charge, claim=claim))
    return changes


def test_pods_seen_on_the_room_that_was_kept_for_them_are_waited_for_by_nobody() -> None:
    changes = bound(bound(Changes(), "u1"), "u2")
    changes.hint(HEAD).bound["u1"] = None
    assert changes.only_bound


@pytest.mark.parametrize(
    "also",
    [
        lambda c: bound(c, "u3", claim=""),
        lambda c: c.freed("u3"),
        lambda c: c.freed("u1"),
        lambda c: c.node(node("n2")),
        lambda c: c.say(NodeFact(node("n2"), 1)),
        lambda c: c.node_gone("n2"),
        lambda c: c.evicted(HEAD, Eviction(HEAD.key, "pod/team/b", "priority", 8), "team/a"),
        lambda c: c.hint(HEAD).tasks.update(a=Task("a", "a", "team")),
        lambda c: c.hint(HEAD).gone.update(a=None),
    ],
    ids=["foreign", "gone", "the same gone", "node", "fact", "node gone", "evicted", "waits", "ended"],
)
def test_anything_else_beside_them_is_told_as_soon_as_ever(also: Callable[[Changes], object]) -> None:
    changes = bound(Changes())
    also(changes)
    assert not changes.only_bound
