"""Five thousand pods of one tenant that fit nowhere, all different, and another tenant that goes on as if they were not
there."""

from __future__ import annotations

import random

from libs.domain.queues import Queue
from libs.testkit.builders import node
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


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


async def test_five_thousand_hopeless_pods_of_one_tenant_do_not_slow_another() -> None:
    alone, _ = await waits_of_b(0)
    beside, evaluations = await waits_of_b(5000)
    assert len(beside) >= 0.98 * len(alone) > 150
    assert p99(beside) <= 1.1 * p99(alone), (p99(alone), p99(beside), evaluations)
    assert 50 <= evaluations <= 250, "they are looked at all the same, within the bound"
