"""Five thousand pods of one tenant that fit nowhere, all different, and another tenant that goes on as if they were not
there."""

from __future__ import annotations

import random
from collections import Counter

from libs.domain.queues import Queue
from libs.testkit.builders import node
from services.placement.attention import AGAIN_LEAST, AGAIN_MOST, BUSY, FIRST, Attention
from tests.component.virtual_placement import world


async def waits_of_b(hopeless: int, seconds: float = 5.0) -> tuple[list[float], float]:
    """Seconds from arrival to commit of B's pods, and evaluations of A's per second."""
    async with world(node("n1", gpus=8), node("n2", gpus=8), placement_reserve_s=0) as w:
        w.queues(Queue("a"), Queue("b"))
        w.runs = lambda key: 1e9 if key.endswith("large") else 0.05
        for name in ("1-large", "2-large"):
            w.enter(w.job(name, 5, queue="b"))
        await w.cycle.once()
        for number in range(hopeless):  # a node's worth of GPUs, where every node has less: might fit one day
            w.enter(w.job(f"a{number}", 8, queue="a", cpu=100 + number))
        draw = random.Random(4)
        arrived: dict[str, float] = {}
        at = 0.0
        while at < seconds:
            at += draw.expovariate(40.0)
            job = w.job(f"b{len(arrived)}", 1, queue="b", at=at)
            arrived[job.head.key] = at
            w.comes(job, at)
        await w.play(seconds)
        return [w.started[k] - at for k, at in arrived.items() if k in w.started], w.engine.decided.count("a") / seconds


async def test_who_is_new_is_looked_at_in_time_however_often_events_send_a_round_along_those_who_wait() -> None:
    """B's pods come and go forty times a second, and every end may help any of A's. Those of A that came first used to
    be looked at again and again, before those that nobody had looked at yet."""
    async with world(node("n1", gpus=8), node("n2", gpus=8), placement_reserve_s=0) as w:
        w.queues(Queue("a"), Queue("b"))
        w.runs = lambda key: 1e9 if key.endswith("large") else 0.05
        for name in ("1-large", "2-large"):
            w.enter(w.job(name, 5, queue="b"))
        await w.cycle.once()
        for number in range(120):
            w.comes(w.job(f"a{number}", 8, queue="a", cpu=100 + number, at=number / 400), number / 400)
        for number in range(240):
            w.comes(w.job(f"b{number}", 1, queue="b", at=number / 40), number / 40)
        await w.play(6.0)
        looked_at = Counter(key for key in w.engine.looked_at if key.startswith("pod/a/"))
        assert len(looked_at) == 120, f"{120 - len(looked_at)} not once, others {max(looked_at.values())} times"
        assert looked_at.total() >= 200, "those who wait are looked at again meanwhile"


async def test_a_node_that_joins_lets_in_who_waited_for_it_although_its_queue_is_looked_at_rarely_by_then() -> None:
    async with world(node("n1", gpus=8, cpu=64_000), placement_reserve_s=0) as w:
        w.queues(Queue("a"), Queue("b"))
        w.runs = lambda key: 1e9 if key.endswith("large") else 0.02
        w.enter(w.job("1-large", 5, queue="b"))
        await w.cycle.once()
        for number in range(600):
            cpu = 32_000 + number if number != 400 else 4_000
            w.enter(w.job(f"a{number:03}", 8, queue="a", cpu=cpu, at=number / 1000))
        await w.play(4.0)
        attention = w.state.pending.attention
        for _ in range(8000):
            attention.failed("a")
        for number in range(200):
            at = 4.0 + number / 50
            w.comes(w.job(f"b{number}", 1, queue="b", at=at), at)
        await w.play(5.0)
        before = w.engine.decided.count("a")
        await w.play(8.0)
        rare = (w.engine.decided.count("a") - before) / 3.0
        await w.join(node("n2", gpus=8, cpu=16_000))
        await w.play(30.0, lambda: "pod/a/a400" in w.started)
        per_s = attention.per_s
        least = AGAIN_LEAST * BUSY * per_s
        assert least <= rare <= 1.2 * (AGAIN_LEAST + FIRST) * BUSY * per_s, "rarely, and never not at all"
        assert w.started["pod/a/a400"] - 8.0 <= 600 / (AGAIN_MOST * per_s) + 0.5


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


async def test_five_thousand_hopeless_pods_of_one_tenant_do_not_slow_another() -> None:
    alone, _ = await waits_of_b(0)
    beside, evaluations = await waits_of_b(5000)
    assert len(beside) >= 0.98 * len(alone) > 150
    assert p99(beside) <= 1.1 * p99(alone), (p99(alone), p99(beside), evaluations)
    most = Attention().per_s * BUSY
    assert most / 2 <= evaluations <= 1.5 * most, "they are looked at all the same, a quarter as often as otherwise"
