"""Tasks of TrainingJobs are created, already bound, and by one binder only, whatever is delivered again."""

from __future__ import annotations

import asyncio

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
from libs.domain.jobs import partition_of
from libs.domain.plans import Assignment, Plan
from libs.domain.resources import Charge, GpuGrant
from libs.kube import trainingjobs
from libs.testkit.faults import connection_lost, creation, held_up
from tests.component.binder_world import MIB, TEAM, World, binders


@pytest.fixture
async def world():
    async with binders() as made:
        yield made


class Jobs:
    def __init__(self, world: World) -> None:
        self.world = world

    def create(self, name: str, replicas: int = 2):
        template = {
            "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {keys.GPU_RESOURCE: "1"}}}]}
        }
        spec = {"roles": [{"name": "worker", "replicas": replicas, "template": template}], "id": name, "tenant": "t"}
        body = trainingjobs.manifest(TEAM, name, spec, {}, {})
        answer = self.world.cluster.call_now("POST", trainingjobs.path(TEAM), body)
        assert answer.ok, answer.body
        return trainingjobs.parse(answer.body)

    async def plan(self, job, node: str = "n1", first: int = 0) -> Plan:
        _, tasks = trainingjobs.expand(job, 0)
        partition = partition_of(job.key, PLANS.partitions)
        world = self.world
        if partition not in world.epochs:
            world.epochs[partition] = (await world.ledger.take(partition)).epoch
        world.plans += 1
        ident = f"{world.generation}.{partition}.{world.epochs[partition]}.{world.plans}"
        assignments = [
            Assignment(
                claim=f"{ident}.{n}",
                task=task.id,
                name=task.name,
                node=node,
                node_spec=world.nodes[node].spec,
                charge=Charge(0, 0, (GpuGrant(first + n, 1000, MIB),)),
                create=True,
                role=task.role,
                index=task.index,
            )
            for n, task in enumerate(tasks)
        ]
        return await world.commit(world._plan(ident, job.key, partition, assignments, True, job_uid=job.uid))


@pytest.fixture
def jobs(world):
    return Jobs(world)


async def test_tasks_of_a_job_are_created_already_bound_in_one_write_each(world, jobs):
    job = jobs.create("train", 3)
    plan = await jobs.plan(job)
    async with world.binder():
        await world.send(plan)
        landed = await world.landed(3)
    assert {how for how, _ in landed.values()} == {Landed.BOUND}
    assert world.kube.served == {"GET train": 1, "POST pods": 3}
    pod = world.read("train-worker-1-0")
    assert (pod.node, pod.annotations[keys.GPUS], pod.claim) == ("n1", "1", plan.assignments[1].claim)
    assert set((await world.held()).values()) == {"bound"}


async def test_a_creation_whose_answer_was_lost_is_found_under_its_name(world, jobs):
    world.kube.faults.append(connection_lost(creation, applied=True))
    world.kube.faults.append(connection_lost(creation, applied=False))
    job = jobs.create("train", 2)
    async with world.binder():
        await world.send(await jobs.plan(job))
        landed = await world.landed(2)
    assert {how for how, _ in landed.values()} == {Landed.BOUND}
    assert sorted(world.bindings) == [("train-worker-0-0", "n1"), ("train-worker-1-0", "n1")]


async def test_a_plan_of_a_deleted_or_replaced_job_creates_nothing(world, jobs):
    job = jobs.create("train")
    plan = await jobs.plan(job)
    assert world.cluster.call_now("DELETE", trainingjobs.path(TEAM, "train")).ok
    jobs.create("train")  # another one under the same name
    async with world.binder():
        await world.send(plan)
        landed = await world.landed(2)
        await world.settled(1)
    assert {how for how, _ in landed.values()} == {Landed.GONE}
    assert world.bindings == []
    assert await world.held() == {}


async def test_a_foreign_pod_under_the_name_is_not_taken_for_ours(world, jobs):
    job = jobs.create("train", 1)
    foreign = world.pod("train-worker-0-0")
    async with world.binder():
        await world.send(await jobs.plan(job))
        landed = await world.landed(1)
        await world.settled(1)
    assert {how for how, _ in landed.values()} == {Landed.REFUSED}
    assert world.read("train-worker-0-0").uid == foreign.uid
    assert await world.held() == {}


async def test_a_created_task_delivered_again_after_its_end_is_not_created_twice(world, jobs):
    job = jobs.create("train", 2)
    plan = await jobs.plan(job)
    async with world.binder(replicas=2):
        await world.send(plan)
        await world.landed(2)
        await world.settled(1)
        for partition in range(PLANS.partitions):
            value = msgspec.json.encode(PlansBatch((plan,)))
            await world.bus.publish([Outgoing(PLANS.name, plan.job, value, EventType.PLANS, partition)])
        await world.settled(1 + PLANS.partitions)
    assert len(world.bindings) == 2
    assert set((await world.held()).values()) == {"bound"}


async def test_job_objects_in_hand_are_bounded_by_their_bytes_and_plans_take_turns(world, jobs, monkeypatch):
    """Thousands of plans may be in hand, and an object may have a megabyte."""
    monkeypatch.setattr("services.binder.prepare.MOST_HELD", 1)
    until = asyncio.Event()
    slow = held_up(creation, until)
    world.kube.faults.append(slow)
    plans = [await jobs.plan(jobs.create(f"train-{n}", 1), first=n) for n in range(3)]
    async with world.binder() as binder:
        await world.send(*plans)
        await slow.held.wait()
        await asyncio.sleep(0.2)
        assert sum(count for call, count in world.kube.served.items() if call.startswith("GET train-")) == 1
        until.set()
        landed = await world.landed(3)
        assert binder._applier._preparer._held == 0
    assert {how for how, _ in landed.values()} == {Landed.BOUND}
