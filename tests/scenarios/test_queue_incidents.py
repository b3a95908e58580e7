"""Incidents of shared clusters, retold against the engine alone: who yields to whom, and who is spared."""

from __future__ import annotations

import msgspec
import pytest

from libs.domain.queues import QueueHistory, Quota
from libs.domain.resources import WHOLE
from libs.domain.verdicts import Kind, Reason, Wake
from libs.engine.api import Decision, EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.testkit.builders import ClusterBuilder, cluster, gang, pod

NOW = 1_800_000_000.0
HOUR = 3600.0


def engine_of(facts: ClusterBuilder) -> PlacementEngine:
    return facts.into(PlacementEngine(EngineConfig(weights={"weighted-best-fit": 1})))


def decide(facts: ClusterBuilder, *jobs: PendingJob, now: float = NOW) -> list[Decision]:
    return engine_of(facts).decide(list(jobs), now)


def victims_of(decision: Decision) -> list[str]:
    return sorted(victim.name for victim in decision.victims)


def jobs_hurt(decision: Decision) -> set[str]:
    return {victim.job for victim in decision.victims}


# -- whom it costs least -----------------------------------------------------------------------------------------------


def ten_gangs_of_ten() -> ClusterBuilder:
    """Of every gang one pod on each of ten nodes."""
    facts = cluster().rack("r1", nodes=10, gpus=10)
    for node in range(10):
        for team in range(10):
            facts.running(f"team{team}", gpus=1, on=f"r1-{node}", gang_min=10, priority=1, started=NOW - HOUR)
            last = facts.pods[-1]
            facts.pods[-1] = msgspec.structs.replace(last, uid=f"uid-{team}-{node}", name=f"team{team}-{node}")
    return facts


def test_one_pod_of_each_of_ten_gangs_was_taken_and_all_ten_died_where_one_gang_is_enough() -> None:
    (decision,) = decide(ten_gangs_of_ten(), gang("train", 10, gpus=1, priority=5))
    assert len(decision.victims) == 10
    assert len(jobs_hurt(decision)) == 1
    assert len(decision.placements) == 10


def test_ten_pods_that_each_need_a_device_cost_one_gang_and_not_one_gang_each() -> None:
    facts = ten_gangs_of_ten()
    engine = engine_of(facts)
    pods = [pod(f"p{n}", gpus=1, priority=5, created=NOW + n) for n in range(12)]
    decisions = engine.decide(pods, NOW)
    gone = {victim.uid for decision in decisions for victim in decision.victims}
    assert [bool(d.victims) for d in decisions] == [True] + 9 * [False] + [True] + [False]
    assert (len(gone), len({job for d in decisions for job in jobs_hurt(d)})) == (20, 2)
    assert all(d.verdict.reason is Reason.EVICTING for d in decisions)
    engine.settle()
    for victim in facts.pods:
        if victim.uid in gone:
            engine.pod_seen(msgspec.structs.replace(victim, marked=True))
    again = engine.decide(pods[1:10], NOW + 5)
    assert not any(d.victims for d in again), "asked again they wait for the same room"
    engine.settle()
    (late,) = engine.decide(pods[1:2], NOW + 90)
    assert late.victims, "room that never comes is not waited for"


def test_a_pod_that_needs_a_whole_node_takes_it_from_the_node_with_the_fewest_jobs() -> None:
    facts = cluster().node("mixed", gpus=8).node("one-job", gpus=8)
    facts.running("solo", gpus=1, count=8, on="mixed", priority=1, started=NOW - HOUR)
    facts.running("team", gpus=2, count=4, gang_min=4, on="one-job", priority=1, started=NOW - HOUR)
    (decision,) = decide(facts, pod("p", gpus=8, priority=5))
    assert jobs_hurt(decision) == {"gang/team/team"}


def test_ten_pods_were_evicted_where_one_worker_of_an_elastic_job_is_enough() -> None:
    facts = cluster().rack("r1", nodes=2).running("elastic", gpus=1, count=10, gang_min=4, priority=1)
    facts.running("team", gpus=1, count=6, gang_min=6, priority=0)
    (decision,) = decide(facts, pod("p", gpus=1, priority=5))
    assert len(decision.victims) == 1
    assert jobs_hurt(decision) == {"gang/team/elastic"}
    assert decision.rule == "shrink"


