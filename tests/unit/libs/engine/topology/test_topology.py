"""Gangs near each other: which domains they get, and what they are told where they get none."""

from __future__ import annotations

from typing import Any

import msgspec

from libs.domain.jobs import JobHead
from libs.domain.resources import Charge, GpuGrant
from libs.domain.topology import Level, Near, Topology
from libs.domain.verdicts import Kind, Reason
from libs.engine.api import Decision, EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.testkit.builders import ClusterBuilder, cluster, gang, pod, task

ZONE, RACK, CLIQUE = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack", "nvidia.com/gpu.clique"
IN_ONE_RACK = Topology(role=Near("rack"))
RATHER_ONE_RACK = Topology(role=Near(preferred="rack"))


def racks(*sizes: int, zone: str = "a", gpus: int = 8, start: int = 1) -> ClusterBuilder:
    """Rack r1 with so many nodes r1-0, r1-1 ..., rack r2 ..."""
    return add_racks(cluster(), *sizes, zone=zone, gpus=gpus, start=start)


def add_racks(facts: ClusterBuilder, *sizes: int, zone: str, gpus: int = 8, start: int = 1) -> ClusterBuilder:
    for rack, size in enumerate(sizes, start):
        facts.rack(f"r{rack}", nodes=size, gpus=gpus, labels={ZONE: zone, RACK: f"r{rack}"})
    return facts


def decide(facts: ClusterBuilder, *jobs: PendingJob, **config: Any) -> list[Decision]:
    return facts.into(PlacementEngine(EngineConfig(**config))).decide(list(jobs))


def nodes(decision: Decision) -> list[str]:
    return [p.node for p in decision.placements]


def used(decision: Decision) -> set[str]:
    return {p.node.split("-")[0] for p in decision.placements}


# -- required ----------------------------------------------------------------------------------------------------------


def test_the_tightest_rack_that_takes_the_whole_gang_is_chosen_not_the_one_its_first_task_likes_best() -> None:
    facts = racks(2, 6, 4).running("base", gpus=8, on="r1-0")
    # Packing alone would begin in r1, where one more node is free, and end elsewhere.
    (decision,) = decide(facts, gang("g", 4, gpus=8, topology=IN_ONE_RACK))
    assert nodes(decision) == ["r3-0", "r3-1", "r3-2", "r3-3"]


def test_later_gangs_see_what_earlier_ones_took() -> None:
    first, second, third = decide(
        racks(2, 2), *(gang(f"g{i}", 2, gpus=8, topology=IN_ONE_RACK, created=float(i)) for i in range(3))
    )
    assert used(first) | used(second) == {"r1", "r2"}
    assert third.placements == ()


def test_a_refusal_names_the_best_domain_and_how_short_it_is() -> None:
    facts = racks(4, 4).running("base", gpus=8, on="r1-0").running("more", gpus=4, on="r2-0")
    (decision,) = decide(facts, gang("g", 8, gpus=4, topology=IN_ONE_RACK))
    verdict = decision.verdict
    assert (verdict.kind, verdict.reason) == (Kind.NOT_NOW, Reason.DOMAIN_ROOM)
    assert "rack r2 has room for 7 of 8 tasks, none of 2 has more" in verdict.message
    assert verdict.helps == ("room for 1 more tasks in rack r2",)
    assert verdict.more_nodes_help


def test_what_no_rack_could_take_even_empty_is_never() -> None:
    facts = racks(2, 3).running("base", gpus=8, on="r2-0")
    (decision,) = decide(facts, gang("g", 4, gpus=8, topology=IN_ONE_RACK))
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NEVER, Reason.DOMAIN_ROOM)
    assert "even empty, rack r2, the largest of 2, takes 3 of 4 tasks" in decision.verdict.message
    (decision,) = decide(facts, gang("g", 3, gpus=8, topology=IN_ONE_RACK))
    assert decision.verdict.kind is Kind.NOT_NOW


