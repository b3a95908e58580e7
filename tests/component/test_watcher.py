"""The watcher on an embedded API server, bus and ledger: what it says about the cluster, and what it mends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import fakeredis
import msgspec
import pytest

from libs.bus.memory import MemoryBus
from libs.bus.port import BusUnavailable, Outgoing
from libs.contracts.events import ClusterFact, EventType, NodeFact, PdbFact, PodFact, QueueFact, TasksBatch
from libs.contracts.topics import CLUSTER, TASKS
from libs.domain import keys
from libs.domain.verdicts import Reason
from libs.host.parts import Parts
from libs.kube.embedded import EmbeddedCluster
from libs.kube.writes import MERGE
from libs.store.embedded import embedded_ledger
from libs.store.port import Holder
from services.watcher import metrics
from services.watcher.app import Watcher, build
from services.watcher.settings import WatcherSettings

ENCODE = msgspec.json.encode
PODS = "/api/v1/namespaces/default/pods"


class UnreliableBus(MemoryBus):
    """`lose`: so many publishes of facts are not acknowledged and do not arrive."""

    lose = 0
    lost = 0

    async def publish(self, records: Sequence[Outgoing]) -> None:
        if self.lose and any(record.topic == CLUSTER.name for record in records):
            self.lose -= 1
            self.lost += 1
            raise BusUnavailable("nobody acknowledged")
        await super().publish(records)


class World:
    def __init__(self) -> None:
        self.cluster = EmbeddedCluster()
        self.bus = UnreliableBus()
        self.redis = fakeredis.FakeServer(version=(7,))
        self.ledger = embedded_ledger(server=self.redis)

    async def open(self, nodes: int = 1) -> World:
        await self.ledger.open()
        for n in range(nodes):
            self.node(f"n{n}")
        return self

    def watcher(self, name: str = "w1", **settings: Any) -> Watcher:
        common = {"longest_write_s": 0, "replica_id": name, "lease_s": 2, "renew_s": 0.3, "slow_pass_s": 0.6}
        return build(WatcherSettings(**{**common, **settings}), Parts(self.bus, self.ledger, self.cluster))

    @asynccontextmanager
    async def running(self, watcher: Watcher) -> AsyncIterator[asyncio.Event]:
        stop = asyncio.Event()
        serving = asyncio.create_task(watcher.serve(stop))
        try:
            yield stop
        finally:
            stop.set()
            await serving

    def node(self, name: str, gpus: int = 8) -> None:
        item = {
            "metadata": {"name": name, "labels": {keys.NODE_GPU_MEMORY: "80000"}},
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", keys.GPU_RESOURCE: str(gpus)},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        assert self.cluster.call_now("POST", "/api/v1/nodes", ENCODE(item)).ok

    def pod(self, name: str, *, node: str = "", gpus: str = "", scheduler: str = "drystone", **labels: str) -> str:
        annotations = {keys.GPUS: gpus, keys.GPU_MIB: "80000", keys.GPU_MILLI: "1000"} if gpus else {}
        item = {
            "metadata": {"name": name, "annotations": annotations, "labels": labels},
            "spec": {
                "schedulerName": scheduler,
                "containers": [{"name": "main", "resources": {"limits": {"cpu": "1", keys.GPU_RESOURCE: "1"}}}],
                **({"nodeName": node} if node else {}),
            },
        }
        answer = self.cluster.call_now("POST", PODS, ENCODE(item))
        assert answer.ok, answer
        return str(msgspec.json.decode(answer.body)["metadata"]["uid"])

    def phase(self, name: str, phase: str) -> None:
        answer = self.cluster.call_now(
            "PATCH", f"{PODS}/{name}/status", ENCODE({"status": {"phase": phase}}),
            content_type="application/merge-patch+json",
        )  # fmt: skip
        assert answer.ok

    def delete(self, name: str, grace: int | None = None) -> None:
        body = ENCODE({"gracePeriodSeconds": grace} if grace is not None else {})
        assert self.cluster.call_now("DELETE", f"{PODS}/{name}", body).ok

    async def facts(self) -> dict[str, ClusterFact]:
        """The topic's content as a reader from the start finds it, but for the server's own namespaces and for what
        queues used, which is told as time passes."""
        reader = self.bus.follow([CLUSTER.name], from_start=True)
        found: dict[str, ClusterFact] = {}
        while not reader.caught_up:
            for record in await reader.batch(1000, 0.05):
                if record.key.startswith(("namespace/", "history/")):
                    continue
                if record.value is None:
                    found.pop(record.key, None)
                else:
                    found[record.key] = msgspec.json.decode(record.value, type=ClusterFact)
        return found

    async def topic_keys(self) -> set[str]:
        reader = self.bus.follow([CLUSTER.name], from_start=True)
        there: set[str] = set()
        while not reader.caught_up:
            for record in await reader.batch(1000, 0.05):
                if not record.key.startswith(("namespace/", "history/")):
                    (there.discard if record.value is None else there.add)(record.key)
        return there

    async def held(self) -> dict[str, Holder]:
        found: dict[str, Holder] = {}
        cursor = ""
        while True:
            cursor, page = await self.ledger.holders(cursor)
            found |= {holder.id: holder for holder in page}
            if not cursor:
                return found

    async def hints(self) -> list[Any]:
        reader = self.bus.follow([TASKS.name], from_start=True)
        found: list[Any] = []
        while not reader.caught_up:
            for record in await reader.batch(1000, 0.05):
                found += msgspec.json.decode(record.value or b"", type=TasksBatch).items
        return found

    async def until(self, done: Any, within_s: float = 30.0) -> Any:
        """The first true answer of an async question."""
        try:
            async with asyncio.timeout(within_s):
                while not (answer := await done()):  # noqa: ASYNC110
                    await asyncio.sleep(0.03)
        except TimeoutError:
            raise AssertionError("it never came to that") from None
        return answer

    async def synced(self, watcher: Watcher) -> None:
        async def is_synced() -> bool:
            return watcher.health().detail.get("synced") == "True"

        await self.until(is_synced)


async def test_what_is_there_at_start_is_in_the_ledger_and_on_the_topic() -> None:
    world = await World().open(nodes=2)
    uid = world.pod("ours", node="n0", gpus="3")
    waiting = world.pod("waiting")
    watcher = world.watcher()
    async with world.running(watcher):
        await world.synced(watcher)
        assert (await world.ledger.state()).whole
        holder = (await world.held())[uid]
        assert (holder.node, [g.index for g in holder.charge.gpus]) == ("n0", [3])
        facts = await world.facts()
        assert facts.keys() >= {"node/n0", "node/n1", "pod/" + uid}
        assert "pod/" + waiting not in facts
        assert waiting in {task.id for hint in await world.hints() for task in hint.tasks}


async def test_a_foreign_pod_is_charged_by_count_and_is_nobodys_task() -> None:
    world = await World().open()
    watcher = world.watcher()
    async with world.running(watcher):
        await world.synced(watcher)
        uid = world.pod("foreign", node="n0", scheduler="default-scheduler", gpus="5")

        async def charged() -> Holder | None:
            return (await world.held()).get(uid)

        holder = await world.until(charged)
        # The annotation is a claim of the pod's own: only ours are believed.
        assert (holder.charge.blind, holder.charge.gpus, holder.job) == (1, (), "")
        fact = (await world.facts())["pod/" + uid]
        assert isinstance(fact, PodFact)
        assert not fact.ours
        assert not await world.hints()


async def test_a_terminating_pod_holds_its_room_until_it_is_gone() -> None:
    world = await World().open()
    uid = world.pod("ours", node="n0", gpus="0")
    watcher = world.watcher()
    async with world.running(watcher):
        await world.synced(watcher)
        world.delete("ours", grace=30)

        async def told() -> bool:
            fact = (await world.facts()).get("pod/" + uid)
            return isinstance(fact, PodFact) and fact.terminating

        await world.until(told)
        assert uid in await world.held()
        world.delete("ours", grace=0)

        async def freed() -> bool:
            return uid not in await world.held() and "pod/" + uid not in await world.facts()

        await world.until(freed)


async def test_an_ended_pod_frees_its_room_though_its_object_stays() -> None:
    world = await World().open()
    uid = world.pod("ours", node="n0", gpus="0")
    watcher = world.watcher()
    async with world.running(watcher):
        await world.synced(watcher)
        assert uid in await world.held()
        world.phase("ours", "Succeeded")

        async def freed() -> bool:
            return uid not in await world.held() and "pod/" + uid not in await world.facts()

        await world.until(freed)


async def test_what_went_while_the_watch_was_down_is_found_by_the_relist_after_410() -> None:
    world = await World().open(nodes=2)
    queue = {"metadata": {"name": "vision"}, "spec": {"namespaces": ["default"]}}
    priority = {"metadata": {"name": "urgent"}, "value": 9}
    assert world.cluster.call_now("POST", "/apis/drystone.dev/v1alpha1/queues", ENCODE(queue)).ok
    assert world.cluster.call_now("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", ENCODE(priority)).ok
    uid = world.pod("ours", node="n0", gpus="0")
    watcher = world.watcher(slow_pass_s=600)
    async with world.running(watcher):
        await world.synced(watcher)

        async def all_told() -> bool:
            return {"queue/vision", "priorityclass/urgent", "pod/" + uid} <= (await world.facts()).keys()

        await world.until(all_told)
        # All in one step of the loop: no watch sees any of it, and its version is too old afterwards.
        world.delete("ours", grace=0)
        world.cluster.call_now("DELETE", "/api/v1/nodes/n1")
        world.cluster.call_now("DELETE", "/apis/drystone.dev/v1alpha1/queues/vision")
        world.cluster.call_now("DELETE", "/apis/scheduling.k8s.io/v1/priorityclasses/urgent")
        later = world.pod("later", node="n0", gpus="1")
        world.cluster.compact()

        async def right() -> bool:
            there = (await world.facts()).keys()
            return there == {"node/n0", "pod/" + later} and (await world.held()).keys() == {later}

        await world.until(right)


async def test_facts_that_the_broker_did_not_acknowledge_are_sent_again() -> None:
    world = await World().open()
    watcher = world.watcher(slow_pass_s=600)
    async with world.running(watcher):
        await world.synced(watcher)
        world.bus.lose = 2
        uid = world.pod("ours", node="n0", gpus="0")

        async def charged() -> bool:
            return uid in await world.held()

        await world.until(charged)

        async def told() -> bool:
            return "pod/" + uid in await world.facts()

        await world.until(told)
        assert world.bus.lost == 2


async def test_ghosts_on_the_topic_go_and_what_was_overwritten_there_is_set_right() -> None:
    """While nobody led a node went; and a deposed leader's last word arrived after the new leader's."""
    world = await World().open()
    uid = world.pod("ours", node="n0", gpus="0")
    ghost = ENCODE(PdbFact("long-gone", "default", "uid-of-it", "1"))
    await world.bus.publish([Outgoing(CLUSTER.name, "pdb/default/long-gone", ghost, EventType.CLUSTER)])
    watcher = world.watcher()
    async with world.running(watcher):
        await world.synced(watcher)

        async def no_ghost() -> bool:
            return (await world.topic_keys()) == {"node/n0", "pod/" + uid}

        await world.until(no_ghost)
        right = (await world.facts())["pod/" + uid]
        assert isinstance(right, PodFact)
        stale = msgspec.structs.replace(right, term=0, node="elsewhere")
        await world.bus.publish([Outgoing(CLUSTER.name, "pod/" + uid, ENCODE(stale), EventType.CLUSTER)])
        await world.bus.publish([Outgoing(CLUSTER.name, "node/n0", None, EventType.CLUSTER)])

        async def set_right() -> bool:
            facts = await world.facts()
            return facts.get("pod/" + uid) == right and "node/n0" in facts

        # Every tenth slow pass reads the topic.
        await world.until(set_right, 20.0)


async def test_when_the_leader_dies_the_other_takes_over_and_knows_what_happened_meanwhile() -> None:
    world = await World().open()
    gone = world.pod("gone", node="n0", gpus="0")
    first, second = world.watcher("w1"), world.watcher("w2")
    dying = asyncio.create_task(first.serve(asyncio.Event()))
    await world.synced(first)
    async with world.running(second):
        await asyncio.sleep(0.3)
        assert second.health().detail["role"] == "standby"
        assert second.health().ready
        term = (await world.ledger.state()).term
        # Killed: nothing is given back, nothing is said.
        first._lease._give_back = _nothing  # type: ignore[method-assign]
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        world.delete("gone", grace=0)
        new = world.pod("new", node="n0", gpus="1")
        await world.synced(second)

        async def right() -> bool:
            facts = await world.facts()
            return facts.keys() == {"node/n0", "pod/" + new} and (await world.held()).keys() == {new}

        await world.until(right)
        fact = (await world.facts())["node/n0"]
        assert isinstance(fact, NodeFact)
        assert fact.term > term or fact.term > 1
        assert gone not in await world.held()


async def test_an_emptied_ledger_is_built_anew_from_what_is_there() -> None:
    world = await World().open()
    uid = world.pod("ours", node="n0", gpus="2")
    watcher = world.watcher()
    async with world.running(watcher):
        await world.synced(watcher)
        before = (await world.ledger.state()).generation
        other = embedded_ledger(server=world.redis)
        await other.open()
        # What an emptied or failed-over Redis comes to: another data set, with nothing in it.
        await other.begin_rebuild((await other.state()).term)
        assert uid not in await world.held()

        async def rebuilt() -> bool:
            state = await world.ledger.state()
            return state.whole and state.generation > before and uid in await world.held()

        await world.until(rebuilt, 15.0)


async def test_an_emptied_ledger_is_noticed_although_nothing_happens() -> None:
    """Long before the slow pass: the next pod shall not have to wait for it."""
    world = await World().open()
    uid = world.pod("runs", node="n0", gpus="1")
    watcher = world.watcher(slow_pass_s=60)
    async with world.running(watcher):
        await world.synced(watcher)
        before = await world.ledger.state()
        await world.ledger.server.client.flushall()

        async def whole_again() -> bool:
            state = await world.ledger.state()
            return state.whole and state.generation > before.generation

        await world.until(whole_again, 15.0)
        assert (await world.held())[uid].state == "bound"


async def test_a_lease_that_was_made_anew_does_not_lock_the_leader_out_of_the_ledger() -> None:
    """Somebody deleted the Lease, so terms count from one again; the ledger has seen a higher one."""
    world = await World().open()
    await world.ledger.begin_rebuild(99)
    await world.ledger.whole(99)
    uid = world.pod("ours", node="n0", gpus="2")
    watcher = world.watcher()
    async with world.running(watcher):
        await world.synced(watcher)
        assert uid in await world.held()
        assert (await world.ledger.state()).term > 99


async def test_pods_that_a_kubelet_refused_are_counted_by_its_reason_once() -> None:
    world = await World().open()
    watcher = world.watcher()
    counted = {reason: metrics.KUBELET.labels(reason)._value.get() for reason in ("OutOfcpu", "OutOfAnother")}
    async with world.running(watcher):
        await world.synced(watcher)
        for name, reason in (("a", "OutOfcpu"), ("b", "OutOfexample.com/nic"), ("c", "Evicted")):
            world.pod(name, node="n0", gpus="0")
            status = {"status": {"phase": "Failed", "reason": reason}}
            for _ in range(2):
                answer = world.cluster.call_now("PATCH", f"{PODS}/{name}/status", ENCODE(status), content_type=MERGE)
                assert answer.ok, answer.body

        async def seen() -> bool:
            return all(metrics.KUBELET.labels(reason)._value.get() == before + 1 for reason, before in counted.items())

        await world.until(seen)


@pytest.mark.parametrize(
    ("mark", "resource"),
    [
        ("scheduling.x-k8s.io/pod-group", "scheduling.x-k8s.io/v1alpha1"),
        ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/v1beta1"),
        ("pod-group-name", "scheduling.run.ai/v2alpha2"),
    ],
)
async def test_pods_wait_for_their_podgroup_and_are_a_gang_then(mark: str, resource: str) -> None:
    world = await World().open()
    watcher = world.watcher()
    async with world.running(watcher):
        await world.synced(watcher)
        members = {world.pod(f"m{n}", **{mark: "gang"}) for n in range(2)}

        async def barred() -> bool:
            hints = [hint for hint in await world.hints() if hint.tasks]
            bars = {hint.head.barred for hint in hints}
            return {t.id for hint in hints for t in hint.tasks} == members and [b and b.reason for b in bars] == [
                Reason.POD_GROUP
            ]

        await world.until(barred)
        group = {"metadata": {"name": "gang"}, "spec": {"minMember": 2}}
        path = f"/apis/{resource}/namespaces/default/podgroups"
        assert world.cluster.call_now("POST", path, ENCODE(group)).ok

        async def told() -> bool:
            hints = [hint for hint in await world.hints() if hint.tasks and hint.head.barred is None]
            return {t.id for hint in hints for t in hint.tasks} == members and hints[-1].head.gang_min == 2

        await world.until(told)


async def test_a_bound_pods_queue_is_known_whatever_is_listed_first() -> None:
    """The pods' list may be quicker than the queues': a pod charged to the wrong queue would stay there."""
    world = await World().open()
    queue = {"metadata": {"name": "vision"}, "spec": {"namespaces": ["default"]}}
    assert world.cluster.call_now("POST", "/apis/drystone.dev/v1alpha1/queues", ENCODE(queue)).ok
    uid = world.pod("ours", node="n0", gpus="0")

    async def slow_queues(method: str, path: str, _body: bytes | None) -> None:
        if path.endswith("/queues") and method == "GET":
            await asyncio.sleep(0.3)

    world.cluster.intercept = slow_queues
    watcher = world.watcher()
    async with world.running(watcher):
        await world.synced(watcher)
        assert (await world.held())[uid].queue == "vision"
        assert isinstance((await world.facts())["queue/vision"], QueueFact)


async def _nothing() -> None:
    return None
