"""The binder on an embedded API server, bus and ledger: what must hold when things go wrong."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager

import msgspec
import pytest

from libs.bus.memory import MemoryBus
from libs.bus.port import Outgoing
from libs.contracts.events import (
    EventType,
    Landed,
    NodeFact,
    OutcomesBatch,
    PlansBatch,
    cluster_key,
)
from libs.contracts.topics import CLUSTER, DEAD_LETTERS, OUTCOMES, PLANS
from libs.domain import keys
from libs.domain.jobs import partition_of
from libs.domain.plans import Assignment, Plan
from libs.domain.resources import Charge, GpuGrant
from libs.host.parts import Parts
from libs.kube import boundpods, trainingjobs, writes
from libs.kube.embedded import EmbeddedCluster
from libs.kube.nodes import parse_node
from libs.kube.pods import parse_pod
from libs.kube.volumes import SELECTED_NODE, claim_decoder
from libs.store.embedded import embedded_ledger
from libs.testkit.faults import FaultyKube, answers, binding, connection_lost, creation, held_up, read
from services.binder.app import build
from services.binder.settings import BinderSettings
from services.binder.tenure import STALE_S

TEAM = "default"
MIB = 80000


class World:
    """A cluster, a ledger that knows it, and a bus on which this test is watcher and placement."""

    def __init__(self, **ledger) -> None:
        self.cluster = EmbeddedCluster()
        self.kube = FaultyKube(self.cluster)
        self.bus = MemoryBus()
        self.ledger = embedded_ledger(**ledger)
        self.generation = 0
        self.epochs: dict[int, int] = {}
        self.plans = 0
        self.nodes = {}
        self.bindings: list[tuple[str, str]] = []
        self.cluster.store.observers.append(self._observe)

    def _observe(self, change) -> None:
        if change.place.resource != "/pods" or change.new is None:
            return
        node = change.new["spec"].get("nodeName")
        if node and not (change.old or {"spec": {}})["spec"].get("nodeName"):
            self.bindings.append((change.place.name, node))

    async def open(self, nodes: int = 2, gpus: int = 8) -> World:
        await self.ledger.open()
        self.generation = (await self.ledger.begin_rebuild(1)).generation
        for n in range(1, nodes + 1):
            await self.node(f"n{n}", gpus)
        await self.ledger.whole(1)
        self.outcomes = self.bus.follow([OUTCOMES.name], from_start=True)
        return self

    async def node(self, name: str, gpus: int = 8, *, published: bool = True, **spec) -> None:
        item = {
            "metadata": {
                "name": name,
                "labels": {keys.NODE_GPU_MEMORY: str(MIB), keys.NODE_GPU_MODEL: "A100"},
            },
            "spec": spec,
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", keys.GPU_RESOURCE: str(gpus)},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        answer = self.cluster.call_now("POST", "/api/v1/nodes", msgspec.json.encode(item))
        assert answer.ok, answer.body
        await self.tell(answer.body, published=published)

    async def cordon(self, name: str) -> None:
        patch = msgspec.json.encode({"spec": {"unschedulable": True}})
        path = f"/api/v1/nodes/{name}"
        answer = self.cluster.call_now("PATCH", path, patch, content_type="application/merge-patch+json")
        await self.tell(answer.body)

    async def tell(self, raw: bytes, *, published: bool = True) -> None:
        node = parse_node(raw)
        self.nodes[node.name] = node
        await self.ledger.nodes_seen([node], 1)
        if published:
            await self.publish(node)

    async def publish(self, node) -> None:
        fact = NodeFact(node, 1)
        await self.bus.publish(
            [Outgoing(CLUSTER.name, cluster_key(fact), msgspec.json.encode(fact), EventType.CLUSTER)]
        )

    def pod(self, name: str, gpus: int = 1):
        limits = {"cpu": "1", "memory": "1Gi", **({keys.GPU_RESOURCE: str(gpus)} if gpus else {})}
        item = {
            "metadata": {"name": name},
            "spec": {"schedulerName": "drystone", "containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
        answer = self.cluster.call_now("POST", f"/api/v1/namespaces/{TEAM}/pods", msgspec.json.encode(item))
        assert answer.ok, answer.body
        return parse_pod(answer.body)

    def read(self, name: str):
        answer = self.cluster.call_now("GET", f"/api/v1/namespaces/{TEAM}/pods/{name}")
        return parse_pod(answer.body) if answer.ok else None

    def remove(self, name: str) -> None:
        assert self.cluster.call_now("DELETE", f"/api/v1/namespaces/{TEAM}/pods/{name}").ok

    async def plan(self, *pods, on: str | list[str] = "n1", gang: bool = False, job: str = "", first: int = 0) -> Plan:
        """Decide and commit: one GPU for each pod, from index `first` on."""
        job = job or f"pod/{TEAM}/{pods[0].name}"
        partition = partition_of(job, PLANS.partitions)
        if partition not in self.epochs:
            self.epochs[partition] = (await self.ledger.take(partition)).epoch
        self.plans += 1
        ident = f"{self.generation}.{partition}.{self.epochs[partition]}.{self.plans}"
        where = [on] * len(pods) if isinstance(on, str) else on
        used: dict[str, int] = {}
        assignments = []
        for n, (pod, node) in enumerate(zip(pods, where, strict=True)):
            index = first + used.get(node, 0)
            used[node] = used.get(node, 0) + 1
            grants = tuple(GpuGrant(index + i, 1000, MIB) for i in range(pod.request.gpu.count))
            assignments.append(
                Assignment(
                    claim=f"{ident}.{n}",
                    task=pod.uid,
                    name=pod.name,
                    node=node,
                    node_spec=self.nodes[node].spec,
                    charge=Charge(pod.request.cpu, pod.request.mem, grants),
                    version=pod.version,
                )
            )
        return await self.commit(self._plan(ident, job, partition, assignments, gang))

    def _plan(self, ident, job, partition, assignments, gang, **more) -> Plan:
        return Plan(
            id=ident,
            job=job,
            job_uid=more.pop("job_uid", ""),
            namespace=TEAM,
            queue="default",
            partition=partition,
            epoch=self.epochs[partition],
            generation=self.generation,
            gang=gang,
            assignments=tuple(assignments),
            cause="test",
            **more,
        )

    async def commit(self, plan: Plan) -> Plan:
        (answer,) = await self.ledger.commit([plan])
        assert not answer.refused, answer
        return plan

    async def send(self, *plans: Plan) -> None:
        await self.bus.publish(
            [
                Outgoing(PLANS.name, p.job, msgspec.json.encode(PlansBatch((p,))), EventType.PLANS, p.partition)
                for p in plans
            ]
        )

    async def landed(self, tasks: int, within_s: float = 8.0) -> dict[str, tuple[Landed, str]]:
        """What became of the next `tasks` tasks, by task id."""
        found: dict[str, tuple[Landed, str]] = {}
        seen = 0
        async with asyncio.timeout(within_s):
            while seen < tasks:
                for record in await self.outcomes.batch(100, 0.2):
                    for outcome in msgspec.json.decode(record.value, type=OutcomesBatch).items:
                        assert record.partition == outcome.partition
                        for task in outcome.tasks:
                            seen += 1
                            found[task.task] = (task.landed, task.why)
        return found

    async def held(self) -> dict[str, str]:
        """Every charge in the ledger: its state by holder."""
        found: dict[str, str] = {}
        cursor = ""
        while True:
            cursor, page = await self.ledger.holders(cursor)
            found.update({holder.id: holder.state for holder in page})
            if not cursor:
                return found

    @asynccontextmanager
    async def binder(self, replicas: int = 1, kube=None, **settings):
        said = {
            "backoff_base_s": 0.01,
            "backoff_cap_s": 0.1,
            "write_timeout_s": 0.5,
            "settle_s": 0.05,
            "give_up_s": 1.0,
            "expire_every_s": 0.1,
            "finish_s": 2.0,
            **settings,
        }
        stop = asyncio.Event()
        parts = Parts(self.bus, self.ledger, kube or self.kube)
        binders = [build(BinderSettings(**said), parts) for _ in range(replicas)]
        async with asyncio.TaskGroup() as tasks:
            for binder in binders:
                tasks.create_task(binder.serve(stop))
            try:
                async with asyncio.timeout(5):
                    while not all(b.health().ready for b in binders):  # noqa: ASYNC110 - seen from outside
                        await asyncio.sleep(0.01)
                yield binders[0] if replicas == 1 else binders
            finally:
                stop.set()

    def committed(self) -> int:
        """How many messages of `drystone.plans` the group is done with."""
        return sum(self.bus._groups["drystone-binder"].offsets.values())

    async def settled(self, records: int) -> None:
        async with asyncio.timeout(5):
            while self.committed() < records:  # noqa: ASYNC110 - the bus tells nobody
                await asyncio.sleep(0.01)


@pytest.fixture
async def world():
    world = await World().open()
    yield world
    await world.ledger.close()


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


async def test_a_write_that_lands_after_its_claim_was_given_back_is_refused_by_the_server(world):
    """A binder that was stopped between the ledger and the write wakes up after another one resolved its claim."""
    wake = asyncio.Event()
    sleepy = FaultyKube(world.cluster, held_up(binding, wake))
    a = world.pod("a")
    async with world.binder(kube=sleepy):
        plan = await world.plan(a)
        await world.send(plan)
        async with asyncio.timeout(5):
            await sleepy.faults[0].held.wait()
        # What a resolver does with a writing claim past its deadline: make the write impossible, then free it.
        touch = msgspec.json.encode({"metadata": {"annotations": {"drystone.dev/fence": plan.assignments[0].claim}}})
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
        async with asyncio.timeout(5):
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
        async with asyncio.timeout(5):
            await world.kube.faults[0].held.wait()
        asyncio.get_running_loop().call_later(0.3, wake.set)
    assert (await world.landed(1))[a.uid][0] is Landed.BOUND
    assert world.committed() == 1


async def test_claims_that_a_dead_binder_left_writing_are_resolved_by_reading_the_pods():
    """It had begun three: one was bound, one was not, one's pod was deleted."""
    world = await World(writing_s=0.2, rearm_s=0.3).open()
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
    await world.ledger.close()


