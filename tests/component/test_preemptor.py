"""The preemptor on an embedded API server, bus and ledger: who goes, who stays, and what is said about it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest

from libs.bus.memory import MemoryBus
from libs.bus.port import Outgoing
from libs.contracts.events import EventType, EvictionOutcome, EvictionsBatch, OutcomesBatch, PdbFact, cluster_key
from libs.contracts.topics import CLUSTER, EVICTIONS, OUTCOMES
from libs.domain import keys
from libs.domain.jobs import partition_of
from libs.domain.notices import noticed
from libs.domain.plans import Assignment, EvictionPlan, Victim
from libs.domain.resources import Charge, GpuGrant
from libs.host.parts import Parts
from libs.kube.embedded import EmbeddedCluster
from libs.kube.nodes import parse_node
from libs.kube.pods import parse_pod
from libs.runtime.clock import Clock, SystemClock
from libs.store.embedded import embedded_ledger
from libs.store.port import TaskSeen
from libs.testkit.faults import FaultyKube, answers, connection_lost, deletion, eviction, held_up
from libs.testkit.pauses_time import LoopClock
from services.preemptor.app import build
from services.preemptor.settings import PreemptorSettings

TEAM = "default"
MIB = 80000
MERGE = "application/merge-patch+json"


class World:
    """One node whose GPUs are all taken by low-priority pods; a waiting job is to get some of them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.cluster = EmbeddedCluster()
        self.kube = FaultyKube(self.cluster)
        self.bus = MemoryBus()
        self.ledger = embedded_ledger()
        self.plans = 0

    async def open(self) -> World:
        await self.ledger.open()
        self.generation = (await self.ledger.begin_rebuild(1)).generation
        item = {
            "metadata": {"name": "n1", "labels": {keys.NODE_GPU_MEMORY: str(MIB)}},
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", keys.GPU_RESOURCE: "8"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        answer = self.cluster.call_now("POST", "/api/v1/nodes", msgspec.json.encode(item))
        self.node = parse_node(answer.body)
        await self.ledger.nodes_seen([self.node], 1)
        await self.ledger.whole(1)
        self.partition = partition_of("pod/default/urgent", EVICTIONS.partitions)
        self.epoch = (await self.ledger.take(self.partition)).epoch
        self.outcomes = self.bus.follow([OUTCOMES.name], from_start=True)
        return self

    async def running(self, name: str, index: int, app: str = "plain", notice: int = 0) -> Victim:
        limits = {"cpu": "1", "memory": "1Gi", keys.GPU_RESOURCE: "1"}
        item = {
            "metadata": {"name": name, "labels": {"app": app}, "annotations": {keys.GPUS: str(index)}},
            "spec": {
                "schedulerName": "drystone",
                "nodeName": "n1",
                "containers": [{"name": "main", "resources": {"limits": limits}}],
            },
        }
        if notice:
            item["metadata"]["annotations"][keys.EVICT_NOTICE] = str(notice)
        path = f"/api/v1/namespaces/{TEAM}/pods"
        assert self.cluster.call_now("POST", path, msgspec.json.encode(item)).ok
        status = msgspec.json.encode({"status": {"phase": "Running"}})
        answer = self.cluster.call_now("PATCH", f"{path}/{name}/status", status, content_type=MERGE)
        pod = parse_pod(answer.body)
        charge = Charge(1000, 1024, (GpuGrant(index, 1000, MIB),))
        seen = TaskSeen(pod.uid, pod.version, "n1", charge, "default", f"pod/{TEAM}/{name}", "", TEAM, name)
        await self.ledger.tasks_seen([seen], 1)
        return Victim(pod.uid, name, TEAM, "n1", f"pod/{TEAM}/{name}", 0, guarded=app != "plain")

    async def budget(self, app: str, allowed: int) -> None:
        path = f"/apis/policy/v1/namespaces/{TEAM}/poddisruptionbudgets"
        item = {"metadata": {"name": app}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}}
        if self.cluster.call_now("GET", f"{path}/{app}").status == 404:
            assert self.cluster.call_now("POST", path, msgspec.json.encode(item)).ok
        status = msgspec.json.encode({"status": {"disruptionsAllowed": allowed, "observedGeneration": 1}})
        answer = self.cluster.call_now("PATCH", f"{path}/{app}/status", status, content_type=MERGE)
        version = msgspec.json.decode(answer.body)["metadata"]["resourceVersion"]
        fact = PdbFact(app, TEAM, "u-" + app, version, {"app": app}, allowed, 1)
        await self.bus.publish(
            [Outgoing(CLUSTER.name, cluster_key(fact), msgspec.json.encode(fact), EventType.CLUSTER)]
        )

    async def plan(self, *victims: Victim, gpus: tuple[int, ...]) -> EvictionPlan:
        self.plans += 1
        ident = f"{self.generation}.{self.partition}.{self.epoch}.{self.plans}"
        charge = Charge(1000, 1024, tuple(GpuGrant(index, 1000, MIB) for index in gpus))
        plan = EvictionPlan(
            id=ident,
            job="pod/default/urgent",
            job_uid="",
            namespace=TEAM,
            queue="default",
            partition=self.partition,
            epoch=self.epoch,
            generation=self.generation,
            priority=100,
            victims=victims,
            assignments=(Assignment(f"{ident}.0", "uid-urgent", "urgent", "n1", self.node.spec, charge, "1"),),
        )
        (answer,) = await self.ledger.commit_evictions([plan])
        assert not answer.refused, answer
        return plan

    async def send(self, *plans: EvictionPlan) -> None:
        await self.bus.publish(
            [
                Outgoing(
                    EVICTIONS.name, p.job, msgspec.json.encode(EvictionsBatch((p,))), EventType.EVICTIONS, p.partition
                )
                for p in plans
            ]
        )

    async def outcome(self) -> EvictionOutcome:
        async with asyncio.timeout(120 if isinstance(self.clock, LoopClock) else 8):
            while True:
                for record in await self.outcomes.batch(1, 0.2):
                    assert record.partition == self.partition
                    (found,) = msgspec.json.decode(record.value, type=OutcomesBatch).items
                    return found

    def leaving(self, victim: Victim) -> bool:
        answer = self.cluster.call_now("GET", f"/api/v1/namespaces/{TEAM}/pods/{victim.name}")
        return not answer.ok or parse_pod(answer.body).terminating

    def pod(self, name: str):
        answer = self.cluster.call_now("GET", f"/api/v1/namespaces/{TEAM}/pods/{name}")
        return msgspec.json.decode(answer.body) if answer.ok else None

    async def told(self, name: str) -> dict[str, str]:
        """The pod's annotations once it was told when it goes."""
        async with asyncio.timeout(30):
            while keys.EVICT_AT not in self.pod(name)["metadata"]["annotations"]:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
        return self.pod(name)["metadata"]["annotations"]

    def disruption(self, name: str) -> str:
        conditions = self.pod(name)["status"].get("conditions", ())
        return next((c["status"] for c in conditions if c["type"] == "DisruptionTarget"), "")

    async def earmarks_after(self, *gone: Victim) -> int:
        """How many earmarks there are once these pods are seen gone."""
        await self.ledger.tasks_gone([victim.uid for victim in gone], 1)
        found, cursor = 0, ""
        while True:
            cursor, page = await self.ledger.holders(cursor)
            found += sum(holder.state == "earmark" for holder in page)
            if not cursor:
                return found

    @asynccontextmanager
    async def preemptor(self, **settings):
        said = {
            "backoff_base_s": 0.01,
            "backoff_cap_s": 0.1,
            "write_timeout_s": 0.5,
            "budget_patience_s": 0.3,
            "give_up_s": 1.0,
            "finish_s": 2.0,
            "notice_look_s": 0.02,
            **settings,
        }
        stop = asyncio.Event()
        service = build(PreemptorSettings(**said), Parts(self.bus, self.ledger, self.kube, clock=self.clock))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.serve(stop))
            try:
                async with asyncio.timeout(30):
                    while not service.health().ready:  # noqa: ASYNC110 - seen from outside
                        await asyncio.sleep(0.01)
                yield service
            finally:
                stop.set()

    async def settled(self, records: int) -> None:
        async with asyncio.timeout(30):
            while sum(self.bus._groups["drystone-preemptor"].offsets.values()) < records:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.fixture
