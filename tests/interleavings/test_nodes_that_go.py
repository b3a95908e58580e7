"""Nodes that go with pods on them and come back as others: the node's name keeps what is charged to it until its pods
are gone, whoever takes them; what was lost with a machine is placed again, and a gang holds all or nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

import pytest

from services.placement import assess, reserve
from services.placement.gangs import Patience
from services.placement.jobs import Pending
from services.placement.state import State
from tests.interleavings.incident import incident, lua, python, run
from tests.interleavings.laws import BrokenLaw, law
from tests.interleavings.test_seeded_schedules import DELAYS, LOST, losable
from tests.interleavings.world import World

SEEDS = 12


@incident(
    lost_with_its_node_is_no_failure=python(assess, "lost", lambda pod: pod.status_reason.startswith("OutOf")),
)
async def test_a_job_that_may_not_fail_once_loses_a_task_with_its_machine(world: World) -> None:
    """The garbage collector calls the pod Failed and deletes it a moment later: whoever looks in between must not count
    that against the job's program."""
    world.node("n1", 1)
    world.node("n2", 1)
    await world.spine("placement", "binder")
    world.job("train", 2, backoffLimit=0)
    await world.until(lambda: len(world.bound()) == 2, "both tasks run")
    await world.rest(1.0)
    world.remove_node("n1")
    await world.rest(1.0)
    deleting = world.collect("n1", then_delete=False)
    await world.rest(1.0)
    for pod in deleting:
        world.delete(pod.name)
    world.node("n1", 1)
    await world.until(lambda: len(world.bound()) == 2, "the lost task runs again")
    law(not world.read_job("train").ended, "a machine that is lost fails no job")
    for name in world.bound():
        world.end(name)
    await world.until(lambda: world.read_job("train").ended, "the job succeeds")
    law(world.read_job("train").status.phase == "Succeeded", "the job succeeds")


@incident(
    broken_gangs_yield=python(Patience, "to_release", lambda *_: None),
    what_was_kept_for_the_missing_goes_too=python(State, "keep_none", lambda *_: None),
)
async def test_a_gang_loses_a_machine_and_the_room_for_its_missing_members(world: World) -> None:
    """It is refilled as soon as that is possible, and where it is not, it yields as a whole after its grace."""
    world.node("n1", 2)
    world.node("n2", 2)
    await world.spine("placement", "binder")
    world.gang("g", 4)
    await world.until(lambda: len(world.bound()) == 4, "the gang runs")
    await world.rest(1.0)
    world.remove_node("n1")
    await world.rest(5.0)
    for pod in world.collect("n1"):
        world.pod(pod.name, gang="g", gang_min=4)
    world.pod("waits", 2)
    await world.until(lambda: "waits" in world.bound(), "the gang yields its room to who can use it", 150.0)
    law(not [n for n in world.bound() if n.startswith("g")], "and holds nothing")
    released = [f"g{n}" for n in range(4) if world.read(f"g{n}") is None]
    for name in released:
        world.pod(name, gang="g", gang_min=4)
    world.node("n1", 2)
    world.delete("waits")
    await world.until(lambda: len(world.bound()) == 4, "with a machine in its place all of it runs")
    for name in world.bound():
        world.delete(name)
    await world.nothing_left()


@incident(only_who_could_take_it_has_room_kept=python(reserve, "_NOT_READY", frozenset()))
async def test_room_is_kept_for_a_gang_that_loses_one_of_those_who_wait(world: World) -> None:
    world.node("n1", 4)
    await world.spine("placement", "binder")
    for n in range(4):
        world.pod(f"s{n}")
    await world.until(lambda: len(world.bound()) == 4, "the node is full")
    world.gang("g", 4)
    await world.rest(90.0)
    world.delete("s0")
    world.delete("s1")
    await world.rest(5.0)
    world.pod("x")
    await world.rest(5.0)
    law("x" not in world.bound(), "room is kept for the first of the line")
    world.delete("g3")
    await world.until(lambda: "x" in world.bound(), "nobody keeps room for a gang that cannot start")


