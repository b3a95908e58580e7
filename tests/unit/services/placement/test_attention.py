"""Attention that a queue gets, and rounds along those who wait."""

from __future__ import annotations

from libs.domain.jobs import JobHead, Task
from libs.domain.resources import GpuRequest, Request
from libs.domain.verdicts import Kind, Reason, Verdict, Wake
from services.placement.attention import (
    AGAIN_LEAST,
    AGAIN_MOST,
    CALM,
    FIRST,
    QUEUES,
    SLICE,
    SLICES,
    START,
    STREAK,
    Attention,
)
from services.placement.jobs import Job, Pending
from services.placement.wake import News, Waiting

ROOM = Verdict(Kind.NOT_NOW, Reason.GPU_COUNT, wakes_on=(Wake.ROOM_FREED,))
FREED = News(kinds={Wake.ROOM_FREED})


def job(name: str, queue: str = "a", created: float = 0.0, priority: int = 0) -> Job:
    task = Task(name, name, "d", request=Request(gpu=GpuRequest(1)))
    head = JobHead(f"pod/d/{name}", "t", "d", queue, priority=priority, created=created)
    return Job(head=head, partition=0, since=0.0, tasks={task.id: task})


def fresh(news: News) -> News:
    return News(set(news.kinds), set(news.queues))


def test_a_queue_whose_jobs_fail_one_after_the_other_gets_slices_and_any_success_opens_it() -> None:
    attention = Attention(per_s=100.0)
    assert attention.most("a", 0.0, 256) == START
    for _ in range(STREAK):
        attention.failed("a")
    assert attention.most("a", 0.0, 256) == SLICE
    attention.took("a", 0.0)
    assert attention.most("a", 0.01, 256) == 0
    assert attention.opens("a", 0.01) == SLICE / 100.0
    assert attention.most("a", SLICE / 100.0, 256) == SLICE
    attention.placed("a")
    assert attention.most("a", 0.05, 256) >= START
    assert attention.most("b", 0.0, 256) == START, "others are not touched by it"


def test_who_waits_in_vain_is_looked_at_the_more_rarely_the_longer_and_a_new_node_ends_that() -> None:
    attention = Attention(per_s=80.0)
    for _ in range(STREAK):
        attention.failed("a")
    assert attention.again_per_s("a") == 80.0 * AGAIN_MOST
    assert attention.again("a", 0.0, 256) == SLICE
    assert attention.again("a", 0.01, 256) == 0
    assert attention.again_opens("a", 0.01) == SLICE / (80.0 * AGAIN_MOST)
    assert attention.most("a", 0.01, 256) == SLICE, "who was never looked at does not wait for them"
    for _ in range(3 * CALM):
        attention.failed("a")
    assert 80.0 * AGAIN_LEAST < attention.again_per_s("a") < 80.0 * AGAIN_MOST / 2
    for _ in range(9 * CALM):
        attention.failed("a")
    assert attention.again_per_s("a") == 80.0 * AGAIN_LEAST
    attention.stirred()
    assert attention.again_per_s("a") == 80.0 * AGAIN_MOST


def test_while_others_are_placed_it_gets_a_quarter() -> None:
    attention = Attention(per_s=80.0)
    for _ in range(STREAK):
        attention.failed("a")
    attention.took("a", 0.0)
    calm = attention.opens("a", 0.0), attention.again_per_s("a")
    attention.busy = True
    assert (attention.opens("a", 0.0), attention.again_per_s("a")) == (4 * calm[0], calm[1] / 4)
    assert attention.most("z", 0.0, 256) == START, "who is new is not held up by it"


def test_the_first_in_line_is_tried_at_events_that_are_not_too_close_together() -> None:
    attention = Attention(per_s=100.0)
    assert attention.first("a", 0.0) and attention.first("a", 0.0), "a queue that is not bounded"
    for _ in range(STREAK):
        attention.failed("a")
    assert attention.first("a", 1.0)
    assert not attention.first("a", 1.0 + 0.5 / (FIRST * 100.0))
    assert attention.first("a", attention.first_opens("a", 1.01))


