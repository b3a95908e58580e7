"""The pending set under late, doubled and reordered hints; and who is woken by what."""

from __future__ import annotations

import msgspec
import pytest

from libs.contracts.events import JobChanged, Landed
from libs.domain.jobs import JobHead, Task
from libs.domain.resources import GpuRequest, Request
from libs.domain.usage import NodeUse
from libs.domain.verdicts import Kind, Reason, Verdict, Wake
from libs.engine.fair import place_of
from libs.store.port import Refusal
from services.placement.decide import (
    Next,
    Tenure,
    judge_outcome,
    judge_refusal,
    reason_word,
    signature,
    tempered,
)
from services.placement.jobs import Job, Pending
from services.placement.view import freed
from services.placement.wake import News, Waiting

NO_ROOM = Verdict(Kind.NOT_NOW, Reason.GPU_COUNT, wakes_on=(Wake.ROOM_FREED,), more_nodes_help=True)
NO_QUOTA = Verdict(Kind.NOT_NOW, Reason.QUOTA, wakes_on=(Wake.QUOTA_FREED,))


def task(uid: str, version: str = "1", gpus: int = 1) -> Task:
    return Task(id=uid, name=uid, namespace="ns", version=version, request=Request(gpu=GpuRequest(gpus)))


def change(key: str, *tasks: Task, priority: int = 0, created: float = 1.0, **fields: object) -> JobChanged:
    head = JobHead(key=key, tenant="t", namespace="ns", priority=priority, created=created)
    return JobChanged(head=head, tasks=tasks, **fields)  # type: ignore[arg-type]


def waiting_job(key: str, created: float = 1.0, queue: str = "default", gpus: int = 1) -> Job:
    head = JobHead(key=key, tenant="t", namespace="ns", queue=queue, created=created)
    return Job(head=head, partition=0, since=0.0, tasks={key: task(key, gpus=gpus)})


def looks(job: Job) -> object:
    return signature(job, job.waiting, 0, may_evict=True)


def test_a_hint_that_comes_after_the_bind_does_not_bring_the_task_back() -> None:
    pending = Pending()
    pending.merge(change("pod/ns/a", task("u1")), 0, 0.0)
    pending.merge(change("pod/ns/a", bound=("u1",)), 0, 1.0)
    assert pending.jobs == {}
    assert pending.merge(change("pod/ns/a", task("u1")), 0, 2.0) is None
    assert pending.jobs == {}


def test_gone_may_come_before_the_task() -> None:
    pending = Pending()
    pending.merge(change("pod/ns/a", gone=("u1",)), 0, 0.0)
    assert pending.merge(change("pod/ns/a", task("u1")), 0, 1.0) is None


def test_members_that_ended_well_count_towards_the_minimum_until_their_pods_are_deleted() -> None:
    pending = Pending()
    job = pending.merge(change("gang/ns/g", task("u1"), task("u2")), 0, 0.0)
    assert job is not None
    job.done = {"u0"}
    assert pending.held(job) == 1
    job.head = msgspec.structs.replace(job.head, gang_min=3)
    assert pending.to_engine(job, may_evict=True).held == 1
    pending.merge(change("gang/ns/g", gone=("u0",)), 0, 1.0)
    assert pending.held(job) == 0


def test_the_higher_version_of_a_task_wins_whatever_the_order() -> None:
    pending = Pending()
    pending.merge(change("pod/ns/a", task("u1", "1000")), 0, 0.0)
    pending.merge(change("pod/ns/a", task("u1", "999")), 0, 0.0)
    assert pending.jobs["pod/ns/a"].tasks["u1"].version == "1000"


def test_jobs_are_taken_by_priority_then_age_and_only_of_active_partitions() -> None:
    pending = Pending()
    pending.merge(change("pod/ns/old", task("u1"), created=1.0), 0, 0.0)
    pending.merge(change("pod/ns/young", task("u2"), created=2.0), 0, 0.0)
    pending.merge(change("pod/ns/high", task("u3"), created=3.0, priority=9), 0, 0.0)
    pending.merge(change("pod/ns/elsewhere", task("u4"), created=0.0, priority=99), 1, 0.0)
    assert [job.head.key for job in pending.take(2, {0}, 0.0)] == ["pod/ns/high", "pod/ns/old"]
    assert [job.head.key for job in pending.take(9, {0}, 0.0)] == ["pod/ns/young"]