def test_different_tasks_that_fit_one_by_one_and_not_together_are_never() -> None:
    facts = racks(1, 1)
    head = JobHead("gang/team/g", "team", "team", gang_min=2, declared=2)
    tasks = tuple(task(f"g-{n}", gpus=n, topology=IN_ONE_RACK) for n in (5, 4))
    (decision,) = decide(facts, PendingJob(head, tasks))
    assert decision.verdict.kind is Kind.NEVER


def test_without_a_node_that_says_its_rack_it_is_never_and_says_which_label_is_missing() -> None:
    facts = cluster().rack("x", nodes=2)
    (decision,) = decide(facts, gang("g", 2, gpus=1, topology=IN_ONE_RACK))
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NEVER, Reason.TOPOLOGY)
    assert f"nodes labelled with {RACK}" in decision.verdict.message
    assert decision.verdict.more_nodes_help


def test_nodes_without_the_label_are_in_no_domain() -> None:
    facts = racks(1).node("stray-0").node("stray-1")
    (decision,) = decide(facts, gang("g", 2, gpus=8, topology=IN_ONE_RACK))
    assert decision.verdict.kind is Kind.NEVER


def test_racks_of_two_zones_that_share_a_name_are_two_racks_but_one_nvlink_domain_may_span_racks() -> None:
    facts = cluster()
    for zone in ("a", "b"):
        facts.node(f"{zone}-0", labels={ZONE: zone, RACK: "r1", CLIQUE: "c1"})
    (decision,) = decide(facts, gang("g", 2, gpus=8, topology=IN_ONE_RACK))
    assert decision.verdict.kind is Kind.NEVER
    assert "rack r1 of zone a" in decision.verdict.message
    (decision,) = decide(facts, gang("g", 2, gpus=8, topology=Topology(role=Near("nvlink"))))
    assert nodes(decision) == ["a-0", "b-0"]


def test_levels_are_configured_and_a_label_key_serves_as_a_level() -> None:
    facts = cluster().rack("x", nodes=2).rack("y", nodes=3)  # the builder labels them rack=x, rack=y
    levels = (Level("row", "rack"),)
    for wish in ("row", "rack"):
        (decision,) = decide(facts, gang("g", 3, gpus=8, topology=Topology(role=Near(wish))), levels=levels)
        assert used(decision) == {"y"}


def test_a_single_pod_gets_a_node_that_is_in_a_domain() -> None:
    facts = racks(1).node("a-stray")
    (decision,) = decide(facts, pod("p", gpus=1, topology=IN_ONE_RACK))
    assert nodes(decision) == ["r1-0"]


def test_on_one_node_together() -> None:
    facts = racks(3).running("a", gpus=6, on="r1-0").running("b", gpus=5, on="r1-1")
    (decision,) = decide(facts, gang("g", 3, gpus=1, topology=Topology(role=Near("host"))))
    assert nodes(decision) == ["r1-1"] * 3


# -- minima ------------------------------------------------------------------------------------------------------------


def test_where_not_all_fit_the_rack_that_takes_most_is_chosen_and_the_rest_waits_for_it() -> None:
    facts = racks(2, 3)
    (decision,) = decide(facts, gang("g", 5, minimum=2, gpus=8, topology=IN_ONE_RACK))
    assert nodes(decision) == ["r2-0", "r2-1", "r2-2"]
    assert decision.leftover is not None
    assert "in another topology domain" in decision.leftover.nodes


def test_a_gang_below_its_minimum_in_every_rack_gets_nothing() -> None:
    facts = racks(2, 3).running("base", gpus=8, on="r2-0")
    (decision,) = decide(facts, gang("g", 5, minimum=3, gpus=8, topology=IN_ONE_RACK))
    assert decision.placements == ()
    assert "room for 2 of 3 tasks" in decision.verdict.message


