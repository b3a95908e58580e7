"""Volume claims that wait for first use are bound for the pod's node before the pod is."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from libs.contracts.events import (
    Landed,
)
from libs.domain.plans import Plan
from libs.kube import writes
from libs.kube.volumes import SELECTED_NODE, claim_decoder
from tests.component.binder_world import TEAM, World, binders


@pytest.fixture
async def world():
    async with binders() as made:
        yield made


class Disks:
    """The claims of a test, and whoever provisions volumes for them."""

    def __init__(self, world: World) -> None:
        self._world = world

    def path(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{TEAM}/persistentvolumeclaims" + (f"/{name}" if name else "")

    def claim(self, name: str, **annotations: str) -> None:
        item = {"metadata": {"name": name, "annotations": annotations}, "spec": {"storageClassName": "first-use"}}
        assert self._world.cluster.call_now("POST", self.path(), msgspec.json.encode(item)).ok

    def selected(self, name: str) -> str:
        body = self._world.cluster.call_now("GET", self.path(name)).body
        return claim_decoder.decode(body).metadata.annotations.get(SELECTED_NODE, "")

    def provision(self, name: str) -> None:
        patch = {
            "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": f"pv-{name}"},
        }
        body = msgspec.json.encode(patch)
        answer = self._world.cluster.call_now("PATCH", self.path(name), body, content_type=writes.MERGE)
        assert answer.ok, answer.body


async def with_claims(world: World, pod, *claims: str) -> Plan:
    plan = await world.plan(pod)
    assignments = tuple(msgspec.structs.replace(a, claims=claims) for a in plan.assignments)
    return msgspec.structs.replace(plan, assignments=assignments)


async def test_a_pod_whose_claims_wait_for_first_use_is_bound_when_the_last_of_them_is(world):
    disks = Disks(world)
    disks.claim("data")
    disks.claim("logs", **{SELECTED_NODE: "n1"})
    disks.provision("logs")
    a = world.pod("a")
    async with world.binder(give_up_s=8.0):
        await world.send(await with_claims(world, a, "logs", "data"))
        async with asyncio.timeout(30):
            while disks.selected("data") != "n1":  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert world.bindings == []
        disks.provision("data")
        landed = await world.landed(1)
    assert landed[a.uid][0] is Landed.BOUND
    assert world.bindings == [("a", "n1")]


async def test_a_claim_that_is_not_provisioned_in_time_gives_the_task_back_and_keeps_its_node(world):
    disks = Disks(world)
    disks.claim("data")
    a = world.pod("a")
    async with world.binder(give_up_s=0.3):
        await world.send(await with_claims(world, a, "data"))
        landed = await world.landed(1)
    assert landed[a.uid] == (Landed.REPLAN, "volume claim data is being provisioned")
    assert (disks.selected("data"), world.bindings) == ("n1", [])
    assert await world.held() == {}


@pytest.mark.parametrize("known", [{SELECTED_NODE: "n2"}, {}])
async def test_a_claim_that_is_for_another_node_by_now_is_for_a_new_decision(world, known):
    disks = Disks(world)
    disks.claim("data", **known)
    if not known:
        disks.provision("data")  # bound by hand, to a volume that nobody here has seen
    a = world.pod("a")
    async with world.binder():
        await world.send(await with_claims(world, a, "data"))
        landed = await world.landed(1)
    assert landed[a.uid] == (Landed.REPLAN, "volume claim data is for another node")
    assert (disks.selected("data"), world.bindings) == (known.get(SELECTED_NODE, ""), [])
