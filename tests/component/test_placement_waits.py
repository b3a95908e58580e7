"""Bounds on waiting, in virtual time: what is said of a wait is kept."""

from __future__ import annotations

import random

from libs.testkit.builders import node
from services.placement.jobs import Job
from tests.component.virtual_placement import EPOCH, World, world


def stream(w: World, seconds: float, every: float, **head: int) -> None:
    """More pods of one GPU than there is room for, for ever."""
    at, number = 0.0, 0
    while at < seconds:
        w.comes(w.job(f"s{number}", 1, at=at, **head), at)
        at += every
        number += 1


def large(w: World, at: float) -> Job:
    job = w.job("large", 8, at=at)
    w.comes(job, at)
    return job


async def test_an_aged_pod_of_a_whole_node_starts_within_what_was_expected_where_all_end_as_they_declare() -> None:
    async with world(node("n1"), node("n2"), placement_reserve_after_s=30, placement_reserve_s=300) as w:
        draw = random.Random(1)
        w.runs = lambda key: 1e6 if key.endswith("large") else draw.uniform(40, 100)
        stream(w, 1500.0, 3.0, expected_s=100)
        job = large(w, 100.0)
        await w.play(110.0)
        turn = w.explainer.turn_of(job, w.clock.now, w.clock.wall())
        assert turn is not None and turn.expects_s, "every running task declares its run time"
        assert (turn.bound_s, turn.expects_basis) == (0, "declared run times of what runs"), "which nothing enforces"
        bound, said_at = turn.expects_s, w.clock.now
        assert bound <= turn.position * (30 + 300)
        await w.play(1500.0, done=lambda: job.head.key in w.started)
        assert w.started[job.head.key] - said_at <= bound
        # Room gathers as soon as it has waited, and what runs there ends within its declared time.
        assert w.started[job.head.key] - 100.0 <= 30 + 100 + 15


async def test_what_is_expected_is_said_with_its_basis() -> None:
    async with world(node("n1"), placement_reserve_after_s=20, placement_reserve_s=300) as w:
        w.runs = lambda _key: 60.0
        stream(w, 600.0, 5.0, expected_s=60)
        job = large(w, 50.0)
        await w.play(90.0, done=lambda: job.gathering is not None)
        assert job.gathering is not None
        start = job.gathering.start
        assert start.basis == "declared run times"
        await w.play(600.0, done=lambda: job.head.key in w.started)
        assert abs(w.started[job.head.key] - (start.at - EPOCH)) <= 2.0


async def test_without_a_word_about_run_times_history_predicts_and_before_that_nobody_knows() -> None:
    async with world(node("n1"), placement_reserve_after_s=20, placement_reserve_s=300) as w:
        draw = random.Random(2)
        w.runs = lambda _key: draw.uniform(50, 70)
        stream(w, 900.0, 4.0)
        early = large(w, 10.0)
        await w.play(40.0, done=lambda: early.gathering is not None)
        assert early.gathering is not None and early.gathering.start.basis == "unknown run times"
        await w.play(300.0, done=lambda: early.head.key in w.started)
        assert w.started[early.head.key] <= 10 + 20 + 70 + 15, "room gathers all the same"
        late = w.job("later", 8, at=w.clock.now + 60)
        w.comes(late, w.clock.now + 60)
        await w.play(900.0, done=lambda: late.gathering is not None)
        assert late.gathering is not None
        start = late.gathering.start
        assert start.basis == "predicted from earlier runs" and start.low <= start.at <= start.high
        await w.play(900.0, done=lambda: late.head.key in w.started)
        assert start.low <= EPOCH + w.started[late.head.key] <= start.high + 20


async def test_a_reservation_for_a_job_that_nobody_can_time_ends_and_the_next_in_line_has_its_turn() -> None:
    async with world(node("n1"), node("n2"), placement_reserve_after_s=5, placement_reserve_s=50) as w:
        w.runs = lambda key: 1e6 if "stuck" in key else 20.0
        for number in range(2):  # one task that never ends on each node
            w.enter(w.job(f"stuck{number}", 5))
        await w.play(1.0)
        first, second = w.job("first", 8, at=1.0), w.job("second", 8, at=2.0)
        w.comes(first, 1.0)
        w.comes(second, 2.0)
        turns = []
        while w.clock.now < 400.0:
            await w.play(w.clock.now + 1.0)
            holder = w.state.gatherers.get("default")
            if holder is not None and (not turns or turns[-1] != holder):
                turns.append(holder)
        assert turns[:3] == [first.head.key, second.head.key, first.head.key]
        assert first.turns >= 1 and second.turns >= 1


async def test_short_jobs_use_the_room_that_gathers_and_the_head_starts_as_if_they_had_not_been_there() -> None:
    async def played(*, short: bool) -> tuple[float, int]:
        async with world(node("n1"), placement_reserve_after_s=5, placement_reserve_s=300) as w:
            w.runs = lambda key: 20.0 if "short" in key else 200.0 if key.endswith("0") else 60.0
            for number in range(8):  # seven end after a minute, one after more than three
                w.enter(w.job(f"first{number}", 1, expected_s=200 if number == 0 else 60))
            await w.play(1.0)
            job = large(w, 1.0)
            for number in range(20):
                at = 70.0 + number
                w.comes(
                    w.job(f"short{number}", 1, at=at, **({"expected_s": 20} if short else {"preemptible": False})), at
                )
            await w.play(400.0, done=lambda: job.head.key in w.started)
            passed = [key for key, at in w.started.items() if "short" in key and at < 190.0]
            return w.started[job.head.key], len(passed)

    alone, nobody = await played(short=False)
    beside, passed = await played(short=True)
    assert nobody == 0, "who neither says how long it runs nor may be evicted is lent nothing"
    assert passed >= 14
    assert beside <= alone + 1.0