def test_an_event_right_after_the_first_in_line_was_tried_is_not_lost_on_it() -> None:
    waiting = Waiting()
    for n in range(3):
        one = job(f"j{n}", created=float(n))
        waiting.hold(one, one.head.key, ROOM)
    assert waiting.wake(fresh(FREED), lambda _: 0, lambda _: False) == []
    assert waiting.head_due("a") and waiting.unfinished == {"a"}
    assert waiting.wake(News(), lambda _: 0, lambda _: True) == ["pod/d/j0"]
    assert not waiting.head_due("a")


def test_success_after_success_takes_whole_passes() -> None:
    attention = Attention()
    for _ in range(5):
        attention.placed("a")
    assert attention.most("a", 0.0, 256) == 256


def test_in_a_pass_all_bounded_queues_together_get_little_and_the_others_all_they_have() -> None:
    pending = Pending(attention=Attention(per_s=100.0))
    for queue in ("a", "b", "c", "d"):
        for _ in range(STREAK):
            pending.attention.failed(queue)
        for number in range(20):
            one = job(f"{queue}{number}", queue)
            pending.jobs[one.head.key] = one
            pending.dirty(one)
    for _ in range(3):
        pending.attention.placed("z")
    for number in range(30):
        one = job(f"z{number}", "z", created=9.0)
        pending.jobs[one.head.key] = one
        pending.dirty(one)
    taken = [one.head.queue for one in pending.take(256, {0}, 0.0)]
    assert taken.count("z") == 30
    assert len(taken) - 30 == SLICES
    again = [one.head.queue for one in pending.take(256, {0}, 0.001)]
    assert len(again) == SLICES and set(again).isdisjoint(taken), "the other two, whose pause has not begun"
    assert pending.take(256, {0}, 0.002) == []
    assert pending.ripen(0.002) == SLICE / 100.0


def test_a_round_that_is_too_long_goes_on_where_it_stopped_and_the_first_in_line_is_always_tried() -> None:
    waiting = Waiting()
    jobs = [job(f"j{n:02}", created=float(n)) for n in range(10)]
    for one in reversed(jobs):
        waiting.hold(one, one.head.key, ROOM)
    first = waiting.wake(fresh(FREED), lambda _: 3)
    assert first[0] == "pod/d/j00" and len(first) == 4
    assert waiting.unfinished == {"a"}
    rest = first
    while waiting.unfinished:
        rest = rest + waiting.wake(News(), lambda _: 3)
    assert sorted(rest) == [one.head.key for one in jobs], "each once"


def test_news_in_the_middle_of_a_round_begin_a_new_one() -> None:
    waiting = Waiting()
    for n in range(6):
        one = job(f"j{n}", created=float(n))
        waiting.hold(one, one.head.key, ROOM)
    for key in waiting.wake(fresh(FREED), lambda _: 2):
        waiting.hold(next(j for j in [job(key.rsplit("/", 1)[1])]), key, ROOM)  # tried in vain
    woken = set()
    waiting.wake(fresh(FREED), lambda _: 0)
    while waiting.unfinished:
        woken |= set(waiting.wake(News(), lambda _: 2))
    assert len(woken) >= 5, "whoever was tried before the news is tried again"


def test_who_has_waited_past_the_limit_is_first_of_the_line_when_it_is_looked_at_again() -> None:
    now = 1e9
    pending = Pending(overdue_s=100.0)
    pending.wall = lambda: now
    waiting = Waiting()
    waiting.place = pending.place
    low, urgent = job("low", created=1e9 - 50), job("urgent", created=1e9 - 10, priority=9)
    for one in (low, urgent):
        waiting.hold(one, one.head.key, ROOM)
    assert waiting.first("a") == urgent.head.key
    now = 1e9 + 60
    waiting.aged(low)
    assert waiting.first("a") == low.head.key
    assert waiting.firsts("a", 5) == [low.head.key, urgent.head.key]
    waiting.leave(low.head.key)
    assert waiting.first("a") == urgent.head.key


def test_a_tenant_named_another_queue_in_every_pod_and_memory_grew_with_them() -> None:
    attention = Attention()
    for n in range(QUEUES + 1):
        attention.failed(f"queue-{n}")
    assert (attention.count("queue-0"), attention.count("queue-1"), attention.count(f"queue-{QUEUES}")) == (0, 1, 1)
