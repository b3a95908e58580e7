"""Pods and jobs that the API server takes and nothing real looks like: each is told so by itself, and the pod beside
it starts."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from libs.domain import keys
from libs.domain.bounds import MOST_ASKED, MOST_DEVICES
from libs.domain.jobs import Phase
from libs.domain.verdicts import Kind, Reason
from libs.engine.api import Decision, PendingJob
from libs.kube import trainingjobs, writes
from libs.kube.pods import PodView, parse_pod
from libs.store.pages import all_use
from libs.store.port import TaskSeen
from services.placement.guard import GuardedEngine
from tests.component.placement_scene import NS, Scene, binder, fact, placement, running, scene


def create(s: Scene, name: str, limits: dict[str, str], **spec: str) -> PodView:
    containers = [{"name": "c", "image": "i", "resources": {"limits": limits}}]
    said = {"schedulerName": keys.SCHEDULER_NAME, "containers": containers, **spec}
    body = {"metadata": {"name": name, "namespace": NS}, "spec": said}
    answer = s.kube.call_now("POST", writes.pods_path(NS), msgspec.json.encode(body))
    assert answer.ok, answer.body
    return parse_pod(answer.body)


async def test_a_pod_of_nine_exacores_is_refused_and_the_one_beside_it_starts() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        service = placement(s)
        async with running(service, binder(s)):
            await s.hint(create(s, "huge", {"cpu": "9E", keys.GPU_RESOURCE: "1"}))
            await s.until(lambda: s.told(f"pod/{NS}/huge"))
            await s.hint(s.pod("beside"))
            await s.until(lambda: s.bound() == {"beside": "n1"})
            (told,) = s.told(f"pod/{NS}/huge")
            assert told.verdict is not None
            assert (told.reason, told.verdict.kind) == ("Unsupported", Kind.NEVER)
            assert "resource cpu: more than any node has" in told.message


async def test_a_foreign_pod_of_nine_exacores_closes_its_node_and_no_service() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"), s.node("n2"))
        service = placement(s)
        async with running(service, binder(s)):
            limits = dict.fromkeys(("cpu", "memory", keys.GPU_RESOURCE), "9" * 400)
            view = create(s, "foreign", limits, schedulerName="default-scheduler", nodeName="n1")
            charge = view.charge()
            await s.ledger.tasks_seen([TaskSeen(view.uid, view.version, "n1", charge)], 1)
            await s.publish_facts(fact(view))
            await s.hint(s.pod("beside"))
            await s.until(lambda: s.bound().get("beside") == "n2")
            nodes, _ = await all_use(s.ledger)
            assert (nodes["n1"].cpu, nodes["n1"].mem, nodes["n1"].blind) == (MOST_ASKED, MOST_ASKED, MOST_DEVICES)


async def test_a_job_of_a_million_tasks_is_told_the_bound_and_never_expanded() -> None:
    """It took all memory of the watcher and of placement, and half a minute of everybody's time."""
    async with scene() as s:
        await s.facts(s.node("n1"))
        service = placement(s, placement_slow_pass_s=0.2)
        async with running(service, binder(s)):
            view = s.job("vast", replicas=1_000_000)
            await s.hint_job(view)
            await s.until(lambda: s.read_job("vast").status.reason)
            await s.hint(s.pod("beside"))
            await s.until(lambda: s.bound() == {"beside": "n1"})
            job = service.state.pending.jobs[view.key]
            assert len(job.tasks) == 1
            status = s.read_job("vast").status
            assert (status.phase, status.reason) == (Phase.PENDING, "TooManyTasks")
            assert status.message.startswith("the job has 1000000 tasks, at most 10000 of one job are served")
            await asyncio.sleep(0.6)  # the slow pass sees it again and again, and says nothing new
            await s.pump()
            (told,) = s.told(view.key)
            assert told.verdict is not None
            assert (told.verdict.kind, told.verdict.reason) == (Kind.NEVER, Reason.TOO_MANY_TASKS)
            assert s.read_job("vast").status == status
            s.kube.call_now("DELETE", trainingjobs.path(NS, "vast"))
            await s.until(lambda: not service.state.pending.jobs)


async def test_a_job_on_which_the_engine_fails_is_told_so_and_all_others_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(GuardedEngine):
        """As one whose code has an error for one pod."""

        def _decide(self, job: PendingJob) -> Decision:
            decision = super()._decide(job)
            return Decision(*[job.tasks[99]]) if job.head.key == f"pod/{NS}/bad" else decision

    async with scene() as s:
        await s.facts(s.node("n1"))
        monkeypatch.setattr("services.placement.app.GuardedEngine", Failing)  # a release with an error in it
        service = placement(s)
        async with running(service, binder(s)):
            await s.hint(s.pod("bad"))
            for n in range(4):
                await s.hint(s.pod(f"good-{n}"))
            await s.until(lambda: len(s.bound()) == 4 and s.told(f"pod/{NS}/bad"))
            assert "bad" not in s.bound()
            (told,) = s.told(f"pod/{NS}/bad")
            assert told.verdict is not None
            assert (told.reason, told.verdict.reason) == ("CouldNotBeDecided", Reason.FAULT)
            assert "deciding it fails by a fault of Drystone's own (IndexError" in told.message
            await s.until(lambda: (s.condition("bad") or {}).get("reason") == "CouldNotBeDecided")