def test_tasks_of_different_size_are_placed_as_a_whole() -> None:
    facts = racks(2, 2).running("base", gpus=1, on="r1-0")
    head = JobHead("gang/team/g", "team", "team", gang_min=4, declared=4)
    tasks = tuple(task(f"g-{n}", index=n, gpus=g, topology=IN_ONE_RACK) for n, g in enumerate((8, 4, 2, 2)))
    (decision,) = decide(facts, PendingJob(head, tasks))
    assert used(decision) == {"r2"}
    assert len(decision.placements) == 4


# -- who runs already --------------------------------------------------------------------------------------------------


def member(facts: ClusterBuilder, name: str, on: str, topology: Topology = IN_ONE_RACK, role: str = "") -> None:
    facts.running("g", gpus=8, on=on, gang_min=4)
    facts.pods[-1] = msgspec.structs.replace(
        facts.pods[-1], uid=f"uid-{name}", name=name, topology=topology, task=f"j/{role}/0/0" if role else ""
    )


def test_a_broken_gang_is_refilled_in_the_rack_of_its_running_members() -> None:
    facts = racks(2, 2, 4)
    member(facts, "g-0", "r3-0")
    member(facts, "g-1", "r3-1")
    (decision,) = decide(facts, gang("g", 2, held=2, gpus=8, topology=IN_ONE_RACK))
    assert used(decision) == {"r3"}


def test_it_waits_rather_than_leave_them_and_says_where_they_are() -> None:
    facts = racks(2, 4)
    member(facts, "g-0", "r1-0")
    (decision,) = decide(facts, gang("g", 3, held=1, gpus=8, topology=IN_ONE_RACK))
    assert decision.placements == ()
    assert decision.verdict.kind is Kind.NOT_NOW, "the whole gang may yet be released"
    assert "rack r1, where others of the pods are, has room for 1 of 3 tasks" in decision.verdict.message


def test_members_that_were_claimed_and_are_not_seen_yet_count_where_they_will_be() -> None:
    engine = racks(2, 3).into(PlacementEngine())
    whole = gang("g", 3, gpus=8, topology=IN_ONE_RACK, minimum=2)
    (first,) = engine.decide([whole])
    assert used(first) == {"r2"}
    taken = first.placements[0]
    engine.assume(taken.task, taken.node)
    engine.settle()
    left = tuple(t for t in whole.tasks if t.id != taken.task.id)
    (again,) = engine.decide([PendingJob(whole.head, left, held=1, holds=(taken.task.id,))])
    assert used(again) == {"r2"}


def test_members_that_leave_hold_nobody() -> None:
    facts = racks(2, 4)
    member(facts, "g-0", "r1-0")
    facts.pods[-1] = msgspec.structs.replace(facts.pods[-1], terminating=True)
    (decision,) = decide(facts, gang("g", 4, gpus=8, topology=IN_ONE_RACK))
    assert used(decision) == {"r2"}


# -- roles and groups --------------------------------------------------------------------------------------------------


