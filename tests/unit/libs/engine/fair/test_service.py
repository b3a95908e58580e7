"""Little service first in the engine: who stands where, who yields to whom, and what keeps others where they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from libs.domain.queues import QueueHistory, Served, Spending
from libs.domain.verdicts import Wake
from libs.engine.api import Decision, EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.engine.fair import LittleService
from libs.engine.running import RunningBook
from libs.testkit.builders import ClusterBuilder, cluster, pod

HOUR = 3600.0
#: A full multiple of the checkpoint interval after everything below has started.
NOW = 1_800_000_000.0
LONG = NOW - 400 * HOUR
RULES = LittleService()
PAID = Spending(jobs=100.0)


def engine_of(facts: ClusterBuilder, rules: LittleService | None = RULES, **paths: QueueHistory) -> PlacementEngine:
    engine = facts.into(PlacementEngine(EngineConfig(little=rules)))
    for history in paths.values():
        engine.queue_history_seen(history)
    return engine


def history(path: str = "default", **more: Any) -> QueueHistory:
    return QueueHistory(path, NOW, 86_400, gpu_milli_s=10**12, **{"spending": PAID, **more})


def full(**more: Any) -> ClusterBuilder:
    """One node, held by a job that has had 3200 GPU hours and saved its work this very moment."""
    facts: dict[str, Any] = {"started": LONG, "checkpoint_s": 1800, **more}
    return cluster().node("n1", gpus=8).running("long", gpus=8, **facts)


def new(waited: float = 7300.0, **more: Any) -> PendingJob:
    return pod("new", gpus=8, created=NOW - waited, **more)


def decide(engine: PlacementEngine, *jobs: PendingJob, now: float = NOW) -> list[Decision]:
    found = engine.decide(list(jobs), now)
    engine.settle()
    return found


def test_who_has_had_much_yields_to_who_is_new_just_after_a_checkpoint() -> None:
    decision = decide(engine_of(full(), a=history()), new())[0]
    assert [victim.name for victim in decision.victims] == ["long"]
    assert decision.rule == "service"


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"checkpoint_s": 0}, "it saves nothing, so all of its work would be lost"),
        ({"started": NOW - 7 * HOUR}, "it has had 56 GPU hours, one level only"),
        ({"started": LONG - 900}, "its last checkpoint is a quarter of an hour old"),
        ({"preemptible": False}, "its owner says so"),
        ({"priority": 1}, "it is of higher priority"),
        ({"queue": "deserving"}, "between queues that deserve something only shares decide"),
    ],
)
def test_nobody_yields_to_little_service_where(facts: dict[str, Any], why: str) -> None:
    assert not decide(engine_of(full(**facts).queue("deserving", deserves=8), a=history()), new())[0].victims, why


def test_a_claim_waits_and_is_looked_at_again_when_it_has() -> None:
    engine = engine_of(full(), a=history())
    refused = decide(engine, new(waited=6900))[0]
    assert not refused.victims
    assert Wake.TIME in refused.verdict.wakes_on
    assert NOW + 300 <= refused.verdict.until <= NOW + 360
    assert "may yield to it from" in refused.verdict.message


def test_many_who_wait_for_as_much_have_others_yield_sooner_than_one() -> None:
    engine = engine_of(full(), a=history())
    assert not decide(engine, new(waited=1300))[0].victims
    for n in range(5):
        engine.place(pod(f"as-much{n}", gpus=8, created=NOW - 1250).head, NOW, 8.0)
    for n in range(5):
        engine.place(pod(f"less{n}", gpus=4, created=NOW - 1250).head, NOW, 4.0)
    assert [victim.name for victim in decide(engine, new(waited=1300))[0].victims] == ["long"]
    engine = engine_of(full(), a=history())
    for n in range(20):
        engine.place(pod(f"as-much{n}", gpus=8, created=NOW - 500).head, NOW, 8.0)
    assert not decide(engine, new(waited=500))[0].victims  # each waits for ten minutes all the same


def test_those_who_have_left_the_line_count_no_more() -> None:
    engine = engine_of(full(), a=history())
    for n in range(5):
        engine.place(pod(f"as-much{n}", gpus=8, created=NOW - 1250).head, NOW, 8.0)
    engine.line_seen(8.0, {"pod/team/new"}.__contains__, NOW)
    assert not decide(engine, new(waited=1300))[0].victims


def test_without_a_budget_nobody_yields() -> None:
    spent = history(spending=Spending(jobs=100, evictions=29.5))
    lossy = history(spending=Spending(jobs=100, lost_milli_s=10**11))
    for record in (spent, lossy):
        decision = decide(engine_of(full(), a=record), new())[0]
        assert not decision.victims
        assert "as many as may have yielded" in decision.verdict.message


def test_what_this_engine_has_begun_counts_before_the_records_have_it() -> None:
    facts = cluster().node("n1", gpus=8).node("n2", gpus=8)
    for name in ("n1", "n2"):
        facts.running(f"long-{name}", gpus=8, on=name, started=LONG, checkpoint_s=1800)
    engine = engine_of(facts, a=history(spending=Spending(jobs=6)))  # 1.8 evictions
    jobs = [pod(f"new{n}", gpus=8, created=NOW - 7300 - n) for n in range(2)]
    assert sum(len(decision.victims) for decision in decide(engine, *jobs)) == 1


def test_every_pod_of_an_array_and_every_occasion_of_a_gang_that_is_not_counted_yet_counts() -> None:
    facts = cluster().node("n1", gpus=8).running("array", count=3, workload="Job/team/array")
    facts.running("gang", count=4, gang_min=4, workload="Job/team/gang")
    book = RunningBook()
    for task in facts.pods:
        book.seen(task)
    book.pass_begins(NOW)
    for task in facts.pods:
        book.mark(task.uid)
    assert book.untold({}) == 3 + 1
    for task in facts.pods:
        book.seen(msgspec.structs.replace(task, marked=True))
    assert book.untold({}) == 3 + 1
    for task in facts.pods:
        book.gone(task.uid)
        again = msgspec.structs.replace(task, uid=task.uid + "-again", started=NOW + 10)
        book.seen(again)
    book.pass_begins(NOW + 30)
    for uid in list(book.by_uid):
        book.mark(uid)
    assert book.untold({}) == 2 * (3 + 1), "they started again in the meantime"
    told = QueueHistory("default", NOW + 5, evictions={"Job/team/gang": (int(NOW),)}, pods={"Job/team/gang": (2,)})
    book.told(task.uid for task in facts.pods[3:5])
    assert book.untold({"default": told}) == 2 * 3 + 1, "the other two of the first occasion are of what is told"


def test_a_workload_that_was_evicted_often_enough_stays() -> None:
    often = history(evictions={"pod/team/long": (int(NOW) - 10, int(NOW) - 20, int(NOW) - 30)})
    assert not decide(engine_of(full(), a=often), new())[0].victims


def test_one_victim_goes_and_the_smallest_that_will_do() -> None:
    facts = cluster().node("n1", gpus=8)
    for name, gpus in (("one", 1), ("two", 2), ("four", 4), ("last", 1)):
        facts.running(name, gpus=gpus, started=LONG, checkpoint_s=1800)
    engine = engine_of(facts, a=history())
    small = pod("small", gpus=2, created=NOW - 7300)
    assert [victim.name for victim in decide(engine, small)[0].victims] == ["two"]
    assert not decide(engine, new())[0].victims  # it would take four of them


def test_a_gang_goes_as_a_whole_or_stays() -> None:
    facts = cluster().node("n1", gpus=4).node("n2", gpus=4)
    facts.running("gang", gpus=4, count=2, gang_min=2, started=LONG, checkpoint_s=1800)
    decision = decide(engine_of(facts, a=history()), pod("new", gpus=4, created=NOW - 7300))[0]
    assert sorted(victim.name for victim in decision.victims) == ["gang-0", "gang-1"]


def test_who_says_when_it_saved_is_at_a_good_moment_by_its_own_word_and_not_by_its_start() -> None:
    off_by_a_restart = {"started": LONG - 900, "saved": NOW - 30 - 4 * 1800}  # and four more since, not said
    assert decide(engine_of(full(**off_by_a_restart), a=history()), new())[0].victims
    assert not decide(engine_of(full(saved=NOW - 900), a=history()), new())[0].victims, "by its start it has just saved"
    another = {"started": LONG - 900, "saved": LONG - 7200}
    assert not decide(engine_of(full(**another), a=history()), new())[0].victims, "said of a run before this one"


def test_what_one_pod_of_a_gang_says_it_saved_all_of_it_did() -> None:
    facts = cluster().node("n1", gpus=4).node("n2", gpus=4)
    facts.running("gang", gpus=4, count=2, gang_min=2, started=LONG - 900, checkpoint_s=1800)
    engine = engine_of(facts, a=history())
    one = pod("new", gpus=4, created=NOW - 7300)
    assert not decide(engine, one)[0].victims
    engine.pod_seen(msgspec.structs.replace(facts.pods[1], saved=NOW - 20))
    assert len(decide(engine, one)[0].victims) == 2
    engine.pod_seen(facts.pods[0])  # told again, without a word of its own
    assert len(decide(engine, one)[0].victims) == 2


def test_what_a_workload_had_before_it_was_evicted_counts_and_outlives_it() -> None:
    had = history(served={"job/old": Served(100 * 3_600_000, 100, int(NOW) - 50)})
    engine = engine_of(cluster().node("n1", gpus=8), a=had)
    old = msgspec.structs.replace(pod("old", created=NOW - 9_000).head, workload="job/old")
    young = pod("young", created=NOW).head
    assert engine.place(young, NOW) < engine.place(old, NOW)
    off = engine_of(cluster().node("n1", gpus=8), None, a=had)
    assert off.place(old, NOW) < off.place(young, NOW)


def test_who_has_waited_too_long_goes_first_and_others_yield_to_it_whatever_they_had() -> None:
    engine = engine_of(full(started=NOW - 2 * HOUR), a=history())
    late, young = new(waited=2 * 86_400.0), pod("young", gpus=8, created=NOW - 7300)
    late_decision, other = decide(engine, late, young)
    assert late_decision.rule == "overdue"
    assert [victim.name for victim in late_decision.victims] == ["long"]
    assert not other.victims


@pytest.mark.parametrize(("evictions", "go"), [(3.4, 2), (2.4, 2), (1.4, 0), (0.4, 0)])
def test_as_many_yield_to_the_overdue_as_have_been_paid_for(evictions: float, go: int) -> None:
    facts = cluster().node("n1", gpus=8)
    for name in ("left", "right"):
        facts.running(name, gpus=4, started=NOW - 2 * HOUR, checkpoint_s=1800)
    engine = engine_of(facts, a=history(spending=Spending(jobs=evictions / 0.3)))
    decision = decide(engine, new(waited=2 * 86_400.0))[0]
    assert len(decision.victims) == go
    if not go and evictions < 1:
        assert "as many as may have yielded" in decision.verdict.message


def test_under_overload_only_some_are_overdue_and_runs_do_not_count_as_waiting() -> None:
    engine = engine_of(full())
    old = [pod(f"old{n}", gpus=8, created=NOW - (3 + n) * 86_400).head for n in range(4)]
    engine.line_seen(160.0, lambda _: True, NOW)  # 21 times what there is
    assert all(engine.place(head, NOW, 8.0)[0] == 1 for head in old)
    engine.line_seen(8.0, lambda _: True, NOW)
    assert [head.key for head in old if engine.place(head, NOW, 8.0)[0] == 0] == [old[3].key]
    ran = history(served={"pod/team/old0": Served(1, 2 * 86_400, int(NOW) - 60)})
    assert engine_of(full(), a=ran).place(old[0], NOW, 8.0)[0] == 1  # it ran for two of its three days


def test_room_is_kept_at_once_only_where_those_in_the_way_cannot_be_made_to_yield() -> None:
    yields = engine_of(full()).reserve(new(), NOW)
    stays = engine_of(full(checkpoint_s=0)).reserve(new(), NOW)
    tells = engine_of(full(expected_s=500 * 3600)).reserve(new(), NOW)
    off = engine_of(full(), None).reserve(new(), NOW)
    assert [found is not None and found.yielding for found in (yields, stays, tells, off)] == [
        True,
        False,
        False,
        False,
    ]
    assert all(found is not None for found in (yields, stays, tells, off))
