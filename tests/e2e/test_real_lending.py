"""Room that gathers for a large job, on the running system: at work meanwhile, given back when all else is there."""

from __future__ import annotations

import pytest

from libs.domain import keys
from tests.e2e.test_real_pods import bound
from tests.e2e.world import SeenPod, World

#: A head waits a minute before room is kept for it.
pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def said(pod: SeenPod) -> str:
    return (pod.condition.message or "") if pod.condition is not None else ""


async def test_pods_that_save_their_work_are_on_kept_gpus_and_leave_for_the_head_when_the_last_other_has(
    world: World,
) -> None:
    await world.nodes(1)
    saves = {keys.CHECKPOINT: "30"}
    await world.create(world.pod("long"), world.pod("short", gpus=5))
    await world.until(lambda pods: len(bound(pods)) == 2)
    await world.create(world.pod("large", gpus=8))
    # Two GPUs gather for it once it has waited for a minute; nobody knows when `long` ends.
    await world.until(lambda pods: "room is kept for it" in said(pods["large"]), within_s=100.0)
    await world.delete("short")
    await world.create(world.pod("silent", gpus=2), *(world.pod(f"saves-{n}", annotations=saves) for n in range(3)))
    await world.until(lambda pods: sum(pods[f"saves-{n}"].view.node != "" for n in range(3)) == 3, within_s=60.0)
    pods = await world.until(lambda pods: bool(pods["silent"].reason), within_s=60.0)
    assert not pods["silent"].view.node, "what it would lose is not known"
    await world.delete("long")
    pods = await world.until(lambda pods: "large" in bound(pods), within_s=60.0)
    assert not any(name.startswith("saves-") and pod.view.node for name, pod in pods.items())
