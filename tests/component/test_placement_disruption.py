"""Placement where jobs are in each other's way: victims, earmarks, gangs that lost members."""

from __future__ import annotations

import asyncio

import msgspec

from libs.bus.port import Outgoing
from libs.contracts.events import EventType, EvictionOutcome, JobChanged, OutcomesBatch
from libs.domain.jobs import Phase
from libs.kube import writes
from libs.kube.grouping import job_of
from tests.component.placement_scene import (
    NS,
    Scene,
    all_run,
    binder,
    fill,
    gone,
    leave,
    next_plans,
    placement,
    running,
    scene,
    settle_facts,
)


async def report(s: Scene, outcome: EvictionOutcome) -> None:
    value = msgspec.json.encode(OutcomesBatch((outcome,)))
    await s.bus.publish([Outgoing("drystone.outcomes", outcome.job, value, EventType.OUTCOMES, outcome.partition)])


async def test_two_urgent_jobs_choose_different_victims_and_a_refused_one_can_be_chosen_again() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=2))
        evictions = s.bus.follow(["drystone.evictions"], from_start=True)
        service = placement(s)
        async with running(service, binder(s)):
            await fill(s, s.pod("low0"), s.pod("low1"))
            await s.until(lambda: len(service.state.view.pods) == 2)
            await s.hint(s.pod("high0", priority="high"))
            (first,) = await next_plans(evictions)
            await s.hint(s.pod("high1", priority="high"))
            (second,) = await next_plans(evictions)
            assert {v.uid for v in first.victims} & {v.uid for v in second.victims} == set()
            await s.hint(s.pod("high2", priority="high"))
            await s.until(lambda: s.condition("high2"))
            assert await next_plans(evictions, 0.1) == [], "nobody is left who could yield"
            # The API server refuses the second plan's victim for good: it stays, and its mark goes.
            (victim,) = second.victims
            await s.ledger.unmark(second.id, [victim.uid], second.generation)
            await report(
                s, EvictionOutcome(second.id, second.job, second.partition, refused={victim.uid: "not for now"})
            )
            (third,) = await next_plans(evictions)
            assert third.victims == second.victims


async def test_a_pod_that_is_deleted_while_its_victims_leave_leaves_no_earmark() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=2))
        evictions = s.bus.follow(["drystone.evictions"], from_start=True)
        service = placement(s)
        async with running(service, binder(s)):
            await fill(s, s.pod("low0"), s.pod("low1"))
            await s.until(lambda: len(service.state.view.pods) == 2)
            high = s.pod("high", priority="high")
            await s.hint(high)
            assert len(await next_plans(evictions)) == 1
            assert await s.earmarks() == 1
            s.kube.call_now("DELETE", writes.pods_path(NS, "high"), b'{"gracePeriodSeconds":0}')
            await s.change(JobChanged(head=job_of(high), gone=(high.uid,)))
            await s.until(lambda: service.state.pending.jobs == {} and not service.state.returns)
            assert await s.earmarks() == 0


async def test_what_a_job_lacks_after_a_partial_start_is_had_by_eviction() -> None:
    """Three tasks of an urgent job that is no gang, room for two: the third must not wait behind a low pod."""
    async with scene() as s:
        await s.facts(s.node("n1", gpus=3))
        evictions = s.bus.follow(["drystone.evictions"], from_start=True)
        service = placement(s)
        async with running(service, binder(s)):
            await fill(s, s.pod("low"))
            await s.until(lambda: len(service.state.view.pods) == 1)
            await s.hint(*(s.pod(f"u{i}", gang="urgent", gang_min=1, priority="high") for i in range(3)))
            (plan,) = await next_plans(evictions)
            assert [v.name for v in plan.victims] == ["low"]
            assert len(plan.assignments) == 1
            await s.until(lambda: sum(name.startswith("u") for name in s.bound()) == 2)


async def test_minima_per_role_are_committed_as_a_gang_and_what_is_beyond_them_is_not() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=4))
        async with running(placement(s)):
            pods = [s.pod(f"r{i}", gang="roles", gang_min=1) for i in range(4)]
            tasks = tuple(
                msgspec.structs.replace(p.to_task(), role="master" if i == 0 else "worker", index=i)
                for i, p in enumerate(pods)
            )
            with_roles = msgspec.structs.replace(job_of(pods[0]), role_min={"master": 1, "worker": 2})
            await s.change(JobChanged(head=with_roles, tasks=tasks, cause="test"))
            await s.until(lambda: len(s.plans) == 1)
            assert s.plans[0].gang, "below its minima of three tasks the job must hold nothing"


