"""Small jobs that never end coming, and a large one that needs a whole node: it starts."""

from __future__ import annotations

import asyncio

from libs.kube.pods import PodView
from tests.component.placement_scene import NS, Scene, binder, placement, running, scene, seen


def ends(s: Scene, name: str) -> PodView:
    s.end_pod(name, "Succeeded")
    return next(p for p in s.read_pods() if p.name == name)


async def test_a_pod_of_a_whole_node_starts_although_small_ones_never_end_coming() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"), s.node("n2"))
        service = placement(s, placement_reserve_after_s=0.2, placement_reserve_s=30)
        async with running(service, binder(s)):
            line = 0

            async def one_more() -> None:
                nonlocal line
                line += 1
                await s.hint(s.pod(f"s{line}"))

            for _ in range(24):  # more than there is room for, and one more for each that ends
                await one_more()
            await s.until(lambda: len(s.bound()) == 16)
            await s.hint(s.pod("large", gpus=8))
            started = 0
            for _ in range(80):
                name = min((n for n in s.bound() if n != "large"), key=lambda n: int(n[1:]))
                gone = ends(s, name)
                await s.ledger.tasks_seen([seen(gone)], 1)
                await s.ledger.tasks_gone([gone.uid], 1)
                await one_more()
                started += 1
                await asyncio.sleep(0.03)
                if "large" in s.bound():
                    break
            assert "large" in s.bound(), f"{started} small ones passed it"
            kept = service.state
            await s.until(lambda: not kept.gatherers and not kept.pending.jobs[f"pod/{NS}/large"].earmarks
                          if f"pod/{NS}/large" in kept.pending.jobs else not kept.gatherers)  # fmt: skip
            await asyncio.sleep(0.1)
            assert await s.earmarks() == 0


async def test_without_reservations_small_ones_pass_the_large_one() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        async with running(placement(s, placement_reserve_after_s=0.05, placement_reserve_s=0), binder(s)):
            for n in range(16):
                await s.hint(s.pod(f"s{n:02}"))
            await s.until(lambda: len(s.bound()) == 8)
            await s.hint(s.pod("large", gpus=8))
            await asyncio.sleep(1.3)
            for name in sorted(s.bound())[:4]:
                gone = ends(s, name)
                await s.ledger.tasks_seen([seen(gone)], 1)
                await s.ledger.tasks_gone([gone.uid], 1)
            await s.until(lambda: len(s.bound()) == 8)
            assert "large" not in s.bound()
