"""Notice before the signal: who is told when it goes, how long is waited, and what ends the waiting early. In a time
that leaps, so that a minute of notice costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import msgspec
import pytest

from libs.domain import keys
from libs.testkit.pauses_time import LoopClock, run_leaping
from services.preemptor.notice import notice_s, told_until
from tests.component.test_preemptor import MERGE, TEAM, World

Scenario = Callable[[World], Awaitable[None]]


def in_leaping_time(scenario: Scenario) -> None:
    async def told() -> None:
        world = await World(LoopClock()).open()
        try:
            await scenario(world)
        finally:
            await world.ledger.close()

    run_leaping(told())


def patch(world: World, name: str, subresource: str = "", **item: object) -> None:
    path = "/".join(part for part in (f"/api/v1/namespaces/{TEAM}/pods/{name}", subresource) if part)
    assert world.cluster.call_now("PATCH", path, msgspec.json.encode(item), content_type=MERGE).ok


async def told(world: World, name: str) -> float:
    """When the pod goes, as it is told (seconds since the epoch)."""
    async with asyncio.timeout(30):
        while keys.EVICT_AT not in world.pod(name)["metadata"]["annotations"]:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
    return datetime.fromisoformat(world.pod(name)["metadata"]["annotations"][keys.EVICT_AT]).timestamp()


def test_a_pod_that_wants_to_save_its_work_is_told_and_goes_when_it_was_told() -> None:
    async def scenario(world: World) -> None:
        asks, other = await world.running("asks", 0, notice=30), await world.running("other", 1)
        async with world.preemptor():
            began = world.clock.wall()
            await world.send(await world.plan(asks, other, gpus=(0, 1)))
            at = await told(world, "asks")
            assert 29 <= at - began <= 31
            assert world.disruption("asks") == "True"
            await asyncio.sleep(28)
            assert not world.leaving(asks)
            outcome = await world.outcome()
            assert abs(world.clock.wall() - at) < 1.5
        assert set(outcome.evicted) == {asks.uid, other.uid}
        assert world.leaving(asks)

    in_leaping_time(scenario)


def test_a_pod_of_a_queue_that_grants_notice_may_say_that_it_is_done_and_goes_at_once() -> None:
    async def scenario(world: World) -> None:
        low = msgspec.structs.replace(await world.running("low", 0), notice_s=60)
        async with world.preemptor():
            await world.send(await world.plan(low, gpus=(0,)))
            at = await told(world, "low")
            await asyncio.sleep(5)
            assert not world.leaving(low)
            patch(world, "low", metadata={"annotations": {keys.EVICT_ACK: "saved"}})
            outcome = await world.outcome()
            assert world.clock.wall() < at - 50
        assert outcome.evicted == (low.uid,)

    in_leaping_time(scenario)


def test_a_pod_that_ends_within_its_notice_is_not_signalled() -> None:
    async def scenario(world: World) -> None:
        low = await world.running("low", 0, notice=60)
        async with world.preemptor():
            await world.send(await world.plan(low, gpus=(0,)))
            await told(world, "low")
            patch(world, "low", "status", status={"phase": "Succeeded"})
            outcome = await world.outcome()
        assert outcome.evicted == (low.uid,)
        assert world.kube.served["DELETE low"] == 0

    in_leaping_time(scenario)


def test_a_preemptor_that_takes_over_tells_nothing_twice_and_waits_no_longer() -> None:
    async def scenario(world: World) -> None:
        low = await world.running("low", 0, notice=60)
        plan = await world.plan(low, gpus=(0,))
        async with world.preemptor():
            await world.send(plan)
            at = await told(world, "low")
            await asyncio.sleep(20)
        assert not world.leaving(low), "a preemptor that stops does not cut the notice short"
        async with world.preemptor():
            await world.send(plan)
            await asyncio.sleep(10)
            assert await told(world, "low") == at
            outcome = await world.outcome()
            assert at - 1.0 <= world.clock.wall() <= at + 1.5
        assert outcome.evicted == (low.uid,)

    in_leaping_time(scenario)


def test_the_beneficiary_was_cancelled_within_the_notice_and_nobody_goes_in_vain() -> None:
    async def scenario(world: World) -> None:
        low = await world.running("low", 0, notice=60)
        plan = await world.plan(low, gpus=(0,))
        async with world.preemptor():
            await world.send(plan)
            await told(world, "low")
            await world.ledger.drop(plan.job, [a.claim for a in plan.assignments], plan.generation)
            outcome = await world.outcome()
        assert not outcome.evicted
        assert low.uid in outcome.refused
        assert not world.leaving(low)
        assert keys.EVICT_AT not in world.pod("low")["metadata"]["annotations"]
        assert world.disruption("low") == "False", "should it fail later, that is its own failure"

    in_leaping_time(scenario)


def test_a_budget_that_closed_within_the_notice_keeps_all_of_them() -> None:
    async def scenario(world: World) -> None:
        await world.budget("web", allowed=1)
        guarded = await world.running("guarded", 0, app="web", notice=30)
        free = await world.running("free", 1)
        async with world.preemptor():
            await world.send(await world.plan(guarded, free, gpus=(0, 1)))
            await told(world, "guarded")
            await world.budget("web", allowed=0)
            outcome = await world.outcome()
        assert not outcome.evicted
        assert not world.leaving(guarded)
        assert not world.leaving(free)

    in_leaping_time(scenario)


def test_a_notice_of_an_older_plan_does_not_shorten_that_of_this_one() -> None:
    async def scenario(world: World) -> None:
        low = await world.running("low", 0, notice=60)
        stale = {keys.EVICT_AT: "2020-01-01T00:00:00Z", keys.EVICT_PLAN: "another"}
        patch(world, "low", metadata={"annotations": stale})
        began = world.clock.wall()
        async with world.preemptor():
            await world.send(await world.plan(low, gpus=(0,)))
            outcome = await world.outcome()
        assert world.clock.wall() - began >= 58
        assert outcome.evicted == (low.uid,)

    in_leaping_time(scenario)


@pytest.mark.parametrize(
    ("asked", "granted", "expected"),
    [("", 0, 0), ("30", 0, 30), ("30", 60, 60), ("900", 0, 300), ("-5", 10, 10), ("soon", 0, 0), ("٣", 0, 0)],
)
def test_the_longer_of_what_is_asked_and_granted_counts_up_to_the_cap(asked: str, granted: int, expected: int) -> None:
    assert notice_s({keys.EVICT_NOTICE: asked} if asked else {}, granted, 300.0) == expected


def test_what_stands_on_a_pod_counts_for_the_plan_that_wrote_it_only() -> None:
    said = {keys.EVICT_AT: "2026-01-01T00:00:00Z", keys.EVICT_PLAN: "1"}
    assert told_until(said, "1") == 1_767_225_600.0
    assert told_until(said, "2") is None
    assert told_until({**said, keys.EVICT_AT: "tomorrow"}, "1") is None