# --- tasks of TrainingJobs ---------------------------------------------------------------------------------------


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


class Disks:
    """The claims of a test, and whoever provisions volumes for them."""

    def __init__(self, world: World) -> None:
        self._world = world

    def path(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{TEAM}/persistentvolumeclaims" + (f"/{name}" if name else "")

    def claim(self, name: str, **annotations: str) -> None:
        item = {"metadata": {"name": name, "annotations": annotations}, "spec": {"storageClassName": "first-use"}}
        assert self._world.cluster.call_now("POST", self.path(), msgspec.json.encode(item)).ok

    def selected(self, name: str) -> str:
        body = self._world.cluster.call_now("GET", self.path(name)).body
        return claim_decoder.decode(body).metadata.annotations.get(SELECTED_NODE, "")

    def provision(self, name: str) -> None:
        patch = {
            "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": f"pv-{name}"},
        }
        body = msgspec.json.encode(patch)
        answer = self._world.cluster.call_now("PATCH", self.path(name), body, content_type=writes.MERGE)
        assert answer.ok, answer.body


async def with_claims(world: World, pod, *claims: str) -> Plan:
    plan = await world.plan(pod)
    assignments = tuple(msgspec.structs.replace(a, claims=claims) for a in plan.assignments)
    return msgspec.structs.replace(plan, assignments=assignments)


