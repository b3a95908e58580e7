"""Waits by how much a job's queue asked for while it was there."""

from __future__ import annotations

from random import Random

from libs.sim.queue.demand import by_demand, peaks
from libs.sim.queue.figures import figures
from libs.sim.queue.loop import Outcome
from libs.sim.queue.study import Setup, simulate
from libs.sim.queue.trace import TraceJob


def outcome(submit: float, end: float, gpus: int, tenant: str = "q", wait: float = 0.0) -> Outcome:
    return Outcome(TraceJob("", tenant, submit, 1.0, gpus * 1000), end=end, wait=wait)


def test_the_most_that_a_queue_asks_for_while_a_job_is_there_is_what_a_look_at_every_moment_finds() -> None:
    draw = Random(3)
    there = [(at := draw.randrange(60), at + draw.randrange(1, 40), draw.randrange(1, 9)) for _ in range(80)]
    there.sort()
    found = peaks([outcome(*one) for one in there])
    for (start, end, _), most in zip(there, found, strict=True):
        at_each = [sum(g for s, e, g in there if s <= moment < e) for moment in range(start, end)]
        assert most == 1000 * max(at_each)


def test_jobs_are_told_apart_by_whether_their_queue_stayed_within_what_it_deserves() -> None:
    outcomes = [
        outcome(0, 100, 4, wait=7),
        outcome(200, 300, 4, wait=50),
        outcome(250, 400, 8, wait=100),
        outcome(0, 400, 64, "none", wait=9_999),
    ]
    assert by_demand(outcomes, {"q": 4.0}) == [
        {"demand_of_share_up_to": 1.0, "jobs": 1, "mean_wait_s": 7, "p99_wait_s": 7, "max_wait_s": 7},
        {"demand_of_share_up_to": 4.0, "jobs": 2, "mean_wait_s": 75, "p99_wait_s": 99.5, "max_wait_s": 100},
    ]


def test_who_asks_for_no_more_than_its_share_waits_for_nobody_else_and_who_asks_for_more_waits_longer() -> None:
    draw = Random(1)
    jobs = [TraceJob(f"a{n}", "a", n * 4_000.0, 3_000, 4_000) for n in range(40)]
    jobs += [TraceJob(f"b{n}", "b", draw.random() * 100_000, 9_000, 4_000) for n in range(60)]
    table = figures(simulate(Setup(2, 8, "services", fence=(("a", 1), ("b", 1))), sorted(jobs, key=lambda j: j.submit)))
    within, *beyond = table["by_demand_of_share"]
    assert within["demand_of_share_up_to"] == 1.0
    assert within["max_wait_s"] <= 1_800 + 120, "until its share is given back, just after a checkpoint"
    assert beyond[-1]["max_wait_s"] > 4 * within["max_wait_s"]
