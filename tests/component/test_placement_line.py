"""A whole line: how long its members wait at the most, and when the first of them are expected to start."""

from __future__ import annotations

import msgspec

from libs.domain.line import Turn
from libs.domain.queues import Queue, Quota
from libs.domain.resources import WHOLE
from libs.engine.fair import LittleService
from libs.testkit.builders import node
from services.placement.explain import sentence
from tests.component.test_placement_owed import GUESTS, guests, stay
from tests.component.virtual_placement import World, world


async def line(w: World, count: int) -> list[Turn]:
    """Pods of one GPU, for which nobody is made to leave yet; what each is told after some looks."""
    jobs = [w.job(f"p{n:03d}", 1, queue="owner", at=n / 100) for n in range(count)]
    for job in jobs:
        job.settles_at = w.clock.now + 3600
        w.enter(job)
    await w.play(w.clock.now + 5.0)
    turns: list[Turn | None] = []
    for _ in range(6):
        turns = [w.explainer.turn_of(job, w.clock.now, w.clock.wall()) for job in jobs]
        await w.play(w.clock.now + 6.0)
    return [turn for turn in turns if turn is not None]


async def test_the_hundredth_of_a_queue_within_its_share_has_a_bound_as_the_first_has() -> None:
    async with world(*(node(f"n{n}") for n in range(15))) as w:
        w.queues(Queue("owner", deserved=Quota(gpu_milli=120 * WHOLE)), GUESTS)
        await guests(w, *[1] * 120)
        turns = await line(w, 100)
        assert [turn.bound_s for turn in turns] == [600 * n for n in range(1, 101)]


async def test_whom_what_others_give_back_is_no_room_for_is_told_so_and_not_those_before_it() -> None:
    async with world(*(node(f"n{n}") for n in range(10))) as w:
        w.queues(Queue("owner", deserved=Quota(gpu_milli=80 * WHOLE)), GUESTS)
        await guests(w, *[1] * 80)
        for n in range(70, 80):
            stay(w, f"g{n}", preemptible=False)
        turns = await line(w, 80)
        assert all(turn.bound_s for turn in turns[:64])
        assert not turns[-1].bound_s
        assert "are not preemptible" in turns[-1].bound_basis


async def test_each_of_the_first_is_told_when_it_starts_beside_those_before_it_and_from_what_that_follows() -> None:
    async with world(node("n1")) as w:
        w.runs = lambda key: 100.0 * (1 + int(key[-1]))
        for n in range(8):
            w.enter(w.job(f"r{n}", 1, expected_s=100 * (n + 1), at=0.0))
        await w.play(1.0)
        jobs = [w.job(f"w{n}", 2, at=1.0 + n / 100) for n in range(5)]
        for job in jobs:
            w.enter(job)
        await w.play(12.0)
        turns = [w.explainer.turn_of(job, w.clock.now, w.clock.wall()) for job in jobs]
        starts = [turn.start - w.clock.wall() + w.clock.now for turn in turns if turn is not None and turn.start]
        assert [round(start, -2) for start in starts] == [200, 400, 600, 800]
        assert {turn.basis for turn in turns[:4] if turn is not None} == {"declared run times"}
        last = turns[4]
        assert last is not None and not last.start, "what is to start before it has said nothing of when it ends"
        assert "expected to wait no longer than about" in sentence(last)


async def test_what_is_only_predicted_is_expected_and_after_the_wait_that_makes_others_yield() -> None:
    async with world(node("n1"), placement_reserve_after_s=20, placement_reserve_s=300) as w:
        w.engine._session.service.rules = LittleService()
        w.runs = lambda _key: 60.0
        for n in range(29):
            w.comes(w.job(f"s{n}", 1, at=n * 8.0), n * 8.0)
        await w.play(230.0)
        for task in list(w.engine._session.running.by_uid.values()):
            w.engine.pod_seen(msgspec.structs.replace(task, checkpoint_s=1800))
        job = w.job("large", 8, at=w.clock.now)
        w.enter(job)
        await w.play(w.clock.now + 8.0)
        turn = w.explainer.turn_of(job, w.clock.now, w.clock.wall())
        assert turn is not None and not turn.bound_s
        assert turn.bound_basis.startswith("nothing enforces when what runs ends")
        assert turn.expects_s > 129_600 - 60, "nobody leaves before that, and no room is kept"
        assert "as predicted from earlier runs, and room that is kept once it has waited too long" in turn.expects_basis
