"""What arrives at the binder: node facts, read whole by every replica, and plans, divided among the replicas.

Plans are taken only after the node facts have caught up with where the topic stood at start: a binder that knows no
nodes would refuse everything, one that knows old nodes would bind to cordoned ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from libs.bus.batches import items_of
from libs.bus.port import Bus, Incoming
from libs.bus.positions import InHand, Positions
from libs.contracts.events import NodeFact, PlansBatch
from libs.contracts.topics import CLUSTER, PLANS
from libs.domain.plans import Plan
from libs.runtime.tasks import comes
from services.binder.applier import Applier
from services.binder.emit import Emitter
from services.binder.facts import NodeFacts

log = structlog.get_logger()

GROUP = "drystone-binder"
_NODE = "node/"
#: How long plans wait for facts that were not read yet. Readers of facts are let wait for 100 ms by the broker.
_BEHIND_S = 0.5

_node_decoder = msgspec.json.Decoder(NodeFact)
_plans_decoder = msgspec.json.Decoder(PlansBatch)


class Intake:
    def __init__(
        self, bus: Bus, facts: NodeFacts, applier: Applier, emitter: Emitter, positions: Positions, tasks_in_hand: int
    ) -> None:
        self._bus = bus
        self._facts = facts
        self._applier = applier
        self._emitter = emitter
        self._positions = positions
        self._tasks_in_hand = tasks_in_hand
        self.facts_ready = asyncio.Event()
        self._news = asyncio.Event()

    async def follow_facts(self) -> None:
        reader = self._bus.follow([CLUSTER.name], from_start=True)
        while True:
            news = False
            for record in await reader.batch(2000):
                # Pods outnumber nodes by far and say nothing here: told apart by key, not by decoding.
                if record.key.startswith(_NODE):
                    self._fact(record)
                    news = True
            if news:
                self._news.set()
            if not self.facts_ready.is_set() and reader.caught_up:
                log.info("node facts caught up", nodes=len(self._facts))
                self.facts_ready.set()

    def _fact(self, record: Incoming) -> None:
        if record.value is None:
            self._facts.gone(record.key.removeprefix(_NODE))
            return
        try:
            self._facts.seen(_node_decoder.decode(record.value))
        except msgspec.MsgspecError as error:
            log.warning("node fact cannot be read", key=record.key, why=str(error))

    async def take_plans(self, stop: asyncio.Event) -> None:
        """Until `stop`. What was taken by then is in hand."""
        while not self.facts_ready.is_set():
            if stop.is_set():
                return
            await comes(self.facts_ready, 0.2)
        reader = self._bus.group(GROUP, [PLANS.name], rebalanced=self._rebalanced)
        self._emitter.reader = reader
        while not stop.is_set():
            if self._applier.tasks_in_hand >= self._tasks_in_hand:
                await self._applier.wait_for_room(0.2)
                continue
            batch = await reader.batch(500, 0.2)
            if batch:
                plans = items_of(batch, _plans, self._positions, self._emitter)
                await self._until_known(plans)
                await self._applier.take(plans)

    async def _until_known(self, plans: Sequence[tuple[Plan, InHand | None]]) -> None:
        """A plan may outrun the facts that it was made of: a node that was just created would be taken for gone. Rare,
        so the plans behind wait with it, not for long: what is not known then is objected to and decided again."""
        behind = {(a.node, a.node_spec) for plan, _ in plans for a in plan.assignments}
        try:
            async with asyncio.timeout(_BEHIND_S):
                while True:
                    self._news.clear()
                    behind = {one for one in behind if self._facts.behind(*one)}
                    if not behind:
                        return
                    await self._news.wait()
        except TimeoutError:
            log.info("plans know nodes that are not known here", nodes=sorted(name for name, _ in behind)[:20])

    def _rebalanced(self, gained: frozenset[tuple[str, int]], lost: frozenset[tuple[str, int]]) -> None:
        log.info("partitions", gained=sorted(p for _, p in gained), lost=sorted(p for _, p in lost))
        self._positions.forget(lost)


def _plans(value: bytes) -> Sequence[Plan]:
    return _plans_decoder.decode(value).items
