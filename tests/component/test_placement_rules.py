"""Rules between pods while pods come and go: what placement knows of others, and who is woken by them."""

from __future__ import annotations

from typing import Any

import msgspec

from libs.contracts.events import ClaimFact, Landed, NamespaceFact
from libs.domain import keys
from libs.domain.volumes import Claim, ClaimState
from libs.kube import writes
from libs.kube.pods import PodView, parse_pod
from tests.component.placement_scene import NS, Scene, binder, fact, placement, running, scene

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def create(s: Scene, name: str, labels: dict[str, str], **spec: Any) -> PodView:
    body = {
        "metadata": {"name": name, "namespace": NS, "labels": labels},
        "spec": {"schedulerName": keys.SCHEDULER_NAME, "containers": [{"name": "c", "image": "i"}], **spec},
    }
    answer = s.kube.call_now("POST", writes.pods_path(NS), msgspec.json.encode(body))
    assert answer.ok, answer.body
    return parse_pod(answer.body)


def term(app: str, **more: Any) -> dict[str, Any]:
    return {
        REQUIRED: [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}, **more},
        ]
    }


async def two_nodes(s: Scene) -> None:
    for name in ("n1", "n2"):
        node = s.node(name)
        await s.facts(msgspec.structs.replace(node, labels={**node.labels, "kubernetes.io/hostname": name}))


async def test_pods_that_keep_apart_do_so_though_none_of_them_is_seen_running_yet() -> None:
    async with scene() as s:
        await two_nodes(s)
        async with running(placement(s), binder(s)):
            for name in ("a", "b", "c"):  # one after the other: each its own pass
                await s.hint(create(s, name, {"app": "x"}, affinity={"podAntiAffinity": term("x")}))
                await s.until(lambda name=name: s.bound().get(name) or s.condition(name))  # type: ignore[misc]
            assert sorted(s.bound().values()) == ["n1", "n2"]
            condition = s.condition("c")
            assert condition is not None
            assert condition["reason"] == "Unschedulable", "an autoscaler's node would help"
            assert "anti-affinity" in condition["message"]


async def test_a_claim_that_came_to_nothing_keeps_nobody_away() -> None:
    async with scene() as s:
        await two_nodes(s)
        async with running(placement(s)):
            pods = [create(s, name, {"app": "x"}, affinity={"podAntiAffinity": term("x")}) for name in ("a", "b", "c")]
            for pod in pods[:2]:
                await s.hint(pod)
            await s.until(lambda: len(s.plans) == 2)
            s.kube.call_now("DELETE", writes.pods_path(NS, "a"), b'{"gracePeriodSeconds":0}')
            await s.outcome(s.plans[0], Landed.GONE)
            await s.hint(pods[2])
            await s.until(lambda: len(s.plans) == 3)
            assert s.plans[2].assignments[0].node == s.plans[0].assignments[0].node


async def test_a_pod_that_waits_for_company_is_woken_by_a_foreign_pod_and_by_a_namespace() -> None:
    async with scene() as s:
        await two_nodes(s)
        async with running(placement(s), binder(s)):
            chosen = term("db", namespaceSelector={"matchLabels": {"team": "red"}})
            pod = create(s, "web", {"app": "web"}, affinity={"podAffinity": chosen})
            await s.hint(pod)
            await s.until(lambda: s.condition("web"))
            assert "helps: a pod running" in s.condition("web")["message"]  # type: ignore[index]
            db = msgspec.structs.replace(
                fact(pod), uid="db", name="db", namespace="stores", version="9", node="n2", labels={"app": "db"},
                ours=False, job="",
            )  # fmt: skip
            await s.publish_facts(db)
            await s.hint(create(s, "other", {}))  # a pass that the pod could wrongly join
            await s.until(lambda: "other" in s.bound())
            assert "web" not in s.bound()
            await s.publish_facts(NamespaceFact("stores", "9", {"team": "red"}))
            await s.until(lambda: s.bound().get("web") == "n2")


async def test_a_claim_of_first_use_goes_with_the_plan_and_a_bound_one_does_not() -> None:
    async with scene() as s:
        await two_nodes(s)
        async with running(placement(s)):
            volumes = [{"name": n, "persistentVolumeClaim": {"claimName": n}} for n in ("data", "logs")]
            pod = create(s, "p", {}, volumes=volumes)
            await s.publish_facts(ClaimFact(Claim(NS, "logs", ClaimState.BOUND)))
            await s.hint(pod)
            await s.until(lambda: s.condition("p"))
            assert "volume claim" in s.condition("p")["message"]  # type: ignore[index]
            await s.publish_facts(ClaimFact(Claim(NS, "data", ClaimState.FIRST_USE, driver="d", handle="h")))
            await s.until(lambda: s.plans)
            assert s.plans[0].assignments[0].claims == ("data",)
