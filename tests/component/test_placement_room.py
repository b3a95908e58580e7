"""Placement where room has to be made: protected pods and the time that ends it, elastic jobs that shrink and grow
again, victims that do not leave."""

from __future__ import annotations

import asyncio

import msgspec

from libs.domain import keys
from libs.domain.jobs import Phase
from libs.domain.queues import Queue, Quota
from libs.domain.resources import WHOLE
from libs.kube import trainingjobs, writes
from libs.kube.grouping import job_of
from libs.kube.pods import PodView
from tests.component.placement_scene import (
    NS,
    Scene,
    binder,
    fact,
    fill,
    gone,
    leave,
    next_plans,
    placement,
    running,
    scene,
    seen,
    settle_facts,
)


async def test_a_job_that_protection_holds_up_is_told_until_when_and_then_has_its_room() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=1), queues=(Queue("default", min_run_s=2),))
        evictions = s.bus.follow(["drystone.evictions"], from_start=True)
        service = placement(s)
        async with running(service, binder(s)):
            await fill(s, s.pod("young"))
            await s.until(lambda: len(service.state.view.pods) == 1)
            await s.hint(s.pod("urgent", priority="high"))
            await s.until(lambda: any("protected by minimum run time until" in t.message for t in s.statuses))
            assert await next_plans(evictions, 0.05) == []
            (plan,) = await next_plans(evictions, 4.0)
            assert [v.name for v in plan.victims] == ["young"]


def elastic_job(s: Scene, replicas: int, least: int) -> trainingjobs.TrainingJobView:
    limits = {keys.GPU_RESOURCE: "1"}
    template = {"spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]}}
    role = {"name": "worker", "replicas": replicas, "min": least, "template": template}
    answer = s.kube.call_now("POST", trainingjobs.path(NS), trainingjobs.manifest(NS, "el", {"roles": [role]}, {}, {}))
    assert answer.ok, answer.body
    return trainingjobs.parse(answer.body)


def pod_named(s: Scene, name: str) -> PodView:
    return next(pod for pod in s.read_pods() if pod.name == name)


async def evict_as_kubelet_would(s: Scene, name: str) -> None:
    """Told why it goes, ended by the signal, which looks like a failure, and then gone."""
    pod = pod_named(s, name)
    await writes.patch_pod_condition(
        s.kube, NS, name, pod.uid, type="DisruptionTarget", status="True", reason="PreemptionByScheduler", message="x"
    )
    s.end_pod(name, "Failed")
    await gone(s, pod)
    await asyncio.sleep(0.3)  # the controller looks at the pod while it still stands there as failed
    s.kube.call_now("DELETE", writes.pods_path(NS, name), b'{"gracePeriodSeconds":0}')


async def test_an_elastic_job_gave_up_a_worker_and_has_it_back_when_there_is_room_and_nothing_failed() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=4))
        evictions = s.bus.follow(["drystone.evictions"], from_start=True)
        service = placement(s)
        async with running(service, binder(s)):
            await s.hint_job(elastic_job(s, 4, 2))
            await s.until(lambda: len(s.bound()) == 4)
            await settle_facts(s)
            await s.until(lambda: len(service.state.view.pods) == 4)
            urgent = s.pod("urgent", priority="high")
            await s.hint(urgent)
            (plan,) = await next_plans(evictions)
            assert plan.rule == "shrink"
            (victim,) = plan.victims
            await evict_as_kubelet_would(s, victim.name)
            await s.until(lambda: "urgent" in s.bound())
            status = s.read_job("el").status
            assert (status.failed, status.attempt) == (0, 0), "who made room has not failed"
            assert status.phase is Phase.RUNNING
            await settle_facts(s)
            assert await next_plans(evictions, 0.2) == [], "the job evicts nobody to grow again"
            await leave(s, pod_named(s, "urgent"))
            await s.until(lambda: sum(name.startswith("el-") for name in s.bound()) == 4)
            assert s.read_job("el").status.failed == 0