async def test_a_gang_that_lost_a_member_for_good_is_refilled_where_that_is_possible() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=4))
        service = placement(s, placement_gang_grace_s=0.4, placement_gang_settle_s=0.1)
        async with running(service, binder(s)):
            pods = [s.pod(f"g{i}", gang="g", gang_min=4) for i in range(4)]
            await s.hint(*pods)
            await all_run(s, service, 4)
            await leave(s, pods[3])
            await s.hint(s.pod("g9", gang="g", gang_min=4))
            await s.until(lambda: s.bound().keys() == {"g0", "g1", "g2", "g9"})
            await settle_facts(s)
            await asyncio.sleep(0.8)
            assert len(s.bound()) == 4, "a gang that was refilled is left alone"


async def test_of_two_broken_gangs_the_lowest_yields_and_the_other_goes_on_in_its_room() -> None:
    """Two gangs of three on six devices each lose one member; a foreign pod takes one of the two devices."""
    async with scene() as s:
        await s.facts(s.node("n1", gpus=6))
        service = placement(s, placement_gang_grace_s=0.5, placement_gang_settle_s=3.0)
        async with running(service, binder(s)):
            one = [s.pod(f"a{i}", gang="a", gang_min=3, priority="high") for i in range(3)]
            two = [s.pod(f"b{i}", gang="b", gang_min=3) for i in range(3)]
            for pods in (one, two):
                await s.hint(*pods)
            await all_run(s, service, 6)
            # The devices of both lost members go to others before their replacements come.
            for pod in (one[2], two[2]):
                await leave(s, pod)
            await fill(s, s.pod("x0", priority="high"), s.pod("x1", priority="high"))
            await s.hint(s.pod("a9", gang="a", gang_min=3, priority="normal"))
            await s.hint(s.pod("b9", gang="b", gang_min=3))
            await s.until(lambda: {p.name for p in s.read_pods() if p.terminating} == {"b0", "b1"})
            for pod in two[:2]:
                await leave(s, pod)  # kubelet has stopped them
            await s.until(lambda: {"a0", "a1", "a9"} <= s.bound().keys())
            await settle_facts(s)
            await s.until(lambda: any(t.reason == "GangBroken" for t in s.told(f"gang/{NS}/b")))
            await asyncio.sleep(0.8)
            assert {"a0", "a1", "a9", "x0", "x1"} == s.bound().keys(), "one at a time, the lowest first"
            assert s.told(f"gang/{NS}/b")[-1].phase is Phase.PENDING


async def test_a_gang_whose_members_ended_well_is_not_broken() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=3))
        service = placement(s, placement_gang_grace_s=0.2, placement_gang_settle_s=0.1)
        async with running(service, binder(s)):
            pods = [s.pod(f"g{i}", gang="g", gang_min=3) for i in range(3)]
            await s.hint(*pods)
            await all_run(s, service, 3)
            s.end_pod("g0", "Succeeded")
            await gone(s, pods[0])
            await fill(s, s.pod("x", priority="high"))
            await s.hint(s.pod("g9", gang="g", gang_min=3))  # somebody asks for one more, in vain
            await s.until(lambda: s.condition("g9"))
            await asyncio.sleep(0.6)
            assert {"g1", "g2"} <= s.bound().keys()


async def test_a_pod_group_is_known_without_any_hint() -> None:
    """The watcher's hints are lost: the gang is found by the list, with its minimum, and never placed in part."""
    async with scene() as s:
        group = {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": "pg", "namespace": NS},
            "spec": {"minMember": 3},
        }
        path = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{NS}/podgroups"
        answer = s.kube.call_now("POST", path, msgspec.json.encode(group))
        assert answer.ok, answer.body
        await s.facts(s.node("n1", gpus=2))
        for i in range(3):
            s.pod_of_group(f"p{i}", "pg")
        async with running(placement(s, placement_slow_pass_s=0.3), binder(s)):
            await s.until(lambda: s.condition("p0"))
            assert s.bound() == {}
            await s.facts(s.node("n2", gpus=1))
            await s.until(lambda: len(s.bound()) == 3)


async def test_a_pod_whose_group_is_not_there_is_told_so_and_starts_with_its_group() -> None:
    """Without any hint. A group of Volcano: its pods say its name alone."""
    async with scene() as s:
        await s.facts(s.node("n1", gpus=4))
        for i in range(2):
            s.pod_of_group(f"p{i}", "pg", mark="scheduling.k8s.io/group-name")
        async with running(placement(s, placement_slow_pass_s=0.3), binder(s)):
            await s.until(lambda: s.condition("p0") and s.condition("p1"))
            condition = s.condition("p1")
            assert condition is not None
            assert condition["reason"] == "PodGroupNotSeen"
            assert f"PodGroup {NS}/pg has not been seen" in condition["message"]
            assert s.told(f"podgroup/{NS}/pg")[-1].verdict is not None
            assert s.bound() == {}
            group = {"kind": "PodGroup", "metadata": {"name": "pg", "namespace": NS}, "spec": {"minMember": 2}}
            path = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{NS}/podgroups"
            assert s.kube.call_now("POST", path, msgspec.json.encode(group)).ok
            await s.until(lambda: len(s.bound()) == 2)
