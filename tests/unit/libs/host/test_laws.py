"""What `drystone check` calls a broken law, and what it does not: one broken picture per law, beside a whole one."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from libs.domain import keys
from libs.domain.nodes import Gpu, Node
from libs.domain.queues import Queue
from libs.domain.resources import Charge, GpuGrant
from libs.domain.usage import NodeUse, QueueUse
from libs.host import laws as module
from libs.host.laws import GANG_GRACE_S, ORPHAN_GRACE_S, TOLD_S, laws
from libs.host.seen import Seen, exclusive, look
from libs.kube import trainingjobs
from libs.kube.embedded import EmbeddedCluster
from libs.kube.pods import PodView, parse_pod
from libs.kube.sim.resources import Kind
from libs.store.embedded import embedded_ledger
from libs.store.port import Holder, TaskSeen

QUEUE = "org/team"
_POLICY_BINDING = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)


def pod(name: str, node: str = "n1", device: int = 0, *, cpu: str = "1", **annotations: str) -> PodView:
    """A running pod of ours with one whole device, claimed."""
    said = {keys.GPUS: str(device), keys.CLAIM: f"claim-{name}", **annotations}
    resources = {"limits": {"cpu": cpu, "memory": "1Gi", keys.GPU_RESOURCE: "1"}}
    body = {
        "metadata": {"name": name, "namespace": "a", "uid": f"uid-{name}", "annotations": said},
        "spec": {
            "schedulerName": keys.SCHEDULER_NAME,
            "nodeName": node,
            "containers": [{"name": "main", "resources": resources}],
        },
        "status": {"phase": "Running"},
    }
    return parse_pod(json.dumps(body).encode())


def picture(*pods: PodView, **what: Any) -> Seen:
    """A whole one: these pods on a node of four devices, each charged to the queue as the ledger would."""
    holders = [
        Holder(p.uid, "bound", p.node, p.charge(), f"pod/a/{p.name}", QUEUE, p.uid, {"H100": 1000}) for p in pods
    ]
    nodes = {
        "n1": Node("n1", "u", "1", "s", cpu=8000, mem=65536, pods=10, gpus=tuple(Gpu(i, 0, "H100") for i in range(4)))
    }
    charges = [p.charge() for p in pods]
    cpu, mem = sum(c.cpu for c in charges), sum(c.mem for c in charges)
    gpus = 1000 * len(pods)
    whole = Seen(
        nodes=nodes,
        pods=list(pods),
        holders=holders,
        node_use={"n1": NodeUse("n1", 1, cpu=cpu, mem=mem, pods=len(pods))},
        queue_use={path: QueueUse(path, 1, gpus, cpu, mem, {"H100": gpus}) for path in ("org", QUEUE)},
    )
    return replace(whole, **what)


def broken(seen: Seen) -> set[tuple[str, str]]:
    return {(v.law, v.about) for v in laws(seen)}


def claim(id_: str, state: str = "planned", node: str = "n1", job: str = "pod/a/p", task: str = "uid-p") -> Holder:
    return Holder(id_, state, node, Charge(gpus=(GpuGrant(0, 1000, 0),)), job, task=task)


def only(*holders: Holder, **what: Any) -> Seen:
    return Seen(nodes={}, pods=[waiting("p")], holders=list(holders), node_use={}, queue_use={}, **what)


def waiting(name: str) -> PodView:
    return replace_pod(pod(name), node="", annotations={})


def replace_pod(view: PodView, **what: Any) -> PodView:
    return msgspec.structs.replace(view, **what)


def test_a_whole_picture_breaks_nothing() -> None:
    assert laws(picture(pod("x"), pod("y", device=1))) == set()


class TestDevices:
    def test_two_claims_on_one_device_are_a_device_promised_twice(self) -> None:
        assert broken(only(claim("c1"), claim("c2", "writing"))) == {("device promised twice", "n1/0")}

    def test_two_pods_that_name_one_device(self) -> None:
        assert ("device promised twice", "n1/0") in broken(picture(pod("x"), pod("y", device=0)))

    def test_more_memory_of_a_device_than_it_has(self) -> None:
        half = {keys.GPU_MILLI: "500", keys.GPU_MIB: "60000"}
        seen = picture(pod("x", **half), pod("y", **half))
        seen.nodes["n1"] = Node("n1", "u", "1", "s", cpu=8000, mem=65536, pods=10, gpus=(Gpu(0, 81920, "H100"),))
        assert ("device memory over capacity", "n1/0") in broken(seen)

    def test_earmarks_lacking_the_same_device_of_different_nodes_promise_nothing_twice(self) -> None:
        """What an earmark still waits for is charged to no node; it may be device 0 of as many nodes as there are."""
        earmarks = claim("e1", "earmark"), claim("e1", "pending", ""), claim("e2", "pending", "")
        assert laws(only(*earmarks)) == set()


class TestCapacity:
    @pytest.mark.parametrize(
        ("what", "small"), [("CPU", {"cpu": 1500}), ("memory", {"mem": 1500}), ("pods", {"pods": 1})]
    )
    def test_more_on_a_node_than_it_can_give(self, what: str, small: dict[str, int]) -> None:
        seen = picture(pod("x"), pod("y", device=1))
        node = {"cpu": 8000, "mem": 65536, "pods": 10, **small}
        seen.nodes["n1"] = Node("n1", "u", "1", "s", gpus=tuple(Gpu(i, 0, "H100") for i in range(4)), **node)
        assert broken(seen) == {(f"{what} over capacity", "n1")}

    def test_more_devices_than_there_are(self) -> None:
        seen = picture(pod("x"), pod("y", device=1))
        seen.nodes["n1"] = Node("n1", "u", "1", "s", cpu=8000, mem=65536, pods=10, gpus=(Gpu(0, 0, "H100"),))
        assert ("GPU over capacity", "n1") in broken(seen)


class TestAgreement:
    def test_a_bound_pod_that_nobody_is_charged_for(self) -> None:
        seen = picture(pod("x"), pod("y", device=1))
        assert ("bound pod not charged", "a/y") in broken(replace(seen, holders=seen.holders[:1]))

    def test_a_charge_on_another_node(self) -> None:
        seen = picture(pod("x"))
        moved = Holder("uid-x", "bound", "n2", seen.holders[0].charge, "pod/a/x")
        assert ("charged to another node", "a/x") in broken(replace(seen, holders=[moved]))

    def test_a_charge_of_another_device(self) -> None:
        seen = picture(pod("x"))
        other = Holder("uid-x", "bound", "n1", Charge(1000, 1024, (GpuGrant(3, 1000, 0),)), "pod/a/x")
        assert ("devices differ from the annotation", "a/x") in broken(replace(seen, holders=[other]))

    def test_a_charge_for_a_pod_that_is_gone(self) -> None:
        seen = picture(pod("x"), pod("y", device=1))
        assert broken(replace(seen, pods=seen.pods[:1])) == {("charged pod does not exist", "uid-y")}


class TestSums:
    def test_a_nodes_use_that_is_not_what_its_holders_have(self) -> None:
        use = {"n1": NodeUse("n1", 1, cpu=1, mem=1024, pods=1)}
        assert broken(picture(pod("x"), node_use=use)) == {("node usage is not the sum", "n1")}

    def test_a_queues_use_that_is_not_what_its_holders_have(self) -> None:
        seen = picture(pod("x"))
        seen.queue_use["org"] = QueueUse("org", 1, 2000, models={"H100": 1000})
        assert broken(seen) == {("queue usage is not the sum", "org")}

    def test_a_queue_that_is_told_less_of_a_model_than_is_held_could_pass_its_limit(self) -> None:
        seen = picture(pod("x"))
        seen.queue_use["org"] = QueueUse("org", 1, 1000, models={"H100": 500})
        assert broken(seen) == {("queue usage of a model is below the sum", "org H100")}


class TestLimits:
    """Limits were written at 1000; the pods were bound after that unless said otherwise."""

    @staticmethod
    def seen(queue: Queue, *at: float, **what: Any) -> Seen:
        pods = [pod(f"p{n}", device=n) for n in range(len(at))]
        known = {"bound_at": {p.uid: when for p, when in zip(pods, at, strict=True)}, **what}
        return picture(*pods, queues={queue.path: queue}, limited_since={queue.path: 1000.0}, **known)

    @pytest.mark.parametrize(
        ("limit", "what"),
        [
            ({"gpu_milli": 1000}, "GPU"),
            ({"cpu": 1500}, "CPU"),
            ({"mem": 1500}, "memory"),
            ({"models": {"H100": 1500}}, "H100"),
        ],
    )
    def test_more_bound_than_the_limit_that_stood_before(self, limit: dict[str, Any], what: str) -> None:
        assert broken(self.seen(Queue(QUEUE, **limit), 2000.0, 2001.0)) == {(f"queue over its limit of {what}", QUEUE)}

    def test_the_limits_of_the_queue_above_hold_as_well(self) -> None:
        assert broken(self.seen(Queue("org", gpu_milli=1000), 2000.0, 2001.0)) == {
            ("queue over its limit of GPU", "org")
        }

    def test_within_the_limit(self) -> None:
        assert laws(self.seen(Queue(QUEUE, gpu_milli=2000, cpu=2000, mem=2048), 2000.0, 2001.0)) == set()

    def test_what_stood_when_the_limit_was_lowered_may_go_on(self) -> None:
        assert laws(self.seen(Queue(QUEUE, gpu_milli=1000), 900.0, 1000.0 + TOLD_S)) == set()

    def test_a_queue_that_moved_brought_what_it_held(self) -> None:
        seen = self.seen(Queue("org", gpu_milli=1000), 2000.0, 2001.0)
        assert laws(replace(seen, limited_since={"org": 1000.0, QUEUE: 2005.0})) == set()

    def test_what_grew_in_place_was_not_given_by_us(self) -> None:
        seen = self.seen(Queue(QUEUE, cpu=1500), 2000.0, 2001.0, resized=frozenset({"uid-p0"}))
        assert laws(seen) == set()

    def test_what_others_bound_was_not_given_by_us(self) -> None:
        seen = self.seen(Queue(QUEUE, gpu_milli=1000), 2000.0, 2001.0)
        foreign = [replace_pod(p, claim="") if p.name == "p1" else p for p in seen.pods]
        assert laws(replace(seen, pods=foreign)) == set()


class TestNobodys:
    def test_a_claim_of_a_job_that_is_gone(self) -> None:
        (one,) = laws(only(claim("c1", job="pod/a/gone", task="uid-gone")))
        assert (one.law, one.about, one.grace_s) == ("claim of a job that does not exist", "c1", ORPHAN_GRACE_S)

    def test_a_claim_of_a_member_that_is_gone(self) -> None:
        assert broken(only(claim("c1", task="uid-gone"))) == {("claim of a task that does not exist", "c1")}

    def test_an_earmark_of_a_job_that_is_gone(self) -> None:
        gone = claim("e1", "earmark", job="job/a/gone"), claim("e1", "pending", "", job="job/a/gone")
        assert broken(only(*gone)) == {("earmark of a job that does not exist", "e1")}

    def test_claims_of_a_job_object_are_its_tasks_until_it_ends(self) -> None:
        body = {"metadata": {"name": "j", "namespace": "a", "uid": "u-1"}, "spec": {"roles": []}}
        mine = claim("c1", job="job/a/j", task="u-1/worker/0/0")
        there = {"job/a/j": trainingjobs.parse(json.dumps(body).encode())}
        assert laws(only(mine, jobs=there)) == set()
        ended = {"job/a/j": trainingjobs.parse(json.dumps({**body, "status": {"phase": "Failed"}}).encode())}
        assert broken(only(mine, jobs=ended)) == {("claim of a job that does not exist", "c1")}

    def test_a_claim_and_an_earmark_of_who_waits(self) -> None:
        assert laws(only(claim("c1"), claim("e1", "earmark", "n2"))) == set()


class TestGangs:
    def members(self, count: int) -> list[PodView]:
        marks = {keys.JOB: "g", keys.GANG_MIN: "3"}
        return [pod(f"g{n}", device=n, **marks) for n in range(count)]

    def test_a_gang_below_its_minimum_holds_room(self) -> None:
        (one,) = laws(picture(*self.members(2)))
        assert (one.law, one.about) == ("gang below its minimum holds room", "gang/a/g")
        assert one.grace_s == GANG_GRACE_S

    def test_members_that_ended_well_count(self) -> None:
        *running, done = self.members(3)
        seen = picture(*running)
        seen.pods.append(replace_pod(done, phase="Succeeded"))
        assert laws(seen) == set()


class TestConfirming:
    """On a cluster and a ledger: what does not stand is not told, and nobody waits longer than for what may stand."""

    async def found(self, monkeypatch: pytest.MonkeyPatch, *pictures: Seen) -> list[tuple[str, str]]:
        left = list(pictures)

        async def looked(_kube: object, _ledger: object) -> Seen:
            return left.pop(0) if len(left) > 1 else left[0]

        monkeypatch.setattr(module, "look", looked)
        cluster = EmbeddedCluster()
        try:
            return [(v.law, v.about) for v in await module.violations(cluster, embedded_ledger(), settle_s=0.01)]
        finally:
            await cluster.close()

    async def test_a_difference_of_one_read_is_no_broken_law(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lost = replace(picture(pod("x")), holders=[])
        assert await self.found(monkeypatch, lost, picture(pod("x"))) == []

    async def test_a_difference_of_two_reads_is_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lost = replace(picture(pod("x")), holders=[])
        assert ("bound pod not charged", "a/x") in await self.found(monkeypatch, lost, lost)

    async def test_a_gang_has_its_grace_and_is_told_when_it_is_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "GANG_GRACE_S", 0.1)
        part, whole = picture(*TestGangs().members(2)), picture(*TestGangs().members(3))
        assert await self.found(monkeypatch, part, part, whole) == []
        assert await self.found(monkeypatch, part) == [("gang below its minimum holds room", "gang/a/g")]

    async def test_what_is_seen_of_a_cluster_and_a_ledger(self) -> None:
        cluster, ledger = EmbeddedCluster(), embedded_ledger()
        await ledger.open()
        await ledger.begin_rebuild(1)
        limit = {"metadata": {"name": "team"}, "spec": {"limits": {keys.GPU_RESOURCE: "1"}}}
        body = {
            "metadata": {"name": "x", "annotations": {keys.GPUS: "0"}},
            "spec": {"schedulerName": keys.SCHEDULER_NAME, "nodeName": "n1", "containers": [{"name": "main"}]},
        }
        created = cluster.call_now("POST", "/api/v1/namespaces/default/pods", json.dumps(body).encode())
        assert cluster.call_now("POST", "/apis/drystone.dev/v1alpha1/queues", json.dumps(limit).encode()).ok
        view = parse_pod(created.body)
        await ledger.tasks_seen([TaskSeen(view.uid, view.version, "n1", Charge(), "team", "pod/a/x")], 1)
        seen = await look(cluster, ledger)
        assert (seen.queues["team"].gpu_milli, list(seen.limited_since)) == (1000, ["team"])
        assert [h.id for h in seen.holders] == [p.uid for p in seen.pods] == [view.uid]
        await asyncio.gather(cluster.close(), ledger.close())


class TestExclusive:
    @pytest.mark.parametrize(
        ("bound", "mode"),
        [
            ({}, "off"),
            ({"drystone-exclusive-pods": {}}, "off"),
            ({"drystone-exclusive-pods": {}, "drystone-exclusive-bindings": {}}, "on"),
            ({"drystone-exclusive-pods": {"validationActions": ["Audit"]}, "drystone-exclusive-bindings": {}}, "off"),
            (
                {"drystone-exclusive-pods": {"matchResources": {}}, "drystone-exclusive-bindings": {}},
                "in part",
            ),
        ],
    )
    async def test_both_policies_are_bound_and_deny(self, bound: dict[str, dict[str, Any]], mode: str) -> None:
        cluster = EmbeddedCluster()
        items = [
            {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"], **said}}
            for name, said in bound.items()
        ]
        cluster.register(_POLICY_BINDING)
        path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
        for item in items:
            assert cluster.call_now("POST", path, json.dumps(item).encode()).ok
        assert await exclusive(cluster) == mode
        await cluster.close()

    async def test_who_may_not_list_policies_does_not_know(self) -> None:
        cluster = EmbeddedCluster()
        assert await exclusive(cluster) == "unknown"
        await cluster.close()
