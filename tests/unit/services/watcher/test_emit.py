"""What leaves the leader while the broker is slow or away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from libs.bus.pack import RECORD_BYTES, record_size
from libs.bus.port import BusUnavailable, Outgoing
from libs.contracts.events import NodeFact, TasksBatch
from libs.domain.jobs import JobHead, Task
from libs.store.embedded import embedded_ledger
from libs.testkit.builders import node
from services.watcher.changes import Changes
from services.watcher.emit import HINT_BYTES_MOST, Emitter, hint_records


class Broker:
    """Acknowledges when `open` is set; `away` refuses."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.away = False
        self.acknowledged: list[Outgoing] = []

    async def publish(self, records: Sequence[Outgoing]) -> None:
        await self.open.wait()
        if self.away:
            raise BusUnavailable("away")
        self.acknowledged += records


def about(job: str) -> Changes:
    changes = Changes()
    changes.hint(JobHead(f"pod/team/{job}", "team", "team")).tasks[job] = Task(job, job, "team")
    return changes


async def emitter(broker: Broker) -> Emitter:
    ledger = embedded_ledger()
    await ledger.open()
    await ledger.begin_rebuild(1)
    return Emitter(ledger, broker, 12, 1)


class SlowThenAway(Broker):
    """Two publishes about the first job are acknowledged one after the other; between them the broker is away."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = [asyncio.Event(), asyncio.Event()]
        self.refused = 0

    async def publish(self, records: Sequence[Outgoing]) -> None:
        if any(record.key == "pod/team/second" for record in records) and not self.refused:
            self.refused += 1
            raise BusUnavailable("away")
        if not self.refused:
            await self.gates.pop(0).wait()
        self.acknowledged += records


async def test_an_acknowledgement_that_comes_late_does_not_stand_for_a_hint_that_came_after_it_was_asked_for() -> None:
    broker = SlowThenAway()
    early, late = broker.gates
    emit = await emitter(broker)
    first = asyncio.create_task(emit.report(about("first"), "1"))
    await asyncio.sleep(0.05)
    again = asyncio.create_task(emit.flush())
    await asyncio.sleep(0.05)
    early.set()
    await first
    await emit.report(about("second"), "2")
    assert broker.refused == 1
    late.set()
    await again
    await emit.flush()
    assert "pod/team/second" in {record.key for record in broker.acknowledged}


async def test_a_fact_stays_owed_until_it_is_acknowledged_and_only_the_newest_is_sent() -> None:
    broker = Broker()
    broker.open.set()
    broker.away = True
    emit = await emitter(broker)
    for gpus in (4, 8):
        changes = Changes()
        changes.say(NodeFact(node("n1", gpus=gpus), 1))
        await emit.report(changes, "1")
    assert emit.owes("node/n1")
    assert not emit.acknowledged
    broker.away = False
    assert await emit.flush()
    (record,) = broker.acknowledged
    assert record.value is not None
    assert record.value.count(b'"mib"') == 8
    assert not emit.owes("node/n1")
    assert emit.acknowledged == {"node/n1"}


def test_a_gang_of_thousands_travels_in_records_that_the_topic_takes() -> None:
    changes = Changes()
    hint = changes.hint(JobHead("gang/team/big", "team", "team", gang_min=2500))
    hint.tasks.update((str(n), Task(str(n), str(n), "team")) for n in range(2500))
    records = hint_records([hint.event("9")], 12)
    assert len({record.partition for record in records}) == 1
    told = [t.id for r in records for h in msgspec.json.decode(r.value or b"", type=TasksBatch).items for t in h.tasks]
    assert told == [str(n) for n in range(2500)]
    assert max(record_size(record) for record in records) <= RECORD_BYTES


async def test_hints_that_no_broker_takes_are_dropped_beyond_their_bytes() -> None:
    broker = Broker()
    broker.away = True
    broker.open.set()
    emit = await emitter(broker)
    labels = {"app": "x" * 1_000_000}
    for n in range(40):
        changes = Changes()
        changes.hint(JobHead(f"pod/team/p{n}", "team", "team")).tasks["t"] = Task("t", "t", "team", labels=labels)
        await emit.report(changes, "1")
    assert sum(record_size(record) for record in emit._hints) <= HINT_BYTES_MOST
    assert emit._hints[-1].key == "pod/team/p39"


def test_a_hint_in_several_records_is_of_one_trace() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    changes = Changes()
    hint = changes.hint(JobHead("job/team/wide", "team", "team", traceparent=trace))
    hint.tasks.update({f"t{n}": Task(f"t{n}", f"t{n}", "team", labels={"x": "y" * 1000}) for n in range(3000)})
    records = hint_records([hint.event("7")], 12)
    assert len(records) > 1
    for record in records:
        assert record.headers["traceparent"] == trace
        assert {item.traceparent for item in msgspec.json.decode(record.value or b"", type=TasksBatch).items} == {trace}