def roles(job: Near, worker: Topology, ps: Topology, workers: int = 4) -> PendingJob:
    head = JobHead("job/team/tf", "team", "team", uid="j", gang_min=workers + 1, declared=workers + 1)
    inside = msgspec.structs.replace
    tasks = [task("ps-0", role="ps", cpu=4000, topology=inside(ps, job=job) or None)]
    tasks += [
        task(f"w-{i}", role="worker", index=i, gpus=8, topology=inside(worker, job=job, number=i // 2) or None)
        for i in range(workers)
    ]
    return PendingJob(head, tuple(tasks))


def test_workers_in_one_rack_and_parameter_servers_anywhere_in_the_zone() -> None:
    facts = add_racks(racks(4, zone="a"), 2, 2, zone="b", start=2)
    for i in range(4):
        facts.used(f"r1-{i}", Charge(95_000, 1, ()))  # zone a has GPUs in one rack and no CPU beside them
    facts.node("cpu-b", gpus=0, labels={ZONE: "b"})
    job = roles(Near("zone"), Topology(role=Near("rack")), Topology(), workers=2)
    (decision,) = decide(facts, job)
    assert used(decision) == {"cpu", "r2"} or used(decision) == {"r2"}
    assert {facts.nodes[name].labels[ZONE] for name in nodes(decision)} == {"b"}


def test_each_group_of_a_role_lies_in_a_rack_and_all_of_them_in_one_zone() -> None:
    facts = add_racks(racks(2, 1, zone="a"), 2, 2, 1, zone="b", start=3)
    job = roles(Near("zone"), Topology(group=Near("rack")), Topology())
    (decision,) = decide(facts, job)
    by_group: dict[int, set[str]] = {}
    for placement in decision.placements:
        if placement.task.role == "worker":
            by_group.setdefault(placement.task.index // 2, set()).add(placement.node.split("-")[0])
    assert sorted(map(sorted, by_group.values())) == [["r3"], ["r4"]]


def test_a_choice_that_leaves_no_room_for_another_part_is_taken_back() -> None:
    """The tightest rack for the two workers is the only one with CPU for the large server."""
    facts = racks(1, 1)
    facts.used("r2-0", Charge(90_000, 1, ()))
    facts.used("r1-0", Charge(0, 0, tuple(GpuGrant(i, 1000, 81920) for i in range(4))))
    head = JobHead("job/team/tf", "team", "team", uid="j", gang_min=2, declared=2)
    worker = task("w-0", role="worker", gpus=4, cpu=1000, topology=Topology(role=Near("rack")))
    server = task("s-0", role="server", gpus=0, cpu=96_000, topology=Topology(role=Near("rack")))
    (decision,) = decide(facts, PendingJob(head, (worker, server)))
    assert {p.task.role: p.node for p in decision.placements} == {"worker": "r2-0", "server": "r1-0"}


def test_the_part_that_fails_is_named() -> None:
    facts = racks(1, 1, 1, 1, 1)
    (decision,) = decide(facts, roles(Near("zone"), Topology(group=Near("rack")), Topology()))
    assert decision.verdict.kind is Kind.NEVER
    assert decision.verdict.message.startswith("group 0 of role worker must share a rack domain")


# -- preferred ---------------------------------------------------------------------------------------------------------


def test_a_preference_is_one_domain_if_one_takes_all() -> None:
    (decision,) = decide(racks(2, 3, 2), gang("g", 3, gpus=8, topology=RATHER_ONE_RACK))
    assert used(decision) == {"r2"}


def test_else_one_wider_domain_with_the_fewest_of_the_narrow_ones() -> None:
    facts = add_racks(racks(4, zone="a"), 1, 2, 2, zone="b", start=2)
    (decision,) = decide(facts, gang("g", 5, gpus=8, topology=RATHER_ONE_RACK))
    assert used(decision) == {"r2", "r3", "r4"}, "zone b takes all; zone a does not"
    facts = add_racks(racks(2, 1, 3, zone="a"), 1, zone="b", start=4)
    (decision,) = decide(facts, gang("g", 4, gpus=8, topology=RATHER_ONE_RACK))
    assert used(decision) == {"r3", "r2"}, "the largest, and the smallest that takes the rest"


def test_at_last_the_fewest_domains_of_the_whole_cluster() -> None:
    facts = add_racks(racks(1, 1, 1, zone="a"), 3, zone="b", start=4)
    (decision,) = decide(facts, gang("g", 4, gpus=8, topology=RATHER_ONE_RACK))
    assert len(decision.placements) == 4
    assert "r4" in used(decision)
    assert len(used(decision)) == 2


def test_a_preference_bars_nothing_not_even_nodes_without_the_label() -> None:
    facts = racks(1).node("stray")
    (decision,) = decide(facts, gang("g", 2, gpus=8, topology=RATHER_ONE_RACK))
    assert sorted(nodes(decision)) == ["r1-0", "stray"]


def test_a_preference_that_finds_no_room_is_refused_like_anybody() -> None:
    facts = racks(2, 2).running("base", gpus=8, on="r1-0", priority=9)
    job = gang("g", 4, gpus=8, topology=RATHER_ONE_RACK)
    plain = gang("g", 4, gpus=8)
    assert decide(facts, job)[0].verdict == decide(facts, plain)[0].verdict
    assert decide(facts, job)[0].verdict.reason is Reason.GANG_ROOM
    (alone,) = decide(facts, pod("p", gpus=16, topology=RATHER_ONE_RACK))
    assert (alone.verdict.kind, alone.verdict.reason) == (Kind.NEVER, Reason.GPU_TOTAL)


def test_a_preference_makes_room_like_anybody() -> None:
    facts = racks(1, 1).running("a", gpus=8, on="r1-0").running("b", gpus=8, on="r2-0")
    (decision,) = decide(facts, gang("g", 2, gpus=8, priority=5, topology=RATHER_ONE_RACK))
    assert sorted(v.name for v in decision.victims) == ["a", "b"]


def test_a_required_zone_and_within_it_rather_one_rack() -> None:
    facts = add_racks(racks(1, 2, zone="a"), 2, 2, zone="b", start=3)
    wish = Topology(role=Near("zone", "rack"))
    (decision,) = decide(facts, gang("g", 3, gpus=8, topology=wish))
    assert used(decision) == {"r1", "r2"}
    (decision,) = decide(facts, gang("g", 2, gpus=8, topology=wish))
    assert len(used(decision)) == 1


# -- together with everything else -------------------------------------------------------------------------------------


def test_a_queue_that_is_short_says_so_and_not_that_a_rack_is() -> None:
    facts = racks(4).queue("q", gpus=8)
    (decision,) = decide(facts, gang("g", 2, gpus=4, queue="q", topology=IN_ONE_RACK))
    assert len(decision.placements) == 2
    facts.running("base", gpus=4, queue="q")
    (decision,) = decide(facts, gang("g", 2, gpus=4, queue="q", topology=IN_ONE_RACK))
    assert decision.verdict.reason is Reason.QUOTA


def test_a_queue_that_allows_the_minimum_and_no_more_lets_the_minimum_in() -> None:
    facts = racks(4).queue("q", gpus=12)
    (decision,) = decide(facts, gang("g", 4, minimum=2, gpus=4, queue="q", topology=IN_ONE_RACK))
    assert len(decision.placements) == 3
    assert decision.leftover is not None
    assert decision.leftover.reason is Reason.QUOTA


def test_room_is_made_in_one_rack_where_least_has_to_yield() -> None:
    facts = racks(2, 2)
    facts.running("a", gpus=8, on="r1-0").running("b", gpus=8, on="r1-1").running("c", gpus=8, on="r2-1")
    (decision,) = decide(facts, gang("g", 2, gpus=8, priority=5, topology=IN_ONE_RACK))
    assert [v.name for v in decision.victims] == ["c"]
    assert used(decision) == {"r2"}


def test_nobody_yields_where_no_rack_would_do() -> None:
    facts = racks(2, 2).running("a", gpus=8, on="r1-0").running("b", gpus=8, on="r2-0", priority=9)
    facts.running("c", gpus=8, on="r1-1", priority=9)
    (decision,) = decide(facts, gang("g", 2, gpus=8, priority=5, topology=IN_ONE_RACK))
    assert (decision.victims, decision.placements) == ((), ())


def test_room_that_is_earmarked_for_a_gang_is_used_by_it() -> None:
    facts = racks(2, 2)
    whole = Charge(1000, 1024, tuple(GpuGrant(i, 1000, 81920) for i in range(8)))
    facts.earmarked("r2-0", "gang/team/g", whole).earmarked("r2-1", "gang/team/g", whole)
    facts.running("a", gpus=8, on="r1-0")
    other, mine = decide(
        facts, gang("h", 2, gpus=8, topology=IN_ONE_RACK), gang("g", 2, gpus=8, topology=IN_ONE_RACK, created=1.0)
    )
    assert other.placements == ()
    assert used(mine) == {"r2"}