def test_half_of_a_job_that_just_started_was_taken_for_all_of_it_and_the_other_half_was_left_alone() -> None:
    """The words about its pods come one by one: two of four are seen, and two is its minimum."""
    facts = cluster().node("n", gpus=4).running("elastic", gpus=1, count=4, gang_min=2, priority=1, started=NOW)
    seen, facts.pods = facts.pods, []
    engine = engine_of(facts)
    engine.decide([], NOW)
    for task in seen[:2]:
        engine.pod_seen(task)
    (decision,) = engine.decide([pod("p", gpus=1, priority=5)], NOW + 1)
    assert decision.victims == ()
    assert "2 pods protected as just starting until" in decision.verdict.message
    assert decision.verdict.until == NOW + 3
    engine.settle()
    for task in seen[2:]:
        engine.pod_seen(task)
    (decision,) = engine.decide([pod("p", gpus=1, priority=5)], NOW + 1.5)
    assert (len(decision.victims), decision.rule) == (1, "shrink")
    engine.settle()
    (decision,) = engine.decide([pod("p", gpus=4, priority=5)], NOW + 2.5)
    assert decision.victims == ()
    engine.settle()
    (decision,) = engine.decide([pod("p", gpus=4, priority=5)], NOW + 4)
    assert len(decision.victims) == 4


def test_surplus_yields_one_by_one_and_the_minimum_stays() -> None:
    facts = cluster().node("n", gpus=8).running("elastic", gpus=1, count=8, gang_min=4, priority=1)
    (decision,) = decide(facts, gang("train", 4, gpus=1, priority=5))
    assert len(decision.victims) == 4
    assert decision.rule == "shrink"
    (decision,) = decide(facts, gang("train", 5, gpus=1, priority=5))
    assert len(decision.victims) == 8
    assert decision.rule == "priority"


def test_a_job_evicts_nobody_to_run_faster_than_its_minimum() -> None:
    facts = cluster().node("n", gpus=4).running("low", gpus=1, count=4)
    (decision,) = decide(facts, gang("elastic", 4, minimum=4, held=4, gpus=1, priority=5))
    assert decision.victims == ()


def test_the_minimum_of_an_elastic_job_is_evicted_for_and_not_one_worker_more() -> None:
    facts = cluster().node("n", gpus=8).running("low", gpus=1, count=8)
    (decision,) = decide(facts, gang("elastic", 8, minimum=3, gpus=1, priority=5))
    assert (len(decision.victims), len(decision.placements)) == (3, 3)


def test_the_job_with_a_fresh_checkpoint_yields_and_not_the_one_that_started_last() -> None:
    facts = cluster().node("n", gpus=2)
    facts.running("saved", gpus=1, priority=1, started=NOW - 10 * HOUR - 60, checkpoint_s=3600)
    facts.running("unsaved", gpus=1, priority=1, started=NOW - HOUR)
    (decision,) = decide(facts, pod("p", gpus=1, priority=5))
    assert victims_of(decision) == ["saved"]


def test_where_a_job_preempts_by_priority_the_lowest_yields_however_much_it_loses() -> None:
    facts = cluster().node("n", gpus=2)
    facts.running("low", gpus=1, priority=0, started=NOW - 100 * HOUR).running("mid", gpus=1, priority=1, started=NOW)
    (decision,) = decide(facts, pod("p", gpus=1, priority=5))
    assert victims_of(decision) == ["low"]


def test_ten_single_pods_are_taken_rather_than_a_gang_that_loses_more_and_the_other_way_round() -> None:
    for team_started, hurt in ((NOW - 2 * HOUR, 10), (NOW - HOUR, 1)):
        facts = cluster().node("a", gpus=10).node("b", gpus=10)
        facts.running("solo", gpus=1, count=10, on="a", priority=1, started=NOW - HOUR)
        facts.running("team", gpus=1, count=10, on="b", gang_min=10, priority=1, started=team_started)
        (decision,) = decide(facts, gang("train", 10, gpus=1, priority=5))
        assert len(decision.victims) == 10
        assert len(jobs_hurt(decision)) == hurt


