"""The rules of the API server that the scheduler's safety stands on, asked of the real one and of the embedded one.

Whatever holds here for one must hold for the other: components are tested against the embedded server, and what they
prove there is worth as much as this page is complete.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
import pytest

from libs.domain import keys
from libs.domain.jobs import Phase
from libs.domain.plans import Assignment
from libs.domain.resources import Charge, GpuGrant
from libs.kube import boundpods, trainingjobs, writes
from libs.kube.client import KubeClient
from libs.kube.embedded import EmbeddedCluster
from libs.kube.errors import ReadFailed
from libs.kube.lease import LeaderLease
from libs.kube.outcomes import Outcome, classify, over_budget
from libs.kube.pods import PodView, parse_pod
from libs.kube.port import Answer, Kube, WatchGone
from libs.kube.reflector import Reflector
from tools.stack import Stack

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "trainingjobs.drystone.dev"},
    "spec": {
        "group": "drystone.dev",
        "scope": "Namespaced",
        "names": {"plural": "trainingjobs", "singular": "trainingjob", "kind": "TrainingJob"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@dataclass
class Cluster:
    """One namespace of an API server, with a few words to speak about it."""

    kube: Kube
    namespace: str = field(default_factory=lambda: f"kube-test-{uuid.uuid4().hex[:8]}")

    async def open(self) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        assert (await self.kube.call("POST", "/api/v1/namespaces", msgspec.json.encode(body))).ok

    async def pod(self, name: str, *, labels: dict[str, str] | None = None, **spec: object) -> PodView:
        answer = await self.try_pod(name, labels=labels, **spec)
        assert answer.ok, answer.body
        return parse_pod(answer.body)

    async def try_pod(self, name: str, *, labels: dict[str, str] | None = None, **spec: object) -> Answer:
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"schedulerName": "drystone", "containers": [{"name": "main", "image": "train:1"}], **spec},
        }
        return await writes.create_pod(self.kube, self.namespace, msgspec.json.encode(body))

    async def read(self, name: str) -> PodView:
        answer = await writes.get_pod(self.kube, self.namespace, name)
        assert answer.ok, answer.body
        return parse_pod(answer.body)

    async def bind(self, pod: PodView, node: str = "n1", **annotations: str) -> Outcome:
        said = {f"drystone.dev/{k}": v for k, v in annotations.items()}
        return classify(await writes.bind(self.kube, self.namespace, pod.name, pod.uid, pod.version, node, said))

    async def running(self, name: str, labels: dict[str, str]) -> PodView:
        pod = await self.pod(name, labels=labels)
        assert await self.bind(pod) is Outcome.DONE
        status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        path = writes.pods_path(self.namespace, name, "status")
        answer = await self.kube.call("PATCH", path, msgspec.json.encode(status), content_type=writes.STRATEGIC)
        assert answer.ok, answer.body
        return parse_pod(answer.body)

    async def budget(self, name: str, labels: dict[str, str], allowed: int) -> None:
        path = f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets"
        body = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
        }
        assert (await self.kube.call("POST", path, msgspec.json.encode(body))).ok
        status = {
            "status": {
                "observedGeneration": 1,
                "disruptionsAllowed": allowed,
                "currentHealthy": 2,
                "desiredHealthy": 1,
                "expectedPods": 2,
            }
        }
        answer = await self.kube.call(
            "PATCH", f"{path}/{name}/status", msgspec.json.encode(status), content_type=writes.MERGE
        )
        assert answer.ok, answer.body


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    started = Stack(tmp_path_factory.mktemp("kube"), parts=("etcd", "apiserver"))
    with started:
        yield started


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real)])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    kube: Kube
    if request.param == "embedded":
        kube = EmbeddedCluster()
    else:
        kube = KubeClient.from_kubeconfig(request.getfixturevalue("stack").info.kubeconfig)
        await install_crd(kube)
    opened = Cluster(kube)
    try:
        await opened.open()
        yield opened
    finally:
        await kube.close()


async def install_crd(kube: Kube) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert (await kube.call("POST", path, msgspec.json.encode(CRD))).status in (201, 409)
    await eventually(lambda: found(kube, writes.TRAINING_JOBS))


async def found(kube: Kube, path: str) -> bool:
    return (await kube.call("GET", path)).ok


async def eventually(happened: Callable[[], Awaitable[bool]], limit_s: float = 15.0) -> None:
    async with asyncio.timeout(limit_s):
        while not await happened():  # noqa: ASYNC110 - the other side is a server
            await asyncio.sleep(0.02)


class TestBinding:
    async def test_grants_ride_in_the_call_that_binds(self, cluster: Cluster) -> None:
        pod = await cluster.pod("p")
        assert await cluster.bind(pod, "n7", gpus="0,3", claim="1.2.3.4.0") is Outcome.DONE
        bound = await cluster.read("p")
        assert (bound.node, bound.uid) == ("n7", pod.uid)
        assert bound.annotations[keys.GPUS] == "0,3"
        assert bound.claim == "1.2.3.4.0"
        assert bound.version != pod.version

    async def test_a_bound_pod_is_not_bound_again(self, cluster: Cluster) -> None:
        pod = await cluster.pod("p")
        assert await cluster.bind(pod, "n1") is Outcome.DONE
        assert await cluster.bind(await cluster.read("p"), "n2") is Outcome.CONFLICT
        assert (await cluster.read("p")).node == "n1"

    async def test_a_decision_for_one_pod_never_reaches_its_namesake(self, cluster: Cluster) -> None:
        old = await cluster.pod("p")
        assert (await writes.delete_pod(cluster.kube, cluster.namespace, "p", old.uid)).ok
        await cluster.pod("p")
        stale = msgspec.structs.replace(old, version="")
        assert await cluster.bind(stale) is Outcome.CONFLICT
        assert (await cluster.read("p")).node == ""

    async def test_fencing_a_pod_refuses_the_binding_that_is_still_under_way(self, cluster: Cluster) -> None:
        pod = await cluster.pod("p")
        touched = await writes.fence_pod(cluster.kube, cluster.namespace, "p", pod.uid, "claim-1")
        assert touched.ok
        assert await cluster.bind(pod) is Outcome.CONFLICT
        assert await cluster.bind(parse_pod(touched.body)) is Outcome.DONE

    async def test_a_patch_that_changes_nothing_fences_nothing_so_no_fence_is_like_the_last(
        self, cluster: Cluster
    ) -> None:
        pod = await cluster.pod("p")
        first = await writes.fence_pod(cluster.kube, cluster.namespace, "p", pod.uid, "same")
        said = msgspec.json.encode({"metadata": {"annotations": {keys.FENCE: "same"}}})
        path = writes.pods_path(cluster.namespace, "p")
        same = await cluster.kube.call("PATCH", path, said, content_type=writes.MERGE)
        assert parse_pod(same.body).version == parse_pod(first.body).version
        second = await writes.fence_pod(cluster.kube, cluster.namespace, "p", pod.uid, "same")
        assert parse_pod(second.body).version != parse_pod(first.body).version

    async def test_a_fence_meant_for_another_pod_is_refused(self, cluster: Cluster) -> None:
        await cluster.pod("p")
        answer = await writes.fence_pod(cluster.kube, cluster.namespace, "p", str(uuid.uuid4()), "x")
        assert classify(answer) is Outcome.CONFLICT

    async def test_gated_deleted_and_ending_pods_are_refused(self, cluster: Cluster) -> None:
        gated = await cluster.pod("gated", schedulingGates=[{"name": "wait"}])
        assert gated.gated
        assert await cluster.bind(gated) is Outcome.CONFLICT
        gone = await cluster.pod("gone")
        assert (await writes.delete_pod(cluster.kube, cluster.namespace, "gone", gone.uid)).ok
        assert await cluster.bind(gone) is Outcome.GONE

    async def test_binding_is_the_only_way_to_a_node(self, cluster: Cluster) -> None:
        await cluster.pod("p")
        body = msgspec.json.encode({"spec": {"nodeName": "n1"}})
        path = writes.pods_path(cluster.namespace, "p")
        answer = await cluster.kube.call("PATCH", path, body, content_type=writes.MERGE)
        assert answer.status == 422
        assert classify(answer) is Outcome.REFUSED


class TestEndings:
    async def test_only_the_very_pod_is_deleted(self, cluster: Cluster) -> None:
        pod = await cluster.pod("p")
        other = await writes.delete_pod(cluster.kube, cluster.namespace, "p", str(uuid.uuid4()))
        assert classify(other) is Outcome.CONFLICT
        stale = await writes.delete_pod(cluster.kube, cluster.namespace, "p", pod.uid, version="1")
        assert classify(stale) is Outcome.CONFLICT
        assert (await writes.delete_pod(cluster.kube, cluster.namespace, "p", pod.uid)).ok
        again = await writes.delete_pod(cluster.kube, cluster.namespace, "p", pod.uid)
        assert classify(again) is Outcome.GONE

    async def test_a_running_pod_terminates_and_still_holds_its_room(self, cluster: Cluster) -> None:
        pod = await cluster.running("p", {})
        assert (await writes.delete_pod(cluster.kube, cluster.namespace, "p", pod.uid)).ok
        leaving = await cluster.read("p")
        assert leaving.terminating
        assert leaving.holds
        assert (await writes.delete_pod(cluster.kube, cluster.namespace, "p", pod.uid, grace_s=0)).ok
        assert (await writes.get_pod(cluster.kube, cluster.namespace, "p")).status == 404

    async def test_an_eviction_names_its_pod(self, cluster: Cluster) -> None:
        pod = await cluster.running("p", {"app": "x"})
        refused = await writes.evict(cluster.kube, cluster.namespace, "p", str(uuid.uuid4()))
        assert classify(refused) is Outcome.CONFLICT
        assert not (await cluster.read("p")).terminating
        assert (await writes.evict(cluster.kube, cluster.namespace, "p", pod.uid)).status == 201
        assert (await cluster.read("p")).terminating

    async def test_a_budget_of_one_lets_one_go(self, cluster: Cluster) -> None:
        first, second = await cluster.running("a", {"app": "x"}), await cluster.running("b", {"app": "x"})
        await cluster.budget("guard", {"app": "x"}, allowed=1)
        trial = await writes.evict(cluster.kube, cluster.namespace, "a", first.uid, dry_run=True)
        assert trial.ok
        assert not (await cluster.read("a")).terminating
        assert (await writes.evict(cluster.kube, cluster.namespace, "a", first.uid)).ok
        refused = await writes.evict(cluster.kube, cluster.namespace, "b", second.uid)
        assert classify(refused) is Outcome.THROTTLED
        assert over_budget(refused)
        assert not (await cluster.read("b")).terminating


class TestConditions:
    async def test_a_condition_is_set_beside_the_others_and_for_this_pod_alone(self, cluster: Cluster) -> None:
        pod = await cluster.running("p", {})
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
        answer = await writes.patch_pod_condition(cluster.kube, cluster.namespace, "p", pod.uid, **said)
        conditions = msgspec.json.decode(answer.body)["status"]["conditions"]
        assert {c["type"] for c in conditions} >= {"Ready", "PodScheduled"}
        assert [c["reason"] for c in conditions if c["type"] == "PodScheduled"] == ["Unschedulable"]
        other = await writes.patch_pod_condition(cluster.kube, cluster.namespace, "p", str(uuid.uuid4()), **said)
        assert classify(other) is Outcome.CONFLICT


class TestRefusals:
    async def test_what_will_be_refused_again_says_so(self, cluster: Cluster) -> None:
        assert classify(await cluster.try_pod("p", priorityClassName="no-such-class")) is Outcome.REFUSED
        assert classify(await cluster.try_pod("p", containers=[])) is Outcome.REFUSED
        nowhere = await writes.create_pod(cluster.kube, "no-such-namespace", b'{"apiVersion":"v1","kind":"Pod"}')
        assert classify(nowhere) in (Outcome.REFUSED, Outcome.GONE)
        await cluster.pod("p")
        assert classify(await cluster.try_pod("p")) is Outcome.EXISTS

    async def test_a_selector_that_is_not_served_is_an_error_and_no_empty_list(self, cluster: Cluster) -> None:
        with pytest.raises(ReadFailed):
            await writes.list_all(cluster.kube, writes.pods_path(cluster.namespace), field_selector="spec.foo=1")


class TestListAndWatch:
    async def test_pages_make_one_consistent_list(self, cluster: Cluster) -> None:
        for n in range(7):
            await cluster.pod(f"p{n}")
        listed = await writes.list_all(cluster.kube, writes.pods_path(cluster.namespace), page=3)
        assert [parse_pod(raw).name for raw in listed.items] == [f"p{n}" for n in range(7)]
        await cluster.pod("later")
        seen = await first_events(cluster, {"resourceVersion": listed.version}, 1)
        assert [(t, p.name) for t, p in seen] == [("ADDED", "later")]

    async def test_selected_lists(self, cluster: Cluster) -> None:
        await cluster.pod("mine", labels={"team": "a"})
        await cluster.pod("foreign", schedulerName="default-scheduler")
        assert await cluster.bind(await cluster.pod("bound", labels={"team": "a"})) is Outcome.DONE
        path = writes.pods_path(cluster.namespace)
        waiting = await writes.list_all(cluster.kube, path, field_selector="spec.schedulerName=drystone,spec.nodeName=")
        assert [parse_pod(raw).name for raw in waiting.items] == ["mine"]
        team = await writes.list_all(cluster.kube, path, label_selector="team=a")
        assert [parse_pod(raw).name for raw in team.items] == ["bound", "mine"]

    async def test_a_pod_that_leaves_the_selection_is_gone_for_the_watcher(self, cluster: Cluster) -> None:
        listed = await writes.list_all(cluster.kube, writes.pods_path(cluster.namespace))
        pod = await cluster.pod("p")
        assert await cluster.bind(pod) is Outcome.DONE
        params = {"resourceVersion": listed.version, "fieldSelector": "spec.nodeName="}
        seen = await first_events(cluster, params, 2)
        assert [(t, p.name) for t, p in seen] == [("ADDED", "p"), ("DELETED", "p")]

    @pytest.mark.real
    async def test_a_version_from_before_a_restart_is_gone_for_the_real_server(self, stack: Stack) -> None:
        kube = KubeClient.from_kubeconfig(stack.info.kubeconfig)
        cluster = Cluster(kube)
        try:
            await cluster.open()
            await cluster.pod("p")
            await asyncio.to_thread(stack.restart_part, "apiserver")
            await eventually(lambda: found(kube, writes.pods_path(cluster.namespace)))
            with pytest.raises(WatchGone):
                await first_events(cluster, {"resourceVersion": "1"}, 1)
        finally:
            await kube.close()

    async def test_a_version_from_before_a_compaction_is_gone_for_the_embedded_server(self) -> None:
        kube = EmbeddedCluster()
        cluster = Cluster(kube)
        await cluster.open()
        listed = await writes.list_all(kube, writes.pods_path(cluster.namespace))
        await cluster.pod("p")
        kube.compact()
        with pytest.raises(WatchGone):
            await first_events(cluster, {"resourceVersion": listed.version}, 1)

    async def test_a_watch_ends_when_asked_to(self, cluster: Cluster) -> None:
        listed = await writes.list_all(cluster.kube, writes.pods_path(cluster.namespace))
        params = {"resourceVersion": listed.version, "timeoutSeconds": "1"}
        async with asyncio.timeout(30):
            seen = [e async for e in cluster.kube.watch(writes.pods_path(cluster.namespace), params=params)]
        assert seen == []


async def first_events(cluster: Cluster, params: dict[str, str], count: int) -> list[tuple[str, PodView]]:
    seen: list[tuple[str, PodView]] = []
    async with asyncio.timeout(30):
        async for kind, raw in cluster.kube.watch(writes.pods_path(cluster.namespace), params=params):
            seen.append((kind, parse_pod(raw)))
            if len(seen) == count:
                break
    return seen


class TestReflector:
    async def test_state_is_followed_from_the_list_on(self, cluster: Cluster) -> None:
        await cluster.pod("old")
        state: dict[str, PodView] = {}

        async def on_list(items: list[bytes], _version: str) -> None:
            state.clear()
            state.update({p.name: p for p in map(parse_pod, items)})

        async def on_events(events: list[tuple[str, bytes]]) -> None:
            for kind, raw in events:
                pod = parse_pod(raw)
                if kind == "DELETED":
                    state.pop(pod.name)
                else:
                    state[pod.name] = pod

        reflector = Reflector(cluster.kube, writes.pods_path(cluster.namespace), on_list=on_list, on_events=on_events)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(reflector.run())
            await eventually(lambda: holds(set(state) == {"old"}))
            pods = [await cluster.pod(f"p{n}") for n in range(20)]
            for pod in pods[:10]:
                assert await cluster.bind(pod) is Outcome.DONE
            assert (await writes.delete_pod(cluster.kube, cluster.namespace, "p19", pods[19].uid)).ok
            await eventually(lambda: holds(len(state) == 20 and sum(1 for p in state.values() if p.bound) == 10))
            newest = max((p.version for p in state.values()), key=lambda v: (len(v), v))
            assert (len(reflector.version), reflector.version) >= (len(newest), newest)
            reflector.relist()
            await eventually(lambda: holds(reflector.health().lists == 2))
            assert len(state) == 20
            running.cancel()


async def holds(fact: bool) -> bool:
    return fact


class TestLease:
    async def test_one_leader_and_a_swift_successor(self, cluster: Cluster) -> None:
        def candidate(identity: str) -> LeaderLease:
            return LeaderLease(
                cluster.kube, cluster.namespace, "boss", identity, duration_s=2.0, renew_s=0.3, margin_s=0.3
            )

        a, b = candidate("a"), candidate("b")
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(a.run())
            await asyncio.wait_for(a.won.wait(), 5)
            second = tasks.create_task(b.run())
            await asyncio.sleep(1.5)
            assert (a.is_leader, b.is_leader) == (True, False)
            first.cancel()
            await asyncio.wait_for(b.won.wait(), 1.5)
            assert not a.is_leader
            assert b.term > a.term
            second.cancel()


class TestTrainingJobs:
    SPEC: ClassVar = {
        "id": "run-1",
        "tenant": "a",
        "roles": [
            {
                "name": "worker",
                "replicas": 2,
                "template": {
                    "spec": {
                        "containers": [
                            {"name": "main", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
                        ]
                    }
                },
            }
        ],
    }

    async def test_status_and_spec_are_written_apart(self, cluster: Cluster) -> None:
        created = await writes.create_trainingjob(cluster.kube, cluster.namespace, "run-1", self.SPEC)
        assert created.status == 201, created.body
        again = await writes.create_trainingjob(cluster.kube, cluster.namespace, "run-1", self.SPEC)
        assert classify(again) is Outcome.EXISTS
        job = trainingjobs.parse(created.body)
        status = trainingjobs.TrainingJobStatus(phase=Phase.RUNNING, attempt=1, bound=2)
        answer = await writes.patch_trainingjob_status(cluster.kube, cluster.namespace, "run-1", job.uid, status)
        assert answer.ok, answer.body
        read = trainingjobs.parse((await writes.get_trainingjob(cluster.kube, cluster.namespace, "run-1")).body)
        assert (read.status, read.spec) == (status, job.spec)
        other = await writes.patch_trainingjob_status(cluster.kube, cluster.namespace, "run-1", "x", status)
        assert classify(other) is Outcome.CONFLICT
        assert (await writes.delete_trainingjob(cluster.kube, cluster.namespace, "run-1", job.uid)).ok
        assert (await writes.get_trainingjob(cluster.kube, cluster.namespace, "run-1")).status == 404

    async def test_a_task_is_born_bound_and_once(self, cluster: Cluster) -> None:
        created = await writes.create_trainingjob(cluster.kube, cluster.namespace, "run-1", self.SPEC)
        job = trainingjobs.parse(created.body)
        _, tasks = trainingjobs.expand(job, attempt=0)
        assignment = Assignment(
            claim="1.0.1.1.0",
            task=tasks[1].id,
            name=tasks[1].name,
            node="n3",
            node_spec="x",
            charge=Charge(gpus=(GpuGrant(5, 1000, 40960),)),
            create=True,
            role="worker",
            index=1,
        )
        manifest = boundpods.pod_manifest(job, assignment, 0)
        answer = await writes.create_pod(cluster.kube, cluster.namespace, manifest)
        assert answer.status == 201, answer.body
        pod = parse_pod(answer.body)
        assert (pod.node, pod.name, pod.task_id, pod.claim) == ("n3", "run-1-worker-1-0", tasks[1].id, "1.0.1.1.0")
        assert pod.charge() == Charge(gpus=(GpuGrant(5, 1000, 40960),))
        env = msgspec.json.decode(answer.body)["spec"]["containers"][0]["env"]
        assert env[0]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.annotations['drystone.dev/gpus']"
        twin = await writes.create_pod(cluster.kube, cluster.namespace, manifest)
        assert classify(twin) is Outcome.EXISTS
