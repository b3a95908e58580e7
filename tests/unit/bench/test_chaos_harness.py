"""The parts of the chaos harness that must be right for its verdict to mean anything."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from bench.chaos import story
from bench.chaos.devices import Devices
from bench.chaos.faults import FAULTS
from bench.chaos.kubelet import SECONDS, HonestKubelets, done_twice, held_twice
from bench.chaos.load import NAMESPACE, Stream
from bench.chaos.machines import Machines
from bench.chaos.relay import Line
from libs.contracts.events import GpuFact, GpuFacts
from libs.domain import keys
from libs.domain.resources import Charge, GpuGrant
from libs.kube import writes
from libs.kube.embedded import EmbeddedCluster
from libs.kube.nodes import parse_node
from libs.kube.objects import OwnerReference
from libs.kube.pods import PodView, parse_pod
from libs.store.port import Holder
from tools.load import pod_object


def pod(name: str, *, gpu: str = "0", milli: str = "1000", phase: str = "Running") -> PodView:
    body = {
        "metadata": {
            "name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {keys.GPUS: gpu, keys.GPU_MILLI: milli, keys.CLAIM: f"claim-{name}"},
        },
        "spec": {
            "schedulerName": keys.SCHEDULER_NAME, "nodeName": "n1",
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {keys.GPU_RESOURCE: "1"}}}],
        },
        "status": {"phase": phase},
    }  # fmt: skip
    return parse_pod(msgspec.json.encode(body))


def test_a_device_of_two_pods_is_found_and_both_are_named() -> None:
    found = held_twice([pod("a"), pod("b"), pod("c", gpu="1")])
    assert {place: {p.name for p in pods} for place, pods in found.items()} == {"n1/0": {"a", "b"}}


def test_shares_that_add_up_to_a_device_and_pods_that_ended_are_no_double_promise() -> None:
    assert held_twice([pod("a", milli="400"), pod("b", milli="600"), pod("gone", phase="Succeeded")]) == {}


def test_a_task_that_runs_beside_its_own_result_is_done_twice_and_one_that_replaces_a_leaving_pod_is_not() -> None:
    def task(attempt: int, phase: str, *, leaving: bool = False) -> PodView:
        owner = OwnerReference(name="j", uid="u", kind="TrainingJob", api_version=keys.API_VERSION, controller=True)
        view = pod(f"j-worker-0-{attempt}", phase=phase)
        return msgspec.structs.replace(
            view, role="worker", index=0, attempt=attempt, owners=(owner,), terminating=leaving
        )

    assert list(done_twice([task(0, "Succeeded"), task(1, "Running")])) == ["u/worker/0"]
    assert done_twice([task(0, "Running", leaving=True), task(1, "Pending")]) == {}
    assert done_twice([task(0, "Failed"), task(1, "Running")]) == {}


async def test_a_line_that_is_cut_ends_connections_and_is_whole_again_when_mended() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(100):
                writer.write(chunk)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    line = Line(*server.sockets[0].getsockname()[:2])
    await line.open()
    host, _, port = line.address.rpartition(":")
    try:
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            line.cut()
            with pytest.raises(ConnectionError):
                writer.write(b"anybody?")
                await writer.drain()
                if not await reader.read(1):
                    raise ConnectionResetError
            writer.transport.abort()
            line.mend()
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"again")
            assert await reader.readexactly(5) == b"again"
            writer.close()
            await writer.wait_closed()
    finally:
        await line.close()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.05)


async def test_a_pod_that_others_took_away_is_made_anew_and_one_that_was_deleted_is_not() -> None:
    cluster = EmbeddedCluster()
    stream = Stream(cluster, "nowhere", Machines(cluster, HonestKubelets(cluster), 1), random.Random(1))
    await stream._pods("gang", 2)
    evicted = parse_pod((await writes.get_pod(cluster, NAMESPACE, "gang-0")).body)
    assert (await writes.delete_pod(cluster, NAMESPACE, "gang-0", evicted.uid)).ok
    stream.left(evicted)
    owner = asyncio.create_task(stream.own())
    async with asyncio.timeout(30):
        while stream.owes:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    anew = await writes.get_pod(cluster, NAMESPACE, "gang-0")
    assert parse_pod(anew.body).uid != evicted.uid
    assert parse_pod(anew.body).annotations == evicted.annotations
    await stream._delete()
    assert (await writes.get_pod(cluster, NAMESPACE, "gang-0")).status == 404
    stream.left(parse_pod(anew.body))
    assert not stream.owes
    owner.cancel()


async def test_the_journal_of_a_job_has_each_change_of_its_pods_once() -> None:
    kubelets = HonestKubelets(EmbeddedCluster())
    bound = pod("a", phase="Pending")
    for version in (bound, bound, msgspec.structs.replace(bound, phase="Running")):
        kubelets._note(version)
        kubelets.pods[version.uid] = version
    kubelets._gone(bound.uid)
    told = [line for _, line in kubelets.journal["pod/default/a"]]
    assert told == [
        "pod a Pending on n1, GPUs 0, claim claim-a",
        "pod a Running on n1, GPUs 0, claim claim-a",
        "pod a is gone",
    ]


async def test_kubelets_that_only_look_name_who_would_have_been_refused_and_leave_it_running() -> None:
    cluster = EmbeddedCluster()
    node = {
        "metadata": {"name": "n1"},
        "status": {
            "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    await cluster.call("POST", writes.NODES, msgspec.json.encode(node))
    kubelets = HonestKubelets(cluster, only_looks=True)
    looking = asyncio.create_task(kubelets.run())
    try:
        for name in ("first", "second"):
            body = {
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {
                    "nodeName": "n1",
                    "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "5"}}}],
                },
                "status": {"phase": "Running"},
            }
            assert (await cluster.call("POST", writes.pods_path(NAMESPACE), msgspec.json.encode(body))).ok
        async with asyncio.timeout(30):
            while not kubelets.refusals:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert {(one.pod, one.reason) for _, one in kubelets.refusals} == {(f"{NAMESPACE}/second", "OutOfcpu")}
        answer = await writes.get_pod(cluster, NAMESPACE, "second")
        assert parse_pod(answer.body).phase != "Failed"
    finally:
        looking.cancel()
        await asyncio.wait({looking})


@pytest.fixture
async def world() -> AsyncIterator[tuple[EmbeddedCluster, HonestKubelets, Machines]]:
    """Four nodes with their kubelets."""
    cluster = EmbeddedCluster()
    kubelets = HonestKubelets(cluster)
    machines = Machines(cluster, kubelets, 4)
    await machines.make()
    running = asyncio.create_task(kubelets.run())
    await until(lambda: len(kubelets.nodes) == 4)
    yield cluster, kubelets, machines
    running.cancel()
    await asyncio.wait({running})


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def bound_pod(cluster: EmbeddedCluster, node: str, *, seconds: float) -> str:
    """Its uid."""
    marks = {SECONDS: str(seconds), keys.GPUS: "0", keys.GPU_MILLI: "1000"}
    made = pod_object(f"on-{node}", annotations=marks, nodeName=node)
    answer = await cluster.call("POST", writes.pods_path(NAMESPACE), msgspec.json.encode(made))
    return parse_pod(answer.body).uid


async def node_uid(cluster: EmbeddedCluster, name: str) -> str:
    answer = await cluster.call("GET", f"{writes.NODES}/{name}")
    return parse_node(answer.body).uid if answer.ok else ""


World = tuple[EmbeddedCluster, HonestKubelets, Machines]


async def test_a_node_that_registers_anew_has_another_uid_and_its_pod_runs_on(world: World) -> None:
    cluster, kubelets, machines = world
    uid = await bound_pod(cluster, "node-00000", seconds=0.3)
    await until(lambda: uid in kubelets.pods and kubelets.pods[uid].phase == "Running")
    before = {name: await node_uid(cluster, name) for name in machines.names}
    await machines.register_anew(random.Random(1), 0.1)
    after = {name: await node_uid(cluster, name) for name in machines.names}
    assert len({name for name in before if before[name] != after[name]}) == 1
    await until(lambda: kubelets.pods[uid].phase == "Succeeded")


async def test_what_ran_on_a_machine_that_died_says_nothing_until_a_machine_of_that_name_starts_it(
    world: World,
) -> None:
    cluster, kubelets, _ = world
    uid = await bound_pod(cluster, "node-00000", seconds=0.2)
    await until(lambda: uid in kubelets.pods and kubelets.pods[uid].phase == "Running")
    kubelets.stop_machine("node-00000")
    await asyncio.sleep(0.4)
    assert kubelets.pods[uid].phase == "Running"
    kubelets.start_machine("node-00000")
    await until(lambda: kubelets.pods[uid].phase == "Succeeded")
    assert not kubelets.refusals


async def test_a_machine_that_is_lost_is_followed_by_another_when_its_pods_have_been_taken(world: World) -> None:
    cluster, kubelets, machines = world
    uids = {name: await bound_pod(cluster, name, seconds=9) for name in machines.names}
    losing = asyncio.create_task(machines.lose(random.Random(1)))
    await until(lambda: len(machines.names) == 3)
    (lost,) = uids.keys() - set(machines.names)
    await until(lambda: lost not in {node.name for node in kubelets.nodes})
    await asyncio.sleep(0.3)
    assert not losing.done(), "its pod is still bound to it"
    assert (await writes.delete_pod(cluster, NAMESPACE, f"on-{lost}", uids[lost], grace_s=0)).ok
    await until(losing.done)
    await losing
    assert len(machines.names) == 4
    assert not machines.broken
    assert await machines.astray(set(machines.names)) == []
    assert await machines.astray({*machines.names, "ghost"}) == ["the ledger has node ghost, which is gone"]


async def test_a_device_in_use_that_nothing_is_told_of_is_found(world: World) -> None:
    cluster, kubelets, _ = world
    devices = Devices(kubelets)
    devices._told = {
        node.name: GpuFacts(node.name, tuple(GpuFact(g.index, "", "", 0, 0, 0) for g in node.gpus))
        for node in kubelets.nodes
    }
    assert devices.astray() == []
    uid = await bound_pod(cluster, "node-00000", seconds=9)
    await until(lambda: uid in kubelets.pods and kubelets.pods[uid].phase == "Running")
    (found,) = devices.astray()
    assert found.startswith("node node-00000 uses {0: ")
    kubelets.stop_machine("node-00000")
    assert devices.astray() == ["facts are told of node node-00000, which says nothing"]


def test_a_story_has_its_lines_in_order_of_time_and_ends_with_what_the_ledger_holds() -> None:
    holders = [Holder("c1", "writing", "n1", Charge(gpus=(GpuGrant(3, 1000, 0),)), job="pod/ns/a", task="u1")]
    text = story._text("pod/ns/a", [(2.0, "second"), (1.0, "first")], holders)
    assert [line.strip() for line in text.splitlines()] == [
        "story of pod/ns/a",
        "00:00:01.000 first",
        "00:00:02.000 second",
        "ledger: writing c1 task u1 on n1, GPUs [3]",
    ]


def test_what_is_said_of_a_job_is_found_by_its_key_and_by_its_victims() -> None:
    plan = {"id": "p", "job": "gang/ns/g", "assignments": [{"name": "g-0", "node": "n1", "claim": "p.0"}]}
    eviction = {"id": "e", "job": "pod/ns/urgent", "victims": [{"name": "g-0", "node": "n1", "job": "gang/ns/g"}]}
    said = list(story._items(msgspec.json.encode({"items": [plan, eviction]})))
    assert [story._about(item, "gang/ns/g") for item in said] == [True, True]
    assert story._brief(plan) == "id=p to=g-0@n1(0)"
    assert story._brief(eviction) == "id=e victims=g-0@n1 for=pod/ns/urgent"


@pytest.mark.parametrize("service", ["watcher", "placement", "binder", "preemptor", "metrics-collector"])
def test_every_service_is_killed_paused_restarted_and_cut_off(service: str) -> None:
    assert {f"{service} {how}" for how in ("killed", "paused", "restarted", "cut off")} <= FAULTS.keys()
