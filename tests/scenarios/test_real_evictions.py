"""Who yields, and who must not lose what was freed for it: on real parts, with a real controller that makes every
evicted pod again at once."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import msgspec
import pytest

from libs.domain import keys
from libs.kube import trainingjobs, writes
from tests.e2e.world import LABEL, Heard, Pods, SeenPod, World, bound

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

HOLD = "drystone.dev/held-by-a-test"
HIGH = {keys.PRIORITY_LABEL: "high"}


class Shared:
    """The queues and the workloads of one test."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def queue(self, short: str, **spec: Any) -> str:
        name = f"{short}-{self.world.namespace}"
        body = {"apiVersion": keys.API_VERSION, "kind": "Queue", "metadata": {"name": name}, "spec": spec}
        answer = await self.world.load.kube.call("POST", writes.QUEUES, json.dumps(body).encode())
        assert answer.ok, answer.body
        self.world.queues.append(name)
        return name

    async def replica_set(self, name: str, queue: str, gpus: int, **annotations: str) -> None:
        """One pod, made again by the controller of ReplicaSets whenever it goes."""
        pod = self.world.pod(name, gpus=gpus, labels={"set": name}, annotations={keys.QUEUE: queue, **annotations})
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": name},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"set": name}},
                "template": {"metadata": {k: v for k, v in pod["metadata"].items() if k in ("labels", "annotations")},  # type: ignore[attr-defined]
                             "spec": pod["spec"]},
            },
        }  # fmt: skip
        path = f"/apis/apps/v1/namespaces/{self.world.namespace}/replicasets"
        answer = await self.world.load.kube.call("POST", path, json.dumps(body).encode())
        assert answer.ok, answer.body

    async def reasons(self, queue: str, count: int, within_s: float = 45.0) -> list[dict[str, Any]]:
        """For whom the one workload of a queue was evicted, as soon as the queue's status tells so many."""
        async with asyncio.timeout(within_s):
            while True:
                answer = await self.world.load.kube.call("GET", f"{writes.QUEUES}/{queue}")
                for one in json.loads(answer.body).get("status", {}).get("evictions") or ():
                    if len(found := one.get("reasons") or []) >= count:
                        return list(found)
                await asyncio.sleep(0.3)

    async def patch(self, name: str, patch: dict[str, Any]) -> None:
        path = writes.pods_path(self.world.namespace, name)
        body = json.dumps(patch).encode()
        answer = await self.world.load.kube.call("PATCH", path, body, content_type=writes.MERGE)
        assert answer.ok, answer.body


