"""Wherever something raises while one job is decided: it is told so, and all others get what they would get without
it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.domain.verdicts import Kind, Reason, Wake
from libs.engine.api import Decision, EngineConfig, PendingJob
from libs.engine.feasible import Feasibility
from libs.engine.session import Session
from libs.engine.statement import Statement
from libs.testkit.builders import ClusterBuilder, cluster, gang, pod
from services.placement.guard import AGAIN_S, GuardedEngine
from tests.property.test_engine_laws import clusters, job_lists

NOW = 1_000_000.0
#: A policy that looks at the present alone: others keep what they worked out until enough has changed, so that where
#: something goes follows from all that was decided before.
CONFIG = EngineConfig({"weighted-best-fit": 1}, consolidate=True)


class Sabotaged(GuardedEngine):
    """The `at`-th step of deciding `victim` raises, right after it was done."""

    def __init__(self, victim: str, at: int) -> None:
        super().__init__(CONFIG)
        self.victim, self.at, self.left = victim, at, at
        self.deciding = ""
        self.raised = 0

    def _decide(self, job: PendingJob) -> Decision:
        self.deciding, self.left = job.head.key, self.at
        try:
            return super()._decide(job)
        finally:
            self.deciding = ""

    def step(self) -> None:
        if self.deciding == self.victim:
            self.left -= 1
            if self.left == 0:
                self.raised += 1
                raise ArithmeticError("a number that nobody thought of")


def decided(decisions: list[Decision]) -> dict[str, Any]:
    return {
        d.job: (
            d.verdict.kind,
            d.verdict.reason,
            [(p.task.id, p.node, p.charge) for p in d.placements],
            [v.uid for v in d.victims],
        )
        for d in decisions
    }


STEPS = ((Statement, "take"), (Statement, "evict"), (Statement, "rollback"), (Session, "feasible"), (Session, "keep"),
         (Session, "hold"), (Session, "mark"), (Feasibility, "refresh"))  # fmt: skip


def sabotage(patch: pytest.MonkeyPatch, engine: Sabotaged) -> None:
    for owner, name in STEPS:
        original = getattr(owner, name)

        def stepped(*arguments: Any, original: Any = original, **named: Any) -> Any:
            done = original(*arguments, **named)
            engine.step()
            return done

        patch.setattr(owner, name, stepped)


@given(clusters(), job_lists(), st.integers(0, 6), st.integers(1, 60))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_all_others_get_what_they_would_get_without_it(
    facts: ClusterBuilder, jobs: list[PendingJob], pick: int, at: int
) -> None:
    victim = jobs[pick % len(jobs)].head.key
    engine = facts.into(Sabotaged(victim, at))
    before = engine.free_room(), engine.queue_room()
    with pytest.MonkeyPatch.context() as patch:
        sabotage(patch, engine)
        told = engine.decide(jobs, NOW)
    others = [job for job in jobs if job.head.key != victim] if engine.raised else jobs
    assert {d.job for d in told} == {job.head.key for job in jobs}
    if engine.raised:
        (verdict,) = (d.verdict for d in told if d.job == victim)
        assert (verdict.kind, verdict.reason) == (Kind.NOT_NOW, Reason.FAULT)
    reference = facts.into(GuardedEngine(CONFIG))
    expected = reference.decide(others, NOW)
    assert decided([d for d in told if d.verdict.reason is not Reason.FAULT]) == decided(expected)
    assert engine.free_room() == reference.free_room()
    engine.settle()
    reference.settle()
    assert (engine.free_room(), engine.queue_room()) == before
    # The fault is gone with the next release: nothing of it is left.
    assert decided(engine.decide(jobs, NOW + 1)) == decided(reference.decide(jobs, NOW + 1))


def test_a_job_on_which_the_engine_fails_is_told_so_and_tried_again() -> None:
    facts = cluster().rack("r", nodes=2, gpus=8)
    engine = facts.into(Sabotaged("pod/team/bad", 1))
    with pytest.MonkeyPatch.context() as patch:
        sabotage(patch, engine)
        good, bad = engine.decide([pod("bad", gpus=1), gang("good", 2, gpus=8)], NOW)
    assert (good.job, len(good.placements), bad.job) == ("gang/team/good", 2, "pod/team/bad")
    verdict = bad.verdict
    assert verdict.message.startswith("deciding it fails by a fault of Drystone's own (ArithmeticError: a number that")
    assert (verdict.until, set(verdict.wakes_on)) == (NOW + AGAIN_S, {Wake.TIME, Wake.SPEC_CHANGED})


def test_an_array_that_no_memory_holds_is_a_fault_of_one_job() -> None:
    class Exhausted(GuardedEngine):
        def _decide(self, job: PendingJob) -> Decision:
            if job.head.key == "pod/team/bad":
                np.zeros(2**60)
            return super()._decide(job)

    engine = cluster().rack("r", nodes=1).into(Exhausted())
    bad, good = engine.decide([pod("bad", gpus=1), pod("good", gpus=1)], NOW)
    bad, good = (bad, good) if bad.job == "pod/team/bad" else (good, bad)
    assert (bad.verdict.reason, len(good.placements)) == (Reason.FAULT, 1)


def test_a_job_whose_place_in_line_cannot_be_told_is_found_by_itself() -> None:
    class Placeless(GuardedEngine):
        def _gpus(self, job: PendingJob) -> float:
            return 1 / 0 if job.head.key == "pod/team/bad" else 0.0

    jobs = [pod("bad", gpus=1), *(pod(f"p{n}", gpus=1) for n in range(4))]
    told = cluster().rack("r", nodes=1).into(Placeless()).decide(jobs, NOW)
    assert [d.job for d in told if d.placements] == [f"pod/team/p{n}" for n in range(4)]
    assert [d.job for d in told if d.verdict.reason is Reason.FAULT] == ["pod/team/bad"]


def test_what_fails_without_any_job_is_not_kept_quiet() -> None:
    class Broken(GuardedEngine):
        def _in_line(self, jobs: list[PendingJob], decisions: Any) -> Any:
            raise ArithmeticError("of the whole")

    engine = cluster().rack("r", nodes=1).into(Broken())
    with pytest.raises(ArithmeticError):
        engine.decide([pod("p", gpus=1)], NOW)
