"""Offsets, poison, clocks and the library: entries 21 to 24 of docs/interleavings.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from libs.bus.port import Incoming
from libs.bus.positions import Positions
from libs.store import library as texts
from libs.store import server as store
from libs.store.embedded import embedded_ledger
from services.watcher import intake
from tests.interleavings.incident import incident, lua, python
from tests.interleavings.laws import law
from tests.interleavings.world import World

# -- rules taken out --------------------------------------------------------------------------------------------------


def _due_as_soon_as_read(self: Positions) -> dict[tuple[str, int], int]:
    return {place: line[-1].offset + 1 for place, line in self._lines.items() if line}


def _one_lane(record: Incoming) -> tuple[str, str]:
    return record.topic, "all"


def _own_lane(record: Incoming) -> tuple[str, str]:
    return record.topic, f"{record.partition}/{record.offset}"


class _Digest:
    def __init__(self, _text: bytes) -> None: ...

    def hexdigest(self) -> str:
        return "0" * 64


# -- 21, 22: messages -------------------------------------------------------------------------------------------------


@incident(lowest_contiguous_offset=python(Positions, "due", _due_as_soon_as_read))
async def test_21_a_later_plan_is_finished_and_the_binder_dies_with_an_earlier_one(world: World) -> None:
    world.node("n1", 2)
    await world.start("watcher")
    await world.start("placement")
    dying = await world.start("binder", "-1")
    slow, quick = world.pod_keys()
    held = world.pauses.hold("binder-1", "POST binding", f"/{slow}/")
    world.pod(slow)
    await held.reached()
    world.pod(quick)
    await world.until(lambda: quick in world.bound(), "the later one is bound")
    await world.rest(0.5)
    await dying.kill()
    await world.start("binder", "-2")
    await world.until(lambda: slow in world.bound(), "what was not finished is read again", 5.0)


@incident(dead_letter_before_the_offset=python(Positions, "due", _due_as_soon_as_read))
async def test_22_the_process_dies_before_a_dead_letter_is_acknowledged(world: World) -> None:
    first = await world.start("watcher", "-1")
    writing = world.pauses.hold("watcher-1", "send drystone.dead-letters+drystone.status")
    await world.event("bad", raw=b"{no json")
    await writing.reached()
    await world.rest(1.0)
    await first.kill()
    await world.start("watcher", "-2", wait=False)

    async def written() -> bool:
        return await world.letters() == 1

    await world.until_asked(written, "every event ends as a job or as a dead letter")


@incident(others_pass=python(intake, "lane_of", _one_lane), order_of_a_key=python(intake, "lane_of", _own_lane))
async def test_22_a_key_is_parked_with_its_cancel_behind_it_and_others_pass(world: World) -> None:
    await world.start("watcher")
    stuck = world.pauses.hold("watcher", "POST trainingjobs", most=1)
    await world.event("stuck")
    await stuck.reached()
    await world.event("next")
    await world.event("stuck", cancel=True, key="another")
    await world.rest(2.0)
    law(world.jobs() == ["next"], "a job that is stuck holds up no other")
    stuck.go()
    await world.rest(5.0)
    law(world.jobs() == ["next"], "a cancel does not overtake its own job")


# -- 23: clocks -------------------------------------------------------------------------------------------------------


@incident(never_below_the_last_stamp=lua(("now = max(stamp, t[1] * 1000", "now = max(0, t[1] * 1000")))
async def test_23_the_clock_of_redis_is_set_back_after_a_deadline_has_passed(world: World) -> None:
    world.node("n1", 2)
    await world.start("watcher")
    await world.start("placement")
    world.pod("x")
    await world.rest(11.0)
    world.pod("y")  # its commit leaves a stamp behind
    await world.rest(1.0)
    world.forget_plans()
    world.redis_clock.offset_s -= 3600.0
    await world.start("binder")
    await world.until(lambda: "x" in world.bound(), "a deadline that has passed stays passed")


# -- 24: the library --------------------------------------------------------------------------------------------------


@incident(name_by_digest=python(texts.hashlib, "sha256", _Digest))
async def test_24_two_releases_run_side_by_side_and_each_has_its_own_rules(world: World) -> None:
    """The other release counts marks in steps of two."""
    read = Path.read_text

    def other(self: Path, *arguments: Any, **named: Any) -> str:
        return read(self, *arguments, **named).replace("'seq', 1)", "'seq', 2)")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "library", texts.library.__wrapped__)
        older = embedded_ledger(server=world.redis)
        await older.open()
        patch.setattr(Path, "read_text", other)
        newer = embedded_ledger(server=world.redis)
    await newer.open()
    marks = [await ledger.mark() for ledger in (older, newer, older)]
    await older.close()
    await newer.close()
    law([marks[1] - marks[0], marks[2] - marks[1]] == [2, 1], "what runs is what a process ships")


@incident(
    no_time_to_live=lua(
        ("write_hash(u, u.task, ':tasks')", "write_hash(u, u.task, ':tasks') call('EXPIRE', u.p .. ':tasks', 3600)")
    )
)
async def test_24_nothing_that_is_charged_times_out_by_itself(world: World) -> None:
    world.node("n1", 3)
    await world.spine()
    world.pod("x")
    world.gang("g", 2)
    await world.until(lambda: len(world.bound()) == 3, "they run")
    world.pod("urgent", priority="high")
    await world.until(lambda: "urgent" in world.bound(), "somebody yields")
    law(world.timed_keys() == [], f"no key of the ledger has a time to live: {world.timed_keys()}")