def test_nobody_of_a_mixed_set_goes_who_turns_out_not_to_be_needed() -> None:
    """Three single pods are cheapest one by one, but only with the gang is there room for all: they stay then."""
    facts = cluster().node("a", gpus=3).node("b", gpus=8)
    facts.running("solo", gpus=1, count=3, on="a", priority=0, started=NOW - 10)
    facts.running("team", gpus=1, count=8, on="b", gang_min=8, priority=1, started=NOW - HOUR)
    (decision,) = decide(facts, gang("train", 8, gpus=1, priority=5))
    assert jobs_hurt(decision) == {"gang/team/team"}


# -- shares ------------------------------------------------------------------------------------------------------------


def eight_units() -> ClusterBuilder:
    facts = cluster().node("n", gpus=8).queue("a", deserves=3).queue("b", deserves=5)
    facts.running("a4", gpus=4, queue="a", priority=9, started=NOW - HOUR)
    facts.running("b1", gpus=1, queue="b", started=NOW - HOUR)
    return facts


def test_a_queue_below_its_share_has_it_back_with_one_eviction_whatever_the_priorities() -> None:
    (decision,) = decide(eight_units(), pod("b4", gpus=4, queue="b"))
    assert victims_of(decision) == ["a4"]
    assert decision.rule == "reclaim"


def test_the_evicted_queues_share_became_0_and_its_pod_came_again_at_once_and_took_the_room_back() -> None:
    facts = cluster().node("n", gpus=8).queue("a", deserves=3).queue("b", deserves=5)
    facts.running("b1", gpus=1, queue="b", started=NOW - HOUR).running("b4", gpus=4, queue="b", started=NOW)
    (decision,) = decide(facts, pod("a4", gpus=4, queue="a", priority=9))
    assert (decision.victims, decision.placements) == ((), ())
    assert decision.verdict.kind is Kind.NOT_NOW
    (smaller,) = decide(facts, pod("a3", gpus=3, queue="a"))
    assert smaller.placements, "what it deserves is free for it"


def test_while_the_victim_still_leaves_its_queue_is_not_taken_from_twice() -> None:
    facts = cluster().node("n", gpus=8).queue("a", deserves=3).queue("b", deserves=5)
    facts.running("a", gpus=1, count=6, queue="a").running("b", gpus=1, count=2, queue="b")
    first, second, third, fourth = decide(facts, *(pod(f"b{i}x", gpus=1, queue="b", created=NOW + i) for i in range(4)))
    assert [len(d.victims) for d in (first, second, third, fourth)] == [1, 1, 1, 0]
    engine = engine_of(facts)
    for victim in (*first.victims, *second.victims):
        engine.pod_seen(msgspec.structs.replace(next(p for p in facts.pods if p.uid == victim.uid), terminating=True))
    again = engine.decide([pod("b9", gpus=1, queue="b"), pod("b8", gpus=1, queue="b")], NOW)
    assert sum(len(d.victims) for d in again) == 1


def test_a_queue_above_its_share_reclaims_nothing_and_one_within_it_loses_nothing() -> None:
    facts = cluster().node("n", gpus=8).queue("a", deserves=4).queue("b", deserves=4)
    facts.running("a", gpus=1, count=4, queue="a").running("b", gpus=1, count=4, queue="b")
    (decision,) = decide(facts, pod("more", gpus=1, queue="b"))
    assert decision.victims == ()


def test_borrowers_without_any_share_give_back_what_others_deserve() -> None:
    facts = cluster().node("n", gpus=8).queue("b", deserves=4)
    facts.running("guest", gpus=1, count=8, queue="guests", priority=100)
    first, second = decide(facts, gang("four", 4, gpus=1, queue="b"), pod("fifth", gpus=1, queue="b", created=NOW))
    assert len(first.victims) == 4
    assert second.victims == ()


def test_shares_are_settled_where_the_two_queues_part_and_a_child_within_its_own_keeps_it() -> None:
    facts = cluster().node("n", gpus=8).queue("lab", deserves=4).queue("lab/vision", deserves=2).queue("lab/speech")
    facts.queue("ops", deserves=4)
    facts.running("v", gpus=1, count=2, queue="lab/vision", started=NOW)
    facts.running("s", gpus=1, count=6, queue="lab/speech", started=NOW - 50 * HOUR)
    (decision,) = decide(facts, gang("ops", 4, gpus=1, queue="ops"))
    assert len(decision.victims) == 4
    assert all(name.startswith("s-") for name in victims_of(decision)), "vision has no more than it deserves in the lab"