def test_a_job_that_backs_off_is_taken_when_its_time_has_come() -> None:
    pending = Pending()
    job = pending.merge(change("pod/ns/a", task("u1")), 0, 0.0)
    assert job is not None
    pending.later(job, 5.0)
    assert pending.take(9, {0}, 1.0) == []
    assert pending.ripen(4.9) == 5.0
    pending.ripen(5.0)
    assert pending.take(9, {0}, 5.0) == [job]


def test_freed_room_wakes_one_of_the_alike_and_success_wakes_twice_as_many() -> None:
    waiting = Waiting()
    jobs = [waiting_job(f"j{i}", created=float(i)) for i in range(10)]
    waiting.hold(jobs[0], looks(jobs[0]), NO_ROOM)
    for job in jobs[1:]:
        assert waiting.shared(looks(job)) == NO_ROOM
        waiting.join(job, looks(job))
    assert waiting.groups == 1
    room = News(kinds={Wake.ROOM_FREED})
    assert waiting.wake(room) == ["j0"]
    assert waiting.wake(room) == [], "its answer is awaited"
    assert waiting.placed("j0") == ["j1", "j2"]
    assert waiting.placed("j1") == []
    assert waiting.placed("j2") == ["j3", "j4", "j5", "j6"]
    waiting.hold(jobs[3], looks(jobs[3]), NO_ROOM)
    assert len(waiting) == 7


def test_of_the_alike_the_one_with_less_service_is_first_and_who_is_overdue_no_more_stands_behind_again() -> None:
    levels, overdue = {"j0": 3, "j1": 0, "j2": 1}, set[str]()
    waiting = Waiting()
    waiting.place = lambda job: place_of(job.head, job.head.key in overdue, levels[job.head.key])
    jobs = {key: waiting_job(key, created=float(n)) for n, key in enumerate(levels)}
    for job in jobs.values():
        waiting.hold(job, looks(job), NO_ROOM)
    room = News(kinds={Wake.ROOM_FREED})

    def line() -> list[str]:
        return waiting.firsts("default", 3)

    assert line() == ["j1", "j2", "j0"]
    assert waiting.ahead(jobs["j0"]) == 2
    overdue.add("j0")
    waiting.aged(jobs["j0"])
    assert line() == ["j0", "j1", "j2"]
    assert waiting.wake(room) == ["j0"]
    overdue.clear()
    for _ in range(200):
        waiting.aged(jobs["j0"])
    waiting.hold(jobs["j0"], looks(jobs["j0"]), NO_ROOM)
    assert waiting.first("default") == "j1"
    assert waiting.wake(room) == ["j1"]


def test_nobody_is_woken_whom_the_event_cannot_help() -> None:
    waiting = Waiting()
    room, quota = waiting_job("room"), waiting_job("quota", queue="a/b", gpus=2)
    waiting.hold(room, looks(room), NO_ROOM)
    waiting.hold(quota, looks(quota), NO_QUOTA)
    assert waiting.wake(News(kinds={Wake.NODE_CHANGED})) == []
    assert waiting.wake(News(queues={"c"})) == []
    assert waiting.wake(News(queues={"a"})) == ["quota"], "an ancestor's limit is its limit"
    assert waiting.wake(News(kinds={Wake.ROOM_FREED})) == ["room"]


def test_a_member_that_left_is_never_woken() -> None:
    waiting = Waiting()
    for job in (one := waiting_job("one", 1.0), two := waiting_job("two", 2.0)):
        waiting.hold(job, looks(job), NO_ROOM)
    waiting.leave(one.head.key)
    assert waiting.wake(News(kinds={Wake.ROOM_FREED})) == [two.head.key]
    waiting.leave(two.head.key)
    assert waiting.groups == 0


