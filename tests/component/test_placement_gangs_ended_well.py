"""Gangs some of whose members ended well before the others were bound: the others must not wait for ever."""

from __future__ import annotations

from libs.contracts.events import JobChanged
from libs.domain import keys
from libs.domain.plans import Assignment
from libs.domain.resources import Charge, GpuGrant
from libs.kube import boundpods, trainingjobs, writes
from libs.kube.pods import PodView
from tests.component.placement_scene import (
    NS,
    Scene,
    all_run,
    binder,
    fill,
    gone,
    placement,
    running,
    scene,
    settle_facts,
)


async def bound_by_hand(s: Scene, pod: PodView, node: str, gpu: int) -> PodView:
    """The one write that a binder did before it stood still."""
    annotations = {keys.GPUS: str(gpu), keys.GPU_MILLI: "1000", keys.GPU_MIB: "40960"}
    answer = await writes.bind(s.kube, NS, pod.name, pod.uid, pod.version, node, annotations)
    assert answer.ok, answer.body
    (now,) = (p for p in s.read_pods() if p.uid == pod.uid)
    return now


async def test_after_a_restart_members_that_ended_well_still_count() -> None:
    """Three of a gang; the binder wrote one and died, the one ran to its end, and nobody who saw it is left."""
    async with scene() as s:
        await s.facts(s.node("n1", gpus=2))
        pods = [s.pod(f"g{i}", gang="g", gang_min=3) for i in range(3)]
        await bound_by_hand(s, pods[0], "n1", 0)
        s.end_pod("g0", "Succeeded")
        async with running(placement(s), binder(s)):
            await s.until(lambda: s.bound().keys() == {"g1", "g2"})


async def test_a_member_that_ends_well_while_the_others_wait_for_room_lets_them_start() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=2))
        service = placement(s)
        pods = [s.pod(f"g{i}", gang="g", gang_min=3) for i in range(3)]
        await bound_by_hand(s, pods[0], "n1", 0)
        await settle_facts(s)
        async with running(service, binder(s)):
            await s.until(lambda: len(service.state.view.pods) == 1)
            await s.hint(*pods[1:])
            await s.until(lambda: f"gang/{NS}/g" in service.state.waiting)
            s.end_pod("g0", "Succeeded")
            await gone(s, pods[0])
            await s.until(lambda: s.bound().keys() == {"g1", "g2"})


async def test_a_member_that_failed_or_was_deleted_does_not_count() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=8))
        pods = [s.pod(f"g{i}", gang="g", gang_min=4) for i in range(4)]
        for i, phase in ((0, "Failed"), (1, "Succeeded")):
            await bound_by_hand(s, pods[i], "n1", i)
            s.end_pod(f"g{i}", phase)
        async with running(placement(s, placement_condition_s=0.05), binder(s)):
            await s.until(lambda: s.condition("g2"))
            condition = s.condition("g2")
            assert condition is not None
            assert condition["reason"] == "GangIncomplete"
            assert s.bound() == {}


async def test_deleting_a_member_that_had_ended_well_takes_its_count_away() -> None:
    """A gang of the same name made anew must not start with the help of the one before it."""
    async with scene() as s:
        await s.facts(s.node("n1", gpus=1))
        service = placement(s, placement_condition_s=0.05)
        pods = [s.pod(f"g{i}", gang="g", gang_min=3) for i in range(3)]
        await bound_by_hand(s, pods[0], "n1", 0)
        s.end_pod("g0", "Succeeded")
        async with running(service, binder(s)):
            await s.until(lambda: (job := service.state.pending.jobs.get(f"gang/{NS}/g")) and job.done)
            s.kube.call_now("DELETE", writes.pods_path(NS, "g0"), b'{"gracePeriodSeconds":0}')
            head = service.state.pending.jobs[f"gang/{NS}/g"].head
            await s.change(JobChanged(head=head, gone=(pods[0].uid,)))
            await s.until(lambda: not service.state.pending.jobs[f"gang/{NS}/g"].done)
            await s.facts(s.node("n2", gpus=8))
            await s.until(lambda: "n2" in service.state.view.nodes)
            await s.until(lambda: (c := s.condition("g1")) and c["reason"] == "GangIncomplete")
            assert s.bound() == {}


async def test_a_task_of_a_job_object_that_ends_well_lets_the_others_start() -> None:
    """Three tasks in a row of two devices, all together: one was written and ran to its end before the other two."""
    async with scene() as s:
        await s.facts(s.node("n1", gpus=2))
        view = s.job("train", 3, gangMin=3)
        assignment = Assignment(
            claim="1.1.1.1.0",
            task=trainingjobs.task_id(view.uid, "worker", 0, 0),
            name=trainingjobs.pod_name("train", "worker", 0, 0),
            node="n1",
            node_spec="",
            charge=Charge(gpus=(GpuGrant(0, 1000, 40960),)),
            create=True,
            role="worker",
        )
        answer = await writes.create_pod(s.kube, NS, boundpods.pod_manifest(view, assignment, 0))
        assert answer.ok, answer.body
        await settle_facts(s, task="worker/0/0", job_uid=view.uid)
        service = placement(s)
        async with running(service, binder(s)):
            await s.until(lambda: view.key in service.state.waiting)
            (first,) = (p for p in s.read_pods())
            s.end_pod(first.name, "Succeeded")
            await gone(s, first)
            await s.until(lambda: len(s.bound()) == 2)


async def test_a_gang_that_is_whole_by_what_ended_well_keeps_no_broken_one_from_yielding() -> None:
    """It stands lowest in order and looks broken from afar. The one that is broken must not wait for it for ever."""
    async with scene() as s:
        await s.facts(s.node("n1", gpus=5))
        service = placement(s, placement_gang_grace_s=0.3, placement_gang_settle_s=0.1)
        async with running(service, binder(s)):
            broken = [s.pod(f"b{i}", gang="broken", gang_min=3) for i in range(3)]
            well = [s.pod(f"w{i}", gang="well", gang_min=2) for i in range(2)]
            for pods in (well, broken):
                await s.hint(*pods)
            await all_run(s, service, 5)
            s.end_pod("w0", "Succeeded")
            await gone(s, well[0])
            s.end_pod("b0", "Failed")
            await gone(s, broken[0])
            await fill(s, s.pod("x0", priority="high"), s.pod("x1", priority="high"))
            # Both ask for one more, in vain.
            await s.hint(s.pod("w9", gang="well", gang_min=2))
            await s.hint(s.pod("b9", gang="broken", gang_min=3))
            await s.until(lambda: {p.name for p in s.read_pods() if p.terminating} == {"b1", "b2"})
            assert "w1" in s.bound()
