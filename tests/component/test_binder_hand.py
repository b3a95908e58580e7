"""What a binder has in hand: offsets wait for it, claims are asked about, and it ends with the binder or after it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from libs.bus.port import Outgoing
from libs.contracts.events import (
    EventType,
    Landed,
)
from libs.contracts.topics import DEAD_LETTERS, PLANS
from libs.kube import boundpods
from libs.testkit.faults import binding, held_up
from services.binder.tenure import STALE_S
from tests.component.binder_world import TEAM, binders


@pytest.fixture
async def world():
    async with binders() as made:
        yield made


async def test_a_message_that_cannot_be_read_is_set_aside_and_blocks_nothing(world):
    a = world.pod("a")
    letters = world.bus.follow([DEAD_LETTERS.name], from_start=True)
    plan = await world.plan(a)
    async with world.binder():
        await world.bus.publish([Outgoing(PLANS.name, "x", b"{not json", EventType.PLANS, plan.partition)])
        await world.send(plan)
        assert (await world.landed(1))[a.uid][0] is Landed.BOUND
        (letter,) = await letters.batch(10, 2.0)
        await world.settled(2)
    assert b"not json" not in letter.value  # quoted as base64
    assert msgspec.json.decode(letter.value)["topic"] == PLANS.name


async def test_offsets_wait_for_what_is_still_in_hand(world):
    wake = asyncio.Event()
    world.kube.faults.append(held_up(lambda m, p: binding(m, p) and "/slow/" in p, wake))
    slow, quick = world.pod("slow"), world.pod("quick")
    job = "gang/default/one-partition"
    async with world.binder(write_timeout_s=5.0):
        await world.send(await world.plan(slow, job=job), await world.plan(quick, job=job, first=1))
        assert set(await world.landed(1)) == {quick.uid}
        await asyncio.sleep(0.1)
        assert world.committed() == 0
        wake.set()
        await world.landed(1)
        await world.settled(2)


async def test_plans_are_taken_while_earlier_writes_are_in_flight(world):
    wake = asyncio.Event()
    world.kube.faults.append(held_up(binding, wake, times=4))
    pods = [world.pod(f"p{n}") for n in range(6)]
    async with world.binder(write_timeout_s=5.0):
        for n, pod in enumerate(pods[:4]):
            await world.send(await world.plan(pod, first=n))
        await asyncio.sleep(0.05)
        for n, pod in enumerate(pods[4:]):
            await world.send(await world.plan(pod, first=4 + n))
        assert set(await world.landed(2)) == {pods[4].uid, pods[5].uid}
        wake.set()
        await world.landed(4)
    assert world.kube.most_at_once >= 4


async def test_a_burst_that_takes_long_to_write_asks_about_its_claims_together_and_not_one_by_one(world, monkeypatch):
    asked: list[int] = []
    writing = world.ledger.writing

    async def counted(claims):
        asked.append(len(claims))
        return await writing(claims)

    monkeypatch.setattr(world.ledger, "writing", counted)
    wake = asyncio.Event()
    world.kube.faults.append(held_up(binding, wake, times=2))
    pods = [world.pod(f"p{n}") for n in range(16)]
    nodes = [f"n{1 + n // 8}" for n in range(16)]
    async with world.binder(write_timeout_s=5.0, window_cap=2, window_start=2, give_up_s=8.0):
        await world.send(await world.plan(*pods, on=nodes))
        asyncio.get_running_loop().call_later(2 * STALE_S, wake.set)
        assert {how for how, _ in (await world.landed(16)).values()} == {Landed.BOUND}
    assert max(asked) == 14, "those that waited for the two in flight, in one call"


async def test_a_claim_taken_back_while_its_write_waits_is_not_written(world):
    wake = asyncio.Event()
    world.kube.faults.append(held_up(binding, wake, times=2))
    pods = [world.pod(f"p{n}") for n in range(4)]
    async with world.binder(write_timeout_s=5.0, window_cap=2, window_start=2, give_up_s=8.0):
        plan = await world.plan(*pods)
        await world.send(plan)
        async with asyncio.timeout(30):
            await world.kube.faults[0].held.wait()
        await world.ledger.release([plan.assignments[3].claim], world.generation)
        asyncio.get_running_loop().call_later(2 * STALE_S, wake.set)
        landed = await world.landed(4)
    assert landed[pods[3].uid][0] is Landed.REPLAN
    assert sorted(name for name, _ in world.bindings) == ["p0", "p1", "p2"]


async def test_what_is_in_hand_when_it_is_told_to_stop_is_finished(world):
    wake = asyncio.Event()
    world.kube.faults.append(held_up(binding, wake))
    a = world.pod("a")
    async with world.binder(write_timeout_s=5.0):
        await world.send(await world.plan(a))
        async with asyncio.timeout(30):
            await world.kube.faults[0].held.wait()
        asyncio.get_running_loop().call_later(0.3, wake.set)
    assert (await world.landed(1))[a.uid][0] is Landed.BOUND
    assert world.committed() == 1


async def test_claims_that_a_dead_binder_left_writing_are_resolved_by_reading_the_pods():
    """It had begun three: one was bound, one was not, one's pod was deleted."""
    async with binders(writing_s=0.2, rearm_s=0.3) as world:
        pods = [world.pod(f"p{n}") for n in range(3)]
        plan = await world.plan(*pods, job="gang/default/g", gang=True)
        assert await world.ledger.begin([plan]) == [{}]
        done = plan.assignments[0]
        meta = {"name": "p0", "annotations": boundpods.grant_annotations(done)}
        body = msgspec.json.encode({"metadata": meta, "target": {"kind": "Node", "name": "n1"}})
        assert world.cluster.call_now("POST", f"/api/v1/namespaces/{TEAM}/pods/p0/binding", body).ok
        world.remove("p2")
        async with world.binder():
            landed = await world.landed(3)
            await asyncio.sleep(0.1)
        assert [landed[pod.uid][0] for pod in pods] == [Landed.BOUND, Landed.REPLAN, Landed.GONE]
        assert world.read("p1").version != pods[1].version, "its late binding must be refused"
        assert await world.held() == {pods[0].uid: "bound"}
