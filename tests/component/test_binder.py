"""Pods are bound, and what must hold when things go wrong on the way."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from libs.bus.port import Outgoing
from libs.contracts.events import (
    EventType,
    Landed,
    PlansBatch,
)
from libs.contracts.topics import PLANS
from libs.domain import keys
from libs.testkit.faults import FaultyKube, answers, binding, connection_lost, held_up, read
from tests.component.binder_world import MIB, TEAM, binders


@pytest.fixture
async def world():
    async with binders() as made:
        yield made


async def test_a_plan_becomes_one_binding_with_its_devices_in_the_same_call(world):
    a, b = world.pod("a"), world.pod("b", gpus=2)
    async with world.binder():
        await world.send(await world.plan(a), await world.plan(b, first=3))
        landed = await world.landed(2)
        await world.settled(2)
    assert {task: how for task, (how, _) in landed.items()} == {a.uid: Landed.BOUND, b.uid: Landed.BOUND}
    notes = world.read("b").annotations
    assert (notes[keys.GPUS], notes[keys.GPU_MIB], notes[keys.GPU_MILLI]) == ("3,4", str(MIB), "1000")
    assert world.kube.served == {"POST binding": 2}
    assert set((await world.held()).values()) == {"bound"}


async def test_bind_applied_but_connection_lost_is_read_and_confirmed(world):
    world.kube.faults.append(connection_lost(binding, applied=True))
    a = world.pod("a")
    async with world.binder():
        await world.send(await world.plan(a))
        landed = await world.landed(1)
    assert landed[a.uid][0] is Landed.BOUND
    assert world.bindings == [("a", "n1")]
    assert world.kube.served["POST binding"] == 1
    assert await world.held() == {a.uid: "bound"}


async def test_bind_lost_before_it_took_effect_is_written_again(world):
    world.kube.faults.append(connection_lost(binding, applied=False))
    a = world.pod("a")
    async with world.binder():
        await world.send(await world.plan(a))
        landed = await world.landed(1)
    assert landed[a.uid][0] is Landed.BOUND
    assert world.bindings == [("a", "n1")]


async def test_a_storm_of_504_some_applied_some_not_binds_each_pod_once(world):
    for n in range(24):
        world.kube.faults.append(answers(binding, 504, applied=n % 2 == 0))
    pods = [world.pod(f"p{n}") for n in range(8)]
    async with world.binder(give_up_s=6.0):
        await world.send(*[await world.plan(pod, first=n) for n, pod in enumerate(pods)])
        landed = await world.landed(8)
    assert {how for how, _ in landed.values()} == {Landed.BOUND}
    assert sorted(world.bindings) == [(f"p{n}", "n1") for n in range(8)]
    assert all(fault.seen for fault in world.kube.faults[:8])


async def test_throttled_writes_come_back_later_and_the_window_shrinks(world):
    world.kube.faults.append(answers(binding, 429, times=6, retry_after_s=0.05))
    pods = [world.pod(f"p{n}") for n in range(4)]
    async with world.binder() as binder:
        await world.send(await world.plan(*pods, job="gang/default/g", gang=True))
        landed = await world.landed(4)
        assert binder._window.retreats >= 1
    assert {how for how, _ in landed.values()} == {Landed.BOUND}


async def test_an_api_server_that_never_answers_for_sure_gives_the_task_back_fenced(world):
    world.kube.faults.append(answers(binding, 504, times=10_000))
    a = world.pod("a")
    async with world.binder(give_up_s=0.3):
        plan = await world.plan(a)
        await world.send(plan)
        landed = await world.landed(1)
        await world.settled(1)
    assert landed[a.uid][0] is Landed.REPLAN
    pod = world.read("a")
    assert not pod.bound
    assert pod.version != a.version, "a late binding under the old version must be refused"
    assert await world.held() == {}


async def test_a_fence_that_stands_on_the_pod_already_does_not_make_the_next_one_void(world):
    """A patch that changes nothing leaves the version as it is, and the late binding under it would land."""
    world.kube.faults.append(answers(binding, 504, times=10_000))
    a = world.pod("a")
    plan = await world.plan(a)
    forged = msgspec.json.encode({"metadata": {"annotations": {keys.FENCE: plan.assignments[0].claim}}})
    path = f"/api/v1/namespaces/{TEAM}/pods/a"
    assert world.cluster.call_now("PATCH", path, forged, content_type="application/merge-patch+json").ok
    before = world.read("a").version
    (assignment,) = plan.assignments
    decided = msgspec.structs.replace(plan, assignments=(msgspec.structs.replace(assignment, version=before),))
    async with world.binder(give_up_s=0.3):
        await world.send(decided)
        landed = await world.landed(1)
    assert landed[a.uid][0] is Landed.REPLAN
    assert world.read("a").version != before


async def test_a_write_that_lands_after_its_claim_was_given_back_is_refused_by_the_server(world):
    """A binder that was stopped between the ledger and the write wakes up after another one resolved its claim."""
    wake = asyncio.Event()
    sleepy = FaultyKube(world.cluster, held_up(binding, wake))
    a = world.pod("a")
    async with world.binder(kube=sleepy):
        plan = await world.plan(a)
        await world.send(plan)
        async with asyncio.timeout(30):
            await sleepy.faults[0].held.wait()
        # What a resolver does with a writing claim past its deadline: make the write impossible, then free it.
        touch = msgspec.json.encode({"metadata": {"annotations": {keys.FENCE: plan.assignments[0].claim}}})
        path = f"/api/v1/namespaces/{TEAM}/pods/a"
        world.cluster.call_now("PATCH", path, touch, content_type="application/merge-patch+json")
        await world.ledger.release([plan.assignments[0].claim], plan.generation)
        wake.set()
        landed = await world.landed(1)
    assert landed[a.uid][0] is Landed.REPLAN
    assert world.bindings == []
    assert await world.held() == {}


async def test_a_pod_recreated_under_the_same_name_never_gets_the_old_decision(world):
    old = world.pod("a")
    plan = await world.plan(old)
    world.remove("a")
    new = world.pod("a")
    async with world.binder():
        await world.send(plan)
        landed = await world.landed(1)
        await world.settled(1)
    assert landed == {old.uid: (Landed.GONE, landed[old.uid][1])}
    assert not world.read("a").bound
    assert world.read("a").uid == new.uid
    assert await world.held() == {}


async def test_a_status_patch_between_decision_and_bind_does_not_cost_a_new_decision(world):
    a = world.pod("a")
    plan = await world.plan(a)
    patch = {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}
    path = f"/api/v1/namespaces/{TEAM}/pods/a/status"
    world.cluster.call_now("PATCH", path, msgspec.json.encode(patch), content_type="application/merge-patch+json")
    assert world.read("a").version != a.version
    async with world.binder():
        await world.send(plan)
        landed = await world.landed(1)
    assert landed[a.uid][0] is Landed.BOUND


async def test_a_pod_that_is_bound_elsewhere_by_somebody_else_is_left_alone(world):
    a = world.pod("a")
    plan = await world.plan(a)
    body = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n2"}}
    assert world.cluster.call_now("POST", f"/api/v1/namespaces/{TEAM}/pods/a/binding", msgspec.json.encode(body)).ok
    async with world.binder():
        await world.send(plan)
        landed = await world.landed(1)
        await world.settled(1)
    assert landed[a.uid][0] is Landed.GONE
    assert world.read("a").node == "n2"
    assert keys.GPUS not in world.read("a").annotations
    assert await world.held() == {}


async def test_the_same_plan_delivered_many_times_to_two_binders_is_one_allocation(world):
    pods = [world.pod(f"p{n}") for n in range(3)]
    plan = await world.plan(*pods, job="gang/default/g", gang=True)
    async with world.binder(replicas=2):
        for _ in range(5):
            await world.send(plan)
            # The same records on other partitions: both binders get the plan at the same time.
            for partition in range(PLANS.partitions):
                value = msgspec.json.encode(PlansBatch((plan,)))
                await world.bus.publish([Outgoing(PLANS.name, plan.job, value, EventType.PLANS, partition)])
        await world.settled(5 * (PLANS.partitions + 1))
    assert sorted(world.bindings) == [(f"p{n}", "n1") for n in range(3)]
    held = await world.held()
    assert held == {pod.uid: "bound" for pod in pods}


async def test_a_cordon_that_was_acknowledged_before_the_bind_is_honoured(world):
    a = world.pod("a")
    plan = await world.plan(a)
    async with world.binder():
        await world.cordon("n1")
        await asyncio.sleep(0.05)
        await world.send(plan)
        landed = await world.landed(1)
        await world.settled(1)
    assert landed[a.uid][0] is Landed.REPLAN
    assert "cordoned" in landed[a.uid][1]
    assert world.bindings == []
    assert await world.held() == {}


async def test_a_plan_that_outruns_its_new_nodes_fact_waits_for_it_instead_of_being_refused(world):
    await world.node("late", published=False)
    a = world.pod("a")
    plan = await world.plan(a, on="late")
    async with world.binder():
        await world.send(plan)
        await asyncio.sleep(0.1)
        await world.publish(world.nodes["late"])
        landed = await world.landed(1)
    assert landed[a.uid][0] is Landed.BOUND
    assert world.bindings == [("a", "late")]


async def test_a_plan_for_a_node_that_never_shows_is_given_back(world):
    await world.node("ghost", published=False)
    a = world.pod("a")
    plan = await world.plan(a, on="ghost")
    async with world.binder():
        await world.send(plan)
        landed = await world.landed(1)
        await world.settled(1)
    assert landed[a.uid] == (Landed.REPLAN, "node is gone")
    assert await world.held() == {}


async def test_one_node_that_objects_keeps_the_whole_gang_from_its_first_write(world):
    pods = [world.pod(f"p{n}") for n in range(4)]
    plan = await world.plan(*pods, on=["n1", "n1", "n1", "n2"], job="gang/default/g", gang=True)
    async with world.binder():
        await world.cordon("n2")
        await asyncio.sleep(0.05)
        await world.send(plan)
        landed = await world.landed(4)
        await world.settled(1)
    assert {how for how, _ in landed.values()} == {Landed.REPLAN}
    assert world.kube.served == {}
    assert await world.held() == {}


async def test_a_gang_with_one_refused_task_reports_each_and_frees_only_that_one(world):
    pods = [world.pod(f"p{n}") for n in range(4)]
    plan = await world.plan(*pods, job="gang/default/g", gang=True)

    def of_p2(method, path):
        return binding(method, path) and "/p2/" in path

    world.kube.faults.append(answers(of_p2, 422, b'{"reason":"Invalid","message":"no"}'))
    async with world.binder():
        await world.send(plan)
        landed = await world.landed(4)
        await world.settled(1)
    assert landed[pods[2].uid][0] is Landed.REFUSED
    assert [landed[pods[n].uid][0] for n in (0, 1, 3)] == [Landed.BOUND] * 3
    assert await world.held() == {pods[n].uid: "bound" for n in (0, 1, 3)}


async def test_after_a_failed_bind_the_devices_named_are_those_of_the_node_it_landed_on(world):
    a = world.pod("a")
    world.kube.faults.append(answers(binding, 422, b"{}"))
    async with world.binder():
        await world.send(await world.plan(a, on="n1", first=5))
        assert (await world.landed(1))[a.uid][0] is Landed.REFUSED
        again = await world.plan(world.read("a"), on="n2", first=1)
        await world.send(again)
        assert (await world.landed(1))[a.uid][0] is Landed.BOUND
    pod = world.read("a")
    assert (pod.node, pod.annotations[keys.GPUS]) == ("n2", "1")
    assert pod.claim == again.assignments[0].claim


async def test_a_failed_bind_and_a_deleted_pod_leave_nothing_in_the_ledger(world):
    a = world.pod("a")
    world.kube.faults.append(answers(binding, 403, b"{}", times=100))
    async with world.binder():
        await world.send(await world.plan(a))
        assert (await world.landed(1))[a.uid][0] is Landed.REFUSED
        await world.settled(1)
    world.remove("a")
    await world.ledger.tasks_gone([a.uid], 1)
    assert await world.held() == {}


async def test_random_faults_on_every_call_end_with_each_pod_bound_once_or_given_back(world):
    """Seeded: a third of all calls goes wrong in one of five ways."""
    rng = random.Random(11)
    kinds = [
        lambda m: connection_lost(m, applied=True),
        lambda m: connection_lost(m, applied=False),
        lambda m: answers(m, 504, applied=True),
        lambda m: answers(m, 500),
        lambda m: answers(m, 429),
    ]

    def sometimes(method, path):
        return (binding(method, path) or read(method, path)) and rng.random() < 0.34

    world.kube.faults += [rng.choice(kinds)(sometimes) for _ in range(60)]
    pods = [world.pod(f"p{n}", gpus=0) for n in range(40)]
    async with world.binder(give_up_s=4.0):
        await world.send(*[await world.plan(pod) for pod in pods])
        landed = await world.landed(40)
        await world.settled(40)
    bound = {pod.uid for pod in pods if world.read(pod.name).bound}
    assert {task for task, (how, _) in landed.items() if how is Landed.BOUND} == bound
    assert len(world.bindings) == len(bound)
    assert await world.held() == dict.fromkeys(bound, "bound")