def test_inside_one_queue_priority_decides_and_between_queues_with_shares_it_does_not() -> None:
    facts = cluster().node("n", gpus=2).queue("a", deserves=1).queue("b", deserves=1)
    facts.running("a", gpus=1, queue="a").running("b", gpus=1, queue="b")
    (decision,) = decide(facts, pod("p", gpus=1, queue="a", priority=7))
    assert victims_of(decision) == ["a"]
    assert decision.rule == "priority"


def test_a_share_of_cpu_does_not_reclaim_gpus() -> None:
    facts = cluster().node("n", gpus=2).queue("a").queue("b", deserved=Quota(cpu=50_000))
    facts.running("a", gpus=1, count=2, queue="a")
    (decision,) = decide(facts, pod("p", gpus=1, queue="b"))
    assert decision.victims == ()


def test_over_share_elastic_jobs_shrink_before_anybody_is_evicted_for_a_share() -> None:
    facts = cluster().node("n", gpus=8).queue("a", deserves=4).queue("b", deserves=4)
    facts.running("solo", gpus=1, count=2, queue="a", started=NOW)
    facts.running("elastic", gpus=1, count=6, gang_min=2, queue="a", started=NOW - 90 * HOUR)
    (decision,) = decide(facts, gang("back", 4, gpus=1, queue="b"))
    assert jobs_hurt(decision) == {"gang/team/elastic"}
    assert decision.rule == "shrink"


def test_an_elastic_gang_that_shrinks_in_vain_is_reclaimed_as_a_whole() -> None:
    facts = cluster().node("n", gpus=4).queue("a", deserves=0).queue("b", deserves=4)
    facts.running("elastic", gpus=1, count=4, gang_min=3, queue="a", started=NOW - HOUR)
    (decision,) = decide(facts, pod("back", gpus=4, queue="b"))
    assert len(decision.victims) == 4
    assert decision.rule == "reclaim"


def test_among_jobs_that_lose_alike_the_one_of_high_priority_gave_a_share_back_for_it_had_started_last() -> None:
    facts = cluster().node("n", gpus=2).node("m", gpus=2).queue("a", deserves=0).queue("b", deserves=4)
    facts.running("saved", gpus=1, queue="a", on="n", priority=9, started=NOW - HOUR, checkpoint_s=1800)
    facts.running("also", gpus=1, queue="a", on="n", priority=3, started=NOW - 2 * HOUR, checkpoint_s=1800)
    facts.running("batch", gpus=1, queue="a", on="m", priority=1, started=NOW - 3 * HOUR, checkpoint_s=1800)
    facts.running("urgent", gpus=1, queue="a", on="m", priority=5, started=NOW - HOUR, checkpoint_s=1800)
    decisions = decide(facts, *(pod(f"b{n}x", gpus=1, queue="b", created=NOW + n) for n in range(4)))
    assert [victims_of(d) for d in decisions] == [["batch"], ["also"], ["urgent"], ["saved"]]
    assert {d.rule for d in decisions} == {"reclaim"}


def test_what_is_lost_counts_before_priority_where_a_queue_gives_back_what_it_does_not_deserve() -> None:
    facts = cluster().node("n", gpus=2).queue("a", deserves=0).queue("b", deserves=2)
    facts.running("long", gpus=1, queue="a", priority=0, started=NOW - HOUR)
    facts.running("short", gpus=1, queue="a", priority=9, started=NOW - 60)
    (decision,) = decide(facts, pod("p", gpus=1, queue="b"))
    assert victims_of(decision) == ["short"]


def test_the_elastic_job_of_lower_priority_shrinks_first_wherever_it_runs() -> None:
    facts = cluster().node("a", gpus=3).node("b", gpus=3)
    facts.running("urgent", gpus=1, count=3, gang_min=2, on="a", priority=4, started=NOW - HOUR)
    facts.running("batch", gpus=1, count=3, gang_min=2, on="b", priority=1, started=NOW - 2 * HOUR)
    (decision,) = decide(facts, pod("p", gpus=1, priority=5))
    assert (jobs_hurt(decision), decision.rule) == ({"gang/team/batch"}, "shrink")


# -- protection --------------------------------------------------------------------------------------------------------