async def test_a_victim_that_never_leaves_holds_nobody_up_when_there_is_room_elsewhere() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=1))
        evictions = s.bus.follow(["drystone.evictions"], from_start=True)
        service = placement(s)
        async with running(service, binder(s)):
            await fill(s, s.pod("stuck"))
            await s.until(lambda: len(service.state.view.pods) == 1)
            await s.hint(s.pod("urgent", priority="high"))
            assert len(await next_plans(evictions)) == 1
            stuck = pod_named(s, "stuck")
            await s.publish_facts(msgspec.structs.replace(fact(stuck), version="99999", terminating=True))
            await asyncio.sleep(0.2)
            assert "urgent" not in s.bound(), "nobody is bound into the room of a pod that is still there"
            await s.facts(s.node("n2", gpus=1))
            await s.until(lambda: s.bound().get("urgent") == "n2")
            await asyncio.sleep(0.1)
            assert await s.earmarks() == 0


async def test_a_queue_has_its_share_back_and_the_evicted_pod_that_comes_again_waits() -> None:
    """Eight units; a deserves 3 and runs a pod of 4, b deserves 5, runs a pod of 1 and waits with a pod of 4."""
    queues = (Queue("a", deserved=Quota(3 * WHOLE)), Queue("b", deserved=Quota(5 * WHOLE)))
    async with scene() as s:
        await s.facts(s.node("n1", gpus=8), queues=queues)
        evictions = s.bus.follow(["drystone.evictions"], from_start=True)
        service = placement(s)
        async with running(service, binder(s)):
            for name, gpus, queue in (("a4", 4, "a"), ("b1", 1, "b")):
                pod = s.pod(name, gpus)
                await s.hint(pod, head=msgspec.structs.replace(job_of(pod), queue=queue, priority=9))
                await s.until(lambda name=name: name in s.bound())
                bound = pod_named(s, name)
                await s.ledger.tasks_seen([msgspec.structs.replace(seen(bound), queue=queue)], 1)
                await s.publish_facts(msgspec.structs.replace(fact(bound), queue=queue, priority=9))
            b4 = s.pod("b4", 4)
            await s.hint(b4, head=msgspec.structs.replace(job_of(b4), queue="b"))
            (plan,) = await next_plans(evictions)
            assert ([v.name for v in plan.victims], plan.rule) == (["a4"], "reclaim")
            a4 = pod_named(s, "a4")
            s.kube.call_now("DELETE", writes.pods_path(NS, "a4"), b'{"gracePeriodSeconds":0}')
            again = s.pod("a4", 4)  # at once, before anybody knows that its room is free
            await s.hint(again, head=msgspec.structs.replace(job_of(again), queue="a", priority=9))
            await gone(s, a4)
            await s.until(lambda: "b4" in s.bound())
            bound = pod_named(s, "b4")
            await s.ledger.tasks_seen([msgspec.structs.replace(seen(bound), queue="b")], 1)
            await s.publish_facts(msgspec.structs.replace(fact(bound), queue="b"))
            assert await next_plans(evictions, 0.4) == [], "what it lost is not its own to claim back"
            assert "a4" not in s.bound()


async def test_a_pod_that_was_told_why_it_waits_is_bound_at_the_first_try() -> None:
    """The condition makes a new version of the pod, and it comes from here: a binding by the old one is refused."""
    async with scene() as s:
        await s.facts(s.node("n1", gpus=1))
        async with running(placement(s, placement_condition_s=0.1), binder(s)):
            await fill(s, s.pod("first"))
            waits = s.pod("waits")
            await s.hint(waits)
            await s.until(lambda: s.condition("waits"))
            await asyncio.sleep(0.1)
            version = pod_named(s, "waits").version
            assert version != waits.version
            await s.facts(s.node("n2", gpus=1))
            await s.until(lambda: "waits" in s.bound())
            assert [a.version for plan in s.plans for a in plan.assignments if a.name == "waits"] == [version]
