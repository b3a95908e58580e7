"""Queues while the watcher leads: changed live, told of, and written down for the next leader."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from libs.bus.port import Outgoing
from libs.contracts.events import ClusterFact, EventType, HistoryFact, JobStatus, QueueFact
from libs.contracts.topics import CLUSTER, STATUS
from libs.domain import keys
from libs.domain.jobs import Phase
from libs.domain.notices import notice
from libs.domain.plans import Assignment, Plan
from libs.domain.queues import Quota
from libs.domain.resources import Charge
from libs.kube import writes
from libs.store.port import Refusal
from services.watcher.app import Watcher
from tests.component.test_watcher import PODS, World

ENCODE = msgspec.json.encode
SOON: dict[str, Any] = {"history_tell_s": 0.2, "queue_status_s": 0.5}


async def statuses(world: World) -> list[JobStatus]:
    reader = world.bus.follow([STATUS.name], from_start=True)
    found: list[JobStatus] = []
    while not reader.caught_up:
        found += [msgspec.json.decode(r.value or b"", type=JobStatus) for r in await reader.batch(1000, 0.05)]
    return found


def make(world: World, name: str, **spec: Any) -> None:
    item = {"metadata": {"name": name}, "spec": spec}
    assert world.cluster.call_now("POST", writes.QUEUES, ENCODE(item)).ok


def change(world: World, name: str, **spec: Any) -> None:
    body = ENCODE({"spec": spec})
    assert world.cluster.call_now("PATCH", f"{writes.QUEUES}/{name}", body, content_type=writes.MERGE).ok


def read(world: World, name: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(world.cluster.call_now("GET", f"{writes.QUEUES}/{name}").body)
    return found


def status(world: World, name: str) -> dict[str, Any]:
    return read(world, name).get("status") or {}


def consistent(world: World, name: str) -> tuple[str, str]:
    conditions = status(world, name).get("conditions") or [{}]
    return conditions[0].get("status", ""), conditions[0].get("reason", "")


async def histories(world: World) -> dict[str, HistoryFact]:
    reader = world.bus.follow([CLUSTER.name], from_start=True)
    found: dict[str, HistoryFact] = {}
    while not reader.caught_up:
        for record in await reader.batch(1000, 0.05):
            if record.key.startswith("history/") and record.value is not None:
                fact = msgspec.json.decode(record.value, type=ClusterFact)
                assert isinstance(fact, HistoryFact)
                found[fact.history.path] = fact
    return found


async def commit(world: World, name: str, queue: str, cpu: int) -> dict[str, Refusal]:
    """What refuses a claim of so many milli CPU in the queue."""
    state = await world.ledger.open()
    epoch = (await world.ledger.take(7)).epoch
    (fact,) = [f for key, f in (await world.facts()).items() if key == "node/n0"]
    spec = fact.node.spec  # type: ignore[union-attr]
    plan = Plan(
        id=name, job=name, job_uid="", namespace="default", queue=queue, partition=7, epoch=epoch,
        generation=state.generation, gang=False,
        assignments=(Assignment(f"{name}.0", name, name, "n0", spec, Charge(cpu=cpu)),),
    )  # fmt: skip
    (answer,) = await world.ledger.commit([plan])
    return answer.refused


async def test_limit_share_and_parent_change_without_a_restart() -> None:
    world = await World().open()
    make(world, "org", limits={"cpu": 3})
    make(world, "vision", parent="org", deserved={"cpu": 1}, namespaces=["default"])
    runs = world.pod("runs", node="n0", gpus="0")
    watcher = world.watcher(**SOON)
    async with world.running(watcher):
        await world.synced(watcher)
        assert list((await commit(world, "first", "org/vision", 3000)).values()) == [Refusal.QUOTA]
        change(world, "org", limits={"cpu": 5}, deserved={"cpu": 2})

        async def told() -> bool:
            fact = (await world.facts()).get("queue/org")
            return isinstance(fact, QueueFact) and fact.queue.cpu == 5000 and fact.queue.deserved == Quota(cpu=2000)

        await world.until(told)
        assert await commit(world, "second", "org/vision", 3000) == {}
        change(world, "vision", parent=None)

        async def at_the_top() -> bool:
            there = await world.topic_keys()
            return "queue/vision" in there and "queue/org/vision" not in there

        await world.until(at_the_top)
        assert (await world.held())[runs].queue == "vision", "what runs goes along with its queue"
        assert list((await commit(world, "third", "org", 3000)).values()) == [Refusal.QUOTA]
        assert await commit(world, "room", "org", 2000) == {}
        assert await commit(world, "fourth", "vision", 2000) == {}


async def test_what_waits_follows_its_namespace_to_another_queue_and_what_runs_stays() -> None:
    world = await World().open()
    make(world, "a", namespaces=["default"])
    make(world, "b")
    waits, runs = world.pod("waits"), world.pod("runs", node="n0", gpus="0")
    watcher = world.watcher(**SOON)
    async with world.running(watcher):
        await world.synced(watcher)
        assert (await world.held())[runs].queue == "a"
        change(world, "a", namespaces=[])
        change(world, "b", namespaces=["default"])

        async def hinted() -> bool:
            return any(hint.head.queue == "b" and [t.id for t in hint.tasks] == [waits] for hint in await world.hints())

        await world.until(hinted)
        labels = ENCODE({"metadata": {"labels": {"looked": "at"}}})
        assert world.cluster.call_now("PATCH", f"{PODS}/runs", labels, content_type=writes.MERGE).ok

        async def seen() -> Any:
            fact: Any = (await world.facts()).get("pod/" + runs)
            return fact if fact is not None and fact.labels else None

        assert (await world.until(seen)).queue == "a"
        assert (await world.held())[runs].queue == "a"


async def test_the_status_says_what_is_used_deserved_and_waited_for_and_what_is_wrong() -> None:
    world = await World().open()
    make(world, "org", deserved={keys.GPU_RESOURCE: 2})
    make(world, "vision", parent="org", deserved={keys.GPU_RESOURCE: 3}, namespaces=["default"])
    make(world, "lost", parent="nobody")
    world.pod("runs", node="n0", gpus="0")
    world.pod("waits")
    watcher = world.watcher(**SOON)
    async with world.running(watcher):
        await world.synced(watcher)

        async def written() -> bool:
            return all(status(world, name) for name in ("org", "vision", "lost"))

        await world.until(written)
        for name in ("org", "vision"):
            assert status(world, name)["used"] == {keys.GPU_RESOURCE: "1", "cpu": "1", "memory": "0Mi"}
            assert status(world, name)["pending"] == {"jobs": 1, "tasks": 1, "gpus": "1"}
        assert status(world, "vision")["path"] == "org/vision"
        assert status(world, "vision")["deserved"] == {keys.GPU_RESOURCE: "3"}
        assert consistent(world, "org") == ("False", "ChildrenDeserveMore")
        assert consistent(world, "lost") == ("False", "ParentMissing")
        assert consistent(world, "vision") == ("True", "AsDeclared")
        since = status(world, "org")["conditions"][0]["lastTransitionTime"]
        change(world, "vision", deserved={keys.GPU_RESOURCE: 1})

        async def mended() -> bool:
            return consistent(world, "org") == ("True", "AsDeclared")

        await world.until(mended)
        assert status(world, "org")["conditions"][0]["lastTransitionTime"] >= since


async def test_a_status_that_is_written_every_minute_wakes_nobody() -> None:
    world = await World().open()
    make(world, "vision", namespaces=["default"])
    world.pod("runs", node="n0", gpus="0")
    watcher = world.watcher(**SOON)
    async with world.running(watcher):
        await world.synced(watcher)
        first: Any = (await world.facts())["queue/vision"]
        version = read(world, "vision")["metadata"]["resourceVersion"]

        async def written_again() -> bool:
            return int(read(world, "vision")["metadata"]["resourceVersion"]) > int(version) + 1

        await world.until(written_again)
        await asyncio.sleep(0.2)
        assert (await world.facts())["queue/vision"] == first


async def test_what_was_used_and_who_was_evicted_outlives_the_leader() -> None:
    world = await World().open()
    make(world, "org")
    make(world, "vision", parent="org", namespaces=["default"])
    world.pod("runs", node="n0", gpus="0")
    victim = world.pod("victim", node="n0", gpus="1")
    first = world.watcher("first", history_tell_s=0.2, queue_status_s=60)
    async with world.running(first):
        await world.synced(first)
        await evict(world, "victim", victim)
        workload = "pod/default/victim"

        async def told() -> bool:
            known = (await histories(world)).get("org/vision")
            return known is not None and len(known.history.evictions.get(workload, ())) == 1

        await world.until(told)
        world.delete("victim", 0)
        await asyncio.sleep(0.3)
    kept = status(world, "vision")
    assert kept["history"]["gpuMilliSeconds"] > 0
    (written,) = kept["evictions"]
    assert written["workload"] == workload
    (reason,) = written["reasons"]
    assert reason == {
        "job": workload,
        "beneficiary": "gang/team/urgent",
        "rule": "reclaim",
        "at": reason["at"],
        "pods": 1,
    }
    assert reason["at"] in written["times"]
    (said,) = [s for s in await statuses(world) if s.reason == "Evicted"]
    assert (said.job, said.phase, said.bound) == (workload, Phase.PENDING, 0)
    assert said.evicted is not None and said.evicted.beneficiary == "gang/team/urgent"
    assert said.message.startswith("default/victim was evicted for gang/team/urgent by rule reclaim at 2")

    second = world.watcher("second", **SOON)
    async with world.running(second):
        await world.synced(second)
        known = (await histories(world))["org/vision"]
        assert known.term > 1
        assert known.history.gpu_milli_s >= kept["history"]["gpuMilliSeconds"]
        assert len(known.history.evictions[workload]) == 1
        assert [one.rule for one in known.history.reasons[workload]] == ["reclaim"]
        both = await histories(world)
        assert both["org"].history.gpu_milli_s >= known.history.gpu_milli_s - 1


async def test_the_api_server_wrote_its_own_reason_over_ours_and_nobody_knew_for_whom() -> None:
    """It does so where the Eviction API is used, for a pod with a disruption budget."""
    world = await World().open()
    make(world, "vision", namespaces=["default"])
    victim = world.pod("victim", node="n0", gpus="1")
    watcher = world.watcher(**SOON)
    async with world.running(watcher):
        await world.synced(watcher)
        for reason, message in (
            ("PreemptionByScheduler", notice("pod/team/urgent", "priority")),
            ("EvictionByEvictionAPI", "Eviction API: evicting"),
        ):
            answer = await writes.patch_pod_condition(
                world.cluster, "default", "victim", victim,
                type="DisruptionTarget", status="True", reason=reason, message=message,
            )  # fmt: skip
            assert answer.ok
            await asyncio.sleep(0.1)
        world.phase("victim", "Running")
        world.delete("victim", 30)

        async def told() -> Any:
            known = (await histories(world)).get("vision")
            return known is not None and known.history.reasons.get("pod/default/victim")

        (reason_told,) = await world.until(told)
        assert (reason_told.beneficiary, reason_told.rule) == ("pod/team/urgent", "priority")


async def test_a_late_write_of_a_leader_that_was_deposed_does_not_stay() -> None:
    world = await World().open()
    make(world, "vision")
    watcher = world.watcher(history_tell_s=0.2, queue_status_s=60)
    async with world.running(watcher):
        await world.synced(watcher)

        async def written() -> Any:
            return status(world, "vision").get("history")

        at = (await world.until(written))["at"]
        late = {"history": {"at": at - 30, "gpuMilliSeconds": 7}, "evictions": [], "path": "elsewhere"}
        path = f"{writes.QUEUES}/vision/status"
        assert world.cluster.call_now("PATCH", path, ENCODE({"status": late}), content_type=writes.MERGE).ok

        async def mended() -> bool:
            return status(world, "vision")["path"] == "vision" and status(world, "vision")["history"]["at"] >= at

        await world.until(mended)


async def evict(world: World, name: str, uid: str) -> None:
    """As the preemptor does: the reason is said on the pod, which then terminates."""
    answer = await writes.patch_pod_condition(
        world.cluster, "default", name, uid,
        type="DisruptionTarget", status="True", reason="PreemptionByScheduler",
        message=notice("gang/team/urgent", "reclaim"),
    )  # fmt: skip
    assert answer.ok
    world.phase(name, "Running")
    world.delete(name, 30)


async def test_a_pod_that_its_owner_deletes_was_not_evicted() -> None:
    world = await World().open()
    make(world, "vision", namespaces=["default"])
    world.pod("runs", node="n0", gpus="0")
    watcher = world.watcher(**SOON)
    async with world.running(watcher):
        await world.synced(watcher)
        world.phase("runs", "Running")
        world.delete("runs", 30)
        await asyncio.sleep(0.6)
        assert all(not fact.history.evictions for fact in (await histories(world)).values())


async def test_annotations_that_cannot_be_read_are_ignored_and_counted() -> None:
    from services.watcher.metrics import IGNORED

    world = await World().open()
    watcher: Watcher = world.watcher()
    async with world.running(watcher):
        await world.synced(watcher)
        before = IGNORED.labels(keys.EXPECTED)._value.get()
        body = {
            "metadata": {"name": "p", "annotations": {keys.EXPECTED: "long", keys.CHECKPOINT: "60"}},
            "spec": {"schedulerName": "drystone", "containers": [{"name": "main"}]},
        }
        assert world.cluster.call_now("POST", PODS, ENCODE(body)).ok

        async def hinted() -> bool:
            return any(h.head.checkpoint_s == 60 and h.head.expected_s == 0 for h in await world.hints())

        await world.until(hinted)
        assert IGNORED.labels(keys.EXPECTED)._value.get() == before + 1


async def test_readers_of_the_cluster_topic_pass_over_kinds_that_they_do_not_know() -> None:
    """A leader of the next release may tell more than this one knows: what is known besides is read all the same."""
    world = await World().open()
    watcher = world.watcher()
    unknown = Outgoing(CLUSTER.name, "weather/n0", b'{"type":"weather","sun":true}', EventType.CLUSTER)
    await world.bus.publish([unknown])
    async with world.running(watcher):
        await world.synced(watcher)

        async def ghost_is_gone() -> bool:
            return "weather/n0" not in await world.topic_keys()

        await world.until(ghost_is_gone)
