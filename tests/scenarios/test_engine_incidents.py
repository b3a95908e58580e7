"""Incidents of GPU clusters, retold against the engine alone: who got what, and what the others were told."""

from __future__ import annotations

import msgspec
import pytest

from libs.domain.jobs import JobHead
from libs.domain.nodes import Node
from libs.domain.resources import Charge, GpuGrant
from libs.domain.usage import NodeUse, QueueUse
from libs.domain.verdicts import Kind, Reason, Wake
from libs.engine.api import Decision, EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.testkit.builders import ClusterBuilder, cluster, gang, node, pod, task


def decide(facts: ClusterBuilder, *jobs: PendingJob, policy: str = "weighted-best-fit") -> list[Decision]:
    return facts.into(PlacementEngine(EngineConfig(weights={policy: 1}))).decide(list(jobs))


def nodes_of(decision: Decision) -> list[str]:
    return [placement.node for placement in decision.placements]


def gpus_of(decision: Decision) -> list[tuple[int, ...]]:
    return [tuple(grant.index for grant in placement.charge.gpus) for placement in decision.placements]


def victims_of(decision: Decision) -> list[str]:
    return sorted(victim.name for victim in decision.victims)


# -- gangs -------------------------------------------------------------------------------------------------------------


def test_two_gangs_that_each_need_the_whole_cluster_never_hold_half_of_it_each() -> None:
    first, second = decide(
        cluster().rack("r1", nodes=4),
        gang("older", 4, gpus=8, created=1.0),
        gang("younger", 4, gpus=8, created=2.0),
    )
    assert sorted(nodes_of(first)) == ["r1-0", "r1-1", "r1-2", "r1-3"]
    assert second.placements == ()
    assert (second.verdict.kind, second.verdict.reason) == (Kind.NOT_NOW, Reason.GANG_ROOM)
    assert Wake.ROOM_FREED in second.verdict.wakes_on


def test_the_younger_of_two_gangs_does_not_win_by_standing_first_in_the_list() -> None:
    younger, older = decide(
        cluster().rack("r1", nodes=4),
        gang("younger", 4, gpus=8, created=2.0),
        gang("older", 4, gpus=8, created=1.0),
    )
    assert len(older.placements) == 4
    assert younger.placements == ()


def test_a_gang_larger_than_its_queues_headroom_holds_nothing_and_hears_of_the_quota() -> None:
    facts = cluster().rack("r1", nodes=4).queue("research", gpus=16).running("base", gpus=8, queue="research")
    (decision,) = decide(facts, gang("train", 2, gpus=8, queue="research"))
    assert decision.placements == ()
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NOT_NOW, Reason.QUOTA)
    assert decision.verdict.wakes_on == (Wake.QUOTA_FREED,)
    assert not decision.verdict.more_nodes_help


def test_a_gang_above_its_queues_limit_is_told_never_and_why() -> None:
    (decision,) = decide(
        cluster().rack("r1", nodes=4).queue("research", gpus=16), gang("train", 3, gpus=8, queue="research")
    )
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NEVER, Reason.QUOTA_NEVER)
    assert "the limit is 16" in decision.verdict.message
    assert not decision.verdict.more_nodes_help


def test_the_limit_of_a_parent_queue_binds_its_children_together() -> None:
    facts = cluster().rack("r1", nodes=4).queue("lab", gpus=8).queue("lab/vision").queue("lab/speech", gpus=8)
    vision, speech = decide(
        facts,
        pod("a", gpus=6, queue="lab/vision", created=1.0),
        pod("b", gpus=4, queue="lab/speech", created=2.0),
    )
    assert vision.verdict.kind is Kind.FITS
    assert speech.verdict.reason is Reason.QUOTA
    assert "queue lab:" in speech.verdict.message


def test_a_gang_of_which_three_of_eight_pods_exist_waits_for_pods_and_not_for_nodes() -> None:
    (decision,) = decide(cluster().rack("r1", nodes=4), gang("train", 3, minimum=8, gpus=1))
    assert decision.placements == ()
    assert decision.verdict.reason is Reason.GANG_INCOMPLETE
    assert decision.verdict.wakes_on == (Wake.TASKS_ADDED,)
    assert not decision.verdict.more_nodes_help


def test_a_recreated_worker_joins_the_seven_that_run() -> None:
    facts = cluster().rack("r1", nodes=1)
    (decision,) = decide(facts, gang("train", 1, minimum=8, held=7, gpus=1))
    assert len(decision.placements) == 1


