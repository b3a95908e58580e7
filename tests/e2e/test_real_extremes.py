"""Pods, nodes and jobs that the API server takes and nothing real looks like, on the running services: each is told so
by itself, every service stays up, and the pod beside it starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libs.domain.bounds import MOST_ASKED, MOST_DEVICES
from libs.domain.verdicts import Kind, Reason
from libs.kube import trainingjobs
from libs.store.pages import all_use
from tests.e2e.world import World, bound

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

DEEP = "[" * 9_000 + "]" * 9_000


def alive(world: World) -> bool:
    return all(member.process.poll() is None for member in world.fleet.members)


async def create_job(world: World, name: str, roles: list[dict[str, Any]], deep: str = "") -> tuple[int, bytes]:
    meta = {"name": name, "namespace": world.namespace}
    body = json.dumps({"apiVersion": "drystone.dev/v1alpha1", "kind": "TrainingJob", "metadata": meta,
                       "spec": {"roles": roles}})  # fmt: skip
    answer = await world.load.kube.call("POST", trainingjobs.path(world.namespace), body.replace('"@"', deep).encode())
    return answer.status, answer.body


def role(name: str, replicas: int, **spec: Any) -> dict[str, Any]:
    template = {
        "spec": {"containers": [{"name": "main", "image": "i"}], "nodeSelector": spec.pop("nodeSelector", {}), **spec}
    }
    return {"name": name, "replicas": replicas, "template": template}


async def test_a_pod_of_another_scheduler_with_nine_exacores_on_a_node_and_one_of_ours(world: World) -> None:
    first, _ = await world.nodes(2)
    digits = {"cpu": "9" * 3_000, "memory": "9E"}
    foreign = [world.pod("foreign", scheduler="default-scheduler", cpu="9E", memory="9E", gpus=9_000, nodeName=first),
               world.pod("digits", scheduler="default-scheduler", gpus=0, nodeName=first, **digits)]  # fmt: skip
    world.misplaced |= {"foreign", "digits"}
    await world.create(*foreign)
    await world.until(lambda pods: len(bound(pods)) == 2)
    await world.create(world.pod("huge", cpu="9E"), world.pod("beside"))
    pods = await world.until(lambda pods: "beside" in bound(pods) and pods["huge"].reason != "")
    assert pods["huge"].reason == "Unsupported"
    assert pods["huge"].condition is not None
    assert "resource cpu: more than any node has" in (pods["huge"].condition.message or "")
    assert pods["beside"].view.node != first
    use = (await all_use(world.ledger))[0][first]
    assert (use.cpu, use.mem, use.blind) == (2 * MOST_ASKED, 2 * MOST_ASKED, MOST_DEVICES)
    assert alive(world)
    await world.delete("foreign")
    await world.delete("digits")


async def test_a_node_that_offers_nine_quintillion_of_everything_is_one_node_of_many(world: World) -> None:
    """It would have been given a list of nine quintillion devices."""
    absurd, _ = await world.nodes(2)
    everything = dict.fromkeys(("cpu", "memory", "pods", "nvidia.com/gpu", "ephemeral-storage"), "9E")
    status = json.dumps({"status": {"capacity": everything, "allocatable": everything}}).encode()
    path = f"/api/v1/nodes/{absurd}/status"
    answer = await world.load.kube.call("PATCH", path, status, content_type="application/merge-patch+json")
    assert answer.ok, answer.body
    await world.create(*(world.pod(f"p{n}", gpus=0 if n < 4 else 1) for n in range(8)))
    pods = await world.until(lambda pods: len(bound(pods)) == 8)
    assert all(pods[f"p{n}"].view.node != absurd for n in range(4, 8)), "which of its devices, nobody knows"
    assert alive(world)


async def test_a_job_of_more_tasks_than_are_served_is_told_the_bound_and_a_vaster_one_is_not_taken(
    world: World,
) -> None:
    await world.nodes(1)
    status, body = await create_job(world, "vast", [role(f"r{n}", 100_000) for n in range(10)])
    assert status == 422
    assert b"a job has at most 100000 tasks, all roles together" in body
    async with world.listening() as heard:
        status, body = await create_job(world, "wide", [role(f"r{n}", 9_999) for n in range(10)])
        assert status == 201, body
        await world.create(world.pod("beside"))
        view = await world.until_job(
            "wide", lambda view: view.status.reason == "TooManyTasks", namespace=world.namespace
        )
        assert view.status.message.startswith("the job has 99990 tasks, at most 10000 of one job are served")
        await world.until(lambda pods: bound(pods) == ["beside"])
        key = f"job/{world.namespace}/wide"
        await heard.until(lambda heard: bool(heard.about(key)))
        verdict = heard.about(key)[0].verdict
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == (Kind.NEVER, Reason.TOO_MANY_TASKS)
    assert alive(world)


async def test_a_job_with_nine_thousand_levels_in_its_template_is_refused_and_all_others_run(world: World) -> None:
    """No list of job objects could be decoded with it in."""
    (node,) = await world.nodes(1)
    here = {"kubernetes.io/hostname": node}
    status, body = await create_job(world, "deep", [role("w", 2, zz="@", nodeSelector=here)], DEEP)
    assert status == 201, body
    status, body = await create_job(world, "plain", [role("w", 2, nodeSelector=here)])
    assert status == 201, body
    await world.until(lambda pods: len(bound(pods)) == 2)
    view = await world.until_job("deep", lambda view: "spec.zz" in view.status.message, namespace=world.namespace)
    assert 'unknown field "spec.zz"' in view.status.message
    assert alive(world)