def test_pods_that_have_not_run_their_least_time_are_spared_and_the_job_hears_until_when() -> None:
    facts = cluster().node("n", gpus=2).queue("a", min_run_s=600)
    facts.running("old", gpus=1, queue="a", started=NOW - 1000).running("new", gpus=1, queue="a", started=NOW - 100)
    (decision,) = decide(facts, pod("p", gpus=1, queue="a", priority=5))
    assert victims_of(decision) == ["old"]
    (decision,) = decide(facts, pod("p", gpus=2, queue="a", priority=5))
    assert decision.victims == ()
    assert "1 pod protected by minimum run time until 2027-01-15T08:08:20Z" in decision.verdict.message
    assert Wake.TIME in decision.verdict.wakes_on
    assert decision.verdict.until == NOW + 500
    (decision,) = decide(facts, pod("p", gpus=2, queue="a", priority=5), now=NOW + 500)
    assert victims_of(decision) == ["new", "old"]


@pytest.mark.parametrize(
    "facts",
    [
        cluster().node("n", gpus=1).running("kept", gpus=1, preemptible=False),
        cluster().node("n", gpus=1).queue("a", preemptible=False).running("kept", gpus=1, queue="a"),
        cluster().node("n", gpus=1).queue("a", preemptible=False).queue("a/b").running("kept", gpus=1, queue="a/b"),
    ],
    ids=["the job", "its queue", "a queue above"],
)
def test_what_is_not_preemptible_stays(facts: ClusterBuilder) -> None:
    queue = facts.pods[0].queue
    (decision,) = decide(facts, pod("p", gpus=1, queue=queue, priority=5))
    assert decision.victims == ()
    assert "1 pod protected as not preemptible" in decision.verdict.message
    assert Wake.TIME not in decision.verdict.wakes_on


def test_a_gang_with_one_protected_member_stays_whole() -> None:
    facts = cluster().node("n", gpus=2).queue("a", min_run_s=600)
    facts.running("team", gpus=1, count=2, gang_min=2, queue="a", started=NOW - 1000)
    facts.pods[0] = msgspec.structs.replace(facts.pods[0], started=NOW - 10)
    (decision,) = decide(facts, pod("p", gpus=1, queue="a", priority=5))
    assert decision.victims == ()


def history(path: str, workload: str, *ago: float, at: float = NOW) -> QueueHistory:
    return QueueHistory(path, at, evictions={workload: tuple(int(NOW - s) for s in ago)})


def test_a_workload_that_was_evicted_three_times_today_is_left_alone_until_the_first_is_a_day_ago() -> None:
    facts = cluster().node("n", gpus=1).running("victim", gpus=1, queue="a", workload="Job/team/w", started=NOW - 60)
    engine = engine_of(facts)
    engine.queue_history_seen(history("a", "Job/team/w", 80_000, 5000, 300))
    (decision,) = engine.decide([pod("p", gpus=1, queue="a", priority=5)], NOW)
    assert decision.victims == ()
    assert "1 pod protected as evicted often enough until" in decision.verdict.message
    assert decision.verdict.until == NOW - 80_000 + 86_400
    engine.settle()
    (decision,) = engine.decide([pod("p", gpus=1, queue="a", priority=5)], NOW + 6401)
    assert victims_of(decision) == ["victim"]


@pytest.mark.parametrize("named", [True, False], ids=["named by the history", "not named"])
def test_one_eviction_was_counted_as_two_as_soon_as_the_history_told_of_it(named: bool) -> None:
    engine = engine_of(cluster().node("n", gpus=1).queue("a", evictions=2, evictions_window_s=86_400))
    facts = cluster().node("n", gpus=1).running("victim", gpus=1, queue="a", workload="Job/team/w", started=NOW)
    engine.use_seen(msgspec.structs.replace(facts.uses["n"], revision=10))
    engine.pod_seen(facts.pods[0])
    (decision,) = engine.decide([pod("p0", gpus=1, queue="a", priority=5)], NOW)
    engine.settle()
    assert len(decision.victims) == 1
    engine.pod_seen(msgspec.structs.replace(facts.pods[0], marked=True))
    engine.pod_gone(facts.pods[0].uid)
    engine.use_seen(msgspec.structs.replace(facts.uses["n"], revision=11))
    engine.pod_seen(msgspec.structs.replace(facts.pods[0], uid="again", started=NOW + 1))
    past = msgspec.structs.replace(
        history("a", "Job/team/w", 0.0, at=NOW + 1), recent=(facts.pods[0].uid,) if named else ()
    )
    engine.queue_history_seen(past)
    (decision,) = engine.decide([pod("p1", gpus=1, queue="a", priority=5)], NOW + 2)
    if named:
        assert [victim.uid for victim in decision.victims] == ["again"]
    else:
        assert decision.victims == ()
        assert decision.verdict.until <= NOW + 2 + 10, "it is in doubt whether there were two, and soon it is not"