async def world():
    world = await World().open()
    yield world
    await world.ledger.close()


async def test_victims_go_by_uid_with_a_word_about_why(world):
    victims = [await world.running(f"low-{n}", n) for n in range(2)]
    async with world.preemptor():
        await world.send(await world.plan(*victims, gpus=(0, 1)))
        outcome = await world.outcome()
        await world.settled(1)
    assert set(outcome.evicted) == {v.uid for v in victims}
    assert not outcome.refused
    assert all(map(world.leaving, victims))
    raw = world.cluster.call_now("GET", f"/api/v1/namespaces/{TEAM}/pods/low-0").body
    conditions = {c["type"]: c for c in msgspec.json.decode(raw)["status"]["conditions"]}
    assert conditions["DisruptionTarget"]["reason"] == "PreemptionByScheduler"
    beneficiary, rule = noticed(conditions["DisruptionTarget"]["message"])
    assert (beneficiary, rule) == ("pod/default/urgent", "priority"), "what others read off it"
    assert await world.earmarks_after(*victims) == 1


async def test_storms_of_504_429_409_and_lost_connections_are_tried_through(world):
    low = await world.running("low", 0)
    world.kube.faults += [
        answers(deletion, 504),
        answers(deletion, 429, retry_after_s=0.02),
        answers(deletion, 409, b'{"reason":"Conflict"}'),
        connection_lost(deletion, applied=False),
    ]
    async with world.preemptor(give_up_s=5.0):
        await world.send(await world.plan(low, gpus=(0,)))
        outcome = await world.outcome()
    assert outcome.evicted == (low.uid,)
    assert all(fault.seen == 1 for fault in world.kube.faults)
    assert world.leaving(low)


