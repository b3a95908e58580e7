"""Who goes next, as incidents: evicted queues that come first again, tenants that never have a turn."""

from __future__ import annotations

from collections.abc import Iterable

from libs.engine.api import Decision, EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.testkit.builders import ClusterBuilder, cluster, pod

DAY = 86_400.0


def engine_of(facts: ClusterBuilder, **config: object) -> PlacementEngine:
    return facts.into(PlacementEngine(EngineConfig(weights={"first-fit": 1}, **config)))  # type: ignore[arg-type]


def placed(jobs: Iterable[PendingJob], decisions: Iterable[Decision]) -> list[str]:
    return [job.tasks[0].name for job, d in zip(jobs, decisions, strict=True) if d.placements and not d.victims]


def test_an_evicted_queue_whose_pod_comes_again_at_once_does_not_come_back_at_the_others_cost() -> None:
    """8 units in all. A deserves 3 and runs one pod of 4, B deserves 5, runs a pod of 1 and waits with a pod of 4."""

    def state(*running: tuple[str, int, str]) -> PlacementEngine:
        facts = cluster().node("n", gpus=8).queue("a", deserves=3).queue("b", deserves=5)
        for name, gpus, queue in running:
            facts.running(name, gpus=gpus, queue=queue)
        return engine_of(facts)

    holds = [("a1", 4, "a"), ("b1", 1, "b")]
    evictions = []
    waiting = [pod("b2", gpus=4, queue="b", created=1.0)]
    for round_ in range(20):
        engine = state(*holds)
        decisions = engine.decide(list(waiting))
        for job, decision in zip(list(waiting), decisions, strict=True):
            name, gpus = job.tasks[0].name, 4
            if decision.victims:
                evictions += [v.name for v in decision.victims]
                gone = {v.name for v in decision.victims}
                holds = [h for h in holds if h[0] not in gone]
                # Older than everybody: the controller made it again under its workload's age.
                waiting.append(pod(f"a-{round_}", gpus=4, queue="a", created=0.0))
            elif decision.placements:
                holds.append((name, gpus, job.head.queue))
                waiting.remove(job)
    assert evictions == ["a1"]
    assert sorted(h[0] for h in holds) == ["b1", "b2"]
    assert [job.head.queue for job in waiting] == ["a"], "its pod waits"


def test_a_queue_within_its_share_goes_before_an_older_and_more_urgent_one_above() -> None:
    facts = cluster().node("n", gpus=4).queue("a", deserves=1).queue("b", deserves=3).running("r", gpus=1, queue="a")
    jobs = [pod(f"a{n}", gpus=1, queue="a", priority=9, created=1.0) for n in range(3)]
    jobs += [pod(f"b{n}", gpus=1, queue="b", created=2.0) for n in range(3)]
    assert placed(jobs, engine_of(facts).decide(jobs)) == ["b0", "b1", "b2"]


def test_without_a_word_about_shares_priority_goes_first_whatever_the_queue() -> None:
    facts = cluster().node("n", gpus=1).queue("a").queue("b").running("r", gpus=0, queue="b")
    jobs = [pod("a", gpus=1, queue="a"), pod("b", gpus=1, queue="b", priority=1)]
    assert placed(jobs, engine_of(facts).decide(jobs)) == ["b"]


def test_a_job_of_low_priority_that_waited_past_the_limit_is_the_first_of_its_queue() -> None:
    facts = cluster().node("n", gpus=1)
    jobs = [pod("old", gpus=1, created=1e9), pod("urgent", gpus=1, priority=9, created=1e9 + DAY)]
    engine = engine_of(facts, overdue_s=1.5 * DAY)
    assert placed(jobs, engine.decide(jobs, 1e9 + 1.4 * DAY)) == ["urgent"]
    engine.settle()
    assert placed(jobs, engine.decide(jobs, 1e9 + 1.5 * DAY)) == ["old"]


def test_at_fairness_nought_the_better_job_goes_first_among_queues_above_their_share() -> None:
    def first(fairness: int) -> list[str]:
        facts = (
            cluster().node("n", gpus=4).queue("a", deserves=0).queue("b", deserves=0).running("r", gpus=3, queue="a")
        )
        jobs = [pod("old", gpus=1, queue="a", created=1.0), pod("young", gpus=1, queue="b", created=2.0)]
        return placed(jobs, engine_of(facts, fairness=fairness).decide(jobs))

    assert first(100) == ["young"]
    assert first(0) == ["old"]
