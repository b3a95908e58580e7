"""Gangs of which some members came back from the binder, are leaving or are to go: never completed on their account."""

from __future__ import annotations

import asyncio

import msgspec

from libs.bus.port import Outgoing
from libs.contracts.events import EventType, Landed, OutcomesBatch, PlanOutcome, TaskOutcome
from libs.domain import keys
from libs.domain.plans import Plan
from libs.kube import writes
from libs.kube.pods import PodView
from tests.component.placement_scene import NS, Scene, placement, running, scene, settle_facts


async def report(s: Scene, plan: Plan, landed: dict[str, Landed]) -> None:
    """The binder's word about some tasks of a plan, by name."""
    tasks = tuple(TaskOutcome(task=a.task, landed=landed[a.name]) for a in plan.assignments if a.name in landed)
    await s.ledger.release([a.claim for a in plan.assignments if landed.get(a.name) is Landed.REPLAN], plan.generation)
    value = msgspec.json.encode(OutcomesBatch((PlanOutcome(plan.id, plan.job, plan.partition, tasks),)))
    await s.bus.publish([Outgoing("drystone.outcomes", plan.job, value, EventType.OUTCOMES, plan.partition)])


async def test_a_member_that_came_back_waits_for_the_fate_of_the_others() -> None:
    """The binder cannot reach the API server and gives back one member first; the others follow. Decided alone, the
    first would have been bound as a gang of one."""
    async with scene() as s:
        await s.facts(s.node("n1"))
        async with running(placement(s)):
            await s.hint(*(s.pod(f"g{i}", gang="g", gang_min=3) for i in range(3)))
            await s.until(lambda: len(s.plans) == 1)
            await s.ledger.begin(s.plans)
            await report(s, s.plans[0], {"g0": Landed.REPLAN})
            await asyncio.sleep(0.2)
            await s.pump()
            assert len(s.plans) == 1
            await report(s, s.plans[0], {"g1": Landed.REPLAN, "g2": Landed.REPLAN})
            await s.until(lambda: len(s.plans) == 2)
            assert {a.name for a in s.plans[1].assignments} == {"g0", "g1", "g2"}
            assert s.plans[1].gang
            assert s.plans[1].together


async def test_a_member_that_came_back_is_decided_as_soon_as_the_others_are_bound() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        async with running(placement(s)):
            await s.hint(*(s.pod(f"g{i}", gang="g", gang_min=3) for i in range(3)))
            await s.until(lambda: len(s.plans) == 1)
            await s.ledger.begin(s.plans)
            await report(s, s.plans[0], {"g0": Landed.REPLAN})
            await report(s, s.plans[0], {"g1": Landed.BOUND, "g2": Landed.BOUND})
            await s.until(lambda: len(s.plans) == 2, 0.9)
            assert [a.name for a in s.plans[1].assignments] == ["g0"]


async def two_of_three(s: Scene, *, terminating: bool = False) -> list[PodView]:
    """A gang of three of which the first two run on n1."""
    pods = [s.pod(f"g{i}", gang="g", gang_min=3) for i in range(3)]
    for index, pod in enumerate(pods[:2]):
        granted = {keys.GPUS: str(index), keys.GPU_MILLI: "1000", keys.GPU_MIB: "40960"}
        answer = await writes.bind(s.kube, NS, pod.name, pod.uid, pod.version, "n1", granted)
        assert answer.ok, answer.body
    await settle_facts(s, terminating=terminating)
    return pods


async def test_no_member_joins_those_that_are_leaving() -> None:
    """Two of three run and are being evicted as the third, made anew, asks for room: it would be left alone."""
    async with scene() as s:
        await s.facts(s.node("n1"))
        service = placement(s, placement_condition_s=0.05)
        pods = await two_of_three(s, terminating=True)
        async with running(service):
            await s.until(lambda: len(service.state.view.pods) == 2)
            await s.hint(pods[2])
            await s.until(lambda: (c := s.condition("g2")) and c["reason"] == "GangIncomplete")
            assert s.plans == []


async def test_no_member_joins_those_that_are_to_go_until_they_are_let_stay() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        service = placement(s, placement_condition_s=0.05)
        pods = await two_of_three(s)
        async with running(service):
            await s.until(lambda: len(service.state.view.pods) == 2)
            service.state.marked_by_others([pods[0].uid], 0.0)
            await s.hint(pods[2])
            await s.until(lambda: (c := s.condition("g2")) and c["reason"] == "GangIncomplete")
            assert s.plans == []
            service.state.forget_foreign_marks(1e9)
            await s.until(lambda: [a.name for plan in s.plans for a in plan.assignments] == ["g2"])