@incident(gangs_that_were_here_are_remembered=python(Pending, "_was_here", lambda *_: False))
async def test_members_are_made_anew_after_others_ended_well_and_the_gang_was_forgotten(world: World) -> None:
    """A gang of which nothing waits is forgotten by the slow pass. Made anew, its members are too few by themselves:
    that those who are done count must not be found out by the next slow pass only."""
    world.node("n1", 3)
    await world.spine("placement", "binder")
    world.gang("g", 3)
    await world.until(lambda: len(world.bound()) == 3, "the gang runs")
    await world.rest(35.0)
    world.end("g0")
    for name in ("g1", "g2"):
        world.delete(name)
    await world.rest(0.5)
    for name in ("g1", "g2"):
        world.pod(name, gang="g", gang_min=3)
    await world.until(lambda: world.bound().keys() == {"g1", "g2"}, "those that were made anew run", 5.0)


def history(seed: int) -> object:
    rng = random.Random(seed)

    async def live(world: World) -> None:
        sizes = {"n1": 3, "n2": 2, "n3": 2}
        for name, gpus in sizes.items():
            world.node(name, gpus)
        await world.start("watcher")
        for service in ("placement", "binder"):
            for replica in ("-1", "-2"):
                await world.start(service, replica)
        await world.start("preemptor")
        world.pauses.shuffle(seed, DELAYS, lost=LOST, losable=losable)

        async def registered_anew(name: str) -> None:
            world.remove_node(name)
            await world.rest(rng.choice((0.0, 0.05, 1.0, 5.0)))
            world.node(name, sizes[name])
            world.start_bound(name)

        async def lost(name: str) -> None:
            world.remove_node(name)
            while True:
                await world.rest(rng.choice((1.0, 5.0, 20.0)))
                for pod in world.collect(name):
                    if pod.name in made:
                        made[pod.name]()
                if rng.random() < 0.6:
                    break
            world.node(name, sizes[name])
            world.start_bound(name)

        made: dict[str, Callable[[], str]] = {"a": partial(world.pod, "a"), "b": partial(world.pod, "b", 2)}
        made |= {f"g{n}": partial(world.pod, f"g{n}", gang="g", gang_min=3) for n in range(3)}
        made["urgent"] = partial(world.pod, "urgent", priority="high")
        nodes = [registered_anew("n1"), lost("n2"), registered_anew("n3")]
        rng.shuffle(nodes)
        world.job("train", 2, backoffLimit=0)
        changes: list[asyncio.Task[None]] = []
        for make in made.values():
            make()
            await world.rest(rng.choice((0.0, 0.02, 0.1, 0.5)))
            if nodes and rng.random() < 0.7:
                changes.append(asyncio.create_task(nodes.pop()))
        changes += [asyncio.create_task(one) for one in nodes]
        await asyncio.gather(*changes)
        await world.rest(1.0)
        world.pauses.calm()

        world.node("n4", 8)  # whatever the others have split, there is room for all

        def all_run() -> bool:
            for name, make in made.items():
                if world.read(name) is None:
                    make()  # as its owner would: it was evicted, or its gang had to yield
            running = world.bound()
            return made.keys() <= running.keys() and sum(name.startswith("train") for name in running) == 2

        await world.until(all_run, "everything runs", 200.0)
        law(not world.read_job("train").ended, "what nodes do fails no job")
        world.delete_job("train")
        for pod in world.pods():
            world.delete(pod.name)
        await world.nothing_left()

    return live


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nodes_go_and_come_back_under_a_seeded_schedule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run(history(seed), monkeypatch, seed=seed)  # type: ignore[arg-type]


GONE_IS_EMPTY = lua(
    (
        "      n.spec.gone = true\n",
        "      n.spec.gone = true n.use = {cpu = 0, mem = 0, pods = 0, blind = 0, gpus = {}}\n",
    )
)


def test_the_history_finds_a_node_that_forgets_its_pods_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokenLaw):
        for seed in range(SEEDS):
            with monkeypatch.context() as patch:
                GONE_IS_EMPTY(patch)
                run(history(seed), patch, seed=seed)  # type: ignore[arg-type]
