"""Evictions and gangs: entries 16 to 20 of docs/interleavings.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from libs.domain.verdicts import Verdict
from libs.kube import writes
from libs.store.redis import RedisLedger
from services.placement.gangs import Patience
from services.placement.jobs import Job, Order
from services.placement.reserve import Reservations
from services.preemptor.evict import Evictor
from tests.interleavings.incident import incident, lua, python
from tests.interleavings.laws import law
from tests.interleavings.world import World, of_replica

# -- rules taken out --------------------------------------------------------------------------------------------------


def _without_uid(_uid: str, _version: str, grace_s: int | None) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "DeleteOptions"} | ({} if grace_s is None else {"gracePeriodSeconds": grace_s})


async def _all_well(*_: Any) -> dict[str, str]:
    return {}


def _whoever(self: Patience, _orders: Mapping[str, Order], ours: Iterable[str], now: float) -> str | None:
    ripe = (k for k in sorted(ours) if now - self.since[k] >= self.grace_s and k not in self.yielding)
    return next(ripe, None)


def _for_nobody(self: Reservations, _job: Job, _verdict: Verdict) -> bool:
    return False


async def two_replicas(world: World, *, gpus: int = 1) -> None:
    world.node("n1", gpus)
    await world.start("watcher")
    await world.start("placement", "-1")
    await world.start("placement", "-2")
    await world.start("binder")
    world.pod("low", gpus)
    await world.until(lambda: "low" in world.bound(), "low runs")
    await world.rest(1.0)


# -- 16: whose room ---------------------------------------------------------------------------------------------------


@incident(
    room_turns_into_the_earmark=lua(("local function top_up(u, n)\n", "local function top_up(u, n)\n  do return end\n"))
)
async def test_16_room_freed_for_one_is_seen_by_another_first(world: World) -> None:
    await two_replicas(world)
    await world.start("preemptor")
    owner, thief = of_replica(1, "owner"), of_replica(2, "thief")
    slow = world.pauses.hold("placement-1", "ledger commit")
    world.pod(owner, priority="high")
    await world.until(lambda: (low := world.read("low")) is None or low.terminating, "low has to go")
    world.pod(thief, priority="high")
    await world.rest(3.0)
    law(thief not in world.bound(), "the room of a victim is its beneficiary's from the first moment")
    slow.go()
    await world.until(lambda: owner in world.bound(), "and it starts there")


@incident(
    one_beneficiary_each=lua(
        (
            "elseif t.m then\n      refused[v.uid] = 'victim-marked'",
            "elseif false then\n      refused[v.uid] = 'victim-marked'",
        )
    )
)
async def test_16_two_replicas_count_the_same_victim(world: World) -> None:
    await two_replicas(world)
    before = len(world.seen.commits)
    deciding = [world.pauses.hold(f"placement-{n}", "ledger commit_evictions", most=1) for n in (1, 2)]
    world.pod(of_replica(1, "one"), priority="high")
    world.pod(of_replica(2, "two"), priority="high")
    for one in deciding:
        await one.reached()
    for one in deciding:
        one.go()
    await world.rest(1.0)
    winners = [actor for actor, answers in world.seen.commits[before:] if any(a.taken for a in answers)]
    law(len(winners) == 1, f"a victim makes room for one: {winners}")


# -- 17: gangs --------------------------------------------------------------------------------------------------------


@incident(the_whole_gang_is_begun_or_none=lua(("if gang and blocked and not begun then", "if false then")))
async def test_17_a_member_is_deleted_between_the_commit_and_the_first_write(world: World) -> None:
    world.node("n1", 4)
    await world.spine("placement", "binder")
    beginning = world.pauses.hold("binder", "ledger begin")
    world.gang("g", 3)
    await beginning.reached()
    world.delete("g2")
    await world.rest(1.0)
    beginning.go()
    await world.rest(5.0)
    law(not world.bound(), f"a gang below its minimum holds nothing: {world.bound()}")
    world.pod("g9", gang="g", gang_min=3)
    await world.until(lambda: world.bound().keys() == {"g0", "g1", "g9"}, "and starts when it is whole again")


@incident(lowest_yields_one_at_a_time=python(Patience, "to_release", _whoever))
async def test_17_two_broken_gangs_of_which_one_can_be_whole(world: World) -> None:
    world.node("n1", 6)
    await world.start("watcher")
    await world.start("placement", placement_gang_grace_s=5.0, placement_gang_settle_s=20.0)
    await world.start("binder")
    world.gang("a", 3, priority="high")
    world.gang("b", 3)
    await world.until(lambda: len(world.bound()) == 6, "both run")
    await world.rest(1.0)
    world.delete("a2")
    world.delete("b2")
    for name in ("x0", "x1"):
        world.pod(name, priority="high")
    await world.until(lambda: {"x0", "x1"} <= world.bound().keys(), "others take their places")
    await world.rest(1.0)
    world.pod("a9", gang="a", gang_min=3, priority="normal")
    world.pod("b9", gang="b", gang_min=3)
    await world.rest(60.0)
    law({"a0", "a1", "a9", "x0", "x1"} == world.bound().keys(), f"the lowest yields, and it alone: {world.bound()}")


# -- 18, 19: victims --------------------------------------------------------------------------------------------------


@incident(uid_precondition=python(writes, "_delete_options", _without_uid))
async def test_18_a_victim_is_replaced_under_its_name_just_before_it_is_deleted(world: World) -> None:
    world.node("n1", 1)
    await world.spine()
    world.pod("low")
    await world.until(lambda: "low" in world.bound(), "low runs")
    await world.rest(1.0)
    deleting = world.pauses.hold("preemptor", "DELETE pods")
    world.pod("urgent", priority="high")
    await deleting.reached()
    world.delete("low")
    new = world.pod("low")
    deleting.go()
    await world.until(lambda: "urgent" in world.bound(), "the room is there")
    there = world.read("low")
    law(there is not None and there.uid == new, "a pod that only has a victim's name lives")


@incident(rehearsal=python(Evictor, "_rehearse", _all_well))
async def test_19_four_victims_of_whom_a_budget_allows_two(world: World) -> None:
    world.node("n1", 4)
    await world.spine()
    for n in range(4):
        world.pod(f"web{n}", app="web")
    await world.until(lambda: len(world.bound()) == 4, "they run")
    world.budget("web", least=2)
    await world.rest(1.0)
    world.pod("urgent", 4, priority="high")
    await world.rest(10.0)
    law(len(world.bound()) == 4, f"nobody dies in vain: {world.bound()}")


@incident(beneficiary_still_waits=python(RedisLedger, "begin_evict", _all_well))
async def test_19_the_beneficiary_is_deleted_before_its_victim_goes(world: World) -> None:
    world.node("n1", 1)
    await world.spine()
    world.pod("low")
    await world.until(lambda: "low" in world.bound(), "low runs")
    await world.rest(1.0)
    beginning = world.pauses.hold("preemptor", "ledger begin_evict")
    world.pod("urgent", priority="high")
    await beginning.reached()
    world.delete("urgent")
    await world.rest(2.0)
    beginning.go()
    await world.rest(5.0)
    law("low" in world.bound(), "no eviction without somebody whom it helps")


# -- 20: the head of the line -----------------------------------------------------------------------------------------


@incident(head_reservation=python(Reservations, "wanted", _for_nobody))
async def test_20_a_large_job_heads_one_partition_while_another_fills_the_holes(world: World) -> None:
    world.node("n1", 2)
    await world.start("watcher")
    await world.start("placement", "-1", placement_reserve_after_s=1.0)
    await world.start("placement", "-2", placement_reserve_after_s=1.0)
    await world.start("binder")
    small = [of_replica(2, f"small{n}-") for n in range(30)]
    for name in small[:2]:
        world.pod(name)
    await world.until(lambda: world.bound().keys() >= set(small[:2]), "the small ones run")
    large = of_replica(1, "large")
    world.pod(large, 2)
    await world.rest(3.0)
    for name in small[2:]:
        world.pod(name)
        await world.rest(0.5)
        world.delete(min(set(small) & world.bound().keys(), key=small.index))
        await world.rest(1.0)
        if large in world.bound():
            break
    law(large in world.bound(), "who stands first is not passed for ever by another replica's jobs")
