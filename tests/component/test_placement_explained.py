"""Where thousands stand in line is looked at in steps, and told to everybody all the while."""

from __future__ import annotations

import msgspec
import pytest

from libs.contracts.events import HistoryFact, JobStatus
from libs.contracts.topics import STATUS
from libs.domain.line import Turn
from libs.domain.queues import Eviction, Queue, QueueHistory
from libs.kube.grouping import job_of
from libs.testkit.builders import node
from services.placement import explain, learning
from tests.component.placement_scene import PARTITIONS, binder, placement, running, scene
from tests.component.virtual_placement import EPOCH, World, world


async def waiting(w: World, count: int) -> None:
    """A queue in which everybody waits, no two alike."""
    w.queues(Queue("a"))
    w.runs = lambda _key: 1e9
    w.enter(w.job("large", 5, queue="b"))
    await w.cycle.once()
    for number in range(count):
        w.enter(w.job(f"a{number:04}", 8, queue="a", cpu=100 + number, at=number / 1000))
    await w.play(count / 40)  # at a quarter of the rate, as long as something was placed a moment ago
    assert len(w.state.waiting) == count


async def test_who_came_since_the_last_look_is_told_its_place_and_so_are_all_others() -> None:
    async with world(node("n1", gpus=8), placement_reserve_s=0) as w:
        await waiting(w, 300)
        now, wall = w.clock.now, EPOCH + w.clock.now
        steps = sum(1 for _ in w.explainer.look(now, wall))
        assert steps >= 300 / 64, "others have the loop in between"
        assert not w.explainer.stale(now)

        third = w.explainer.turn_of(w.state.pending.jobs["pod/a/a0002"], now, wall)
        assert third is not None and (third.position, third.waiting, third.overall) == (3, 300, 3)
        assert third.behind == ("pod/a/a0001", "pod/a/a0000") and third.why == "older"

        ahead = w.job("ahead", 8, queue="a", cpu=5, priority=7, at=w.clock.now)
        last = w.job("last", 8, queue="a", cpu=6, at=w.clock.now)
        for job in (ahead, last):
            w.enter(job)
        await w.play(w.clock.now + 0.1)
        first = w.explainer.turn_of(ahead, now, wall)
        assert first is not None and (first.position, first.behind) == (1, ())
        end = w.explainer.turn_of(last, now, wall)
        assert end is not None and end.behind[0] == "pod/a/a0299" and end.position == end.waiting == 300
        behind_it = w.explainer.turn_of(w.state.pending.jobs["pod/a/a0000"], now, wall)
        assert behind_it is not None and behind_it.position == 1, "as it was when all were looked at"

        for _ in w.explainer.look(now, wall):
            pass
        behind_it = w.explainer.turn_of(w.state.pending.jobs["pod/a/a0000"], now, wall)
        assert behind_it is not None and (behind_it.position, behind_it.behind) == (2, ("pod/a/ahead",))
        assert behind_it.why == "higher priority"


async def test_who_waits_no_more_has_no_place() -> None:
    async with world(node("n1", gpus=8), placement_reserve_s=0) as w:
        await waiting(w, 5)
        job = w.state.pending.jobs["pod/a/a0003"]
        assert w.explainer.turn_of(job, w.clock.now, EPOCH) is not None
        w.state.forget(job.head.key)
        assert w.explainer.turn_of(job, w.clock.now, EPOCH) is None


async def test_two_replicas_tell_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten pods of one queue wait, some in partitions of the one replica, some of the other: each has a place of its
    own among all ten, and hears who stands before it, whose pod that is does not matter."""
    monkeypatch.setattr(explain, "LOOK_S", 0.02)
    monkeypatch.setattr(learning, "_LOOK_S", 0.02)
    often = {"placement_words_s": 0.01, "placement_rewrite_s": 0.02, "placement_slow_pass_s": 0.1}
    async with scene() as s:
        await s.facts(s.node("n1"))
        one, two = (placement(s, placement_mix_s=0.01, **often) for _ in range(2))
        async with running(one, two, binder(s)):
            await s.until(lambda: len(one.state.active | two.state.active) == PARTITIONS)
            await s.until(lambda: bool(one.state.active and two.state.active))
            await s.hint(s.pod("runs", gpus=5))
            await s.until(lambda: any(p.bound for p in s.read_pods()))
            names = [f"w{n}" for n in range(10)]
            for name in names:
                await s.hint(s.pod(name, gpus=8))

            def turns() -> dict[str, Turn]:
                return {status.job: status.turn for status in s.statuses if status.turn is not None}

            def in_one_line() -> bool:
                told = turns()
                return sorted(t.position for t in told.values()) == list(range(1, 11)) and all(
                    t.waiting == 10 for t in told.values()
                )

            await s.until(lambda: bool(one.state.waiting and two.state.waiting))
            await s.until(lambda: in_one_line())
            told = turns()
            by_position = {t.position: job for job, t in told.items()}
            for position in range(2, 11):
                assert told[by_position[position]].behind[0] == by_position[position - 1]
            assert {t.overall for t in told.values()} == set(range(1, 11))


async def test_who_was_made_again_hears_for_whom_the_pod_before_it_went() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        waits = s.pod("low-again", gpus=9)
        workload = job_of(waits).workload
        eviction = Eviction("pod/team/low", "pod/team/urgent", "priority", 1_796_000_000)
        history = QueueHistory(
            job_of(waits).queue, 1.0, evictions={workload: (eviction.at,)}, reasons={workload: (eviction,)}
        )
        said = ". It was evicted for pod/team/urgent by rule priority at 2026-11-30T00:53:20Z"
        async with running(placement(s, placement_words_s=0.01, placement_condition_s=0.01)):
            await s.hint(waits)
            await s.until(lambda: s.condition("low-again"))
            assert said not in (s.condition("low-again") or {})["message"], "nobody has told it yet"
            await s.publish_facts(HistoryFact(history))
            await s.until(lambda: (s.condition("low-again") or {})["message"].endswith(said), within_s=30.0)
            statuses = s.bus.follow([STATUS.name], from_start=True)
            heard = [msgspec.json.decode(r.value or b"", type=JobStatus) for r in await statuses.batch(100)]
        assert heard[-1].message.endswith(said)
