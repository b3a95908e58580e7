"""Running tasks that move so that a waiting one fits: from the wait to both of them running."""

from __future__ import annotations

from libs.domain.jobs import Wishes
from libs.kube.pods import PodView
from tests.component.placement_scene import (
    Scene,
    binder,
    fill,
    leave,
    next_plans,
    placement,
    running,
    scene,
    settle_facts,
)


def wishes(pod: PodView) -> Wishes:
    """What the watcher would tell of a pod that something controls."""
    return Wishes(pod.request, pod.node_selector, pod.tolerations, pod.rules)


async def scattered(s: Scene) -> tuple[PodView, PodView]:
    """One GPU taken on each of two nodes with two GPUs."""
    await fill(s, *(s.pod(f"p{n}") for n in range(4)))
    stay: dict[str, PodView] = {}
    for pod in s.read_pods():
        if stay.setdefault(pod.node, pod) is not pod:
            await leave(s, pod)
    a, b = stay.values()
    return a, b


async def test_a_task_moves_so_that_a_whole_node_is_free_and_both_run() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=2), s.node("n2", gpus=2))
        evictions = s.bus.follow(["drystone.evictions"], from_start=True)
        service = placement(s, placement_consolidate_after_s=0)
        async with running(service, binder(s)):
            a, b = await scattered(s)
            await settle_facts(s, wishes=wishes(a), workload="pod/default/again")
            await s.until(lambda: len(service.state.view.pods) == 2)
            big = s.pod("big", gpus=2)
            await s.hint(big)
            (plan,) = await next_plans(evictions)
            assert plan.rule == "consolidate"
            assert len(plan.victims) == 1
            assert await s.earmarks() == 1
            moved = a if plan.victims[0].uid == a.uid else b
            stays = b if moved is a else a
            # Its controller makes it again before the old one is gone: what it leaves is not its own, and nobody else
            # goes where the plan has it.
            await s.hint(s.pod("other", gpus=1))
            await s.until(lambda: s.condition("other"))
            again = s.pod("again", gpus=1)
            await s.hint(again)
            await s.until(lambda: "again" in s.bound())
            assert s.bound()["again"] == s.bound()[stays.name]
            await leave(s, moved)
            await s.until(lambda: "big" in s.bound())
            assert s.bound()["big"] == plan.assignments[0].node
            assert await s.earmarks() == 0


async def test_who_started_a_moment_ago_stays_and_so_does_who_would_not_come_again() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=2), s.node("n2", gpus=2))
        evictions = s.bus.follow(["drystone.evictions"], from_start=True)
        service = placement(s, placement_consolidate_after_s=600)
        async with running(service, binder(s)):
            a, _ = await scattered(s)
            await settle_facts(s, wishes=wishes(a))  # young
            await s.hint(s.pod("big", gpus=2))
            await s.until(lambda: s.condition("big"))
            assert await next_plans(evictions, 0.1) == []
            await settle_facts(s, wishes=None, started=1.0)  # old, and nothing would make them again
            await s.hint(s.pod("big2", gpus=2))
            await s.until(lambda: s.condition("big2"))
            assert await next_plans(evictions, 0.1) == []
