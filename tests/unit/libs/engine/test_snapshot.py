"""Vectors mirror the exact values, row by row, whatever happens to nodes."""

from __future__ import annotations

from libs.domain.resources import Charge, GpuGrant
from libs.domain.usage import NodeUse
from libs.engine.ask import Ask, ask_key
from libs.engine.feasible import Feasibility
from libs.engine.policies import chosen
from libs.engine.snapshot import LOG, Snapshot
from libs.testkit.builders import node, task


def mirrors(snapshot: Snapshot) -> bool:
    columns = snapshot.columns()
    return all(
        (columns.cpu[s.row], columns.mem[s.row], columns.pods[s.row], columns.idle[s.row], columns.gpu_free[s.row])
        == (s.cpu, s.mem, s.pods, s.idle, s.gpu_free)
        and columns.milli[s.row, : len(s.milli)].tolist() == s.milli
        and columns.usable[s.row, : len(s.usable)].tolist() == s.usable
        for s in snapshot.states
        if s is not None
    )


def test_vectors_follow_changes_growth_and_wider_nodes() -> None:
    snapshot = Snapshot()
    for i in range(70):
        snapshot.node_seen(node(f"n{i:03}", gpus=1 + i % 3))
    assert mirrors(snapshot)
    snapshot.take(5, Charge(10, 10, (GpuGrant(0, 500, 100),)))
    snapshot.use_seen(NodeUse("n001", 3, cpu=5, gpus=((1, 1), (0, 0)), disputed=(1,)))
    assert mirrors(snapshot)
    snapshot.node_seen(node("wide", gpus=16))
    assert mirrors(snapshot)
    snapshot.node_gone("n010")
    snapshot.node_seen(node("again", gpus=2))
    assert snapshot.rows["again"] == 10  # a free row is used again
    assert mirrors(snapshot)


def test_a_heartbeat_that_changes_nothing_rescores_nobody() -> None:
    snapshot = Snapshot()
    facts = node("n")
    snapshot.node_seen(facts)
    version = snapshot.version
    assert not snapshot.node_seen(
        type(facts)(**{f: getattr(facts, f) for f in facts.__struct_fields__} | {"version": "9"})
    )
    assert snapshot.version == version


def test_one_changed_node_is_scored_alone_and_trimming_the_log_loses_nothing() -> None:
    snapshot = Snapshot()
    for i in range(30):
        snapshot.node_seen(node(f"n{i:02}"))
    view = Feasibility(snapshot, Ask(ask_key(task("t", gpus=8))), chosen({"best-fit": 1}))
    view.refresh()
    assert view.best() == snapshot.rows["n00"]
    snapshot.take(0, Charge(0, 0, (GpuGrant(0, 1, 1),)))
    view.refresh()
    assert view.best() == snapshot.rows["n01"]
    for _ in range(LOG):
        snapshot.take(1, Charge(1, 0))
        snapshot.give(1, Charge(1, 0))
    snapshot.take(1, Charge(0, 0, (GpuGrant(3, 1, 1),)))
    snapshot.trim()
    assert snapshot.changes == []
    view.refresh()
    assert view.best() == snapshot.rows["n02"]


def test_earmarks_are_found_by_job_and_forgotten_with_the_use_that_named_them() -> None:
    snapshot = Snapshot()
    snapshot.use_seen(NodeUse("n", 1, earmarked={"job": (Charge(1, 1),)}))
    assert snapshot.earmarks == {"job": {"n"}}
    snapshot.use_seen(NodeUse("n", 2))
    assert snapshot.earmarks == {}