def test_a_controller_made_the_victim_again_it_was_admitted_again_and_evicted_again_without_end() -> None:
    """No history comes (the leader is away): what this replica decided itself bounds it."""
    engine = engine_of(cluster().node("n", gpus=1).queue("a", evictions=2, evictions_window_s=3600))
    facts = cluster().node("n", gpus=1).running("victim", gpus=1, queue="a", workload="Job/team/w", started=NOW)
    evicted = 0
    for turn in range(6):
        now = NOW + 60 * turn
        again = msgspec.structs.replace(facts.pods[0], uid=f"uid-{turn}", started=now - 1)
        engine.use_seen(msgspec.structs.replace(facts.uses["n"], revision=10 + turn))
        engine.pod_seen(again)
        (decision,) = engine.decide([pod(f"p{turn}", gpus=1, queue="a", priority=5)], now)
        engine.settle()
        if decision.victims:
            evicted += 1
            engine.pod_seen(msgspec.structs.replace(again, marked=True))
        engine.pod_gone(again.uid)
    assert evicted == 2
    later = NOW + 2 * 3600
    engine.pod_seen(msgspec.structs.replace(facts.pods[0], uid="uid-later", started=later - 1))
    (decision,) = engine.decide([pod("late", gpus=1, queue="a", priority=5)], later)
    assert victims_of(decision) == ["victim"]


def test_an_eviction_that_the_history_has_learned_of_counts_once() -> None:
    engine = engine_of(cluster().node("n", gpus=1).queue("a", evictions=2))
    facts = cluster().node("n", gpus=1).running("victim", gpus=1, queue="a", workload="Job/team/w", started=NOW - 9)
    engine.decide([], NOW)
    engine.pod_seen(msgspec.structs.replace(facts.pods[0], uid="uid-0", marked=True))
    engine.pod_gone("uid-0")
    engine.queue_history_seen(history("a", "Job/team/w", 0, at=NOW + 60))
    engine.use_seen(facts.uses["n"])
    engine.pod_seen(facts.pods[0])
    (decision,) = engine.decide([pod("p", gpus=1, queue="a", priority=5)], NOW + 60)
    assert victims_of(decision) == ["victim"]


def test_a_gang_that_was_evicted_whole_was_evicted_once_and_not_ten_times() -> None:
    facts = cluster().node("n", gpus=10).queue("a", evictions=2)
    facts.running("team", gpus=1, count=10, gang_min=10, queue="a", workload="PyTorchJob/team/w", started=NOW - HOUR)
    engine = engine_of(facts)
    engine.queue_history_seen(history("a", "PyTorchJob/team/w", *(5000 + i for i in range(10))))
    (decision,) = engine.decide([pod("p", gpus=1, queue="a", priority=5)], NOW)
    assert len(decision.victims) == 10


# -- several at once ---------------------------------------------------------------------------------------------------


def test_room_for_a_queue_without_shares_is_still_made_by_priority_as_it_always_was() -> None:
    facts = cluster().node("n", gpus=1).running("low", gpus=1, queue="x", priority=0)
    (decision,) = decide(facts, pod("p", gpus=1, queue="y", priority=5))
    assert victims_of(decision) == ["low"]
    assert (decision.verdict.reason, decision.rule) == (Reason.EVICTING, "priority")