async def test_a_pod_whose_claims_wait_for_first_use_is_bound_when_the_last_of_them_is(world):
    disks = Disks(world)
    disks.claim("data")
    disks.claim("logs", **{SELECTED_NODE: "n1"})
    disks.provision("logs")
    a = world.pod("a")
    async with world.binder(give_up_s=8.0):
        await world.send(await with_claims(world, a, "logs", "data"))
        async with asyncio.timeout(5):
            while disks.selected("data") != "n1":  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert world.bindings == []
        disks.provision("data")
        landed = await world.landed(1)
    assert landed[a.uid][0] is Landed.BOUND
    assert world.bindings == [("a", "n1")]


async def test_a_claim_that_is_not_provisioned_in_time_gives_the_task_back_and_keeps_its_node(world):
    disks = Disks(world)
    disks.claim("data")
    a = world.pod("a")
    async with world.binder(give_up_s=0.3):
        await world.send(await with_claims(world, a, "data"))
        landed = await world.landed(1)
    assert landed[a.uid] == (Landed.REPLAN, "volume claim data is being provisioned")
    assert (disks.selected("data"), world.bindings) == ("n1", [])
    assert await world.held() == {}


@pytest.mark.parametrize("known", [{SELECTED_NODE: "n2"}, {}])
async def test_a_claim_that_is_for_another_node_by_now_is_for_a_new_decision(world, known):
    disks = Disks(world)
    disks.claim("data", **known)
    if not known:
        disks.provision("data")  # bound by hand, to a volume that nobody here has seen
    a = world.pod("a")
    async with world.binder():
        await world.send(await with_claims(world, a, "data"))
        landed = await world.landed(1)
    assert landed[a.uid] == (Landed.REPLAN, "volume claim data is for another node")
    assert (disks.selected("data"), world.bindings) == (known.get(SELECTED_NODE, ""), [])
