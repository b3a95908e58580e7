"""One small history under many schedules: at every point, before and after each call, a seed draws how long it takes
and whether it gets lost. No law may break on the way, everything that can run runs in the end, and nothing is left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from typing import Any

import pytest

from libs.runtime.tasks import ended
from libs.testkit.pauses import Point
from services.placement import app
from tests.interleavings.incident import incident, lua, python, run
from tests.interleavings.laws import BrokenLaw, law
from tests.interleavings.world import World

SEEDS = 30
#: Seconds. Most calls are quick; some take longer than a report waits, a few longer than an API call may.
DELAYS = (*(0.0,) * 60, *(0.001,) * 20, *(0.02,) * 10, *(0.2,) * 6, 1.0, 3.0, 6.0, 12.0)
LOST = 0.05


def losable(point: Point) -> bool:
    """Not the lease: a lost leadership is a history of its own, and every seed would be one. Nor the service's first
    look at its parts, which whoever starts it tries again."""
    return "leases" not in point.act and point.act != "ledger open"


def history(seed: int) -> object:
    rng = random.Random(seed)

    async def live(world: World) -> None:
        world.node("n1", 3)
        world.node("n2", 2)
        await world.start("watcher")
        await world.start("placement", "-1")
        await world.start("placement", "-2")
        await world.start("binder", "-1")
        await world.start("binder", "-2")
        await world.start("preemptor")
        world.pauses.shuffle(seed, DELAYS, lost=LOST, losable=losable)
        steps = [
            lambda: world.pod("a"),
            lambda: world.pod("b", 2),
            lambda: world.gang("g", 3),
            lambda: world.job("train", 2),
            lambda: world.pod("urgent", priority="high"),
            lambda: world.delete("a") if world.read("a") else None,
            lambda: world.cordon("n2"),
            lambda: world.heartbeat("n1"),
            lambda: world.delete_job("train"),
        ]
        restarts = ["watcher", "placement-1", "binder-1", "preemptor"]
        rng.shuffle(restarts)
        for step in steps:
            step()
            await world.rest(rng.choice((0.0, 0.02, 0.1, 0.5)))
            if restarts and rng.random() < 0.5:
                await world.restart(restarts.pop(), killed=rng.random() < 0.5)
        for actor in restarts:
            await world.restart(actor, killed=rng.random() < 0.5)
        world.cordon("n2", closed=False)
        world.node("n3", 4)
        await world.rest(1.0)
        world.pauses.calm()
        wanted = {p.name for p in world.pods() if not p.terminating and not p.name.startswith("train")}
        law("urgent" in wanted, "an urgent pod is nobody's victim")
        await world.until(
            lambda: {p.name for p in world.pods() if not p.terminating} <= world.bound().keys(),
            "everything that can run is bound",
            120.0,
        )
        for pod in world.pods():
            world.delete(pod.name)
        await world.nothing_left()

    return live


BREAKING = {
    "capacity_in_the_commit": lua(
        ("local function short(n, c)\n", "local function short(n, c)\n  do return nil end\n")
    ),
    "claim_is_converted": lua(
        ("local function claim_of(u, x)\n", "local function claim_of(u, x)\n  do return nil end\n")
    ),
}


@pytest.mark.parametrize("without", BREAKING)
def test_the_history_finds_a_rule_that_is_missing(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokenLaw):
        for seed in range(SEEDS):
            with monkeypatch.context() as patch:
                BREAKING[without](patch)
                run(history(seed), patch, seed=seed)  # type: ignore[arg-type]


async def _but_the_passes(tasks: Collection[asyncio.Task[Any]]) -> None:
    await ended([task for task in tasks if task.get_name() != "placement passes"])


@incident(every_task_is_ended=python(app, "ended", _but_the_passes))
async def test_placement_is_told_to_stop_while_its_last_commit_takes_longer_than_the_phase_for_it(world: World) -> None:
    world.node("n1", 1)
    _, placement = await world.spine("placement")
    slow = world.pauses.hold("placement", "ledger commit")
    world.pod("x")
    await slow.reached()
    asyncio.get_running_loop().call_later(5.0, slow.go)
    await world.stops(placement, within_s=20.0)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_small_history_under_a_seeded_schedule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run(history(seed), monkeypatch, seed=seed)  # type: ignore[arg-type]


def test_the_same_seed_is_the_same_story(monkeypatch: pytest.MonkeyPatch) -> None:
    stories = []
    for _ in range(2):
        with monkeypatch.context() as patch:
            stories.append(run(history(3), patch, seed=3))  # type: ignore[arg-type]
    assert stories[0] == stories[1]
