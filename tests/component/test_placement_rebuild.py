"""Placement when the ledger's data set is another one: whoever knew what waits goes on at once."""

from __future__ import annotations

import asyncio

from libs.host.parts import Parts
from libs.testkit.faults import FaultyKube, held_up
from services.placement.app import Placement
from services.placement.settings import PlacementSettings
from tests.component.placement_scene import PARTITIONS, Scene, running, scene


def lists(method: str, path: str) -> bool:
    return method == "GET" and path.endswith("/pods")


def ready(service: Placement) -> bool:
    return len(service.state.active) == PARTITIONS


async def rebuilt(s: Scene, *nodes: object) -> None:
    await s.ledger.begin_rebuild(1)
    await s.ledger.nodes_seen(nodes, 1)
    await s.ledger.whole(1)


async def test_after_a_rebuild_what_was_known_to_wait_is_decided_before_the_list() -> None:
    """The API server has much to do then, and every replica would list all pods of the cluster first."""
    async with scene() as s:
        node = s.node("n1")
        await s.facts(node)
        kube, never = FaultyKube(s.kube), asyncio.Event()
        service = Placement(PlacementSettings(), Parts(bus=s.bus, ledger=s.ledger, kube=kube))
        async with running(service):
            await s.until(lambda: ready(service))
            first = s.pod("first")
            await s.hint(first)
            await s.until(lambda: len(s.plans) == 1)
            before = s.plans[0].generation
            kube.faults.append(held_up(lists, never, times=1000))
            await rebuilt(s, node)
            await s.hint(s.pod("second"))
            await s.until(lambda: {p.job for p in s.plans if p.generation > before} == {p.job for p in s.plans})
            assert len({p.job for p in s.plans}) == 2
            never.set()
            kube.faults.clear()


async def test_what_was_missed_while_the_ledger_was_rebuilt_is_found_right_after() -> None:
    async with scene() as s:
        node = s.node("n1")
        await s.facts(node)
        service = Placement(PlacementSettings(placement_slow_pass_s=600), s.parts)
        async with running(service):
            await s.until(lambda: ready(service))
            await s.hint(s.pod("told"))
            await s.until(lambda: len(s.plans) == 1)
            missed = s.pod("missed")  # its hint never came
            await rebuilt(s, node)
            await s.hint(s.pod("another"))
            await s.until(lambda: any(p.job.endswith(missed.name) for p in s.plans))
