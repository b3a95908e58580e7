"""Autoscaled nodes: each has a name that was never used before, lives for a while and goes."""

from __future__ import annotations

from libs.domain.nodes import Gpu, Node
from libs.domain.resources import Charge
from libs.domain.usage import NodeUse
from libs.engine.snapshot import Snapshot


def node(name: str) -> Node:
    return Node(name=name, uid=name, version="1", spec="d", cpu=8000, mem=4096, pods=10, gpus=(Gpu(index=0, mib=1000),))


def lives(snapshot: Snapshot, name: str, revision: int) -> None:
    snapshot.node_seen(node(name))
    snapshot.use_seen(NodeUse(name, revision, cpu=1000, pods=1, gpus=((1000, 1000),)))
    snapshot.use_seen(NodeUse(name, revision + 1, gpus=((0, 0),)))


def test_nothing_is_kept_of_a_thousand_nodes_that_came_and_went():
    snapshot = Snapshot()
    for n in range(1000):
        lives(snapshot, f"spot-{n}", 10 * n)
        gone = NodeUse(f"spot-{n}", 10 * n + 2, gpus=((0, 0),), gone=True)
        # The fact and the ledger's record come by two ways, in either order.
        if n % 2:
            snapshot.use_seen(gone)
            snapshot.node_gone(f"spot-{n}")
        else:
            snapshot.node_gone(f"spot-{n}")
            snapshot.use_seen(gone)
    assert snapshot.uses == {}
    assert snapshot.rows == {}
    assert len(snapshot.states) <= 2


def test_a_node_that_is_gone_with_its_pods_is_remembered_until_they_are_gone_too():
    snapshot = Snapshot()
    lives(snapshot, "n1", 1)
    snapshot.use_seen(NodeUse("n1", 3, cpu=1000, pods=1, gone=True))
    snapshot.node_gone("n1")
    assert snapshot.uses["n1"].cpu == 1000
    snapshot.use_seen(NodeUse("n1", 4, gone=True))
    assert snapshot.uses == {}


def test_room_kept_for_a_job_on_a_node_that_is_gone_is_remembered():
    snapshot = Snapshot()
    lives(snapshot, "n1", 1)
    snapshot.use_seen(NodeUse("n1", 3, gone=True, earmarked={"job": (Charge(1, 1),)}))
    snapshot.node_gone("n1")
    assert "n1" in snapshot.uses
    snapshot.use_seen(NodeUse("n1", 4, gone=True))
    assert (snapshot.uses, snapshot.earmarks) == ({}, {})


def test_a_node_that_comes_back_under_its_name_has_the_room_that_the_ledger_says():
    snapshot = Snapshot()
    lives(snapshot, "n1", 1)
    snapshot.use_seen(NodeUse("n1", 3, gone=True))
    snapshot.node_gone("n1")
    snapshot.node_seen(node("n1"))
    snapshot.use_seen(NodeUse("n1", 5, cpu=3000, pods=1))
    state = snapshot.states[snapshot.rows["n1"]]
    assert state is not None
    assert state.cpu == 5000
