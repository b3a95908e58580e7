"""What `drystone check` calls a broken law, and what it does not."""

from __future__ import annotations

from libs.domain.resources import Charge, GpuGrant
from libs.host.laws import Seen, laws
from libs.store.port import Holder


def seen(*holders: Holder) -> Seen:
    return Seen(nodes={}, pods=[], holders=list(holders), node_use={}, queue_use={})


def claim(id_: str, state: str, node: str = "n1") -> Holder:
    return Holder(id=id_, state=state, node=node, charge=Charge(gpus=(GpuGrant(0, 1000, 0),)))


def test_two_claims_on_one_device_are_a_device_promised_twice() -> None:
    (broken,) = laws(seen(claim("c1", "planned"), claim("c2", "writing")))
    assert (broken.law, broken.about) == ("device promised twice", "n1/0")


def test_earmarks_lacking_the_same_device_of_different_nodes_promise_nothing_twice() -> None:
    """What an earmark still waits for is charged to no node; it may be device 0 of as many nodes as there are."""
    assert laws(seen(claim("e1", "earmark"), claim("e1", "pending", ""), claim("e2", "pending", ""))) == set()
