"""Who is moved for whom, and who is left alone."""

import msgspec
import pytest

from libs.domain.jobs import Wishes
from libs.domain.queues import Queue, QueueHistory
from libs.domain.topology import Near, Topology
from libs.engine.api import Decision, EngineConfig, PendingJob
from libs.engine.consolidate import choice
from libs.engine.consolidate.credit import MOST, PER_S, Credit
from libs.engine.consolidate.keeping import KEPT_S
from libs.engine.core import PlacementEngine
from libs.testkit.builders import ClusterBuilder, cluster, gang, node, pod, request

NOW = 100_000.0


def wish(gpus: int = 0, **more) -> Wishes:
    return Wishes(request(gpus, **more))


def decide(facts: ClusterBuilder, *jobs: PendingJob, now: float = NOW, **config) -> list[Decision]:
    engine = facts.into(PlacementEngine(EngineConfig(consolidate=True, **config)))
    return engine.decide(list(jobs), now)


def scattered(**more) -> ClusterBuilder:
    """Two nodes of four GPUs, each with one task on one GPU: six idle GPUs, but no four on one node."""
    facts = cluster().node("a", gpus=4).node("b", gpus=4)
    for name in ("a", "b"):
        facts.running(f"on-{name}", 1, on=name, **{"wishes": wish(1), **more})
    return facts


def test_two_scattered_tasks_come_together_so_that_a_whole_node_is_free():
    decision = decide(scattered(), pod("big", gpus=4))[0]

    assert decision.rule == "consolidate"
    assert len(decision.victims) == 1
    assert decision.placements[0].node == decision.victims[0].node
    assert "1 running tasks on 1 nodes move" in decision.verdict.message


def test_nobody_moves_unless_it_is_configured():
    engine = scattered().into(PlacementEngine())

    assert not engine.decide([pod("big", gpus=4)], NOW)[0].victims


@pytest.mark.parametrize(
    "why",
    [
        {"wishes": None},  # nothing would make it again
        {"preemptible": False},
        {"guarded": True},
        {"ours": False},
        {"priority": 1},  # above the job's
        {"terminating": True},
        {"marked": True},  # it makes room for somebody else
        {"started": NOW - 599},
        {"topology": Topology(role=Near(preferred="rack"))},
    ],
)
def test_who_is_left_alone(why):
    assert not decide(scattered(**why), pod("big", gpus=4))[0].victims


def test_a_task_of_the_same_priority_moves_and_loses_nothing_but_time():
    assert decide(scattered(priority=0), pod("big", gpus=4, priority=0))[0].victims


def test_a_queue_that_is_not_preemptible_keeps_its_tasks():
    engine = scattered().into(PlacementEngine(EngineConfig(consolidate=True)))
    engine.queue_seen(Queue("default", preemptible=False))

    assert not engine.decide([pod("big", gpus=4)], NOW)[0].victims


def test_a_workload_that_was_evicted_as_often_as_its_queue_allows_stays():
    facts = scattered(workload="Job/team/u1")
    engine = facts.into(PlacementEngine(EngineConfig(consolidate=True)))
    engine.queue_seen(Queue("default", evictions=1))
    engine.queue_history_seen(QueueHistory("default", at=NOW, evictions={"Job/team/u1": (99_000, 99_500)}))

    assert not engine.decide([pod("big", gpus=4)], NOW)[0].victims


def test_what_fits_nowhere_else_does_not_move():
    """Idle GPUs suffice in sum, but the task's selector keeps it on its node."""
    facts = cluster()
    facts.node("a", gpus=4, labels={"pool": "x"}).node("b", gpus=4)
    facts.running("tied", 1, on="a", wishes=msgspec.structs.replace(wish(1), node_selector={"pool": "x"}))
    facts.running("fixed", 1, on="b")

    assert not decide(facts, pod("big", gpus=4))[0].victims


def test_the_task_that_loses_least_work_moves():
    facts = cluster().node("a", gpus=4).node("b", gpus=4)
    facts.running("old", 1, on="a", wishes=wish(1), started=NOW - 50_000)
    facts.running("young", 1, on="b", wishes=wish(1), started=NOW - 1_000)

    assert [v.name for v in decide(facts, pod("big", gpus=4))[0].victims] == ["young"]


