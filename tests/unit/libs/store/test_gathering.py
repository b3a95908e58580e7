"""Earmarks that gather room for the head of a queue: what comes free is its, and nobody waits for it for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from libs.domain.plans import EvictionPlan, Victim
from libs.domain.queues import Queue
from libs.store.embedded import embedded_ledger
from libs.store.port import Refusal
from tests.unit.libs.store.test_ledger_incidents import TERM, Scene, gpus, node


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene(embedded_ledger(slack_s=0.0))
    await made.whole()
    await made.ledger.nodes_seen([node("n2", version="11")], TERM)
    yield made
    await made.ledger.close()


def gatherer(
    scene: Scene, name: str, *, age: float = 1.0, queue: str = "q", at: str = "n1", seconds: int = 600
) -> EvictionPlan:
    p = scene.plan(name, (f"{name}-0", 0), job=f"job-{name}", queue=queue)
    whole = msgspec.structs.replace(p.assignments[0], node=at, charge=gpus(0, 1))
    return EvictionPlan(
        id=p.id, job=p.job, job_uid="", namespace="d", queue=queue, partition=0, epoch=p.epoch,
        generation=p.generation, priority=0, victims=(), assignments=(whole,), rule="reservation",
        gather_s=seconds, place=(1, 0, age, p.job),
    )  # fmt: skip


async def test_what_comes_free_is_the_gatherers_and_a_small_one_that_comes_in_between_is_refused(scene: Scene) -> None:
    await scene.running("a", 0)
    await scene.running("b", 1)
    large = gatherer(scene, "g")
    (answer,) = await scene.ledger.commit_evictions([large])
    assert answer.taken == ("g.0",)
    await scene.ledger.tasks_gone(["a"], TERM)
    (small,) = await scene.ledger.commit([scene.plan("s", ("t1", 0))])
    assert small.refused == {"s.0": Refusal.EARMARKED}
    await scene.ledger.tasks_gone(["b"], TERM)
    start = msgspec.structs.replace(scene.plan("y", ("g-0", 0), job="job-g"), assignments=large.assignments)
    (answer,) = await scene.ledger.commit([start])
    assert answer.taken == ("g.0",)
    assert {(h.id, h.state) for h in await scene.holders()} == {("g.0", "planned")}
    nodes, queues = await scene.use()
    assert nodes["n1"].gpus == ((1000, 8000), (1000, 8000))
    assert queues["q"].gpu_milli == 2000


async def test_a_queue_has_one_gatherer_and_the_one_that_stands_before_it_takes_over(scene: Scene) -> None:
    await scene.running("a", 0)
    young, old = gatherer(scene, "young", age=2.0), gatherer(scene, "old", age=1.0, at="n2")
    await scene.ledger.commit_evictions([young])
    (answer,) = await scene.ledger.commit_evictions([old])
    assert answer.taken == ("old.0",)
    (answer,) = await scene.ledger.commit_evictions([gatherer(scene, "younger", age=3.0)])
    assert answer.refused == {"younger.0": Refusal.GATHERING}
    (answer,) = await scene.ledger.commit_evictions([gatherer(scene, "other", age=9.0, queue="r")])
    assert answer.taken == ("other.0",), "another queue has its own"
    assert {h.id for h in await scene.holders() if h.state == "earmark"} == {"old.0", "other.0"}


async def test_two_gatherers_do_not_wait_for_the_same_node(scene: Scene) -> None:
    await scene.ledger.commit_evictions([gatherer(scene, "one")])
    (answer,) = await scene.ledger.commit_evictions([gatherer(scene, "two", queue="r")])
    assert answer.refused == {"two.0": Refusal.EARMARKED}


async def test_what_no_empty_node_would_take_gathers_nothing(scene: Scene) -> None:
    plan = gatherer(scene, "g")
    plan = msgspec.structs.replace(
        plan, assignments=(msgspec.structs.replace(plan.assignments[0], charge=gpus(0, 1, 2)),)
    )
    (answer,) = await scene.ledger.commit_evictions([plan])
    assert answer.refused == {"g.0": Refusal.CAPACITY}
    assert await scene.holders() == []


async def test_under_a_limit_that_others_fill_the_gatherer_is_next(scene: Scene) -> None:
    await scene.ledger.queues_seen([Queue(path="q", gpu_milli=2000, version="1")], [], TERM)
    await scene.running("a", 0)
    await scene.running("b", 1)
    large = gatherer(scene, "g", at="n2")
    assert (await scene.ledger.commit_evictions([large]))[0].taken
    early = msgspec.structs.replace(scene.plan("y", ("g-0", 0), job="job-g"), assignments=large.assignments)
    assert (await scene.ledger.commit([early]))[0].refused == {"g.0": Refusal.QUOTA}, "the limit binds it as anybody"
    await scene.ledger.tasks_gone(["a"], TERM)
    (small,) = await scene.ledger.commit([scene.plan("s", ("t1", 0))])
    assert small.refused == {"s.0": Refusal.QUOTA}
    await scene.ledger.tasks_gone(["b"], TERM)
    assert (await scene.ledger.commit([early]))[0].taken == ("g.0",)


async def test_a_gatherer_ends_at_its_deadline_and_its_queue_may_have_another(scene: Scene) -> None:
    await scene.ledger.commit_evictions([gatherer(scene, "g", seconds=1)])
    assert list(await scene.ledger.expire()) == []
    await asyncio.sleep(1.05)
    assert [d.state for d in await scene.ledger.expire()] == ["earmark"]
    assert await scene.holders() == []
    assert (await scene.use())[1].get("q") is None or (await scene.use())[1]["q"].gpu_milli == 0
    (answer,) = await scene.ledger.commit_evictions([gatherer(scene, "h", age=99.0)])
    assert answer.taken == ("h.0",)


async def test_dropped_by_its_job_it_holds_nothing(scene: Scene) -> None:
    await scene.ledger.commit_evictions([gatherer(scene, "g")])
    await scene.ledger.drop("job-g", ["g.0"], scene.generation)
    assert await scene.holders() == []
    assert (await scene.ledger.commit_evictions([gatherer(scene, "h", age=99.0)]))[0].taken == ("h.0",)


async def test_who_ends_before_the_head_starts_is_lent_its_room_and_gives_it_back(scene: Scene) -> None:
    await scene.running("a", 0)
    large = msgspec.structs.replace(gatherer(scene, "g"), start_s=300)
    assert (await scene.ledger.commit_evictions([large]))[0].taken
    (before, _) = await scene.use()
    silent, long, short = (scene.plan(name, (f"{name}-0", 1)) for name in ("s", "l", "k"))
    long, short = msgspec.structs.replace(long, ends_s=301), msgspec.structs.replace(short, ends_s=290)
    answers = await scene.ledger.commit([silent, long])
    assert [a.refused for a in answers] == [{"s.0": Refusal.EARMARKED}, {"l.0": Refusal.EARMARKED}]
    (after, _) = await scene.use()
    assert msgspec.structs.replace(after["n1"], revision=0) == msgspec.structs.replace(before["n1"], revision=0)
    assert (await scene.ledger.commit([short]))[0].taken == ("k.0",)
    early = msgspec.structs.replace(scene.plan("y", ("g-0", 0), job="job-g"), assignments=large.assignments)
    await scene.ledger.tasks_gone(["a"], TERM)
    assert (await scene.ledger.commit([early]))[0].refused == {"g.0": Refusal.CAPACITY}
    await scene.ledger.drop(short.job, ["k.0"], scene.generation)
    (thief,) = await scene.ledger.commit([scene.plan("t", ("t-0", 1))])
    assert thief.refused == {"t.0": Refusal.EARMARKED}, "it came back to whom it was kept for"
    assert (await scene.ledger.commit([early]))[0].taken == ("g.0",)
    nodes, _ = await scene.use()
    assert (nodes["n1"].gpus, nodes["n1"].pods) == (((1000, 8000), (1000, 8000)), 1)


async def test_a_gang_of_which_one_member_is_not_lent_room_borrows_nothing(scene: Scene) -> None:
    large = msgspec.structs.replace(gatherer(scene, "g"), start_s=300)
    await scene.ledger.commit_evictions([large])
    before = await scene.use()
    gang = msgspec.structs.replace(scene.plan("p", ("p-0", 0), ("p-1", 1), ("p-2", 1)), ends_s=10)
    assert (await scene.ledger.commit([gang]))[0].taken == ()
    nodes, queues = await scene.use()
    assert (nodes["n1"].gpus, nodes["n1"].earmarked) == (before[0]["n1"].gpus, before[0]["n1"].earmarked)
    assert queues["q"].gpu_milli == before[1]["q"].gpu_milli


async def test_any_gatherer_lends_to_who_yields_and_has_the_room_back_when_that_one_was_evicted(scene: Scene) -> None:
    await scene.running("a", 0)
    large = gatherer(scene, "g")  # nobody knows when it starts
    assert (await scene.ledger.commit_evictions([large]))[0].taken
    silent, yields = scene.plan("s", ("s-0", 1)), msgspec.structs.replace(scene.plan("k", ("k-0", 1)), yields=True)
    answers = await scene.ledger.commit([silent, yields])
    assert [(a.taken, a.refused) for a in answers] == [((), {"s.0": Refusal.EARMARKED}), (("k.0",), {})]
    await scene.ledger.begin([yields])
    await scene.ledger.confirm({"k.0": "k-0"}, scene.generation)
    await scene.ledger.tasks_gone(["a"], TERM)
    early = msgspec.structs.replace(scene.plan("y", ("g-0", 0), job="job-g"), assignments=large.assignments)
    assert (await scene.ledger.commit([early]))[0].refused == {"g.0": Refusal.CAPACITY}
    recall = msgspec.structs.replace(
        large, id="r", victims=(Victim("k-0", "k", "d", "n1", yields.job, 0),), assignments=(), gather_s=0, rule="lent"
    )
    (answer,) = await scene.ledger.commit_evictions([recall])
    assert (answer.taken, answer.refused) == ((), {})
    assert not await scene.ledger.begin_evict(recall)
    (again,) = await scene.ledger.commit_evictions([msgspec.structs.replace(recall, id="r2")])
    assert again.refused == {"k-0": Refusal.VICTIM_MARKED}, "it leaves once"
    await scene.ledger.tasks_gone(["k-0"], TERM)
    (thief,) = await scene.ledger.commit([scene.plan("t", ("t-0", 1))])
    assert thief.refused == {"t.0": Refusal.EARMARKED}, "it came back to whom it was kept for"
    assert (await scene.ledger.commit([early]))[0].taken == ("g.0",)
    nodes, _ = await scene.use()
    assert (nodes["n1"].gpus, nodes["n1"].pods) == (((1000, 8000), (1000, 8000)), 1)
    await scene.ledger.expire()
    assert (await scene.ledger.take(0)).evictions == (), "nothing is left of the eviction"


async def test_room_of_marked_victims_is_lent_to_nobody(scene: Scene) -> None:
    await scene.running("a", 0)
    await scene.running("b", 1)
    p = scene.plan("p", ("p-0", 0), job="job-p")
    plan = EvictionPlan(
        id=p.id, job=p.job, job_uid="", namespace="d", queue="q", partition=0, epoch=p.epoch, generation=p.generation,
        priority=0, victims=tuple(Victim(uid, uid, "d", "n1", "low", 0) for uid in "ab"),
        assignments=(msgspec.structs.replace(p.assignments[0], charge=gpus(0, 1)),),
    )  # fmt: skip
    assert (await scene.ledger.commit_evictions([plan]))[0].taken
    await scene.ledger.tasks_gone(["a"], TERM)
    (answer,) = await scene.ledger.commit([msgspec.structs.replace(scene.plan("k", ("k-0", 0)), yields=True)])
    assert answer.refused == {"k.0": Refusal.EARMARKED}


async def test_nobody_is_called_back_for_a_job_that_gathers_no_more(scene: Scene) -> None:
    large = gatherer(scene, "g")
    assert (await scene.ledger.commit_evictions([large]))[0].taken
    await scene.running("k", 0)
    recall = msgspec.structs.replace(
        large, id="r", victims=(Victim("k", "k", "d", "n1", "low", 0),), assignments=(), gather_s=0, rule="lent"
    )
    assert not (await scene.ledger.commit_evictions([recall]))[0].refused
    assert not await scene.ledger.begin_evict(recall)
    await scene.ledger.drop(large.job, ["g.0"], scene.generation)
    assert await scene.ledger.begin_evict(recall) == {"": Refusal.EXPIRED}
    (late,) = await scene.ledger.commit_evictions([msgspec.structs.replace(recall, id="late")])
    assert late.refused == {"k": Refusal.EXPIRED}
    p = scene.plan("p", ("p-0", 0), job="job-p")
    other = msgspec.structs.replace(
        recall, id=p.id, job=p.job, assignments=(msgspec.structs.replace(p.assignments[0], charge=gpus(0)),)
    )
    assert (await scene.ledger.commit_evictions([other]))[0].taken, "its mark went with it"
