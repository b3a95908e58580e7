"""Small queues whose every second can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from libs.engine.order import Fifo, Item, Order
from libs.engine.order.attained import Attained
from libs.engine.order.shortest import Shortest, ShortestRemaining
from libs.sim.errors import SimulationError
from libs.sim.queue.cluster import Cluster
from libs.sim.queue.loop import Costs, History, QueueLoop
from libs.sim.queue.trace import TraceJob


def job(name: str, submit: float, duration: float, gpus: float, tenant: str = "") -> TraceJob:
    return TraceJob(name, tenant, submit, duration, int(gpus * 1000))


def play(jobs: Sequence[TraceJob], order: Order, nodes: int = 1, width: int = 8, costs: Costs | None = None) -> History:
    return QueueLoop(Cluster(nodes, width), order, costs or Costs(), jobs).run()


def starts(history: History) -> dict[str, float]:
    return {o.job.id: o.first for o in history.outcomes}


HEAD_TOO_LARGE = [job("runs", 0, 100, 6), job("large", 1, 50, 8), job("small", 2, 10, 2)]


def test_the_head_of_the_line_keeps_all_behind_it_waiting() -> None:
    assert starts(play(HEAD_TOO_LARGE, Fifo())) == {"runs": 0, "large": 100, "small": 150}


def test_whoever_fits_goes_ahead_of_whoever_does_not() -> None:
    assert starts(play(HEAD_TOO_LARGE, Order())) == {"runs": 0, "large": 100, "small": 2}


def test_the_shortest_goes_first() -> None:
    jobs = [job("runs", 0, 100, 8), job("long", 1, 50, 8), job("short", 2, 10, 8)]
    assert starts(play(jobs, Shortest())) == {"runs": 0, "short": 100, "long": 110}


def test_a_gang_larger_than_a_node_waits_for_nodes_that_are_wholly_free() -> None:
    jobs = [job("one", 0, 100, 1), job("gang", 1, 10, 16), job("other", 1, 10, 8)]
    assert starts(play(jobs, Order(), nodes=2)) == {"one": 0, "gang": 100, "other": 1}


def test_shares_of_a_gpu_lie_side_by_side_and_the_last_frees_it() -> None:
    jobs = [job("a", 0, 100, 0.5), job("b", 1, 50, 0.5), job("c", 2, 10, 0.5), job("whole", 3, 10, 1)]
    assert starts(play(jobs, Order(), width=1)) == {"a": 0, "b": 1, "c": 51, "whole": 100}


def test_an_eviction_costs_the_work_since_the_checkpoint_and_a_restart() -> None:
    jobs = [job("long", 0, 10_000, 8), job("short", 2_000, 500, 8)]
    long, short = play(jobs, Attained((3600.0,), protect=0), costs=Costs(60, 1800)).outcomes
    # Evicted at 2,000 s with 1,800 s saved: 200 s are done again, 60 s go into the restart.
    assert (short.first, short.wait, short.end) == (2_000, 0, 2_500)
    assert long.evictions == 1
    assert long.lost == pytest.approx(260)
    assert long.wait == pytest.approx(560)  # while short ran, and while it restarted
    assert long.end == pytest.approx(2_500 + 60 + 8_200)
    assert long.held == pytest.approx(10_000 + 260)


def test_a_job_evicted_while_it_restarts_loses_no_more_than_the_restart() -> None:
    jobs = [job("long", 0, 5_000, 8), job("one", 2_000, 100, 8), job("two", 2_130, 100, 8)]
    history = play(jobs, ShortestRemaining(), costs=Costs(60, 1000))
    long = history.outcomes[0]
    assert long.evictions == 2
    assert long.lost == pytest.approx(30 + 60)  # half a restart, and a whole one; checkpoint just before
    assert long.end - long.job.submit == pytest.approx(5_000 + 200 + 90)


def test_no_job_is_evicted_for_one_of_its_own_level() -> None:
    jobs = [job("first", 0, 5_000, 8), job("second", 100, 5_000, 8)]
    history = play(jobs, Attained((), protect=0))
    assert [o.evictions for o in history.outcomes] == [0, 0]


def test_the_victims_are_those_that_lose_least_and_none_is_superfluous() -> None:
    jobs = [job("old", 0, 50_000, 4), job("young", 3_000, 50_000, 4), job("new", 9_100, 100, 4)]
    history = play(jobs, Attained((3600.0,), protect=0), costs=Costs(60, 1800))
    # At 9,100 s "old" is 100 s past a checkpoint, "young" 700 s.
    assert [o.evictions for o in history.outcomes] == [1, 0, 0]


def test_known_remaining_time_lets_the_shorter_job_in_at_once() -> None:
    jobs = [job("long", 0, 1_000, 8), job("short", 100, 50, 8), job("longer", 120, 5_000, 8)]
    history = play(jobs, ShortestRemaining(), costs=Costs(0, 0))
    assert [o.end for o in history.outcomes] == [1_050, 150, 6_050]


def test_a_job_that_no_cluster_of_this_size_could_hold_is_refused_before_anything_runs() -> None:
    with pytest.raises(SimulationError, match="job big asks for 9 GPUs, there are 8"):
        play([job("big", 0, 1, 9)], Order())


def test_an_order_under_which_somebody_never_starts_is_found_out() -> None:
    class Stubborn(Fifo):
        def rank(self, item: Item, now: float) -> tuple[float, ...]:
            return (0.0,)

    loop = QueueLoop(Cluster(1, 8), Stubborn(), Costs(), [job("a", 0, 1, 8)])
    loop.cluster.take(((0, 1),))  # a GPU that nobody ever gives back
    with pytest.raises(SimulationError, match="1 jobs wait for ever"):
        loop.run()


def test_the_same_jobs_have_the_same_history() -> None:
    jobs = [job(str(k), k * 37 % 500, 50 + k * 71 % 900, 1 + k % 8) for k in range(200)]
    jobs.sort(key=lambda j: j.submit)
    first, second = (play(jobs, Attained((400.0,), protect=160), nodes=2, costs=Costs(60, 100)) for _ in range(2))
    assert first.outcomes == second.outcomes
    assert first.steps == second.steps
