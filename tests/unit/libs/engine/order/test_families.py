"""Orders that others run: what they learn, and from what."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.engine.order import ORDERS, Item, Scene
from libs.engine.order.ageing import DAY, Ageing
from libs.engine.order.attained import HOUR
from libs.engine.order.base import NEVER
from libs.engine.order.gittins import Gittins, begins, indices, step_of, survival
from libs.engine.order.predicted import FEWEST, Predicted, PredictedRemaining
from libs.sim.queue.cluster import Cluster
from libs.sim.queue.loop import Costs, QueueLoop
from libs.sim.queue.trace import TraceJob

BINS = 100


def item(key: int, tenant: str = "a", gpus: float = 1.0, submitted: float = 0.0, attained: float = 0.0) -> Item:
    return Item(key, tenant, gpus, submitted, submitted, attained=attained)


def ends(order: Predicted | Gittins, key: int, took: float, tenant: str = "a", gpus: float = 1.0) -> None:
    done = item(key, tenant, gpus)
    order.arrived(done, 0.0)
    order.started(done, 0.0)
    done.attained = took
    order.ended(done, took)


class TestGittins:
    def test_the_censored_count_as_going_on_for_as_long_as_they_were_seen(self) -> None:
        ended, censored = np.zeros(BINS), np.zeros(BINS)
        ended[3], censored[5], ended[7] = 1, 2, 1
        left = survival(ended, censored)
        assert left[2] == 1.0
        assert left[3] == left[6] == pytest.approx(3 / 4), "one of four at risk ended, the censored go on"
        assert left[7] == 0.0, "the last that was at risk there"

    def test_a_job_about_to_end_goes_before_a_new_one_and_a_new_one_before_one_just_past_it(self) -> None:
        order = Gittins()
        for n in range(400):
            ends(order, n, 7000.0 if n % 4 else 5_000_000.0)
        near, new, past = (item(1000 + n, attained=had) for n, had in enumerate((5000.0, 0.0, 20_000.0)))
        assert order.index(near, 0.0) > order.index(new, 0.0) > order.index(past, 0.0)

    def test_the_index_is_the_best_rate_over_all_spans(self) -> None:
        rng = Random(5)
        ended = np.zeros(BINS)
        for _ in range(500):
            ended[step_of(math.exp(rng.gauss(8, 2)))] += 1
        left = np.concatenate(([1.0], survival(ended, np.zeros(BINS))))
        found = indices(ended, np.zeros(BINS))
        for at in (0, 10, 30):
            rates = []
            for to in range(at + 1, BINS + 1):
                width = [begins(k + 1) - begins(k) for k in range(at, to)]
                served = sum(w * (left[k] + left[k + 1]) / 2 for w, k in zip(width, range(at, to), strict=True))
                rates.append((left[at] - left[to]) / served if served > 0 else 0.0)
            assert found[at] == pytest.approx(max(rates), rel=1e-9)

    def test_where_nothing_ended_yet_less_service_goes_first(self) -> None:
        order = Gittins()
        assert order.rank(item(1, attained=0.0), 0.0) < order.rank(item(2, attained=9000.0), 0.0)

    def test_nothing_is_known_of_a_job_before_it_ends(self) -> None:
        order = Gittins()
        order.arrived(item(0), 0.0)
        before = order.index(item(1), 0.0)
        for n in range(2, 40):
            order.arrived(item(n), 0.0)
        assert order.index(item(1), 0.0) == before
        for n in range(40, 80):
            ends(order, n, 100.0)
        assert order.index(item(1), 0.0) > before
        assert set(order.moved()) == {0, *range(2, 40)}, "who waits is lined up anew"

    @given(st.floats(0.0, 1e8))
    def test_a_step_holds_what_begins_in_it(self, service: float) -> None:
        step = step_of(service)
        assert begins(step) <= service * (1 + 1e-9)
        assert service < begins(step + 1) * (1 + 1e-9) or step == BINS - 1


class TestPredicted:
    def test_the_median_of_the_last_of_its_tenant_and_size_counts(self) -> None:
        order = Predicted()
        for n in range(40):
            ends(order, n, 5000.0 if n < 20 else 100.0)
            ends(order, 100 + n, 9000.0, tenant="b")
        assert order.runs.left(item(500), 0.0).middle == 100.0, "what ended long ago counts no more"
        assert order.rank(item(500), 0.0) < order.rank(item(501, tenant="b"), 0.0)
        assert order.runs.left(item(502, tenant="c"), 0.0).middle > 0, "of a new tenant those of its size tell"

    def test_without_enough_that_ended_nothing_is_promised(self) -> None:
        order = PredictedRemaining()
        for n in range(FEWEST - 1):
            ends(order, n, 100.0)
        left = order.runs.left(item(9), 0.0)
        assert (left.low, left.high) == (0.0, NEVER)
        assert order.claims_from(item(9), 0.0) == NEVER

    def test_of_those_that_ran_longer_the_rest_is_told(self) -> None:
        order = Predicted()
        for n, took in enumerate((10.0, 20.0, 1000.0, 2000.0, 3000.0, 4000.0)):
            ends(order, n, took)
        assert order.runs.left(item(9, attained=500.0), 0.0).middle == pytest.approx(2500.0)

    def test_one_yields_only_where_the_error_bars_stand_apart(self) -> None:
        order = PredictedRemaining(restart=60.0, protect=0.0)
        for n in range(8):
            ends(order, n, 100.0 + n, tenant="short")
            ends(order, 20 + n, 50.0 if n % 2 else 90_000.0, tenant="wild")
            ends(order, 40 + n, 90_000.0, tenant="long")
        short, long, wild = item(90, "short"), item(91, "long"), item(92, "wild")
        for runs in (long, wild):
            runs.running = True
        assert order.yields(long, short, 0.0)
        assert not order.yields(wild, short, 0.0)

    def test_who_waits_is_lined_up_anew_when_those_before_it_turn_out_otherwise(self) -> None:
        order = Predicted()
        waiting, other = item(1), item(2, tenant="b", gpus=2.0)
        order.arrived(waiting, 0.0)
        order.arrived(other, 0.0)
        for n in range(10, 10 + FEWEST):
            ends(order, n, 700.0)
        assert 1 in order.moved()
        assert order.moved() == []


class TestAgeing:
    def test_a_day_of_waiting_makes_up_for_a_level_of_service(self) -> None:
        order = Ageing(DAY)
        old = item(1, attained=HOUR)
        assert order.rank(old, 0.0) > order.rank(item(2, submitted=0.0), 0.0)
        late = item(3, submitted=1.5 * DAY)
        assert order.rank(old, 1.5 * DAY) < order.rank(late, 1.5 * DAY)
        assert order.turns(old, 0.0) == pytest.approx(DAY)

    def test_it_keeps_its_age_while_it_runs(self) -> None:
        order = Ageing(DAY)
        runs = item(1, attained=HOUR)
        runs.running, runs.waited, runs.begins = True, 3 * DAY, 5 * DAY
        assert order.level(runs, 5 * DAY) == 1 - 3
        assert not order.yields(runs, item(2, submitted=5 * DAY), 5 * DAY)


def made(count: int) -> list[TraceJob]:
    rng = Random(11)
    at, jobs = 0.0, []
    for n in range(count):
        at += rng.expovariate(1 / 900)
        length = math.exp(rng.gauss(8, 1.8))
        jobs.append(TraceJob(str(n), rng.choice("abc"), at, length, rng.choice((1, 1, 2, 4, 8, 16)) * 1000))
    return jobs


@pytest.mark.parametrize("name", ["gittins", "predicted", "predicted-remaining", "ageing"])
def test_what_is_to_come_changes_nothing_that_has_been(name: str) -> None:
    trace = made(400)
    until = trace[200].submit

    def early(jobs: list[TraceJob]) -> list[float]:
        history = QueueLoop(Cluster(2, 8), ORDERS[name](Scene(16.0)), Costs(), jobs).run()
        return [o.first for o in history.outcomes if o.first < until]

    assert early(trace) == early(trace[:200])
    assert len(early(trace)) > 50


@pytest.mark.parametrize("name", ["gittins", "gittins-1", "gittins-8", "predicted", "predicted-remaining", "ageing-6h"])
def test_every_job_ends_under_any_of_them_and_the_same_input_gives_the_same_output(name: str) -> None:
    jobs = made(250)

    def play() -> list[tuple[float, float, int]]:
        order = ORDERS[name](Scene(16.0))
        history = QueueLoop(Cluster(2, 8), order, Costs(), jobs).run()
        return [(o.first, o.end, o.evictions) for o in history.outcomes]

    first = play()
    assert first == play()
    assert all(end >= job.submit + job.duration - 1e-6 for job, (_, end, _) in zip(jobs, first, strict=True))