@pytest.fixture
async def shared(world: World) -> AsyncIterator[Shared]:
    shared = Shared(world)
    try:
        yield shared
    finally:
        sets = f"/apis/apps/v1/namespaces/{world.namespace}/replicasets"
        await world.load.kube.call("DELETE", sets)
        async with asyncio.timeout(20):
            while json.loads((await world.load.kube.call("GET", sets)).body)["items"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


def of(pods: Pods, prefix: str) -> list[SeenPod]:
    return [pod for name, pod in pods.items() if name.startswith(prefix) and not pod.view.terminating]


def runs(prefix: str) -> Callable[[Pods], bool]:
    return lambda pods: any(pod.view.node for pod in of(pods, prefix))


def told(pod: SeenPod) -> str:
    """Why it is not scheduled."""
    return (pod.condition.message or "") if pod.condition is not None else ""


def waits(prefix: str) -> Callable[[Pods], bool]:
    """The pod was made again, and was told why it waits."""
    return lambda pods: any(not pod.view.node and bool(pod.reason) for pod in of(pods, prefix))


async def test_the_controller_made_the_victim_again_and_it_was_evicted_again_without_end(
    world: World, shared: Shared
) -> None:
    await world.nodes(1, gpus=1)
    queue = await shared.queue("q", evictions={"most": 2, "windowSeconds": 86_400})
    await shared.replica_set("low", queue, 1)
    for turn in range(2):
        await world.until(runs("low"))
        await world.create(world.pod(f"urgent-{turn}", labels=HIGH, annotations={keys.QUEUE: queue}))
        pods = await world.until(lambda pods, turn=turn: runs(f"urgent-{turn}")(pods) and waits("low")(pods))
        assert bound(pods) == [f"urgent-{turn}"]
        said = f"It was evicted for pod/{world.namespace}/urgent-{turn} by rule priority at "
        await world.until(lambda pods, said=said: any(said in told(pod) for pod in of(pods, "low")), within_s=45.0)
        await world.delete(f"urgent-{turn}")
    pods = await world.until(runs("low"))
    (survivor,) = of(pods, "low")
    await world.create(world.pod("urgent-2", labels=HIGH, annotations={keys.QUEUE: queue}))
    pods = await world.until(lambda pods: bool(pods["urgent-2"].reason) if "urgent-2" in pods else False)
    condition = pods["urgent-2"].condition
    assert condition is not None
    assert "1 pod protected as evicted often enough until" in (condition.message or "")
    await asyncio.sleep(1.0)
    reasons = await shared.reasons(queue, 2)
    assert [one["beneficiary"].rpartition("/")[2] for one in reasons] == ["urgent-0", "urgent-1"]
    assert {one["rule"] for one in reasons} == {"priority"}
    pods = await world.until(lambda pods: True)
    assert [pod.view.uid for pod in of(pods, "low")] == [survivor.view.uid], "twice in a day is enough"


async def test_victims_left_at_different_times_and_early_room_was_stolen_back(world: World, shared: Shared) -> None:
    """Three seconds here, in which the other victim's pod, made again, would have taken the room had it been free. The
    whole 30 s of a grace are held in virtual time, on the real ledger, in tests/component/test_room_kept.py; the laws
    of tests/property/test_room_laws.py play histories with it."""
    await world.nodes(1, gpus=2)
    queue = await shared.queue("q")
    for name in ("left", "right"):
        await shared.replica_set(name, queue, 1)
    pods = await world.until(lambda pods: runs("left")(pods) and runs("right")(pods))
    (late,) = of(pods, "right")
    await shared.patch(late.view.name, {"metadata": {"finalizers": [HOLD]}})
    await world.create(world.pod("urgent", gpus=2, labels=HIGH, annotations={keys.QUEUE: queue}))
    pods = await world.until(lambda pods: waits("left")(pods) and waits("right")(pods))
    assert pods[late.view.name].view.terminating
    await asyncio.sleep(3.0)
    pods = await world.until(lambda pods: True)
    assert bound(pods) == [late.view.name], "one GPU is free and kept, the other one's pod is still there"
    await shared.patch(late.view.name, {"metadata": {"finalizers": None}})
    pods = await world.until(runs("urgent"))
    assert bound(pods) == ["urgent"]
    assert pods["urgent"].gpus == "0,1"


async def test_the_evicted_queues_share_became_0_so_it_went_first_again(world: World, shared: Shared) -> None:
    """Eight units; a deserves 3 and runs a pod of 4, b deserves 5, runs a pod of 1 and waits with a pod of 4."""
    await world.nodes(1, gpus=8)
    a = await shared.queue("a", deserved={keys.GPU_RESOURCE: "3"})
    b = await shared.queue("b", deserved={keys.GPU_RESOURCE: "5"})
    await shared.replica_set("a4", a, 4)
    await shared.replica_set("b1", b, 1)
    pods = await world.until(lambda pods: runs("a4")(pods) and runs("b1")(pods))
    (first,) = of(pods, "a4")
    await world.create(world.pod("b4", gpus=4, annotations={keys.QUEUE: b}))
    pods = await world.until(lambda pods: runs("b4")(pods) and waits("a4")(pods))
    (again,) = of(pods, "a4")
    assert again.view.uid != first.view.uid
    kept = {name: pod.view.uid for name, pod in pods.items() if pod.view.node and pod.view.name != first.view.name}
    await asyncio.sleep(3.0)
    pods = await world.until(lambda pods: True)
    assert {name: pod.view.uid for name, pod in pods.items() if pod.view.node} == kept, "one eviction, and all is quiet"
    assert [pod.view.uid for pod in of(pods, "a4")] == [again.view.uid]


async def test_ten_pods_were_needed_and_one_was_taken_of_each_of_ten_gangs(world: World, shared: Shared) -> None:
    """A hundred GPUs, ten jobs of ten, spread over nodes of four: who asks for ten costs one job, which comes again as
    a whole, and hears for whom it went."""
    await world.nodes(25, gpus=4)
    queue = await shared.queue("q")
    names = [f"train-{n}" for n in range(10)]
    for name in names:
        spec = {**world.job(name, 10), "queue": queue}
        answer = await writes.create_trainingjob(world.load.kube, world.namespace, name, spec)
        assert answer.ok, answer.body
    pods = await world.until(lambda pods: len(bound(pods)) == 100)
    before = {pod.view.uid for pod in pods.values()}
    async with world.listening() as heard:
        await world.create(*world.gang("urgent", 10, labels=HIGH, annotations={keys.QUEUE: queue}))
        pods = await world.until(lambda pods: sum(name.startswith("urgent") for name in bound(pods)) == 10)
        gone = before - {pod.view.uid for pod in pods.values() if pod.view.node and not pod.view.terminating}
        assert len(gone) == 10
        views = {name: await writes.get_trainingjob(world.load.kube, world.namespace, name) for name in names}
        held = {name: sum(pod.startswith(f"{name}-") for pod in bound(pods)) for name in names}
        (victim,) = [name for name in names if held[name] < 10]
        assert held[victim] == 0, "the whole of it, since nothing is left of a gang that lost a member"
        others = [trainingjobs.parse(views[name].body).status for name in names if name != victim]
        assert {(status.phase, status.bound, status.failed) for status in others} == {("Running", 10, 0)}

        def whole(heard: Heard) -> bool:
            said = [s.evicted for s in heard.statuses if s.reason == "Evicted" and s.namespace == world.namespace]
            return sum(one.pods for one in said if one is not None) >= 10

        await heard.until(whole, within_s=30.0)
    said = [s for s in heard.statuses if s.reason == "Evicted" and s.namespace == world.namespace]
    assert {s.job for s in said} == {f"job/{world.namespace}/{victim}"}
    assert {(s.evicted.beneficiary, s.evicted.rule) for s in said if s.evicted is not None} == {
        (f"gang/{world.namespace}/urgent", "priority")
    }


async def test_ten_workers_were_evicted_where_one_of_an_elastic_job_was_enough(world: World, shared: Shared) -> None:
    await world.nodes(1, gpus=4)
    queue = await shared.queue("q")
    pod = world.pod("worker")
    role = {"name": "worker", "replicas": 4, "min": 2, "template": {"spec": pod["spec"]}}
    spec = {"roles": [role], "queue": queue}
    answer = await writes.create_trainingjob(world.load.kube, world.namespace, "elastic", spec)
    assert answer.ok, answer.body
    pods = await world.until(lambda pods: len(bound(pods)) == 4)
    before = {pod.view.uid for pod in pods.values()}
    await world.create(world.pod("urgent", labels=HIGH, annotations={keys.QUEUE: queue}))
    pods = await world.until(runs("urgent"))
    await asyncio.sleep(1.5)
    pods = await world.until(lambda pods: True)
    stayed = {pod.view.uid for pod in pods.values() if pod.view.node} & before
    assert len(stayed) == 3
    view = trainingjobs.parse((await writes.get_trainingjob(world.load.kube, world.namespace, "elastic")).body)
    assert (view.status.phase, view.status.failed) == ("Running", 0)
    await world.delete("urgent")
    pods = await world.until(lambda pods: len(bound(pods)) == 4)
    assert stayed < {pod.view.uid for pod in pods.values()}


async def test_a_pod_that_saves_its_work_was_signalled_without_a_word(world: World, shared: Shared) -> None:
    await world.nodes(1, gpus=1)
    queue = await shared.queue("q")
    marks = {keys.QUEUE: queue, keys.EVICT_NOTICE: "60"}
    await world.create(world.pod("saves", annotations=marks))
    await world.until(runs("saves"))
    await world.create(world.pod("urgent", labels=HIGH, annotations={keys.QUEUE: queue}))
    pods = await world.until(lambda pods: keys.EVICT_AT in pods["saves"].view.annotations)
    saves = pods["saves"].view
    assert not saves.terminating
    assert saves.disrupted
    assert datetime.fromisoformat(saves.annotations[keys.EVICT_AT]).timestamp() > saves.created + 50
    await asyncio.sleep(1.5)
    pods = await world.until(lambda pods: True)
    assert not pods["saves"].view.terminating
    await shared.patch("saves", {"metadata": {"annotations": {keys.EVICT_ACK: "saved"}}})
    await world.until(runs("urgent"), within_s=60.0)


async def test_a_gang_broken_by_a_drain_is_completed_before_a_newcomer_takes_its_place(
    world: World, shared: Shared
) -> None:
    first, second = await world.nodes(2, gpus=2)
    await world.create(*world.gang("train", 4))
    pods = await world.until(lambda pods: len(bound(pods)) == 4)
    await world.cordon(second)
    lost = [name for name, pod in pods.items() if pod.view.node == second]
    for name in lost:
        await world.delete(name)
    marks = {keys.JOB: "train", keys.GANG_MIN: "4"}
    await world.create(*(world.pod(f"{name}-again", annotations=marks) for name in lost))
    await asyncio.sleep(1.1)  # ages are whole seconds
    await world.create(world.pod("newcomer"))
    waiting = {"newcomer", *(f"{name}-again" for name in lost)}
    await world.until(lambda pods: waiting <= pods.keys() and all(pods[name].reason for name in waiting))
    body = msgspec.json.encode({"spec": {"unschedulable": None}})
    path = f"{writes.NODES}/{second}"
    assert (await world.load.kube.call("PATCH", path, body, content_type=writes.MERGE)).ok
    pods = await world.until(lambda pods: len(bound(pods)) == 4)
    assert "newcomer" not in bound(pods), "a gang that runs in part goes before whoever came later"
    assert {pods[f"{name}-again"].view.node for name in lost} == {second}
    assert LABEL in pods["newcomer"].view.node_selector
    assert first != second
