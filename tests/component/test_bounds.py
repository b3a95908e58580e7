"""Every queue is bounded, and what happens at the bound is what docs/operations.md says: here by parts that are away
or slow while the work keeps coming."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec
import pytest

from libs.bus import producer
from libs.bus.port import BusUnavailable, Outgoing
from libs.bus.producer import KafkaPublisher
from libs.bus.settings import KafkaSettings
from libs.contracts.events import NodeFact
from libs.domain.jobs import JobHead, Task
from libs.domain.nodes import Gpu, Node
from libs.kube.embedded import EmbeddedCluster
from libs.kube.reflector import Reflector
from libs.store import library as shipped
from libs.store.embedded import embedded_ledger
from libs.testkit.faults import answers, binding, held_up
from services.binder.facts import _MOST_GONE, NodeFacts
from services.watcher.changes import Changes
from services.watcher.emit import Emitter
from tests.component.binder_world import binders
from tests.component.test_job_intake import Desk, creation, job
from tests.component.test_preemptor import World as Preemptors
from tests.unit.services.watcher.test_emit import Broker


async def until(there: Callable[[], bool], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not there():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# --- the bus --------------------------------------------------------------------------------------------------------


class NoBroker:
    """A client whose batches are never sent."""

    def create_batch(self) -> NoBroker:
        return self

    def append(self, **_record: object) -> object:
        return object()


async def test_records_for_a_broker_that_is_silent_are_refused_beyond_the_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(producer, "MAX_PENDING", 10)
    publisher = KafkaPublisher(KafkaSettings("127.0.0.1:1", publish_s=0.2), {"t": 1})
    publisher._producer = NoBroker()
    records = [Outgoing("t", str(n), b"x", "type") for n in range(8)]
    first = asyncio.create_task(publisher.publish(records))
    await asyncio.sleep(0)
    with pytest.raises(BusUnavailable, match="waiting to be sent already"):
        await publisher.publish(records)
    with pytest.raises(BusUnavailable, match="no acknowledgement"):
        await first
    again = asyncio.create_task(publisher.publish(records))
    await asyncio.sleep(0)
    assert publisher._pending == 8, "who gave up has made room"
    with pytest.raises(BusUnavailable, match="no acknowledgement"):
        await again


# --- watching -------------------------------------------------------------------------------------------------------


class Torrent(EmbeddedCluster):
    """Its watch has ever more events; `told` counts those that were taken."""

    told = 0

    async def watch(
        self, path: str, *, params: Mapping[str, str], silence_s: float = 60.0
    ) -> AsyncIterator[tuple[str, bytes]]:
        while True:
            self.told += 1
            yield "MODIFIED", b'{"metadata":{"name":"n","resourceVersion":"%d"}}' % (1000 + self.told)
            if self.told % 100 == 0:
                await asyncio.sleep(0)


async def test_events_that_come_faster_than_they_are_handled_stop_the_reading():
    cluster, slow = Torrent(), asyncio.Event()
    handled: list[int] = []

    async def on_list(_items: list[bytes], _version: str) -> None: ...

    async def on_events(events: list[tuple[str, bytes]]) -> None:
        handled.append(len(events))
        await slow.wait()

    reflector = Reflector(cluster, "/api/v1/nodes", on_list=on_list, on_events=on_events, buffer=500)
    running = asyncio.create_task(reflector.run())
    await until(lambda: cluster.told >= 500)
    for _ in range(100):
        await asyncio.sleep(0)
    assert cluster.told <= handled[0] + 501
    before = cluster.told
    slow.set()
    await until(lambda: cluster.told > before + 1000)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_hints_that_no_broker_takes_are_dropped_beyond_the_bound_and_facts_are_not():
    broker = Broker()
    broker.away = True
    broker.open.set()
    ledger = embedded_ledger()
    await ledger.open()
    await ledger.begin_rebuild(1)
    emitter = Emitter(ledger, broker, 12, 1)
    for n in range(1100):
        changes = Changes()
        for k in range(12):
            name = f"{n}-{k}"
            changes.hint(JobHead(f"pod/team/{name}", "team", "team")).tasks[name] = Task(name, name, "team")
        changes.say(NodeFact(node(f"n{n}")))
        await emitter.report(changes, "1")
    assert len(emitter._hints) <= 10_000
    assert len(emitter._dirty) == 1100
    await ledger.close()


# --- job events -----------------------------------------------------------------------------------------------------


async def test_job_events_that_an_absent_api_server_keeps_waiting_stop_the_reading():
    async with Desk(answers(creation, 503, times=100_000), intake_ahead=20).open() as desk:
        for n in range(700):
            await desk.send(job(f"job-{n}"), key=f"key-{n}")
        await until(lambda: desk.intake.parked > 0 and desk.intake.in_hand >= 20)
        await asyncio.sleep(0.3)
        assert desk.intake.in_hand <= 20 + 500, "no more than the batch that passed the bound"
        assert desk.committed() == 0
        desk.kube.faults.clear()
        assert len(await desk.statuses(700)) == 700


async def test_finished_events_behind_one_that_is_parked_stop_the_reading(monkeypatch: pytest.MonkeyPatch):
    """Their offsets cannot be committed before that of the parked one, so they are kept in mind."""
    monkeypatch.setattr("services.watcher.intake._BEHIND", 1)

    def parked(method: str, path: str) -> bool:
        return creation(method, path) and first.is_set()

    first = asyncio.Event()
    first.set()
    async with Desk(answers(parked, 503, times=100_000), intake_ahead=20).open() as desk:
        await desk.send(job("parked"), key="a", partition=0)
        await until(lambda: desk.intake.parked == 1)
        # From now on creations work, but the parked one waits for its pause.
        monkeypatch.setattr("services.watcher.intake.Backoff.next", lambda _self: 3600.0)
        await asyncio.sleep(0.2)
        first.clear()
        for n in range(1200):
            await desk.send(job(f"job-{n}"), key="b", partition=0)
        await until(lambda: desk.intake._positions.in_hand >= 20)
        await asyncio.sleep(0.3)
        assert desk.intake._positions.in_hand <= 20 + 500
        assert len(desk.objects()) < 1200


# --- writing --------------------------------------------------------------------------------------------------------


async def test_a_binder_with_its_hands_full_takes_no_more_plans():
    async with binders() as world:
        never = asyncio.Event()
        world.kube.faults.append(held_up(binding, never, times=1000))
        async with world.binder(tasks_in_hand=3, write_timeout_s=5.0, give_up_s=60.0) as binder:
            for n in range(3):
                await world.send(await world.plan(world.pod(f"p{n}"), first=n))
            await until(lambda: binder._applier.tasks_in_hand == 3)
            late = [await world.plan(world.pod(f"late-{n}"), on="n2", first=n) for n in range(4)]
            await world.send(*late)
            await asyncio.sleep(0.5)
            assert binder._applier.tasks_in_hand == 3
            world.kube.faults.clear()
            never.set()
            await world.landed(7)
            assert {name for name, _ in world.bindings} == {"p0", "p1", "p2", "late-0", "late-1", "late-2", "late-3"}


async def test_a_preemptor_with_its_hands_full_takes_no_more_plans():
    world = await Preemptors().open()
    victims = [await world.running(f"low-{n}", n) for n in range(4)]
    never = asyncio.Event()
    world.kube.faults.append(held_up(lambda _method, _path: True, never, times=1000))
    async with world.preemptor(plans_in_hand=2, write_timeout_s=5.0, give_up_s=60.0) as service:
        for n, victim in enumerate(victims[:2]):
            await world.send(await world.plan(victim, gpus=(n,)))
        await until(lambda: service._intake.plans_in_hand == 2)
        for n, victim in enumerate(victims[2:], 2):
            await world.send(await world.plan(victim, gpus=(n,)))
        await asyncio.sleep(0.5)
        assert service._intake.plans_in_hand == 2
        world.kube.faults.clear()
        never.set()
        await until(lambda: all(world.leaving(victim) for victim in victims))


async def test_nodes_that_went_are_remembered_by_a_binder_up_to_a_number():
    facts = NodeFacts()
    for n in range(3 * _MOST_GONE):
        facts.seen(NodeFact(node(f"spot-{n}"), 1))
        facts.gone(f"spot-{n}")
    assert len(facts) == 0
    assert len(facts._gone) == _MOST_GONE
    assert not facts._past
    assert not facts._term


# --- the ledger -----------------------------------------------------------------------------------------------------


def node(name: str) -> Node:
    return Node(name=name, uid=name, version="1", spec="d", cpu=8000, mem=4096, pods=10, gpus=(Gpu(index=0, mib=1000),))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library with small bounds: the same text but for two numbers."""
    name, code = shipped.library()
    for long, short in (("TOMB_MAX = 500000", "TOMB_MAX = 1000"), ("STREAM_MAX = 20000", "STREAM_MAX = 50")):
        assert long in code
        code = code.replace(long, short)
    # fakeredis trims to the number given only when it is not approximate.
    code = code.replace("'MAXLEN', '~',", "'MAXLEN',")
    monkeypatch.setattr("libs.store.server.library", lambda: (name, code))