@pytest.mark.parametrize("how", ["cancelled", "looks otherwise"])
def test_news_that_came_while_a_member_was_tried_reaches_the_others_when_it_leaves_without_an_answer(how: str) -> None:
    waiting = Waiting()
    for job in (one := waiting_job("one", 1.0), two := waiting_job("two", 2.0)):
        waiting.hold(job, looks(job), NO_ROOM)
    waiting.wake_one(one.head.key)
    assert waiting.wake(News(kinds={Wake.ROOM_FREED})) == [], "its answer is awaited"
    if how == "cancelled":
        waiting.leave(one.head.key)
    else:
        waiting.hold(one, "by itself", Verdict(Kind.NOT_NOW, Reason.GANG_INCOMPLETE))
    assert waiting.unfinished, "there is something to do"
    assert waiting.wake(News()) == [two.head.key]


def test_news_that_came_while_a_member_was_tried_is_done_with_its_refusal() -> None:
    waiting = Waiting()
    for job in (one := waiting_job("one", 1.0), waiting_job("two", 2.0)):
        waiting.hold(job, looks(job), NO_ROOM)
    waiting.wake_one(one.head.key)
    assert waiting.wake(News(kinds={Wake.ROOM_FREED})) == []
    waiting.hold(one, looks(one), NO_ROOM)
    waiting.leave(one.head.key)
    assert waiting.wake(News()) == [], "it was told no after the news: so would the others be"


def test_never_by_an_older_view_is_only_a_wait_and_only_for_a_while() -> None:
    never = Verdict(Kind.NEVER, Reason.GPU_TOTAL)
    assert tempered(never, seen="10", view="9", waited_s=0, bound_s=3).kind is Kind.WAIT
    assert tempered(never, seen="10", view="10", waited_s=0, bound_s=3) is never
    assert tempered(never, seen="", view="", waited_s=0, bound_s=3) is never
    told = tempered(never, seen="10", view="9", waited_s=3, bound_s=3)
    assert (told.kind, told.reason) == (Kind.NOT_NOW, Reason.GPU_TOTAL), "told what is in the way, but not for ever"


@pytest.mark.parametrize("verdict", [NO_ROOM, NO_QUOTA, Verdict(Kind.NEVER, Reason.UNSUPPORTED)])
def test_the_word_that_autoscalers_act_on_is_said_exactly_when_nodes_help(verdict: Verdict) -> None:
    assert (reason_word(verdict) == "Unschedulable") is verdict.more_nodes_help


def test_a_race_over_room_is_decided_again_at_once_and_then_with_growing_pauses() -> None:
    judged = [judge_refusal(Refusal.CAPACITY, n, at_once=2, jitter=0.0) for n in range(6)]
    assert [j.next for j in judged[:2]] == [Next.AGAIN] * 2
    pauses = [j.after_s for j in judged[2:]]
    assert pauses == sorted(pauses) and pauses[0] > 0
    assert judge_refusal(Refusal.CAPACITY, 500, at_once=2, jitter=0.0).after_s <= 2.0
    assert judge_refusal(Refusal.EPOCH, 0, at_once=2, jitter=0.0).next is Next.FENCED
    assert judge_refusal(Refusal.TOMBSTONE, 0, at_once=2, jitter=0.0).next is Next.FORGET


def test_a_pod_that_the_api_server_refuses_backs_off_at_once() -> None:
    judged = judge_outcome(Landed.REFUSED, 0, at_once=4, jitter=0.0)
    assert judged is not None and judged.next is Next.LATER and judged.after_s >= 1.0
    assert judge_outcome(Landed.BOUND, 0, at_once=4, jitter=0.0) is None


def test_plan_ids_name_generation_partition_epoch_and_never_repeat() -> None:
    tenure = Tenure(partition=3, epoch=7, generation=2)
    assert [tenure.next_id(), tenure.next_id()] == ["2.3.7.1", "2.3.7.2"]


def test_room_that_moves_from_device_to_device_counts_as_freed() -> None:
    before = NodeUse("n", 1, pods=1, gpus=((1000, 100), (0, 0)))
    moved = NodeUse("n", 2, pods=1, gpus=((0, 0), (1000, 100)))
    assert freed(before, moved)
    assert not freed(before, msgspec.structs.replace(before, pods=2, gpus=((1000, 100), (500, 50))))
