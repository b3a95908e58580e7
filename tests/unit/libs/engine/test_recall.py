"""Who is on room that is kept for another job leaves when that one lacks no other, and not before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from libs.domain.queues import Queue
from libs.domain.resources import Charge, GpuGrant
from libs.domain.verdicts import Reason
from libs.engine.api import Borrowing, Decision, EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.engine.loans import Loans
from libs.testkit.builders import ClusterBuilder, cluster, gang, pod

NOW = 1.8e9
SINCE = NOW - 100
KEPT = Charge(gpus=(GpuGrant(0, 1000, 0), GpuGrant(1, 1000, 0)))


def kept(job: PendingJob, until: float = 0.0) -> PendingJob:
    return msgspec.structs.replace(job, kept=(("n1", KEPT),), kept_until=until, lent=loans((SINCE, None)))


def loans(*spans: tuple[float, float | None]) -> Loans:
    found = Loans()
    for since, until in spans:
        found.keep((("n1", KEPT),), since)
        if until is not None:
            found.end(until)
    return found


def decided(facts: ClusterBuilder, job: PendingJob) -> Decision:
    (decision,) = facts.into(PlacementEngine(EngineConfig(weights={"first-fit": 1}))).decide([job], NOW)
    return decision


def lent(**more: object) -> ClusterBuilder:
    """A node of two GPUs, kept for the large job since `SINCE`: one is its already, one is lent."""
    facts = cluster().node("n1", gpus=2)
    said: dict[str, Any] = {"started": NOW - 50, "checkpoint_s": 600, **more}
    facts.running("borrower", gpus=1, on="n1", **said)
    return facts.earmarked("n1", "pod/team/large", Charge(gpus=(GpuGrant(1, 1000, facts.nodes["n1"].gpus[1].mib),)))


def test_who_saves_its_work_leaves_when_nobody_else_is_in_the_way() -> None:
    decision = decided(lent(), kept(pod("large", gpus=2)))
    assert [victim.name for victim in decision.victims] == ["borrower"]
    assert decision.rule == "lent"
    assert decision.verdict.reason is Reason.EVICTING


def test_nobody_leaves_while_somebody_else_is_in_the_way() -> None:
    facts = cluster().node("n1", gpus=2)
    facts.running("borrower", gpus=1, on="n1", started=NOW - 50, checkpoint_s=600)
    facts.running("before", gpus=1, on="n1", started=SINCE - 5, checkpoint_s=600)
    assert not decided(facts, kept(pod("large", gpus=2))).victims


@pytest.mark.parametrize(
    "more", [{"checkpoint_s": 0}, {"preemptible": False}, {"guarded": True}, {"ours": False}, {"started": SINCE - 5}]
)
def test_who_would_lose_its_work_or_is_no_borrower_stays(more: dict[str, object]) -> None:
    assert not decided(lent(**more), kept(pod("large", gpus=2))).victims


def test_who_outran_what_was_expected_of_it_leaves_when_the_job_was_to_start() -> None:
    facts = lent(checkpoint_s=0)
    assert not decided(facts, kept(pod("large", gpus=2), until=NOW + 1)).victims
    assert decided(facts, kept(pod("large", gpus=2), until=NOW - 1)).victims


def test_nobody_leaves_in_vain_for_a_gang_that_lacks_room_elsewhere() -> None:
    def scene() -> ClusterBuilder:
        return cluster().node("n1", gpus=2).node("n2", gpus=2).running(
            "borrower", gpus=1, on="n1", started=NOW - 50, checkpoint_s=600
        )  # fmt: skip

    full = scene().running("other", gpus=2, on="n2", started=SINCE - 5)
    assert not decided(full, kept(gang("train", 2, gpus=2))).victims
    assert decided(scene(), kept(gang("train", 2, gpus=2))).victims


def test_who_seems_to_have_started_a_moment_before_the_room_was_kept_leaves_too() -> None:
    """The room was kept at 52.4 s and lent at once; the pod's start was told as 52 s."""
    assert decided(lent(started=SINCE - 0.4), kept(pod("large", gpus=2))).victims


def test_without_room_that_is_kept_nobody_leaves_by_this_rule() -> None:
    assert not decided(lent(), pod("large", gpus=2)).victims


def says(job: PendingJob, **said: Any) -> PendingJob:
    return msgspec.structs.replace(job, head=msgspec.structs.replace(job.head, **said))


def test_what_was_lent_stays_lent_and_is_no_obstacle_to_the_next_turn_of_the_queue() -> None:
    facts = cluster().node("n1", gpus=2).node("n2", gpus=2)
    for n in (0, 1):
        facts.running(f"borrower{n}", gpus=1, on="n1", started=NOW - 50, checkpoint_s=600)
    facts.running("other", gpus=1, on="n2", started=NOW - 50, checkpoint_s=600)
    engine = facts.into(PlacementEngine(EngineConfig(weights={"first-fit": 1})))
    job = msgspec.structs.replace(pod("large", gpus=2), lent=loans((SINCE, NOW - 10)))
    reserved = engine.reserve(job, NOW)
    assert reserved is not None and [p.node for p in reserved.placements] == ["n1"]
    again = msgspec.structs.replace(job, kept=(("n1", KEPT),), lent=loans((SINCE, NOW - 10), (NOW, None)))
    assert len(decided(facts, again).victims) == 2
    late = msgspec.structs.replace(again, lent=loans((SINCE, NOW - 60), (NOW, None)))
    assert not decided(facts, late).victims, "who came when nothing was kept stays"


class TestTerms:
    def borrows(self, job: PendingJob, *queues: Queue) -> Borrowing | None:
        engine = cluster().node("n1", gpus=2).into(PlacementEngine(EngineConfig(weights={"first-fit": 1})))
        for queue in queues:
            engine.queue_seen(queue)
        engine.decide([], NOW)
        return engine.borrows(job, NOW)

    def test_one_that_may_be_evicted_at_any_time_borrows_and_says_what_it_costs(self) -> None:
        assert self.borrows(says(pod("p", gpus=1), checkpoint_s=600)) == Borrowing(True, 0.0)
        assert self.borrows(pod("p", gpus=1)) == Borrowing(False, 0.0)

    def test_who_could_not_be_made_to_leave_when_the_room_is_needed_does_not(self) -> None:
        assert self.borrows(says(pod("p", gpus=1), preemptible=False, checkpoint_s=600)) is None
        assert self.borrows(says(gang("g", 2, gpus=1), checkpoint_s=600)) is None
        assert self.borrows(says(pod("p", gpus=1), checkpoint_s=600), Queue("default", preemptible=False)) is None
        assert self.borrows(says(pod("p", gpus=1), checkpoint_s=600), Queue("default", min_run_s=60)) is None
        assert self.borrows(says(pod("p", gpus=1), checkpoint_s=600), Queue("default", evictions=0)) is None

    def test_those_before_it_tell_how_long_it_runs(self) -> None:
        engine = cluster().node("n1", gpus=8).into(PlacementEngine(EngineConfig(weights={"first-fit": 1})))
        facts = cluster().node("n1", gpus=8)
        for n in range(6):
            facts.running(f"r{n}", gpus=1, on="n1", started=NOW - 100 * (n + 1))
        facts.into(engine)
        engine.decide([], NOW)
        for n in range(6):
            engine.pod_gone(f"uid-r{n}")
        assert engine.borrows(pod("p", gpus=1), NOW) == Borrowing(False, 600.0)