def test_work_is_counted_from_the_last_checkpoint():
    facts = cluster().node("a", gpus=4).node("b", gpus=4)
    facts.running("old", 1, on="a", wishes=wish(1), started=NOW - 50_010, checkpoint_s=1_000)
    facts.running("young", 1, on="b", wishes=wish(1), started=NOW - 1_000)

    assert [v.name for v in decide(facts, pod("big", gpus=4))[0].victims] == ["old"]


def test_a_gang_at_its_minimum_is_spared_where_another_can_move():
    facts = cluster().node("a", gpus=4).node("b", gpus=4).node("c", gpus=4)
    facts.running("ring", 1, on="a", wishes=wish(1), started=NOW - 1_000)
    facts.running("ring-c", 1, on="c", wishes=wish(1), started=NOW - 1_000)
    facts.pods = [msgspec.structs.replace(p, job="gang/team/ring", gang_min=2) for p in facts.pods]
    facts.running("one", 1, on="b", wishes=wish(1), started=NOW - 90_000)
    facts.running("fixed", 1, on="c")

    assert [v.name for v in decide(facts, pod("big", gpus=4))[0].victims] == ["one"]


def test_a_gang_moves_whole_or_not_at_all():
    facts = cluster().node("a", gpus=4).node("b", gpus=4)
    facts.running("ring", 1, count=2, on="a", gang_min=2, wishes=wish(1))
    facts.running("fixed", 2, on="b")

    assert {v.name for v in decide(facts, pod("big", gpus=4))[0].victims} == {"ring-0", "ring-1"}


def test_a_member_above_the_minimum_moves_alone():
    facts = cluster().node("a", gpus=4).node("b", gpus=4)
    facts.running("ring", 1, on="a", gang_min=2, wishes=wish(1))
    facts.running("ring-b", 1, count=1, on="b", wishes=None)
    pods = facts.pods
    job = "gang/team/ring"
    facts.running("ring-2", 1, on="b", wishes=wish(1))
    facts.running("ring-3", 1, on="b", wishes=wish(1))
    facts.pods = [msgspec.structs.replace(p, job=job, gang_min=2) if p.name != "ring-b" else p for p in pods]

    assert [v.name for v in decide(facts, pod("big", gpus=4))[0].victims] == ["ring"]


def test_a_required_topology_without_the_label_anywhere_moves_nobody():
    big = gang("big", 1, gpus=4)
    tied = msgspec.structs.replace(big.tasks[0], topology=Topology(role=Near(required="rack")))

    assert not decide(scattered(), msgspec.structs.replace(big, tasks=(tied,)))[0].victims


def test_a_job_that_never_evicts_moves_nobody():
    assert not decide(scattered(), pod("big", gpus=4, preempts=False))[0].victims


def test_while_those_that_were_moved_are_leaving_nobody_else_is():
    assert not decide(scattered(), pod("big", gpus=4, evicting=True))[0].victims


def test_in_one_pass_nobody_is_moved_for_two_and_no_room_promised_twice():
    """The second job would need the room that the first one's plan has for the moved task."""
    decisions = decide(scattered(), pod("big", gpus=4, created=1.0), pod("next", gpus=3, created=2.0))

    assert decisions[0].victims
    moved = decisions[0].victims[0]
    other = {"a": "b", "b": "a"}[moved.node]
    assert not decisions[1].victims
    # The moved task has its room on the other node, beside the one that stays: two of four are left.
    assert not decisions[1].placements, f"{other} has two idle GPUs left"


def test_what_was_tried_in_vain_waits_a_moment():
    facts = cluster().node("a", gpus=4).node("b", gpus=4)
    facts.running("tied", 2, on="a", wishes=wish(2))
    facts.running("fixed", 3, on="b")
    engine = facts.into(PlacementEngine(EngineConfig(consolidate=True)))
    assert not engine.decide([pod("big", gpus=4)], NOW)[0].victims
    engine.settle()
    engine.node_seen(node("c", gpus=3))  # now the task could move

    assert not engine.decide([pod("big", gpus=4)], NOW + 1)[0].victims
    engine.settle()
    assert engine.decide([pod("big", gpus=4)], NOW + 6)[0].victims


def test_the_queue_of_the_job_is_charged_and_its_limit_holds():
    facts = scattered()
    facts.queue("default", gpus=5)

    assert not decide(facts, pod("big", gpus=4))[0].victims


def test_shares_that_no_move_brings_onto_fewer_devices_stay():
    facts = cluster().node("a", gpus=2)
    facts.running("left", share=600, on="a", wishes=wish(share=600))
    facts.running("right", share=600, on="a", wishes=wish(share=600))

    assert not decide(facts, pod("whole", gpus=1))[0].victims