@pytest.mark.usefixtures("small")
async def test_the_ledger_forgets_the_oldest_ends_and_the_oldest_news():
    ledger = embedded_ledger()
    await ledger.open()
    await ledger.begin_rebuild(1)
    await ledger.nodes_seen([node("n0")], 1)
    position = (await ledger.dump()).position
    for n in range(40):
        await ledger.tasks_gone([f"uid-{n}-{k}" for k in range(256)], 1)
    for n in range(100):
        await ledger.nodes_seen([node(f"n{n}")], 1)
    raw = ledger.server.client
    assert await raw.zcard("{drystone}:tombs") <= 1000 + 512
    assert await raw.zscore("{drystone}:tombs", "uid-39-255") is not None
    assert await raw.zscore("{drystone}:tombs", "uid-0-0") is None
    assert await raw.xlen("{drystone}:stream") <= 51
    assert (await ledger.tail(position, 0.01)).lost, "who fell behind is told to read all of it"
    await ledger.close()


async def test_the_ledger_keeps_nothing_of_nodes_that_came_and_went():
    ledger = embedded_ledger()
    await ledger.open()
    await ledger.begin_rebuild(1)
    for n in range(40):
        await ledger.nodes_seen([node(f"spot-{n}")], 1)
        await ledger.nodes_gone([f"spot-{n}"], 1)
    assert await ledger.server.client.hlen("{drystone}:nodes") == 0
    await ledger.close()


async def test_more_than_a_page_of_anything_goes_in_several_calls():
    """No call to the ledger grows with the cluster."""
    ledger = embedded_ledger()
    await ledger.open()
    await ledger.begin_rebuild(1)
    sizes: list[int] = []
    plain = ledger.server.call

    async def counted(function: str, *args: object) -> object:
        sizes.extend(len(msgspec.json.decode(a)) for a in args if isinstance(a, bytes))
        return await plain(function, *args)

    ledger.server.call = counted  # type: ignore[method-assign]
    await ledger.nodes_seen([node(f"n{n}") for n in range(1000)], 1)
    await ledger.tasks_gone([str(n) for n in range(1000)], 1)
    assert sizes
    assert max(sizes) <= 256
    await ledger.close()
