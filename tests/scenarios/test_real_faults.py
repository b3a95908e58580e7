"""What changes between a decision and its write, forced with the binder standing still, on the running system."""

import asyncio

import pytest

from libs.domain import keys
from libs.store.pages import all_use
from tests.e2e.world import LABEL, World, bound

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


async def test_a_pod_recreated_under_its_name_is_not_bound_by_the_decision_for_the_old_one(world: World) -> None:
    await world.nodes(1)
    async with world.paused("binder"):
        await world.create(world.pod("train"))
        claim = await world.planned()
        await world.delete("train")
        # The new one asks for a node that does not exist: only the old decision could bind it.
        await world.create(world.pod("train", nodeSelector={LABEL: f"{world.namespace}-nowhere"}))
        pods = await world.until(lambda pods: "train" in pods)
        assert pods["train"].view.uid != claim.task
    await world.until_held(lambda held: not held)
    pods = await world.until(lambda pods: bool(pods["train"].reason))
    assert bound(pods) == []
    assert pods["train"].reason == "Unschedulable"
    assert pods["train"].view.claim == ""


async def test_a_recreated_pod_gets_a_decision_of_its_own(world: World) -> None:
    await world.nodes(1)
    async with world.paused("binder"):
        await world.create(world.pod("train", gpus=8))
        old = await world.planned()
        await world.delete("train")
        await world.create(world.pod("train", gpus=1))
    pods = await world.until(lambda pods: bool(bound(pods)))
    train = pods["train"]
    assert train.view.claim != old.id
    assert len(train.gpus.split(",")) == 1
    held = await world.until_held(lambda held: [h.state for h in held] == ["bound"])
    assert held[0].id == train.view.uid
    assert len(held[0].charge.gpus) == 1


async def test_a_cordon_acknowledged_half_a_second_before_the_bind_is_honoured(world: World) -> None:
    first, second = await world.nodes(2)
    async with world.paused("binder"):
        await world.create(world.pod("train"))
        chosen = (await world.planned()).node
        await world.cordon(chosen)
        await asyncio.sleep(0.5)
    pods = await world.until(lambda pods: bool(bound(pods)))
    assert pods["train"].view.node == (second if chosen == first else first)
    held = await world.until_held(lambda held: [h.state for h in held] == ["bound"])
    assert held[0].node != chosen


async def test_a_bind_that_fails_because_the_pod_is_gone_leaves_nothing_behind(world: World) -> None:
    await world.nodes(1)
    async with world.paused("binder"):
        await world.create(world.pod("train", gpus=8))
        await world.planned()
        await world.delete("train")
    await world.until_held(lambda held: not held)
    nodes, _ = await all_use(world.ledger)
    used = [use for name, use in nodes.items() if name in world.node_names]
    assert [(u.cpu, u.mem, u.pods) for u in used] == [(0, 0, 0)]
    # And its room is there for the next one.
    await world.create(world.pod("next", gpus=8))
    pods = await world.until(lambda pods: bool(bound(pods)))
    assert pods["next"].gpus == "0,1,2,3,4,5,6,7"


async def test_a_gang_of_which_one_pod_vanished_before_the_bind_is_not_bound_in_part(world: World) -> None:
    await world.nodes(1)
    async with world.paused("binder"):
        gang = world.gang("gang", 4)
        await world.create(*gang)
        await world.until_held(lambda held: sum(h.state == "planned" for h in held) == 4)
        await world.delete("gang-2")
        await world.until_held(lambda held: len(held) == 3)  # the ledger knows that one has ended
    await world.until_held(lambda held: not held)
    pods = await world.until(lambda pods: all(p.reason for p in pods.values()))
    assert bound(pods) == []
    assert {p.reason for p in pods.values()} == {"GangIncomplete"}
    await world.create(world.pod("gang-2", annotations={keys.JOB: "gang", keys.GANG_MIN: "4"}))
    await world.until(lambda pods: len(bound(pods)) == 4)
