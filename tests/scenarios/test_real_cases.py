"""Faults that users of other schedulers reported, brought about on the running system with two replicas per service.

Each is forced, not waited for: processes are stopped and killed, requests held back, messages said again or deleted,
watch events lost. What is asserted is what a user sees, and that the ledger agrees.
"""

import asyncio
import json
import random
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest

from libs.bus.port import Incoming
from libs.contracts.events import PlansBatch, TasksBatch
from libs.contracts.topics import JOBS, PLANS, TASKS
from libs.domain import keys
from libs.kube import trainingjobs, writes
from libs.store.pages import all_use
from tests.e2e.world import Heard, Pods, World, bound
from tests.scenarios.replicas import ONCE, SESSION_S, SLOW_PASS_S, TWICE, Replicas, serving
from tools.fleet import Fleet
from tools.stack import StackInfo

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

#: From a fault of one service to the other replica doing its work.
TAKE_OVER_S = SESSION_S + 30.0


@pytest.fixture(scope="module")
def replicas(info: StackInfo, fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    """In place of the one replica of each that other tests use; those come back afterwards."""
    fleet.stop()
    with serving(info) as proxy:
        replicas = Replicas(info, fleet, proxy, tmp_path_factory.mktemp("kubeconfigs"))
        for service in (*TWICE, *ONCE):
            for _ in range(2 if service in TWICE else 1):
                replicas.spawn(service)
        yield replicas
        fleet.stop()
    for service in (*TWICE, *ONCE):
        fleet.spawn(service)


@pytest.fixture
async def world(replicas: Replicas, world: World) -> AsyncIterator[World]:
    await replicas.ready()
    try:
        yield world
    finally:
        await replicas.heal()


# --- a new leader that has not seen the last binds --------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped and let go on"])
async def test_a_new_owner_that_has_not_seen_the_last_binds_overfills_no_node(
    world: World, replicas: Replicas, how: signal.Signals
) -> None:
    """168 pods on a node for 110. Facts about the last binds never come: nobody watches while the owner changes."""
    slots, devices, cores = await world.nodes(3)

    def on(node: str, name: str, **what: Any) -> dict[str, object]:
        return world.pod(name, nodeSelector={"kubernetes.io/hostname": node}, **what)

    pods = [
        *(on(slots, f"small-{n}", gpus=0, cpu="100m", memory="64Mi") for n in range(168)),
        *(on(devices, f"gpu-{n}", cpu="1") for n in range(16)),
        *(on(cores, f"wide-{n}", gpus=0, cpu="10") for n in range(16)),
    ]
    random.Random(6).shuffle(pods)
    most: Counter[str] = Counter()
    room = Counter({slots: 110, devices: 8, cores: 9})
    decided = asyncio.create_task(
        # A word may be said too early, while a plan that comes to nothing holds the last room: it does not stay so.
        world.until(lambda seen: _decided(seen, len(pods), most) and most >= room, within_s=45.0),
        name="what was bound",
    )

    async def create() -> None:
        for n in range(0, len(pods), 5):
            await world.create(*pods[n : n + 5])
            await asyncio.sleep(0.05)

    creating = asyncio.create_task(create(), name="creator")
    await world.until(lambda seen: len(bound(seen)) >= 40)
    owners = replicas.members("placement")
    replicas.signal(signal.SIGSTOP, *replicas.members("watcher"))
    if how is signal.SIGKILL:
        replicas.kill(*owners)
    else:
        replicas.signal(how, *owners)
    assert not creating.done(), "in the middle of it"
    new = replicas.spawn("placement")
    await until(new.ready, within_s=TAKE_OVER_S)
    if how is signal.SIGSTOP:
        replicas.signal(signal.SIGCONT, *owners)  # they still believe what they believed
    await creating
    await decided
    assert most == room


def _decided(pods: Pods, total: int, most: Counter[str]) -> bool:
    """Whether each has a node or a reason. Keeps the most pods that each node had, and fails if a device is two's."""
    taken: dict[tuple[str, str], str] = {}
    nodes: Counter[str] = Counter(pod.view.node for pod in pods.values() if pod.view.node)
    for name, pod in pods.items():
        for device in filter(None, pod.gpus.split(",")) if pod.view.node else ():
            assert taken.setdefault((pod.view.node, device), name) == name
    for node, count in nodes.items():
        most[node] = max(most[node], count)
    return len(pods) == total and all(pod.view.node or pod.reason for pod in pods.values())


# --- what a dead binder held ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plans", ["come again", "are lost too"])
async def test_a_binder_that_dies_with_claims_in_its_hands_blocks_nobody(
    world: World, replicas: Replicas, plans: str
) -> None:
    await world.nodes(1)
    held = [f"held-{n}" for n in range(4)]
    replicas.hold_first(held)
    await world.create(*map(world.pod, held))
    await world.until_held(lambda holders: [h.state for h in holders] == ["writing"] * 4)
    await until(lambda: replicas.proxy.held == 4)
    replicas.kill(*replicas.members("binder"))
    if plans == "are lost too":
        await replicas.delete_messages(PLANS)
    for _ in range(2):
        replicas.spawn("binder")
    await world.create(world.pod("next", gpus=4))
    # Where the plans are lost, the claims' own time, 10 s, is what brings them to an end.
    pods = await world.until(lambda pods: len(bound(pods)) == 5, within_s=TAKE_OVER_S + 45.0)
    replicas.proxy.let_go()  # what the dead ones had sent arrives now
    await until(lambda: replicas.proxy.held == 0)
    assert sorted(",".join(pod.gpus for pod in pods.values()).split(",")) == [str(n) for n in range(8)]
    holders = await world.until_held(lambda holders: [h.state for h in holders] == ["bound"] * 5)
    after = await world.until(lambda _: True)
    assert {h.id: h.node for h in holders} == {p.view.uid: p.view.node for p in after.values()}
    assert {name: pod.gpus for name, pod in after.items()} == {name: pod.gpus for name, pod in pods.items()}


# --- the same message again -------------------------------------------------------------------------------------------


def _reasons(heard: Heard, id: str) -> Counter[str]:
    return Counter(status.reason for status in heard.about(id))


async def test_a_job_event_on_every_partition_twice_is_one_job_whichever_watcher_reads_it(
    world: World, replicas: Replicas
) -> None:
    await world.nodes(1)
    id = f"again-{world.namespace}"
    value = json.dumps(world.job(id, 4)).encode()
    said = Incoming(JOBS.name, 0, 0, id, value, "dev.drystone.job.submit.v1", f"event-{id}")
    await replicas.divided("watcher")
    before = [_taken(member.metrics()) for member in replicas.members("watcher")]
    async with world.listening() as heard:
        await replicas.say_again(JOBS, [said, said])
        # An event that is delivered twice is answered twice; it is accepted once.
        most = 2 * JOBS.partitions
        await heard.until(lambda heard: (r := _reasons(heard, id))["Accepted"] > 0 and r["Duplicate"] >= most - 1)
        assert _reasons(heard, id)["Accepted"] == 1
        assert not heard.letters
    after = [_taken(member.metrics()) for member in replicas.members("watcher")]
    assert all(now > then for now, then in zip(after, before, strict=True)), "each watcher took some of them"
    selector = f"{keys.JOB}={world.object_name(id)}"
    pods = await world.until(lambda pods: len(bound(pods)) == 4, namespace=world.job_namespace, selector=selector)
    assert sorted(p.view.index for p in pods.values()) == [0, 1, 2, 3]
    listed = await writes.list_all(world.load.kube, trainingjobs.path(world.job_namespace))
    assert [trainingjobs.parse(raw).spec.id for raw in listed.items] == [id]
    await world.until_held(lambda holders: [h.state for h in holders] == ["bound"] * 4)


async def test_a_plan_on_every_partition_is_carried_out_once_by_two_binders(world: World, replicas: Replicas) -> None:
    await world.nodes(1)
    id = f"plan-{world.namespace}"
    name = world.object_name(id)
    jobs = {f"job/{world.job_namespace}/{name}", f"pod/{world.namespace}/single"}
    replicas.hold_first(["single"])
    async with world.listening():
        await world.create(world.pod("single", gpus=2))
        await world.publish((id, json.dumps(world.job(id, 3)).encode()))
        await world.until_held(lambda holders: len(holders) == 4)
    plans = await replicas.said(PLANS, lambda record: bool(jobs & _jobs_of(record)))
    assert set().union(*map(_jobs_of, plans)) >= jobs
    await replicas.say_again(PLANS, plans)  # while the first is in hand
    await world.until(lambda pods: len(bound(pods)) == 1)
    replicas.proxy.let_go()
    selector = f"{keys.JOB}={name}"
    await world.until(lambda pods: len(bound(pods)) == 3, namespace=world.job_namespace, selector=selector)
    first = await world.until_held(lambda holders: [h.state for h in holders] == ["bound"] * 4)
    await replicas.say_again(PLANS, plans)  # and when all is done
    await asyncio.sleep(1.0)
    assert await world.holders() == first
    pods = await world.until(lambda _: True, namespace=world.job_namespace, selector=selector)
    assert sorted((p.view.role, p.view.index) for p in pods.values()) == [("worker", n) for n in range(3)]
    devices = [grant.index for holder in first for grant in holder.charge.gpus]
    assert len(devices) == len(set(devices)) == 5


def _jobs_of(record: Incoming) -> set[str]:
    return {plan.job for plan in msgspec.json.decode(record.value or b'{"items":[]}', type=PlansBatch).items}


def _taken(metrics: str) -> float:
    return sum(float(n) for n in re.findall(r"^drystone_intake_total\{.*\} (\S+)$", metrics, re.MULTILINE))


# --- a node whose end nobody heard of ---------------------------------------------------------------------------------


async def test_a_node_whose_deletion_was_lost_is_gone_after_the_relist(world: World, replicas: Replicas) -> None:
    first, second = await world.nodes(2)
    await world.create(world.pod("before", gpus=4))
    pods = await world.until(lambda pods: bool(bound(pods)))
    ghost = pods["before"].view.node  # packing would choose it for the next one too
    await world.delete("before")
    await world.create(world.pod("beside", gpus=2, nodeSelector={"kubernetes.io/hostname": ghost}))
    await world.until(lambda pods: bool(bound(pods)))
    with replicas.losing('"type":"DELETED"', '"kind":"Node"', f'"name":"{ghost}"') as lost:
        answer = await world.load.kube.call("DELETE", f"{writes.NODES}/{ghost}")
        assert answer.ok, answer.body
        await until(lambda: bool(lost))
    replicas.proxy.close_watches_as_too_old()
    await _until_gone(world, ghost)
    await world.create(*(world.pod(f"after-{n}", gpus=2) for n in range(4)))
    pods = await world.until(lambda pods: len(bound(pods, [f"after-{n}" for n in range(4)])) == 4)
    other = second if ghost == first else first
    assert {pods[f"after-{n}"].view.node for n in range(4)} == {other}
    if "beside" in pods:
        await world.delete("beside")


async def _until_gone(world: World, node: str) -> None:
    deadline = time.monotonic() + SLOW_PASS_S
    while True:
        nodes, _ = await all_use(world.ledger)
        if node not in nodes or nodes[node].gone:
            return
        assert time.monotonic() < deadline, "the ledger still has the node"
        await asyncio.sleep(0.05)


# --- what nobody was told of ------------------------------------------------------------------------------------------


async def test_a_pod_whose_add_was_lost_is_found_by_the_next_list(world: World, replicas: Replicas) -> None:
    await world.nodes(1)
    with replicas.losing('"type":"ADDED"', '"name":"unseen"', f'"namespace":"{world.namespace}"') as lost:
        created = time.monotonic()
        await world.create(world.pod("unseen"))
        pods = await world.until(lambda pods: bool(bound(pods)), within_s=2 * SLOW_PASS_S + 30)
        assert lost, "the watcher was not told"
    assert pods["unseen"].gpus
    assert time.monotonic() - created < 2 * SLOW_PASS_S
    await world.until_held(lambda holders: [h.state for h in holders] == ["bound"])


async def test_a_foreign_pod_whose_add_was_lost_is_counted_by_the_next_list(world: World, replicas: Replicas) -> None:
    (node,) = await world.nodes(1)
    foreign = world.pod("foreign", scheduler="another", gpus=0, cpu="90", nodeName=node)
    with replicas.losing('"type":"ADDED"', '"name":"foreign"', f'"namespace":"{world.namespace}"') as lost:
        await world.create(foreign)
        await world.until_held(lambda holders: [h.state for h in holders] == ["bound"], within_s=3 * SLOW_PASS_S + 30)
        assert lost, "the watcher was not told"
    await world.create(world.pod("ours", gpus=1, cpu="10"))
    pods = await world.until(lambda pods: bool(pods["ours"].reason))
    assert bound(pods) == ["foreign"]


async def test_a_pod_whose_hint_was_lost_on_its_way_is_found_by_the_next_list(world: World, replicas: Replicas) -> None:
    await world.nodes(1)
    await replicas.delete_messages(TASKS)
    owners = replicas.members("placement")
    replicas.signal(signal.SIGSTOP, *owners)
    await asyncio.sleep(0.8)  # what they had asked the broker for is answered by then, with nothing
    await world.create(world.pod("unheard"))
    key = f"pod/{world.namespace}/unheard"

    def about(record: Incoming) -> bool:
        items = msgspec.json.decode(record.value or b'{"items":[]}', type=TasksBatch).items
        return any(item.head.key == key for item in items)

    async with asyncio.timeout(SESSION_S):
        while not await replicas.said(TASKS, about):
            pass
    await replicas.delete_messages(TASKS)
    resumed = time.monotonic()
    replicas.signal(signal.SIGCONT, *owners)
    await world.until(lambda pods: bool(bound(pods)), within_s=2 * SLOW_PASS_S + SESSION_S + 30)
    assert time.monotonic() - resumed < 2 * SLOW_PASS_S + SESSION_S


async def until(fits: Callable[[], bool], *, within_s: float = 45.0) -> None:
    """For what is asked, not told."""
    deadline = time.monotonic() + within_s
    while not await asyncio.to_thread(fits):
        assert time.monotonic() < deadline, f"not so within {within_s:g} s"
        await asyncio.sleep(0.02)
