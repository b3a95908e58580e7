"""Pods and gangs on the running system: five processes, Kafka, Redis, kube-apiserver, simulated kubelets."""

import pytest

from libs.domain import keys
from tests.e2e.world import World, bound

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


async def test_a_pod_is_bound_with_its_devices_written_on_it_and_runs(world: World) -> None:
    await world.nodes(2)
    await world.create(world.pod("train", gpus=2))
    pods = await world.until(lambda pods: pods["train"].view.phase == "Running")
    train = pods["train"]
    assert train.view.node in world.node_names
    assert len(set(train.gpus.split(","))) == 2
    assert all(0 <= int(index) < 8 for index in train.gpus.split(","))
    held = await world.until_held(lambda held: [h.state for h in held] == ["bound"])
    assert (held[0].id, held[0].node) == (train.view.uid, train.view.node)
    assert ",".join(str(g.index) for g in held[0].charge.gpus) == train.gpus


async def test_two_gangs_that_each_need_the_whole_cluster_one_gets_all_of_it_the_other_nothing(world: World) -> None:
    await world.nodes(2)
    red, blue = world.gang("red", 16), world.gang("blue", 16)
    # Interleaved, so that each gang's pods arrive among the other's.
    await world.create(*(pod for pair in zip(red, blue, strict=True) for pod in pair))
    pods = await world.until(lambda pods: len(bound(pods)) >= 16 and sum(bool(p.reason) for p in pods.values()) == 16)
    winners = {name.partition("-")[0] for name in bound(pods)}
    assert len(bound(pods)) == 16
    assert len(winners) == 1
    devices = [(p.view.node, index) for p in pods.values() if p.view.node for index in p.gpus.split(",")]
    assert len(set(devices)) == 16


async def test_a_gang_above_its_queues_headroom_binds_nothing_until_the_quota_is_free(world: World) -> None:
    await world.nodes(2)
    queue = await world.queue(limit_gpus=4)
    mine = {keys.QUEUE: queue}
    await world.create(*(world.pod(f"busy-{n}", annotations=mine) for n in range(2)))
    await world.until(lambda pods: len(bound(pods)) == 2)
    await world.create(*world.gang("gang", 3, annotations=mine))
    gang = ["gang-0", "gang-1", "gang-2"]
    pods = await world.until(lambda pods: all(n in pods and pods[n].reason for n in gang))
    assert bound(pods, gang) == []
    assert {pods[n].reason for n in gang} == {"QuotaExceeded"}
    condition = pods["gang-0"].condition
    assert condition is not None
    assert "2 of 4 GPU used" in (condition.message or "")
    await world.delete("busy-0")
    await world.until(lambda pods: len(bound(pods, gang)) == 3)


async def test_the_reason_is_unschedulable_exactly_when_more_nodes_help(world: World) -> None:
    """Autoscalers add nodes for that word."""
    await world.nodes(1)
    queue = await world.queue(limit_gpus=1)
    await world.create(world.pod("full", gpus=8))
    await world.until(lambda pods: bound(pods) == ["full"])
    await world.create(
        world.pod("no-room"),
        world.pod("no-such-node", nodeSelector={"drystone-test": f"{world.namespace}-other"}),
        world.pod("larger-than-any-node", gpus=16),
        world.pod("above-the-limit", gpus=2, annotations={keys.QUEUE: queue}),
        world.pod("unknown-feature", resourceClaims=[{"name": "nic", "resourceClaimName": "nic"}]),
        *world.gang("part", 3)[:2],
    )
    waiting = {
        "no-room": "Unschedulable",
        "no-such-node": "Unschedulable",
        "larger-than-any-node": "NeverFits",
        "above-the-limit": "QuotaExceeded",
        "unknown-feature": "Unsupported",
        "part-0": "GangIncomplete",
        "part-1": "GangIncomplete",
    }
    pods = await world.until(lambda pods: all(n in pods and pods[n].reason for n in waiting))
    assert {name: pods[name].reason for name in waiting} == waiting
    assert bound(pods) == ["full"]


async def test_a_higher_priority_evicts_lower_ones_and_takes_their_room(world: World) -> None:
    await world.nodes(1)
    low = [world.pod(f"low-{n}", labels={"priority": "low"}) for n in range(8)]
    await world.create(*low)
    before = await world.until(lambda pods: sum(p.view.phase == "Running" for p in pods.values()) == 8)
    await world.create(world.pod("high", gpus=4, labels={"priority": "high"}))
    pods = await world.until(lambda pods: "high" in pods and bool(pods["high"].view.node), within_s=30)
    left = [n for n in pods if n.startswith("low")]
    assert len(left) == 4, "exactly as many as were needed"
    freed = {before[n].gpus for n in before if n not in left}
    assert set(pods["high"].gpus.split(",")) == freed
    await world.until_held(lambda held: sorted(h.state for h in held) == ["bound"] * 5)
