"""A leader of the next release tells facts that this one does not know. Every reader of `drystone.cluster` passes over
them, counts nothing as unreadable, and reads what it knows besides."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from libs.bus.memory import MemoryBus
from libs.bus.port import Incoming, Outgoing
from libs.bus.positions import Positions
from libs.contracts.events import ClusterFact, EventType, NodeFact, PdbFact, PodFact, QueueFact, cluster_key
from libs.contracts.topics import CLUSTER
from libs.domain.nodes import Node
from libs.domain.queues import Queue
from libs.domain.resources import Charge
from libs.runtime.clock import SystemClock
from services.binder.facts import NodeFacts
from services.binder.intake import Intake as BinderIntake
from services.metrics_collector.decide import Charged
from services.metrics_collector.intake import learn_pods
from services.placement import measures
from services.preemptor.budgets import Budgets
from services.preemptor.intake import Intake as PreemptorIntake
from services.preemptor.settings import PreemptorSettings
from services.watcher.knowledge import Knowledge
from tests.component.placement_scene import binder, placement, running, scene

ENCODE = msgspec.json.encode
STRANGE = (("weather/n0", b'{"type":"weather","sun":true}'), ("weather/n1", None))
KNOWN: tuple[ClusterFact, ...] = (
    NodeFact(Node("n0", "u", "1", "s")),
    QueueFact(Queue("org/vision", namespaces=("team",))),
    PdbFact("budget", "team", "u", "1"),
    PodFact("pod-uid", "p", "team", "1", "n0", Charge(cpu=1000)),
)


def records() -> list[tuple[str, bytes | None]]:
    """What is not known stands before, between and behind what is; what is known has a field more than today."""
    found: list[tuple[str, bytes | None]] = [*STRANGE]
    for fact in KNOWN:
        more = msgspec.json.decode(ENCODE(fact)) | {"mood": {"of": "tomorrow"}}
        found += [(cluster_key(fact), ENCODE(more)), *STRANGE]
    return found


def incoming() -> list[Incoming]:
    return [Incoming(CLUSTER.name, 0, n, key, value, EventType.CLUSTER) for n, (key, value) in enumerate(records())]


async def bus() -> MemoryBus:
    made = MemoryBus()
    await made.open()
    await made.publish([Outgoing(CLUSTER.name, key, value, EventType.CLUSTER) for key, value in records()])
    return made


async def follow(intake: Any) -> None:
    following = asyncio.create_task(intake.follow_facts(), name="facts")
    async with asyncio.timeout(30):
        await intake.facts_ready.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


def test_the_watchers_standby() -> None:
    knowledge = Knowledge({})
    knowledge.take(incoming())
    assert knowledge.known.namespace_queues == {"team": "org/vision"}


def test_the_metrics_collector() -> None:
    charged = Charged()
    learn_pods(incoming(), charged)
    assert set(charged._pods) == {"pod-uid"}


async def test_the_binder() -> None:
    facts = NodeFacts()
    nobody: Any = None
    await follow(BinderIntake(await bus(), facts, nobody, nobody, Positions(), 100))
    assert len(facts) == 1


async def test_the_preemptor() -> None:
    budgets = Budgets()
    nobody: Any = None
    intake = PreemptorIntake(await bus(), budgets, nobody, nobody, Positions(), PreemptorSettings(), SystemClock())
    await follow(intake)
    assert [budget.name for budget in budgets.of("team")] == ["budget"]


async def test_placement() -> None:
    unreadable = measures.UNREADABLE.labels(CLUSTER.name)._value
    before = unreadable.get()
    async with scene() as s:
        await s.bus.publish([Outgoing(CLUSTER.name, key, value, EventType.CLUSTER) for key, value in records()])
        await s.facts(s.node("n1"))
        async with running(placement(s), binder(s)):
            await s.hint(s.pod("p1"))
            await s.until(lambda: s.bound() == {"p1": "n1"})
    assert unreadable.get() == before
