"""Earmarks that gather room for the head of a queue: what comes free is its, and nobody waits for it for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from libs.domain.plans import EvictionPlan
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