def test_an_elastic_gang_starts_with_its_minimum_and_takes_what_more_there_is() -> None:
    (decision,) = decide(cluster().rack("r1", nodes=1), gang("elastic", 12, minimum=4, gpus=1))
    assert len(decision.placements) == 8
    assert decision.leftover is not None
    assert decision.leftover.reason is Reason.GPU_COUNT


def test_a_gang_that_even_the_empty_cluster_cannot_hold_is_never_and_helped_by_more_nodes() -> None:
    facts = cluster().rack("r1", nodes=3).running("base", gpus=8)
    (decision,) = decide(facts, gang("huge", 4, gpus=8))
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NEVER, Reason.GANG_ROOM)
    assert decision.verdict.more_nodes_help
    assert "3 of the 4" in decision.verdict.message


def test_a_gang_of_five_gpu_tasks_is_counted_per_node_and_not_by_the_sum_of_gpus() -> None:
    """Two nodes of 8 have 16 GPUs, three tasks of 5 ask for 15, and only two ever fit."""
    (decision,) = decide(cluster().rack("r1", nodes=2), gang("five", 3, gpus=5))
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NEVER, Reason.GANG_ROOM)


# -- devices -----------------------------------------------------------------------------------------------------------


def test_three_thirds_share_a_gpu_and_the_fourth_does_not_squeeze_in() -> None:
    decisions = decide(cluster().node("n", gpus=1), *(pod(f"p{i}", share=333, created=i) for i in range(4)))
    assert [d.verdict.kind for d in decisions] == [Kind.FITS] * 3 + [Kind.NOT_NOW]
    assert decisions[3].verdict.reason is Reason.GPU_SHARE


def test_shares_fill_one_device_before_they_open_the_next() -> None:
    decisions = decide(cluster().node("n", gpus=4), *(pod(f"p{i}", share=500, created=i) for i in range(4)))
    assert [gpus_of(d) for d in decisions] == [[(0,)], [(0,)], [(1,)], [(1,)]]


def test_gpu_memory_is_counted_to_the_mib() -> None:
    facts = cluster().node("n", gpus=1, mib=1000)
    first, second, third = decide(
        facts, pod("a", mib=600, created=1), pod("b", mib=401, created=2), pod("c", mib=400, created=3)
    )
    assert first.placements[0].charge.gpus == (GpuGrant(0, 600, 600),)
    assert second.verdict.reason is Reason.GPU_SHARE
    assert third.verdict.kind is Kind.FITS


def test_one_mib_in_use_makes_a_device_unfit_to_be_taken_whole() -> None:
    facts = cluster().node("n", gpus=2).used("n", Charge(0, 0, (GpuGrant(0, 0, 1),)))
    (decision,) = decide(facts, pod("whole", gpus=1))
    assert gpus_of(decision) == [(1,)]


def test_memory_above_every_device_is_never() -> None:
    (decision,) = decide(cluster().rack("r1", nodes=2, mib=40960), pod("big", mib=50000))
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NEVER, Reason.GPU_MEMORY_TOTAL)
    assert not decision.verdict.more_nodes_help


def test_beside_a_foreign_pod_of_unknown_indices_no_gpu_is_given_out() -> None:
    facts = cluster().rack("r1", nodes=1).foreign("r1-0", gpus=2)
    gpu, cpu = decide(facts, pod("gpu", gpus=1), pod("cpu"))
    assert gpu.verdict.reason is Reason.GPU_FOREIGN
    assert gpu.verdict.kind is Kind.NOT_NOW
    assert cpu.verdict.kind is Kind.FITS


def test_a_disputed_device_is_closed_and_its_neighbours_are_not() -> None:
    facts = cluster().node("n", gpus=2).disputed("n", 0)
    one, two = decide(facts, pod("one", gpus=1, created=1), pod("two", gpus=1, created=2))
    assert gpus_of(one) == [(1,)]
    assert two.verdict.kind is Kind.NOT_NOW


def test_a_node_in_mig_mode_takes_cpu_pods_only_and_says_so() -> None:
    facts = cluster().node("n", gpus_closed="MIG mode")
    gpu, cpu = decide(facts, pod("gpu", gpus=1), pod("cpu"))
    assert (gpu.verdict.kind, gpu.verdict.reason) == (Kind.NEVER, Reason.GPU_CLOSED)
    assert cpu.verdict.kind is Kind.FITS


