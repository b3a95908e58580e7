"""What is freed for somebody stays his while the rest of it is awaited, in virtual time."""

from __future__ import annotations

from libs.contracts.events import PodFact
from libs.domain.resources import Charge, GpuGrant
from libs.store.port import TaskSeen
from libs.testkit.builders import node
from services.placement.jobs import Job
from tests.component.virtual_placement import EPOCH, World, world

GRACE_S = 30.0


async def runs(w: World, name: str, index: int) -> None:
    """A pod of one GPU that was bound long ago."""
    charge = Charge(100, 1, (GpuGrant(index, 1000, 81920),))
    uid, key = f"uid-{name}", f"pod/default/{name}"
    seen = TaskSeen(uid, "1", "n1", charge, queue="default", job=key, namespace="default", name=name)
    await w.ledger.tasks_seen([seen], 1)
    await w._tail()
    fact = PodFact(
        uid=uid, name=name, namespace="default", version="1", node="n1", charge=charge, job=key, queue="default",
        ours=True, started=EPOCH - 1000, workload=f"ReplicaSet/default/{name}",
    )  # fmt: skip
    w.state.view.see(fact, 0.0)


async def leaves_and_comes_again(w: World, name: str) -> Job:
    await w.ledger.tasks_gone([f"uid-{name}"], 1)
    await w._tail()
    w.state.view.gone(f"pod/uid-{name}")
    again = w.job(f"{name}-again", 1, at=w.clock.now, workload=f"ReplicaSet/default/{name}")
    w.enter(again)
    return again


async def test_one_victim_took_its_whole_grace_and_the_room_of_the_other_was_stolen_back() -> None:
    async with world(node("n1", gpus=2), placement_reserve_s=0) as w:
        w.runs = lambda _key: 1e6
        for index, name in enumerate(("left", "right")):
            await runs(w, name, index)
        urgent = w.job("urgent", 2, priority=9)
        w.enter(urgent)
        await w.play(0.5)
        assert urgent.evicting is not None and set(urgent.evicting.victims) == {"uid-left", "uid-right"}
        again = await leaves_and_comes_again(w, "left")
        for second in range(1, int(GRACE_S) + 1):
            await w.play(float(second))
            w.comes(w.job(f"small-{second}", 1, at=w.clock.now), w.clock.now)
            assert not w.started, "one GPU is free, and it is kept"
        assert again.head.key in w.state.waiting
        await leaves_and_comes_again(w, "right")
        await w.play(w.clock.now + 2.0, done=lambda: bool(w.started))
        assert list(w.started) == [urgent.head.key]
        await w.play(w.clock.now + 5.0)
        assert list(w.started) == [urgent.head.key]