async def test_a_recreated_pod_of_the_same_name_is_left_alone(world):
    """The victim is replaced between the read and the delete."""
    low = await world.running("low", 0)
    wake = asyncio.Event()
    world.kube.faults.append(held_up(deletion, wake))
    async with world.preemptor():
        await world.send(await world.plan(low, gpus=(0,)))
        async with asyncio.timeout(30):
            await world.kube.faults[0].held.wait()
        path = f"/api/v1/namespaces/{TEAM}/pods/low"
        assert world.cluster.call_now("DELETE", path, b'{"gracePeriodSeconds":0}').ok
        new = await world.running("low", 0)
        wake.set()
        outcome = await world.outcome()
    assert outcome.evicted == (low.uid,)
    assert new.uid != low.uid
    assert not world.leaving(new)


async def test_four_victims_of_a_budget_that_allows_two_all_stay(world):
    await world.budget("web", 2)
    victims = [await world.running(f"web-{n}", n, app="web") for n in range(4)]
    async with world.preemptor():
        await world.send(await world.plan(*victims, gpus=(0, 1, 2, 3)))
        outcome = await world.outcome()
        await world.settled(1)
    assert outcome.evicted == ()
    assert set(outcome.refused) == {v.uid for v in victims}
    assert not any(map(world.leaving, victims))
    assert world.kube.served["POST eviction"] == 0
    assert await world.earmarks_after(*victims) == 0


async def test_a_refused_guarded_victim_keeps_the_unguarded_ones_running(world):
    await world.budget("web", 0)
    guarded, free = await world.running("web", 0, app="web"), await world.running("free", 1)
    async with world.preemptor():
        await world.send(await world.plan(guarded, free, gpus=(0, 1)))
        outcome = await world.outcome()
    assert outcome.evicted == ()
    assert set(outcome.refused) == {guarded.uid, free.uid}
    assert not world.leaving(free)
    assert await world.earmarks_after(guarded, free) == 0


async def test_a_budget_that_opens_in_time_lets_them_go_by_eviction(world):
    await world.budget("web", 0)
    guarded = await world.running("web", 0, app="web")
    async with world.preemptor(budget_patience_s=4.0):
        await world.send(await world.plan(guarded, gpus=(0,)))
        await asyncio.sleep(0.15)
        assert not world.leaving(guarded)
        await world.budget("web", 1)
        outcome = await world.outcome()
    assert outcome.evicted == (guarded.uid,)
    assert world.leaving(guarded)
    assert world.kube.served["DELETE web"] == 0