def test_only_the_models_asked_for_are_taken_even_within_one_node() -> None:
    facts = cluster().rack("old", nodes=1, model="T4").rack("new", nodes=1, model="H100")
    mixed, none = decide(facts, pod("h", gpus=8, models=["H100", "A100"]), pod("x", gpus=1, models=["B200"]))
    assert nodes_of(mixed) == ["new-0"]
    assert (none.verdict.kind, none.verdict.reason) == (Kind.NEVER, Reason.GPU_MODEL)
    assert none.verdict.more_nodes_help


# -- nodes -------------------------------------------------------------------------------------------------------------


def test_the_refusal_counts_every_node_once_and_names_what_helps() -> None:
    facts = cluster().rack("busy", nodes=3).rack("own", nodes=1, taints=["team=other:NoSchedule"])
    for i in range(3):
        facts.running(f"base-{i}", gpus=8, on=f"busy-{i}")
    (decision,) = decide(facts, pod("late", gpus=1))
    assert decision.verdict.nodes == {"not enough free GPUs": 3, "untolerated taint": 1}
    assert decision.verdict.message.startswith("0/4 nodes fit: 3 not enough free GPUs, 1 untolerated taint; helps: ")
    assert decision.verdict.more_nodes_help


def test_a_taint_keeps_out_and_a_toleration_lets_in() -> None:
    facts = cluster().rack("own", nodes=1, taints=["team=other:NoSchedule"])
    out, into = decide(facts, pod("out", gpus=1), pod("in", gpus=1, tolerations=["team=other:NoSchedule"]))
    assert (out.verdict.kind, out.verdict.reason) == (Kind.NEVER, Reason.TAINT)
    assert not out.verdict.more_nodes_help
    assert into.verdict.kind is Kind.FITS


def test_a_node_that_prefers_others_is_taken_last_but_taken() -> None:
    facts = cluster().node("a", taints=["spot=yes:PreferNoSchedule"]).node("b").running("base", gpus=7, on="a")
    decisions = decide(facts, *(pod(f"p{i}", gpus=1, created=i) for i in range(9)))
    assert [nodes_of(d)[0] for d in decisions] == ["b"] * 8 + ["a"]


def test_a_cordon_is_no_never_even_with_the_taint_that_kubernetes_adds_to_it() -> None:
    facts = cluster().node("n", cordoned=True, taints=["node.kubernetes.io/unschedulable=:NoSchedule"])
    (decision,) = decide(facts, pod("p", gpus=1))
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NOT_NOW, Reason.CORDONED)
    assert Wake.NODE_CHANGED in decision.verdict.wakes_on


def test_a_node_under_pressure_is_not_ready_and_not_for_ever() -> None:
    facts = cluster().node("n", taints=["node.kubernetes.io/disk-pressure=:NoSchedule"])
    (decision,) = decide(facts, pod("p", gpus=1))
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NOT_NOW, Reason.NOT_READY)


def test_nodes_of_a_label_that_nobody_has_are_what_an_autoscaler_can_bring() -> None:
    (decision,) = decide(cluster().rack("r1", nodes=2), pod("p", gpus=1, selector={"zone": "c"}))
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NEVER, Reason.SELECTOR)
    assert decision.verdict.more_nodes_help
    assert decision.verdict.helps == ("nodes labelled zone=c",)


def test_sixteen_gpus_in_one_pod_on_nodes_of_eight_is_never_and_more_nodes_are_no_help() -> None:
    (decision,) = decide(cluster().rack("r1", nodes=4), pod("p", gpus=16))
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NEVER, Reason.GPU_TOTAL)
    assert not decision.verdict.more_nodes_help


def test_a_cluster_without_nodes_waits_for_the_first() -> None:
    (decision,) = decide(cluster(), pod("p", gpus=1))
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NOT_NOW, Reason.NO_NODES)
    assert decision.verdict.wakes_on == (Wake.NODE_ADDED,)
    assert decision.verdict.more_nodes_help


def test_what_is_not_understood_is_named_and_never_ignored() -> None:
    (decision,) = decide(cluster().rack("r1", nodes=1), pod("p", gpus=1, unsupported=["podAffinity", "hostPort"]))
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NEVER, Reason.UNSUPPORTED)
    assert "podAffinity, hostPort" in decision.verdict.message
    assert decision.placements == ()


def test_a_cpu_pod_goes_where_it_strands_no_gpu() -> None:
    facts = cluster().node("a-gpu", gpus=8).node("z-cpu", gpus=0)
    (decision,) = decide(facts, pod("loader", cpu=4000))
    assert nodes_of(decision) == ["z-cpu"]