def test_a_gang_that_must_lie_in_one_rack_gets_room_there_and_who_moves_may_leave_the_rack():
    facts = cluster()
    for rack in ("r1", "r2"):
        for i in range(2):
            facts.node(f"{rack}-{i}", gpus=4, labels={"topology.kubernetes.io/rack": rack})
    facts.running("in-r1", 1, on="r1-0", wishes=wish(1))
    facts.running("a", 2, on="r2-0")
    facts.running("b", 2, on="r2-1")
    ring = gang("ring", 2, gpus=4)
    tied = tuple(msgspec.structs.replace(t, topology=Topology(role=Near(required="rack"))) for t in ring.tasks)

    decision = decide(facts, msgspec.structs.replace(ring, tasks=tied))[0]

    assert [v.name for v in decision.victims] == ["in-r1"]
    assert decision.rule == "consolidate"
    assert {p.node for p in decision.placements} == {"r1-0", "r1-1"}


def test_planning_takes_no_more_of_the_time_than_its_credit():
    credit = Credit()
    assert credit.open(1_000.0)
    credit.spend(MOST + PER_S)  # a large plan is not cut short
    assert not credit.open(1_000.5)
    assert credit.open(1_001.5), "it is earned again with time"
    credit.spend(MOST)
    assert credit.open(0.0), "without a clock nothing is withheld"


def test_where_a_moved_task_is_to_go_nobody_else_goes_for_a_while():
    facts = cluster().node("a", gpus=4).node("b", gpus=4)
    facts.running("on-a", 1, on="a", wishes=wish(1), workload="Job/team/u1")
    facts.running("on-b", 3, on="b", wishes=wish(3), workload="Job/team/u2", started=NOW - 100)
    engine = facts.into(PlacementEngine(EngineConfig(consolidate=True)))
    decision = engine.decide([pod("big", gpus=4)], NOW)[0]
    assert [v.name for v in decision.victims] == ["on-a"]
    engine.settle()

    for use in (facts.uses["a"],):  # the ledger: the victim's room is the beneficiary's now
        engine.use_seen(msgspec.structs.replace(use, revision=9, gpus=((1000, 81920),) * 4))
    engine.pod_gone("uid-on-a")
    again = pod("again", gpus=1, created=9.0)
    again = msgspec.structs.replace(again, head=msgspec.structs.replace(again.head, workload="Job/team/u1"))
    older = pod("older", gpus=1, created=1.0)

    decisions = engine.decide([older, again], NOW + 30)
    assert not decisions[0].placements, "the last GPU is kept for who moved"
    assert [p.node for p in decisions[1].placements] == ["b"]
    engine.settle()
    assert engine.decide([older], NOW + 31)[0].placements, "it was used; in this test nobody charged it"


def test_what_is_kept_for_a_task_that_does_not_come_again_is_free_in_the_end():
    engine = scattered(workload="Job/team/u1").into(PlacementEngine(EngineConfig(consolidate=True)))
    assert engine.decide([pod("big", gpus=4)], NOW)[0].victims
    engine.settle()
    room = engine.free_room()

    engine.decide([], NOW + KEPT_S - 1)
    assert engine.free_room() != room
    engine.settle()
    engine.decide([], NOW + KEPT_S + 1)
    assert engine.free_room() == room


def test_many_shares_on_a_node_are_looked_at_a_bounded_number_of_times(monkeypatch):
    """A plan for 16 of 32 shares looked at every set of fewer, some 600 million, while the service stood still."""
    looked, pods_of = [], choice.pods_of
    monkeypatch.setattr(choice, "pods_of", lambda units: looked.append(1) or pods_of(units))
    facts = cluster().node("n1", gpus=8)
    facts.running("small", share=250, count=32)
    units = [(task,) for task in facts.pods]
    engine = facts.into(PlacementEngine(EngineConfig()))
    state = engine._session.snapshot.states[0]
    ask = engine._session.feasible(pod("whole", gpus=8).tasks[0]).ask
    assert next(choice.sets(state, ask, units, 16, choice.TRIED), None) is None
    assert len(looked) <= 2 * choice.TRIED
    assert len(next(choice.sets(state, ask, [*units[:30], (units[30][0], units[31][0])], 32, choice.TRIED))) == 31
