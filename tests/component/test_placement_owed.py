"""The bound on waiting of who is owed a share: a number only where nothing that may stay for longer is in the way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from libs.domain.line import Turn
from libs.domain.queues import Queue, Quota
from libs.domain.resources import WHOLE
from libs.testkit.builders import node
from services.placement.jobs import Job
from tests.component.virtual_placement import World, world

HOUR = 3600
OWNER = Queue("owner", deserved=Quota(gpu_milli=8 * WHOLE))
GUESTS = Queue("guests")


async def guests(w: World, *sizes: int, queue: str = "guests", cpu: int = 100) -> None:
    """Jobs that run for ever, and of which nobody knows for how long."""
    w.runs = lambda _key: 1e9
    for number, gpus in enumerate(sizes):
        w.enter(w.job(f"g{number}", gpus, queue=queue, cpu=cpu, at=0.0))
    await w.play(w.clock.now + 1.0)


def stay(w: World, pod: str, **why: Any) -> None:
    w.engine.pod_seen(msgspec.structs.replace(w.engine._session.running.by_uid[f"uid-{pod}"], **why))


async def waiting(w: World, *jobs: Job) -> list[Turn]:
    """What they are told while nobody is made to leave for them yet."""
    for job in jobs:
        job.settles_at = w.clock.now + HOUR
        w.enter(job)
    await w.play(w.clock.now + 5.0)
    turns = [w.explainer.turn_of(job, w.clock.now, w.clock.wall()) for job in jobs]
    return [turn for turn in turns if turn is not None]


async def test_the_first_two_of_a_queue_below_its_share_wait_for_one_eviction_each_at_the_most() -> None:
    async with world(node("n1")) as w:
        w.queues(OWNER, GUESTS)
        await guests(w, *[1] * 8)
        first, second = await waiting(w, *(w.job(f"p{n}", 1, queue="owner", at=n) for n in range(2)))
        assert (first.bound_s, second.bound_s) == (600, 1200)
        assert first.bound_basis == (
            "as long as others have as much to give back of what it deserves, their pods ending within 600 s"
        )


async def test_who_was_told_a_bound_is_helped_as_soon_as_it_may_make_others_leave() -> None:
    async with world(node("n1")) as w:
        w.queues(OWNER, GUESTS)
        await guests(w, *[1] * 8)
        job = w.job("p", 8, queue="owner", at=1.0)
        (turn,) = await waiting(w, job)
        assert (turn.bound_s, turn.evicts) == (600, ())
        (decision,) = w.engine.decide([w.state.pending.to_engine(job, may_evict=True)], w.clock.wall())
        assert (len(decision.victims), decision.rule) == (8, "reclaim")


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ({"preemptible": False}, "pods in the way are not preemptible"),
        ({"guarded": True}, "pods in the way have a disruption budget"),
        ({"ours": False}, "pods in the way are not placed by us"),
    ],
)
async def test_a_guest_that_may_stay_for_ever_was_passed_over_and_a_bound_was_printed_that_was_not_kept(
    why: dict[str, Any], said: str
) -> None:
    async with world(node("n1")) as w:
        w.queues(OWNER, GUESTS)
        await guests(w, *[1] * 8)
        stay(w, "g3", **why)
        (turn,) = await waiting(w, w.job("whole", 8, queue="owner", at=1.0))
        assert turn.bound_s == 0
        assert turn.bound_basis == f"nothing enforces when what runs ends, and {said}"


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"preemptible": False}, "pods in the way are not preemptible"),
        ({"evictions": 0}, "pods in the way were evicted often enough"),
        ({"min_run_s": HOUR}, "pods in the way have a least run time to go"),
    ],
)
async def test_a_queue_of_guests_that_nobody_may_evict_now_gives_no_bound(policy: dict[str, Any], said: str) -> None:
    async with world(node("n1")) as w:
        w.queues(OWNER, Queue("guests", **policy))
        await guests(w, *[1] * 8)
        (turn,) = await waiting(w, w.job("p", 1, queue="owner", at=1.0))
        assert turn.bound_s == 0
        assert said in turn.bound_basis


async def test_who_finds_guests_that_leave_has_a_bound_and_not_who_stands_behind_it() -> None:
    async with world(node("n1", gpus=2)) as w:
        w.queues(OWNER, GUESTS)
        await guests(w, 1, 1)
        stay(w, "g0", preemptible=False)
        first, second = await waiting(w, *(w.job(f"p{n}", 1, queue="owner", at=n) for n in range(2)))
        assert first.bound_s == 600
        assert (second.bound_s, "are not preemptible" in second.bound_basis) == (0, True)


async def test_a_share_that_lies_scattered_beside_others_shares_is_no_room_for_a_whole_node() -> None:
    async with world(node("n1"), node("n2")) as w:
        w.queues(OWNER, Queue("other", deserved=Quota(gpu_milli=8 * WHOLE)))
        await guests(w, 4, 4, 4, 4, queue="other")
        for uid in {pod.node: uid for uid, pod in w.state.view.pods.items()}.values():  # one of each node ends
            key = f"pod/other/{uid.removeprefix('uid-')}"
            ids = [claim.id for claim in w.state.pending.jobs[key].claims.values()]
            await w.ledger.drop(key, ids, w._generation)
            w.state.forget(key)
            w.state.view.gone(f"pod/{uid}")
        await w._tail()
        (turn,) = await waiting(w, w.job("whole", 8, queue="owner", at=1.0))
        assert turn.bound_s == 0
        assert turn.bound_basis.endswith("what others have to give back is no room for it")


async def test_a_queue_that_deserves_cpu_only_has_a_bound_as_well() -> None:
    async with world(node("n1", gpus=0, cpu=8000)) as w:
        w.queues(Queue("owner", deserved=Quota(cpu=4000)), GUESTS)
        await guests(w, *[0] * 8, cpu=1000)
        (turn,) = await waiting(w, w.job("p", 0, queue="owner", cpu=2000, at=1.0))
        assert turn.bound_s == 600


async def test_a_queue_that_deserves_memory_only_claims_nothing_back_and_is_told_so() -> None:
    async with world(node("n1")) as w:
        w.queues(Queue("owner", deserved=Quota(mem=1 << 20)), GUESTS)
        await guests(w, *[1] * 8)
        (turn,) = await waiting(w, w.job("p", 1, queue="owner", at=1.0))
        assert turn.bound_s == 0
        assert "may claim back nothing that it asks for" in turn.bound_basis


async def test_a_least_run_time_that_both_queues_have_from_above_counts() -> None:
    async with world(node("n1")) as w:
        w.queues(Queue("org", min_run_s=HOUR), msgspec.structs.replace(OWNER, path="org/owner"), Queue("org/guests"))
        await guests(w, *[1] * 8, queue="org/guests")
        (turn,) = await waiting(w, w.job("p", 1, queue="org/owner", at=1.0))
        assert (turn.bound_s, "have a least run time to go" in turn.bound_basis) == (0, True)


async def test_a_job_that_made_others_leave_often_enough_has_no_bound_by_that() -> None:
    async with world(node("n1"), placement_evictions=1) as w:
        w.queues(OWNER, GUESTS)
        await guests(w, *[1] * 8)
        job = w.job("p", 1, queue="owner", at=1.0)
        job.evictions = 1
        (turn,) = await waiting(w, job)
        assert (turn.bound_s, "often enough" in turn.bound_basis) == (0, True)


async def test_pods_without_gpus_hold_up_who_asks_for_none_and_their_run_times_count_for_its_bound() -> None:
    async with world(node("n1", gpus=0, cpu=8000)) as w:
        await guests(w, *[0] * 8, cpu=1000)
        (turn,) = await waiting(w, w.job("p", 0, cpu=2000, at=1.0))
        assert (turn.bound_s, turn.bound_basis) == (0, "nothing enforces when what runs ends")