def test_small_tasks_are_packed_so_that_an_eight_gpu_job_still_starts() -> None:
    """The post-mortem of 16-GPU servers that held one small task each."""
    facts = cluster().rack("r1", nodes=4)
    *small, large = decide(
        facts,
        *(pod(f"s{i}", gpus=1, created=i) for i in range(8)),
        gang("large", 3, gpus=8, created=99.0),
    )
    assert {name for d in small for name in nodes_of(d)} == {"r1-0"}
    assert len(large.placements) == 3


def test_a_gone_node_has_no_room_and_its_pods_stay_charged_when_it_returns() -> None:
    engine = cluster().node("n", gpus=1).running("base", gpus=1, on="n").into(PlacementEngine())
    engine.node_gone("n")
    (decision,) = engine.decide([pod("p", gpus=1)])
    assert decision.verdict.reason is Reason.NO_NODES
    engine.node_seen(node("n", gpus=1))
    (decision,) = engine.decide([pod("p", gpus=1)])
    assert decision.verdict.reason is Reason.GPU_COUNT


def test_used_room_that_is_told_before_its_node_counts_when_the_node_appears() -> None:
    engine = PlacementEngine()
    assert engine.use_seen(NodeUse("n", 7, gpus=((1000, 81920), (0, 0)), pods=1))
    engine.node_seen(node("n", gpus=2))
    (decision,) = engine.decide([pod("p", gpus=1)])
    assert gpus_of(decision) == [(1,)]
    assert not engine.use_seen(NodeUse("n", 6))  # older: not applied


# -- earmarks ----------------------------------------------------------------------------------------------------------


def test_earmarked_room_goes_to_its_beneficiary_and_to_nobody_else() -> None:
    mark = Charge(1000, 1024, (GpuGrant(0, 1000, 81920),))
    facts = cluster().node("n", gpus=1).earmarked("n", "pod/team/heir", mark)
    other, heir = decide(facts, pod("other", gpus=1, priority=9), pod("heir", gpus=1))
    assert other.verdict.reason is Reason.GPU_COUNT
    assert heir.placements[0].charge == mark


def test_the_quota_that_an_earmark_holds_is_its_beneficiarys_too() -> None:
    mark = Charge(1000, 1024, (GpuGrant(0, 1000, 81920),))
    engine = (
        cluster().node("n", gpus=1).queue("q", gpus=1).earmarked("n", "pod/team/heir", mark).into(PlacementEngine())
    )
    engine.queue_use_seen(QueueUse("q", 5, 1000, 1000, 1024))
    (heir,) = engine.decide([pod("heir", gpus=1, queue="q")])
    assert len(heir.placements) == 1


def test_an_earmark_on_a_node_that_was_cordoned_meanwhile_is_not_used() -> None:
    mark = Charge(1000, 1024, (GpuGrant(0, 1000, 81920),))
    facts = cluster().node("n", gpus=1, cordoned=True).earmarked("n", "pod/team/heir", mark)
    (heir,) = decide(facts, pod("heir", gpus=1))
    assert heir.verdict.reason is Reason.CORDONED


# -- preemption --------------------------------------------------------------------------------------------------------


def test_production_starts_at_once_by_taking_as_few_experiments_as_it_needs() -> None:
    facts = cluster().rack("r1", nodes=2).running("exp", gpus=1, count=16, priority=-100)
    (decision,) = decide(facts, pod("prod", gpus=2, priority=100))
    assert len(decision.victims) == 2
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NOT_NOW, Reason.EVICTING)
    freed = {grant for v in facts.pods if v.name in victims_of(decision) for grant in v.charge.gpus}
    assert set(decision.placements[0].charge.gpus) == freed


def test_of_equal_victims_the_youngest_yields() -> None:
    facts = cluster().node("n", gpus=2)
    facts.running("old", gpus=1, priority=1, started=100.0).running("young", gpus=1, priority=1, started=900.0)
    (decision,) = decide(facts, pod("p", gpus=1, priority=5))
    assert victims_of(decision) == ["young"]


def test_of_equal_victims_the_one_that_no_disruption_budget_guards_yields() -> None:
    facts = cluster().node("n", gpus=2)
    facts.running("guarded", gpus=1, priority=1, guarded=True, started=9.0).running("free", gpus=1, priority=1)
    (decision,) = decide(facts, pod("p", gpus=1, priority=5))
    assert victims_of(decision) == ["free"]


