"""Speculation leaves no trace when it is undone."""

from __future__ import annotations

from libs.domain.resources import Charge, GpuGrant
from libs.engine.core import PlacementEngine
from libs.testkit.builders import ClusterBuilder, cluster

WHOLE = Charge(1000, 1024, (GpuGrant(0, 1000, 81920),))


def full_node() -> ClusterBuilder:
    return cluster().node("n", gpus=2).queue("q", gpus=2).running("low", gpus=1, priority=1, queue="q")


def test_rollback_to_a_checkpoint_keeps_what_came_before_it() -> None:
    engine = full_node().into(PlacementEngine())
    session = engine._session
    chain = session.queues.chain("q")
    statement = session.statement()
    second = Charge(1000, 1024, (GpuGrant(1, 1000, 81920),))
    statement.take(0, second, chain)
    kept = engine.free_room(), engine.queue_room()
    mark = statement.checkpoint()
    statement.evict(engine._session.running.by_uid["uid-low"], chain)
    statement.take(0, WHOLE, chain)
    assert engine.queue_room()["q"][0] == 2000
    statement.rollback(mark)
    assert (engine.free_room(), engine.queue_room()) == kept
    assert session.running.marked == set()
    statement.rollback()
    assert engine.queue_room()["q"][0] == 1000


def test_a_victim_is_spared_only_where_its_room_was_not_used() -> None:
    engine = full_node().into(PlacementEngine())
    session = engine._session
    chain = session.queues.chain("q")
    low = session.running.by_uid["uid-low"]
    statement = session.statement()
    statement.evict(low, chain)
    statement.take(0, WHOLE, chain)
    assert not statement.spare([low])
    assert "uid-low" in session.running.marked
    statement.rollback()
    statement.evict(low, chain)
    assert statement.spare([low])
    assert statement.operations == []
    assert session.running.marked == set()


def test_a_victim_is_not_spared_where_the_queue_needs_what_it_gives_back() -> None:
    engine = cluster().node("n", gpus=2).queue("q", gpus=1).running("low", gpus=1, queue="q").into(PlacementEngine())
    session = engine._session
    chain = session.queues.chain("q")
    low = session.running.by_uid["uid-low"]
    statement = session.statement()
    statement.evict(low, chain)
    statement.take(0, Charge(1000, 1024, (GpuGrant(1, 1000, 81920),)), chain)
    before = engine.free_room(), engine.queue_room()
    assert not statement.spare([low])
    assert (engine.free_room(), engine.queue_room()) == before
