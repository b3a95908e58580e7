"""GPUs that gather for a large job are at work meanwhile, and it starts no later for it: in virtual time, on the real
ledger, with pods that are bound, evicted and made again."""

from __future__ import annotations

import msgspec

from libs.contracts.events import PdbFact
from libs.testkit.builders import node
from services.placement.jobs import Job
from tests.component.lending_world import Bound, bound_world

SETTINGS = {"placement_reserve_after_s": 5, "placement_reserve_s": 900}


def fill(w: Bound, lengths: dict[str, float], **head: int) -> None:
    """Pods of one GPU that run at the start."""
    for name in lengths:
        w.enter(w.job(name, 1, **head))


def stream(w: Bound, count: int, at: float, every: float, name: str = "small", **head: object) -> None:
    for number in range(count):
        w.comes(w.job(f"{name}{number}", 1, at=at + every * number, **head), at + every * number)


def again(w: Bound) -> None:
    """Who is evicted is made again at once."""
    made = iter(range(10_000))

    def comes(job: Job, ran: float, now: float) -> None:
        name = f"{job.head.key.rpartition('/')[2]}.{next(made)}"
        new = w.job(name, 1, at=now, checkpoint_s=job.head.checkpoint_s)
        new.head = msgspec.structs.replace(new.head, workload=job.head.workload)
        w.comes(new, now)

    w.comes_again = comes


async def large_beside(
    small: dict[str, object], *, stuck: float = 300.0, budget: bool = False
) -> tuple[float, float, Bound]:
    """(start of the large job, GPUs in use in the mean while its room gathered, the world). Seven pods end after a
    minute; of one that runs `stuck` seconds nobody knows when it ends."""
    async with bound_world(node("n1"), **SETTINGS) as w:
        w.runs = lambda key: stuck if "first0" in key else 60.0 if "first" in key else 1e5 if "large" in key else 500.0
        fill(w, {f"first{n}": 0.0 for n in range(8)})
        await w.play(1.0)
        if budget:
            w.state.view.see(PdbFact("all", "default", "u", "1", {}, 0), 0.0)
        large = w.job("large", 8, at=1.0)
        w.comes(large, 1.0)
        again(w)
        stream(w, 12, 70.0, 1.0, **small)
        await w.play(900.0, done=lambda: large.head.key in w.started)
        start = w.started[large.head.key]
        return start, w.used(70.0, start) / (start - 70.0), w


async def test_who_saves_its_work_uses_what_gathers_and_leaves_when_the_head_lacks_no_other() -> None:
    alone, idle, _ = await large_beside({})
    beside, busy, w = await large_beside({"checkpoint_s": 30})
    assert idle < 1.1, "who says nothing of itself is lent nothing"
    assert busy > 7.5
    assert beside <= alone + w.grace_s + 0.1, "their grace period and no more"
    assert len(w.evicted) == 7
    assert {beneficiary for _, _, beneficiary in w.evicted} == {"pod/default/large"}
    assert all(at >= 300.0 for at, _, _ in w.evicted), "nobody leaves before the last of the others has"


async def test_who_may_not_be_evicted_is_lent_nothing_though_it_saves_its_work() -> None:
    _, busy, w = await large_beside({"checkpoint_s": 30, "preemptible": False})
    assert busy < 1.1
    assert not w.evicted


async def test_who_a_disruption_budget_keeps_is_lent_nothing() -> None:
    _, busy, w = await large_beside({"checkpoint_s": 30}, budget=True)
    assert busy < 1.1
    assert not w.evicted


async def test_all_that_come_at_once_are_lent_room_side_by_side() -> None:
    async with bound_world(node("n1"), **SETTINGS) as w:
        w.runs = lambda key: 60.0 if "first" in key and not key.endswith("0") else 5000.0
        fill(w, {f"first{n}": 0.0 for n in range(8)})
        await w.play(1.0)
        w.comes(w.job("large", 8, at=1.0), 1.0)
        stream(w, 9, 70.0, 0.0, checkpoint_s=30)
        await w.play(75.0)
        assert sum("small" in key for key in w.started) == 7


async def test_borrowers_that_come_again_do_not_take_the_room_once_more() -> None:
    start, _, w = await large_beside({"checkpoint_s": 30})
    assert start < 310.0
    await w.play(w.clock.now + 60.0)
    assert len(w.evicted) == 7


async def test_who_ends_by_prediction_before_the_head_starts_uses_its_room_and_goes_if_it_does_not() -> None:
    async with bound_world(node("n1"), **SETTINGS) as w:
        large_ends = 1e5

        def runs(key: str) -> float:
            if "large" in key:
                return large_ends
            if "first" in key:
                return 400.0 if key.endswith("first0") else 60.0
            return 5000.0 if key.endswith("small3") else 20.0

        w.runs = runs
        for n in range(8):  # they say when they end, so it is known when the large one starts
            w.enter(w.job(f"first{n}", 1, expected_s=400 if n == 0 else 60))
        await w.play(1.0)
        large = w.job("large", 8, at=1.0)
        w.comes(large, 1.0)
        await w.play(50.0, done=lambda: large.gathering is not None)
        assert large.gathering is not None and large.gathering.start.low
        # By then seven of the queue and size have ended, after a minute.
        stream(w, 30, 70.0, 5.0)
        await w.play(900.0, done=lambda: large.head.key in w.started)
        short = [key for key, at in w.started.items() if "small" in key and at < 360.0]
        assert len(short) >= 25
        assert [uid for _, uid, _ in w.evicted] == ["uid-small3"], "it outran what others before it had taken"
        assert w.started[large.head.key] <= 400.0 + w.grace_s + 1.0


async def test_a_gang_and_a_pod_with_a_least_run_time_borrow_nothing_that_they_would_have_to_leave() -> None:
    async with bound_world(node("n1"), **SETTINGS) as w:
        job = w.job("g", 1, checkpoint_s=30, gang_min=2)
        assert w.engine.borrows(w.state.pending.to_engine(job, may_evict=True), 1.8e9) is None
        single = w.job("s", 1, checkpoint_s=30)
        terms = w.engine.borrows(w.state.pending.to_engine(single, may_evict=True), 1.8e9)
        assert terms is not None and terms.saves and terms.runs_s == 0.0
