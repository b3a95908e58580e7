"""What is said of when a running task ends, and that nothing is said without grounds."""

from __future__ import annotations

import math
import tracemalloc

from libs.domain.resources import Charge, GpuGrant
from libs.engine.api import RunningTask
from libs.engine.fair.runs import FEWEST, Basis, Runs

NOW = 10_000.0


def task(uid: str, started: float, *, expected: int = 0, gpus: int = 1, workload: str = "") -> RunningTask:
    charge = Charge(gpus=tuple(GpuGrant(n, 1000, 0) for n in range(gpus)))
    return RunningTask(uid, uid, "d", "n", "", "q", 0, charge, True, started=started, expected_s=expected,
                       workload=workload)  # fmt: skip


def history(*seconds: float, gpus: int = 1, workload: str = "") -> Runs:
    runs = Runs()
    for number, ran in enumerate(seconds):
        runs.ended(task(f"e{number}", NOW - ran, gpus=gpus, workload=workload), NOW)
    return runs


def test_what_is_declared_stands_until_it_is_outrun() -> None:
    end = Runs().end_of(task("t", NOW - 50, expected=60), NOW)
    assert (end.at, end.low, end.high, end.basis) == (NOW + 10, NOW + 10, NOW + 10, Basis.DECLARED)
    assert Runs().end_of(task("t", NOW - 61, expected=60), NOW).basis is Basis.UNKNOWN


def test_earlier_runs_of_the_queue_predict_and_those_that_ran_longer_tell_what_is_left() -> None:
    runs = history(*range(100, 200, 10))
    young, old = runs.end_of(task("y", NOW), NOW), runs.end_of(task("o", NOW - 155), NOW)
    assert young.basis is Basis.PREDICTED
    assert (young.low, young.at, young.high) == (NOW + 110, NOW + 150, NOW + 190)
    assert old.at - NOW == 180 - 155 and old.low >= NOW


def test_too_few_earlier_runs_or_none_as_long_say_nothing() -> None:
    assert math.isinf(history(*[100.0] * (FEWEST - 1)).end_of(task("t", NOW), NOW).at)
    assert math.isinf(history(*[100.0] * 9).end_of(task("t", NOW - 101), NOW).at)
    assert math.isinf(history(*[100.0] * 9).end_of(task("t", NOW, gpus=4), NOW).at), "of another size"


def test_the_same_owner_tells_more_than_the_queue() -> None:
    runs = history(*[1000.0] * 9)
    for number in range(9):
        runs.ended(task(f"w{number}", NOW - 50, workload="Job/d/u"), NOW)
    assert runs.end_of(task("t", NOW, workload="Job/d/u"), NOW).at == NOW + 50


def test_pods_that_are_alone_of_their_kind_cost_little() -> None:
    """A pod without an owner is a workload of its own: of most of what is remembered there is one run time."""
    runs = Runs()
    tracemalloc.start()
    try:
        for number in range(10_000):
            runs.ended(task(f"e{number}", NOW - 5, workload=f"pod-{number}"), NOW)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 512 * 4096
