"""What arrives at the preemptor: disruption budgets, read whole by every replica, and eviction plans, divided among
them.

Each plan is carried out beside the others, so that one which waits for a budget holds up no partition; the number in
hand is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from libs.bus.batches import items_of
from libs.bus.port import Bus, Incoming
from libs.bus.positions import InHand, Positions
from libs.contracts.events import EvictionsBatch, PdbFact
from libs.contracts.topics import CLUSTER, EVICTIONS
from libs.domain.plans import EvictionPlan
from libs.runtime.clock import Clock
from libs.runtime.tasks import comes
from services.preemptor import metrics
from services.preemptor.budgets import Budgets
from services.preemptor.emit import Emitter
from services.preemptor.evict import Evictor
from services.preemptor.settings import PreemptorSettings

log = structlog.get_logger()

GROUP = "drystone-preemptor"
_PDB = "pdb/"

_pdb_decoder = msgspec.json.Decoder(PdbFact)
_plans_decoder = msgspec.json.Decoder(EvictionsBatch)


class Intake:
    def __init__(
        self,
        bus: Bus,
        budgets: Budgets,
        evictor: Evictor,
        emitter: Emitter,
        positions: Positions,
        settings: PreemptorSettings,
        clock: Clock,
    ) -> None:
        self._bus = bus
        self._budgets = budgets
        self._evictor = evictor
        self._emitter = emitter
        self._positions = positions
        self._settings = settings
        self._clock = clock
        self.facts_ready = asyncio.Event()
        self._in_hand: dict[str, list[InHand]] = {}  # by plan id: the records it came with
        self._room = asyncio.Event()
        self.running: set[asyncio.Task[None]] = set()

    @property
    def plans_in_hand(self) -> int:
        return len(self._in_hand)

    async def follow_facts(self) -> None:
        reader = self._bus.follow([CLUSTER.name], from_start=True)
        while True:
            for record in await reader.batch(2000):
                if record.key.startswith(_PDB):
                    self._fact(record)
            if not self.facts_ready.is_set() and reader.caught_up:
                log.info("disruption budgets caught up", budgets=len(self._budgets))
                self.facts_ready.set()

    def _fact(self, record: Incoming) -> None:
        if record.value is None:
            namespace, _, name = record.key.removeprefix(_PDB).partition("/")
            self._budgets.gone(namespace, name)
            return
        try:
            self._budgets.seen(_pdb_decoder.decode(record.value))
        except msgspec.MsgspecError as error:
            log.warning("disruption budget cannot be read", key=record.key, why=str(error))

    async def take_plans(self, stop: asyncio.Event, tasks: asyncio.TaskGroup) -> None:
        """Until `stop`. What was taken by then is in hand, each plan in a task of its own."""
        while not self.facts_ready.is_set():
            if stop.is_set():
                return
            await comes(self.facts_ready, 0.2)
        reader = self._bus.group(GROUP, [EVICTIONS.name], rebalanced=self._rebalanced)
        self._emitter.reader = reader
        while not stop.is_set():
            if self.plans_in_hand >= self._settings.plans_in_hand:
                self._room.clear()
                await comes(self._room, 0.2)
                continue
            batch = await reader.batch(100, 0.2)
            for plan, record in items_of(batch, _plans, self._positions, self._emitter):
                if plan.id in self._in_hand:
                    self._in_hand[plan.id].append(record)
                    continue
                self._in_hand[plan.id] = [record]
                task = tasks.create_task(self._carry(plan), name="eviction")
                self.running.add(task)
                task.add_done_callback(self.running.discard)

    async def _carry(self, plan: EvictionPlan) -> None:
        started = self._clock.monotonic()
        metrics.IN_HAND.set(self.plans_in_hand)
        outcome = await self._evictor.carry_out(plan)
        metrics.PLAN_SECONDS.observe(self._clock.monotonic() - started)
        self._emitter.ended(outcome, self._in_hand.pop(plan.id))
        metrics.IN_HAND.set(self.plans_in_hand)
        self._room.set()

    async def drained(self) -> None:
        while self._in_hand:
            self._room.clear()
            await comes(self._room, 0.2)

    def _rebalanced(self, gained: frozenset[tuple[str, int]], lost: frozenset[tuple[str, int]]) -> None:
        log.info("partitions", gained=sorted(p for _, p in gained), lost=sorted(p for _, p in lost))
        self._positions.forget(lost)


def _plans(value: bytes) -> Sequence[EvictionPlan]:
    return _plans_decoder.decode(value).items
