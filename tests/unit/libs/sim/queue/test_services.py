"""The services' engine in the queue simulator: their order, their kept room, their evictions, on jobs that can be
followed by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import pytest

from libs.domain.resources import Charge, GpuGrant
from libs.engine.fair import LittleService
from libs.engine.order import Services
from libs.sim.queue.accounts import HALF_LIFE_S, Account
from libs.sim.queue.cluster import Cluster
from libs.sim.queue.facts import EPOCH, FAIRNESS, HISTORY, MOVES_AFTER_S, OVERDUE_S
from libs.sim.queue.loop import Costs, History
from libs.sim.queue.services import AFTER_S, TURN_S, ServicesLoop
from libs.sim.queue.study import Setup, simulate
from libs.sim.queue.trace import TraceJob, read_jobs
from services.placement.settings import PlacementSettings
from services.watcher.settings import WatcherSettings
from services.watcher.tally import Tally

TRACE = Path(__file__).with_name("philly_2869ce.csv.gz")


def job(name: str, submit: float, duration: float, gpus: float, tenant: str = "t", priority: int = 0) -> TraceJob:
    return TraceJob(name, tenant, submit, duration, int(gpus * 1000), priority)


def play(
    jobs: Sequence[TraceJob],
    nodes: int = 1,
    deserved: Mapping[str, float] | None = None,
    little: LittleService | None = None,
) -> History:
    return ServicesLoop(Cluster(nodes, 8), Services(little), Costs(60, 1800), jobs, deserved or {}).run()


def starts(history: History) -> dict[str, float]:
    return {o.job.id: o.first for o in history.outcomes}


def test_small_jobs_pass_a_head_that_fits_nowhere_until_room_is_kept_for_it() -> None:
    jobs = [job("runs", 0, 400, 6), job("large", 1, 50, 8), job("early", 2, 10, 2), job("late", 100, 10, 2)]
    assert starts(play(jobs)) == {"runs": 0, "large": 400, "early": 2, "late": 450}


def test_room_is_kept_for_nobody_for_ever() -> None:
    jobs = [job("runs", 0, 50_000, 6), job("large", 1, 50, 8), job("late", 100, 10, 2)]
    found = starts(play(jobs))
    assert 100 < found["late"] < 50_000
    assert found["large"] == 50_000


def test_who_has_waited_too_long_goes_before_who_came_earlier_of_higher_priority_and_may_still_be_evicted() -> None:
    waits = OVERDUE_S + 100
    jobs = [job("runs", 0, waits, 8, priority=5), job("old", 1, 10, 8), job("urgent", waits - 10, 10, 8, priority=5)]
    history = play(jobs)
    assert starts(history) == {"runs": 0, "old": waits, "urgent": waits}
    assert [o.evictions for o in history.outcomes] == [0, 1, 0]


def test_a_lower_priority_yields_and_comes_again_with_what_it_saved() -> None:
    low, urgent = play([job("low", 0, 10_000, 8), job("urgent", 2_000, 500, 8, priority=1)]).outcomes
    assert (urgent.first, urgent.wait) == (2_000, 0)
    assert low.evictions == 1
    assert low.lost == pytest.approx(260)
    assert low.end == pytest.approx(2_500 + 60 + 8_200)


def test_a_tenant_has_back_what_it_deserves_and_nobody_is_evicted_for_more() -> None:
    jobs = [job(f"a{n}", 0, 9_000, 2, "a") for n in range(4)]
    jobs += [job("b0", 1_000, 9_000, 4, "b"), job("b1", 1_001, 100, 4, "b")]
    history = play(jobs, deserved={"a": 4, "b": 4})
    found = starts(history)
    assert found["b0"] == 1_000
    assert found["b1"] >= 9_000
    assert sum(o.evictions for o in history.outcomes) == 2


def test_gangs_and_shares_of_gpus_start_when_all_of_their_room_is_there() -> None:
    jobs = [job("half", 0, 100, 0.5), job("gang", 1, 10, 20), job("other", 2, 30, 0.5), job("next", 3, 10, 8)]
    assert starts(play(jobs, nodes=3)) == {"half": 0, "gang": 1, "other": 2, "next": 11}


def test_use_over_time_counts_as_the_watcher_counts_it() -> None:
    now = EPOCH
    tally = Tally(lambda: now, HALF_LIFE_S)
    tally.begin({})
    account = Account(EPOCH)
    draw = Random(5)
    for n in range(20):
        tally.held(f"uid-{n}", "q", Charge(gpus=(GpuGrant(n, 1000, 1),)), now)
        account.shift(1000, now)
        now += draw.randrange(1, 40_000)
    account.shift(0, now)
    told = tally.history("q")
    assert account.used == pytest.approx(told.gpu_milli_s, abs=1)


def test_the_first_weeks_of_a_real_tenant_by_age_and_by_little_service() -> None:
    trace = [one for one in read_jobs(TRACE) if one.submit < 20 * 86_400]
    assert len(trace) > 100
    by_age, little = (simulate(Setup(8, 8, policy), trace) for policy in ("services-by-age", "services"))
    for result in (by_age, little):
        assert all(o.end >= o.job.submit + o.job.duration for o in result.outcomes)
    assert 0 < sum(o.evictions for o in little.outcomes) <= 0.3 * len(trace)
    assert sum(o.wait for o in little.outcomes) < sum(o.wait for o in by_age.outcomes)
    assert max(o.most_in(86_400) for o in little.outcomes) <= 3


def test_who_has_had_much_yields_to_a_new_job_just_after_a_checkpoint() -> None:
    many = [job(f"old{n}", n, 1, 8) for n in range(10)]  # evictions are paid for by jobs that came
    long, new = job("long", 200, 400 * 3600, 8), job("new", 100 * 3600, 60, 8)
    history = play([*many, long, new], little=LittleService())
    outcomes = {o.job.id: o for o in history.outcomes}
    assert outcomes["long"].evictions == 1
    assert 7200 <= outcomes["new"].wait <= 7200 + 1800 + 60
    assert outcomes["long"].lost <= 60 + 120


def test_nobody_yields_to_little_service_where_no_job_has_paid_for_it() -> None:
    history = play([job("long", 0, 400 * 3600, 8), job("new", 100 * 3600, 60, 8)], little=LittleService())
    assert sum(o.evictions for o in history.outcomes) == 0  # not even when the new one is overdue
    assert next(o for o in history.outcomes if o.job.id == "new").wait == 300 * 3600


def test_what_the_simulator_takes_for_the_services_defaults_is_their_default() -> None:
    played = {
        "placement_fairness": FAIRNESS,
        "placement_history": HISTORY,
        "placement_overdue_s": OVERDUE_S,
        "placement_consolidate": Services(None).moves,
        "placement_consolidate_after_s": MOVES_AFTER_S,
        "placement_reserve_after_s": AFTER_S,
        "placement_reserve_s": TURN_S,
    }
    assert {name: PlacementSettings.model_fields[name].default for name in played} == played
    assert PlacementSettings.model_construct().little_service == LittleService()
    assert WatcherSettings.model_fields["history_half_life_s"].default == HALF_LIFE_S


def test_a_job_moves_where_that_lets_another_one_in_and_goes_on_at_once() -> None:
    jobs = [
        job("s0", 0, 700, 4), job("long0", 1, 9_000, 4), job("s1", 2, 700, 4), job("long1", 3, 9_000, 4),
        job("whole", 1_000, 50, 8),
    ]  # fmt: skip
    moves, stays = (
        ServicesLoop(Cluster(2, 8), Services(None, moves=moves), Costs(60, 300), jobs, {}).run()
        for moves in (True, False)
    )
    assert (starts(moves)["whole"], starts(stays)["whole"]) == (1_000, 9_001)
    (moved,) = (o for o in moves.outcomes if o.evictions)
    assert moved.wait == 60, "its restart; its place was kept for it"
    assert moved.lost == pytest.approx(60 + 1_000 % 300, abs=5)


def test_who_was_evicted_says_when_it_had_loaded_what_it_saved_so_that_its_next_moment_is_after_a_checkpoint() -> None:
    many = [job(f"old{n}", n, 1, 8) for n in range(20)]
    long = job("long", 200, 400 * 3600, 8)
    news = [job("new0", 100 * 3600, 60, 8), job("new1", 200 * 3600, 60, 8)]
    outcomes = {o.job.id: o for o in play([*many, long, *news], little=LittleService()).outcomes}
    assert outcomes["long"].evictions == 2
    assert outcomes["long"].lost <= 2 * (60 + 120)
