"""Placement replicas beside each other: entries 7 to 9 of docs/interleavings.md."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from libs.kube import nodes as kube_nodes
from libs.store.port import StreamBatch
from libs.store.redis import RedisLedger
from services.placement.jobs import Job
from services.placement.reserve import GANG_REFUSALS, Reservations
from services.watcher import decide as watcher_decide
from tests.interleavings.incident import incident, lua, python
from tests.interleavings.laws import law
from tests.interleavings.world import World, of_replica

# -- rules taken out --------------------------------------------------------------------------------------------------

_parse_node = kube_nodes.parse_node


def _spec_is_the_version(raw: bytes) -> Any:
    node = _parse_node(raw)
    return msgspec.structs.replace(node, spec=node.version)


def _never(self: Reservations, _job: Job) -> bool:
    return False


async def _tail_nothing(self: RedisLedger, position: str, wait_s: float = 0.5) -> StreamBatch:
    await asyncio.sleep(wait_s)
    return StreamBatch(position=position or "0", lost=not position)


#: What placement says to the ledger: that it takes room, and that it wants room kept.
_WORDS: Final = ("ledger commit", "ledger commit_evictions")


async def two_replicas(world: World, **settings: Any) -> None:
    """Of placement, beside one of all others; `settings` are placement's."""
    await world.start("watcher")
    await world.start("placement", "-1", **settings)
    await world.start("placement", "-2", **settings)
    await world.start("binder")


@incident(compare_the_spec_only=python(watcher_decide, "parse_node", _spec_is_the_version))
async def test_07_the_node_changes_its_version_before_each_commit_of_a_gang(world: World) -> None:
    """Singles are committed and the node beats between every decision of the gang and its commit."""
    world.node("n1", 64)
    await two_replicas(world)
    deciding = world.pauses.hold("placement", "ledger commit", "gang/", most=1)
    world.gang("g", 4)
    for number in range(8):
        await deciding.reached()
        following = world.pauses.hold("placement", "ledger commit", "gang/", most=1)
        world.pod(f"single{number}")
        world.heartbeat()
        await world.rest(0.2)
        deciding.go()
        deciding = following
        await world.rest(0.5)
        if "g0" in world.bound():
            break
    law({f"g{n}" for n in range(4)} <= world.bound().keys(), "a gang that fits is committed")


@incident(
    refused_again_and_again_it_gathers=python(Reservations, "gang_wanted", _never),
    room_that_comes_free_is_gathered=lua(
        ("local function top_up(u, n)\n", "local function top_up(u, n)\n  do return end\n")
    ),
)
async def test_07_singles_of_another_replica_get_ahead_of_a_gang_again_and_again(world: World) -> None:
    """Before every word of the gang to the ledger a single takes one of its devices, and is gone when it is decided
    again: at each commit, and at the very one that was to keep its room."""
    world.node("n1", 4)
    await two_replicas(world, placement_reserve_after_s=3600.0)  # so late that nobody is the head of a line (entry 20)
    name = of_replica(1, "g", "gang")
    gang = {f"{name}{n}" for n in range(4)}
    asked: list[str] = []
    said = [world.pauses.hold("placement-1", act, most=1) for act in _WORDS]
    world.gang(name, 4)
    for number in range(3 * GANG_REFUSALS):
        await world.until(
            lambda held=said: any(one.points for one in held), "a gang for which there is room is decided"
        )
        asked += [act for act, one in zip(_WORDS, said, strict=True) if one.points]
        single = of_replica(2, f"single{number}-")
        world.pod(single)
        await world.rest(1.0)
        for one in said:
            one.go()
        said = [world.pauses.hold("placement-1", act, most=1) for act in _WORDS]
        await world.rest(1.0)
        if gang <= world.bound().keys():
            break
        world.delete(single)
    law(gang <= world.bound().keys(), "a gang that others got ahead of three times has its turn")
    law(
        asked == ["ledger commit"] * GANG_REFUSALS + ["ledger commit_evictions", "ledger commit"],
        f"at its next: {asked}",
    )


@incident(limit_in_the_commit=lua(("at = quota(u, plan.queue, {c}", "local _ = quota(u, plan.queue, {c}")))
async def test_08_two_replicas_check_a_limit_and_each_add_to_it(world: World) -> None:
    world.seen.limits["team"] = 8000
    world.node("n1", 8)
    world.node("n2", 2)
    world.queue("team", 8)
    await two_replicas(world)
    world.pod("six", 6, queue="team")
    await world.until(lambda: "six" in world.bound(), "six of eight are used")
    names = [of_replica(1, "a"), of_replica(2, "b")]
    held = [world.pauses.hold(f"placement-{r}", "ledger commit", most=1) for r in (1, 2)]
    for name, node in zip(names, ("n1", "n2"), strict=True):
        world.pod(name, 2, queue="team", selector={"pick": node})
    for one in held:
        await one.reached()
    for one in held:
        one.go()
    await world.rest(5.0)
    law(sum(name in world.bound() for name in names) == 1, "one of the two starts")


@incident(stream_of_use=python(RedisLedger, "tail", _tail_nothing))
async def test_09_what_one_replica_claimed_and_lost_again_is_seen_by_the_other(world: World) -> None:
    """No binder: the claim of replica 1 expires, and the job of replica 2, who waits, is to have the room."""
    world.node("n1", 1)
    await world.start("watcher")
    await world.start("placement", "-1")
    await world.start("placement", "-2")
    x, y = of_replica(1, "p"), of_replica(2, "p")
    silent = world.pauses.hold("placement-1", "send drystone.plans")
    world.pod(x)
    await silent.reached()
    refused = len(world.seen.refused)
    world.pod(y, priority="high")
    await world.rest(5.0)
    law(len(world.seen.refused) == refused, "what others claimed is not offered again and again")
    world.delete(x)
    await world.start("binder")
    await world.until(lambda: y in world.bound(), "room that a claim of another replica gives back is seen", 15.0)
