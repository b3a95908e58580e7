"""What is said to a job that waits about what would help it."""

from __future__ import annotations

from libs.domain.verdicts import Kind, Reason, Verdict
from services.placement.advice import with_helps
from tests.component.placement_scene import binder, placement, running, scene


def test_more_help_stands_behind_what_the_verdict_says_itself() -> None:
    own = Verdict(Kind.NOT_NOW, Reason.GPU_COUNT, "0/2 nodes fit; helps: 8 idle GPUs", helps=("8 idle GPUs",))
    bare = Verdict(Kind.NOT_NOW, Reason.GPU_COUNT, "0/2 nodes fit")

    assert with_helps(own, ("a larger node", "8 idle GPUs")).message == (
        "0/2 nodes fit; helps: 8 idle GPUs, a larger node"
    )
    assert with_helps(bare, ("a larger node",)).message == "0/2 nodes fit; helps: a larger node"
    assert with_helps(own, ()) is own


async def test_a_job_that_waits_hears_what_would_help_on_its_condition_and_in_its_status() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=4), s.node("n2", gpus=4))
        service = placement(s, placement_advice_s=0.05, placement_rewrite_s=0.05, placement_slow_pass_s=0.2)
        async with running(service, binder(s)):
            for name in ("a", "b"):
                await s.hint(s.pod(name, gpus=3))
            await s.until(lambda: len(s.bound()) == 2)
            await s.hint(s.pod("big", gpus=4))
            await s.until(lambda: "1 more node like n1 with 4 GPUs" in str(s.condition("big")))
            said = str(s.condition("big"))
            assert "asking for 1 GPU per task" in said
            await s.until(lambda: any("1 more node like n1" in status.message for status in s.told("pod/default/big")))
            verdict = s.told("pod/default/big")[-1].verdict
            assert verdict is not None
            assert "asking for 1 GPU per task" in verdict.helps


async def test_questions_are_asked_once_for_jobs_that_look_alike() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=1))
        service = placement(s, placement_advice_s=0.05)
        asked: list[str] = []
        async with running(service, binder(s)):
            engine = service.state.view.engine
            helps = engine.helps
            engine.helps = lambda job, now=0.0: (asked.append(job.head.key), helps(job, now))[1]  # type: ignore[method-assign]
            for i in range(5):
                await s.hint(s.pod(f"p{i}", gpus=1))
            await s.until(lambda: s.condition("p4") and s.condition("p3"))
            await s.until(lambda: len(asked) >= 1)
            await s.until(lambda: not service._advisor._asked)
            assert len(asked) == 1