def test_what_a_queue_claims_by_memory_of_a_gpu_is_counted_as_it_will_be_charged() -> None:
    facts = cluster().node("n", gpus=2, mib=1000).queue("b", deserves=1).running("guest", gpus=1, count=2, queue="g")
    whole, half = decide(facts, pod("w", mib=1001, queue="b")), decide(facts, pod("h", mib=500, queue="b"))
    assert whole[0].victims == ()
    assert len(half[0].victims) == 1
    facts.queue("b", deserved=Quota(gpu_milli=WHOLE // 4))
    assert decide(facts, pod("h", mib=500, queue="b"))[0].victims == ()


# -- models ------------------------------------------------------------------------------------------------------------


def models_used(facts: ClusterBuilder) -> ClusterBuilder:
    """Queue uses with their models, as the ledger tells them."""
    for task_ in facts.pods:
        model = facts.nodes[task_.node].gpus[0].model
        use = facts.queue_uses[task_.queue]
        held = use.models.get(model, 0) + task_.charge.gpu_milli
        facts.queue_uses[task_.queue] = msgspec.structs.replace(use, models={**use.models, model: held})
    return facts


def test_a_share_of_one_model_reclaims_that_model_and_no_other() -> None:
    facts = cluster().node("old", gpus=4, model="V100").node("new", gpus=4, model="H100")
    facts.queue("b", deserved=Quota(models={"H100": 2 * WHOLE}))
    facts.running("g", gpus=1, count=8, queue="guests")
    models_used(facts)
    (one,) = decide(facts, gang("train", 2, gpus=1, queue="b"))
    assert {victim.node for victim in one.victims} == {"new"}
    assert len(one.victims) == 2
    assert decide(facts, gang("train", 3, gpus=1, queue="b"))[0].victims == ()


def test_what_a_queue_deserves_of_one_model_stays_when_gpus_are_reclaimed_from_it() -> None:
    facts = cluster().node("old", gpus=6, model="V100").node("new", gpus=2, model="H100")
    facts.queue("a", deserved=Quota(models={"H100": 2 * WHOLE})).queue("b", deserves=8)
    facts.running("v", gpus=1, count=6, queue="a", on="old", started=NOW - HOUR)
    facts.running("h", gpus=1, count=2, queue="a", on="new", started=NOW)
    models_used(facts)
    (decision,) = decide(facts, gang("back", 6, gpus=1, queue="b"))
    assert {victim.node for victim in decision.victims} == {"old"}
    assert decide(facts, gang("back", 7, gpus=1, queue="b"))[0].victims == ()


def test_a_queue_at_its_limit_of_one_model_is_helped_by_its_own_pods_of_that_model_only() -> None:
    facts = cluster().node("n", gpus=2, model="H100").queue("q", models={"H100": WHOLE})
    facts.running("theirs", gpus=1, queue="other", priority=0).running("mine", gpus=1, queue="q", priority=1)
    models_used(facts)
    (decision,) = decide(facts, pod("p", gpus=1, queue="q", priority=5))
    assert victims_of(decision) == ["mine"]
    facts.pods[1] = msgspec.structs.replace(facts.pods[1], preemptible=False)
    (decision,) = decide(facts, pod("p", gpus=1, queue="q", priority=5))
    assert decision.victims == ()


def test_an_eviction_counts_also_where_the_beneficiary_had_its_room_before_the_victims_end_was_told() -> None:
    facts = cluster().node("n", gpus=1).running("victim", gpus=1, queue="a", workload="Job/team/w", started=NOW - 9)
    engine = engine_of(cluster().node("n", gpus=1).queue("a", evictions=1))
    engine.decide([], NOW)
    first = msgspec.structs.replace(facts.pods[0], uid="uid-0", marked=True)
    engine.pod_seen(first)
    engine.pod_seen(msgspec.structs.replace(first, marked=False))
    engine.pod_gone("uid-0")
    engine.use_seen(facts.uses["n"])
    engine.pod_seen(facts.pods[0])
    (decision,) = engine.decide([pod("p", gpus=1, queue="a", priority=5)], NOW + 5)
    assert decision.victims == ()


def test_a_victim_that_stayed_after_all_was_not_evicted() -> None:
    facts = cluster().node("n", gpus=1).queue("a", evictions=1)
    facts.running("victim", gpus=1, queue="a", workload="Job/team/w", started=NOW - 9)
    engine = engine_of(facts)
    engine.decide([], NOW)
    engine.pod_seen(msgspec.structs.replace(facts.pods[0], marked=True))
    engine.pod_seen(facts.pods[0])
    (decision,) = engine.decide([pod("p", gpus=1, queue="a", priority=5)], NOW + 60)
    assert victims_of(decision) == ["victim"]
