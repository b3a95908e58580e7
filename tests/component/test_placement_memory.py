"""What placement remembers of jobs that are over: nothing, however they ended and whoever did not tell."""

from __future__ import annotations

import pytest

from libs.contracts.events import JobChanged
from libs.domain.jobs import Phase
from libs.engine.fair import together
from libs.kube import trainingjobs
from tests.component.placement_scene import NS, Scene, binder, placement, running, scene


async def runs(s: Scene, name: str, **spec: object) -> trainingjobs.TrainingJobView:
    view = s.job(name, replicas=1, **spec)
    await s.hint_job(view)
    await s.until(lambda: s.read_job(name).status.phase is Phase.RUNNING)
    return view


async def ends(s: Scene, view: trainingjobs.TrainingJobView, name: str) -> None:
    pods = [p for p in s.read_pods() if p.name.startswith(name)]
    for pod in pods:
        s.end_pod(pod.name, "Succeeded")
        await s.ledger.tasks_gone([pod.uid], 1)
    await s.change(JobChanged(head=trainingjobs.head_of(view, 0), gone=tuple(p.task_id for p in pods)))
    await s.until(lambda: s.read_job(name).status.phase is Phase.SUCCEEDED)


async def test_a_job_that_ended_is_forgotten_once_its_object_says_so() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        service = placement(s, placement_slow_pass_s=0.2)
        async with running(service, binder(s)):
            for n in range(3):
                await ends(s, await runs(s, f"job-{n}"), f"job-{n}")
            await s.until(lambda: not service._controller._status)
            assert not service.state.pending.jobs


async def test_a_job_that_was_deleted_without_a_word_is_forgotten_in_the_slow_pass() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        service = placement(s, placement_slow_pass_s=0.2)
        async with running(service, binder(s)):
            await runs(s, "job")
            assert service._controller._status
            s.kube.call_now("DELETE", trainingjobs.path(NS, "job"))
            await s.until(lambda: not service._controller._status)
            assert not service.state.pending.jobs


async def test_an_ended_job_that_is_to_be_cleaned_up_later_is_noted_once() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        service = placement(s, placement_slow_pass_s=0.1)
        async with running(service, binder(s)):
            view = await runs(s, "job", ttlSecondsAfterFinished=1)
            await ends(s, view, "job")
            await s.until(lambda: len(service._controller._leaving) == 1)
            await s.until(lambda: not service._controller._status)  # several passes have seen it since
            assert len(service._controller._leaving) == 1
            await s.until(lambda: s.kube.call_now("GET", trainingjobs.path(NS, "job")).status == 404)
            await s.until(lambda: not service._controller._leaving and not service._controller._to_leave)


async def test_who_waited_is_forgotten_although_nobody_asks_where_anybody_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two hundred pods a second were bound at once, and placement grew by 3 MiB a minute."""
    monkeypatch.setattr(together, "CLEANED_S", 0.0)
    async with scene() as s:
        await s.facts(s.node("n1"))
        service = placement(s)
        async with running(service, binder(s)):
            for n in range(4):
                await ends(s, await runs(s, f"job-{n}"), f"job-{n}")
            assert len(service.state.view.engine._session.service.together) <= 1