def test_the_lowest_priority_yields_even_on_another_node() -> None:
    facts = cluster().node("a", gpus=1).node("b", gpus=1)
    facts.running("normal", gpus=1, on="a", priority=0).running("low", gpus=1, on="b", priority=-100)
    (decision,) = decide(facts, pod("p", gpus=1, priority=5))
    assert victims_of(decision) == ["low"]


@pytest.mark.parametrize(
    "facts",
    [
        cluster().node("n", gpus=1).running("equal", gpus=1, priority=5),
        cluster().node("n", gpus=1).running("foreign", gpus=1, priority=1, ours=False),
        cluster().node("n", gpus=1).running("leaving", gpus=1, priority=1, terminating=True),
        cluster().node("n", gpus=1).running("spoken-for", gpus=1, priority=1, marked=True),
        cluster().node("n", gpus=1, cordoned=True).running("low", gpus=1, priority=1),
        cluster().node("n", gpus=1).running("low", gpus=1, priority=1).foreign("n", gpus=1),
    ],
    ids=["equal priority", "foreign", "terminating", "marked", "cordoned node", "foreign GPUs of unknown index"],
)
def test_nobody_is_evicted_who_may_not_be_or_in_vain(facts: ClusterBuilder) -> None:
    (decision,) = decide(facts, pod("p", gpus=1, priority=5))
    assert decision.victims == ()
    assert decision.placements == ()


def test_a_job_whose_victims_are_still_leaving_takes_no_more() -> None:
    facts = cluster().node("n", gpus=1).running("low", gpus=1, priority=1)
    (decision,) = decide(facts, pod("p", gpus=1, priority=5, evicting=True))
    assert decision.victims == ()
    assert decision.verdict.reason is Reason.EVICTING


def test_a_job_that_must_not_evict_waits() -> None:
    facts = cluster().node("n", gpus=1).running("low", gpus=1, priority=1)
    never, not_now = decide(
        facts, pod("p", gpus=1, priority=5, preempts=False), pod("q", gpus=1, priority=5, may_evict=False)
    )
    assert (never.victims, not_now.victims) == ((), ())


def test_a_gang_is_taken_whole_or_left_alone() -> None:
    facts = cluster().rack("r1", nodes=2).running("team", gpus=4, count=4, gang_min=4, priority=1)
    (decision,) = decide(facts, pod("p", gpus=4, priority=5))
    assert victims_of(decision) == ["team-0", "team-1", "team-2", "team-3"]


def test_an_elastic_gang_gives_a_worker_above_its_minimum() -> None:
    facts = cluster().rack("r1", nodes=2).running("team", gpus=4, count=4, gang_min=3, priority=1)
    (decision,) = decide(facts, pod("p", gpus=4, priority=5))
    assert len(decision.victims) == 1


def test_a_gang_that_must_give_more_than_it_can_spare_is_not_counted_twice() -> None:
    """One worker of three is above the minimum; the job needs the room of four, which the gang does not hold."""
    facts = cluster().node("n", gpus=4).running("team", gpus=1, count=3, gang_min=2, priority=1)
    facts.running("base", gpus=1, priority=9)
    (decision,) = decide(facts, pod("p", gpus=4, priority=5))
    assert decision.victims == ()
    (decision,) = decide(facts, pod("p", gpus=2, priority=5))
    assert victims_of(decision) == ["team-0", "team-1", "team-2"]


def test_a_single_pod_is_preferred_to_a_gang_of_equal_priority() -> None:
    facts = cluster().node("a", gpus=4).node("b", gpus=4)
    facts.running("team", gpus=2, count=2, gang_min=2, priority=1).running("solo", gpus=2, count=2, on="b", priority=1)
    (decision,) = decide(facts, pod("p", gpus=2, priority=5))
    assert len(decision.victims) == 1
    assert victims_of(decision)[0].startswith("solo")


def test_a_gang_makes_room_across_nodes_and_for_all_of_itself() -> None:
    facts = cluster().rack("r1", nodes=4).running("exp", gpus=4, count=8, priority=1)
    (decision,) = decide(facts, gang("train", 3, gpus=8, priority=5))
    assert len(decision.placements) == 3
    assert len(decision.victims) == 6


