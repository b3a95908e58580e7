"""Small jobs that never end coming, and a large one that needs a whole node: it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from libs.domain.plans import Plan
from libs.host.parts import Parts
from libs.kube.pods import PodView
from services.placement.app import Placement
from services.placement.reserve import GANG_REFUSALS
from services.placement.settings import PlacementSettings
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
            for _ in range(300):
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
            async with asyncio.timeout(30):
                while await s.earmarks(f"pod/{NS}/large"):  # noqa: ASYNC110 - the ledger tells nobody
                    await asyncio.sleep(0.01)


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


class Rivals:
    """The ledger, where before every commit of the gang another replica's single takes one of its devices, and leaves
    again soon after."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self.refused = 0
        self.tried = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def commit(self, plans: Sequence[Plan]) -> Any:
        single = None
        for plan in plans:
            if plan.gang:
                self.tried += 1
                first = plan.assignments[0]
                name = f"rival-{self.tried}"
                one = msgspec.structs.replace(first, claim=f"{name}.0", task=name, name=name)
                single = msgspec.structs.replace(plan, id=name, job=name, gang=False, assignments=(one,))
                (answer,) = await self._ledger.commit([single])
                self.refused += bool(answer.refused)
        answers = await self._ledger.commit(plans)
        if single is not None:
            await self._ledger.drop(single.job, [single.assignments[0].claim], single.generation)
        return answers


async def test_a_gang_that_singles_get_ahead_of_again_and_again_gathers_its_room_and_starts() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"), s.node("n2"))
        rivals = Rivals(s.ledger)
        parts = Parts(bus=s.bus, ledger=rivals, kube=s.kube)  # type: ignore[arg-type]
        async with running(Placement(PlacementSettings(), parts), binder(s)):
            await s.hint(*[s.pod(f"g-{i}", gang="g", gang_min=16) for i in range(16)])
            await s.until(lambda: len(s.bound()) == 16)
            assert rivals.tried == GANG_REFUSALS + 1
            assert rivals.refused == 1, "the room was the gang's by then"
            assert await s.earmarks() == 0


async def test_the_owner_that_comes_after_keeps_the_reservation() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        settings = {"placement_reserve_after_s": 0.05, "placement_reserve_s": 30}
        async with running(binder(s)):
            async with running(placement(s, **settings)):
                for n in range(8):
                    await s.hint(s.pod(f"s{n}"))
                await s.until(lambda: len(s.bound()) == 8)
                await s.hint(s.pod("large", gpus=8))
                for _ in range(200):
                    if await s.earmarks():
                        break
                    await asyncio.sleep(0.02)
                assert await s.earmarks() == 1
            after = placement(s, **settings)
            async with running(after):
                await s.until(lambda: after.state.gatherers == {"default": f"pod/{NS}/large"})
                for name in sorted(s.bound()):
                    gone = ends(s, name)
                    await s.ledger.tasks_seen([seen(gone)], 1)
                    await s.ledger.tasks_gone([gone.uid], 1)
                    await s.hint(s.pod(f"late-{name}"))
                await s.until(lambda: s.bound() == {"large": "n1"})