async def test_a_lost_answer_to_an_eviction_does_not_charge_the_budget_twice(world):
    await world.budget("web", 1)
    guarded = await world.running("web", 0, app="web")

    def real(method, path):
        return eviction(method, path) and world.kube.served["POST eviction"] >= 1

    world.kube.faults.append(connection_lost(real, applied=True))
    async with world.preemptor(give_up_s=5.0):
        await world.send(await world.plan(guarded, gpus=(0,)))
        outcome = await world.outcome()
    assert world.kube.faults[0].seen == 1
    assert outcome.evicted == (guarded.uid,)
    assert not outcome.refused


async def test_a_plan_delivered_again_evicts_nobody_else(world):
    low, other = await world.running("low", 0), await world.running("other", 1)
    plan = await world.plan(low, gpus=(0,))
    async with world.preemptor():
        for _ in range(4):
            await world.send(plan)
        await world.outcome()
        await world.settled(4)
    async with world.preemptor():  # a replica that takes over
        await world.send(plan)
        await world.settled(5)
    assert world.kube.served["DELETE low"] == 1
    assert not world.leaving(other)


async def test_a_plan_whose_earmark_is_gone_is_void(world):
    low = await world.running("low", 0)
    plan = await world.plan(low, gpus=(0,))
    await world.ledger.unmark(plan.id, [low.uid], plan.generation)
    async with world.preemptor():
        await world.send(plan)
        outcome = await world.outcome()
    assert outcome.evicted == ()
    assert outcome.void or outcome.refused
    assert not world.leaving(low)
    assert not world.kube.served


async def test_a_final_refusal_takes_the_marks_back(world):
    low = await world.running("low", 0)
    world.kube.faults.append(answers(deletion, 403, b'{"message":"no"}', times=100))
    async with world.preemptor():
        await world.send(await world.plan(low, gpus=(0,)))
        outcome = await world.outcome()
    assert "no" in outcome.refused[low.uid]
    assert not world.leaving(low)
    assert await world.earmarks_after(low) == 0


async def test_whom_no_budget_guards_costs_two_calls(world):
    """A word on the pod, whose answer is the pod, and its deletion."""
    victims = [await world.running(f"low-{n}", n) for n in range(4)]
    async with world.preemptor():
        await world.send(await world.plan(*victims, gpus=(0, 1, 2, 3)))
        outcome = await world.outcome()
    assert len(outcome.evicted) == 4
    assert sum(world.kube.served.values()) == 8


async def test_a_budget_that_placement_did_not_know_of_is_kept_and_what_was_said_is_taken_back(world):
    await world.budget("web", allowed=0)
    guarded = msgspec.structs.replace(await world.running("guarded", 0, app="web"), guarded=False)
    free = await world.running("free", 1)
    async with world.preemptor():
        await world.send(await world.plan(guarded, free, gpus=(0, 1)))
        outcome = await world.outcome()
    assert not outcome.evicted
    assert not world.leaving(guarded)
    assert not world.leaving(free)
    assert (world.disruption("guarded"), world.disruption("free")) == ("False", "False")


async def test_a_preemptor_that_takes_over_half_way_evicts_the_rest_and_nobody_twice(world):
    first, second = await world.running("low-0", 0), await world.running("low-1", 1)
    plan = await world.plan(first, second, gpus=(0, 1))
    stuck = held_up(lambda method, path: deletion(method, path) and path.endswith("low-1"), asyncio.Event(), times=1)
    world.kube.faults.append(stuck)
    async with world.preemptor(finish_s=0.05):
        await world.send(plan)
        async with asyncio.timeout(30):
            await stuck.held.wait()
            while not world.leaving(first):  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
    assert not world.leaving(second)
    async with world.preemptor():
        await world.send(plan)
        outcome = await world.outcome()
    assert set(outcome.evicted) == {first.uid, second.uid}
    assert (world.kube.served["DELETE low-0"], world.kube.served["DELETE low-1"]) == (1, 1)