def test_a_gang_that_eviction_cannot_seat_evicts_nobody() -> None:
    facts = (
        cluster().rack("r1", nodes=2).running("base", gpus=8, on="r1-0", priority=9).running("low", gpus=8, on="r1-1")
    )
    (decision,) = decide(facts, gang("train", 2, gpus=8, priority=5))
    assert decision.victims == ()
    assert decision.verdict.reason is Reason.GANG_ROOM


def test_two_beneficiaries_never_count_on_the_same_victim() -> None:
    facts = cluster().node("n", gpus=2).running("low", gpus=1, count=2, priority=1)
    first, second, third = decide(facts, *(pod(f"p{i}", gpus=1, priority=5, created=i) for i in range(3)))
    assert len(first.victims) == len(second.victims) == 1
    assert victims_of(first) != victims_of(second)
    assert third.victims == ()


def test_a_queue_at_its_limit_yields_to_its_own_more_important_job() -> None:
    facts = cluster().rack("r1", nodes=2).queue("q", gpus=8).queue("other")
    facts.running("mine", gpus=4, count=2, on="r1-0", priority=1, queue="q")
    facts.running("theirs", gpus=4, on="r1-1", priority=0, queue="other")
    (decision,) = decide(facts, pod("p", gpus=4, priority=5, queue="q"))
    assert len(decision.victims) == 1
    assert victims_of(decision)[0].startswith("mine")


# -- passes ------------------------------------------------------------------------------------------------------------


def test_settle_forgets_what_the_ledger_did_not_take() -> None:
    engine = cluster().node("n", gpus=1).into(PlacementEngine())
    assert engine.decide([pod("a", gpus=1)])[0].placements
    assert not engine.decide([pod("b", gpus=1)])[0].placements
    engine.settle()
    assert engine.decide([pod("b", gpus=1)])[0].placements


def test_fresh_truth_within_a_pass_does_not_offer_the_same_room_twice() -> None:
    engine = cluster().node("n", gpus=2).into(PlacementEngine())
    assert engine.decide([pod("a", gpus=1)])[0].placements
    engine.use_seen(NodeUse("n", 50))
    (b, c) = engine.decide([pod("b", gpus=1), pod("c", gpus=1)])
    assert (len(b.placements), len(c.placements)) == (1, 0)


def test_a_label_that_a_node_loses_counts_for_the_next_decision() -> None:
    engine = cluster().node("n", labels={"zone": "a"}).into(PlacementEngine())
    assert engine.decide([pod("a", gpus=1, selector={"zone": "a"})])[0].placements
    engine.node_seen(node("n", labels={"zone": "b"}))
    assert engine.decide([pod("b", gpus=1, selector={"zone": "a"})])[0].verdict.reason is Reason.SELECTOR


def test_first_fit_fills_by_name() -> None:
    facts = cluster().node("a").node("b").running("base", gpus=7, on="b")
    (decision,) = decide(facts, pod("p", gpus=1), policy="first-fit")
    assert nodes_of(decision) == ["a"]


def test_an_unknown_policy_is_refused_with_a_clear_sentence() -> None:
    with pytest.raises(ValueError, match="unknown placement policy 'magic'; known: best-fit, clustering"):
        PlacementEngine(EngineConfig(weights={"magic": 1}))


def test_replicas_with_different_seeds_spread_over_the_best_nodes() -> None:
    def first_node(seed: int) -> str:
        engine = cluster().rack("r1", nodes=50).into(PlacementEngine(EngineConfig(candidates=10, seed=seed)))
        return nodes_of(engine.decide([pod("p", gpus=1)])[0])[0]

    assert len({first_node(seed) for seed in range(20)}) > 3
    assert first_node(7) == first_node(7)


def test_roles_of_a_job_each_get_their_minimum() -> None:
    head = JobHead("job/team/tf", "team", "team", gang_min=3, role_min={"ps": 1, "worker": 2}, declared=4)
    tasks = (
        task("ps-0", role="ps", cpu=90_000),
        *(task(f"w-{i}", role="worker", index=i, gpus=4, cpu=1000) for i in range(3)),
    )
    (decision,) = decide(cluster().rack("r1", nodes=1), PendingJob(head, tasks))
    assert sorted(p.task.role for p in decision.placements) == ["ps", "worker", "worker"]
    tight: Node = msgspec.structs.replace(node("small", cpu=80_000), gpus=())
    engine = PlacementEngine()
    engine.node_seen(tight)
    engine.node_seen(node("gpu", cpu=8_000))
    (decision,) = engine.decide([PendingJob(head, tasks)])
    assert decision.placements == ()
