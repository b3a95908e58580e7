"""What `drystone check` calls a broken law, and what it does not."""

from __future__ import annotations

from libs.domain.resources import Charge, GpuGrant
from libs.domain.usage import NodeUse, QueueUse
from libs.host.laws import Seen, laws
from libs.store.port import Holder


def seen(*holders: Holder) -> Seen:
    return Seen(nodes={}, pods=[], holders=list(holders), node_use={}, queue_use={})


def claim(id_: str, state: str, node: str = "n1") -> Holder:
    return Holder(id=id_, state=state, node=node, charge=Charge(gpus=(GpuGrant(0, 1000, 0),)))


def test_two_claims_on_one_device_are_a_device_promised_twice() -> None:
    (broken,) = laws(seen(claim("c1", "planned"), claim("c2", "writing")))
    assert (broken.law, broken.about) == ("device promised twice", "n1/0")


def test_a_queue_that_is_told_less_of_a_model_than_is_held_could_pass_its_limit() -> None:
    charge = Charge(gpus=(GpuGrant(0, 1000, 0),))
    holder = Holder(id="u", state="planned", node="n1", charge=charge, queue="org/team", models={"H100": 1000})
    uses = {path: QueueUse(path, 1, 1000, models={"H100": 1000}) for path in ("org", "org/team")}
    node_use = {"n1": NodeUse("n1", 1, pods=1)}
    whole = Seen(nodes={}, pods=[], holders=[holder], node_use=node_use, queue_use=uses)
    assert laws(whole) == set()
    whole.queue_use["org"] = QueueUse("org", 1, 1000, models={"H100": 500})
    (broken,) = laws(whole)
    assert (broken.law, broken.about) == ("queue usage of a model is below the sum", "org H100")


def test_earmarks_lacking_the_same_device_of_different_nodes_promise_nothing_twice() -> None:
    """What an earmark still waits for is charged to no node; it may be device 0 of as many nodes as there are."""
    assert laws(seen(claim("e1", "earmark"), claim("e1", "pending", ""), claim("e2", "pending", ""))) == set()
