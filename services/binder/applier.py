"""From plans to writes: re-check, begin in the ledger, write at once.

Plans that arrive together are re-checked and begun together, in one ledger call, and their writes leave in the same
turn of the loop; while they are in flight the next plans are taken. Nothing here waits for a batch to fill.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import structlog

from libs.bus.positions import InHand
from libs.contracts.events import Landed
from libs.domain.plans import Plan
from libs.runtime.clock import Clock
from libs.runtime.insist import Insist
from libs.runtime.tasks import comes
from libs.store.port import Due, Ledger, LedgerUnavailable, Refusal, StaleGeneration
from services.binder import decide, metrics
from services.binder.carry import Carrier
from services.binder.emit import Emitter
from services.binder.facts import NodeFacts
from services.binder.hand import PlanInHand, Prepare, Stage, Write
from services.binder.prepare import Preparer
from services.binder.settings import BinderSettings
from services.binder.writes import Item, WritePool

log = structlog.get_logger()

_NOTHING: Final[Mapping[str, Refusal]] = {}
_BEGIN_TASKS: Final = 256


class Applier:
    def __init__(
        self,
        ledger: Ledger,
        facts: NodeFacts,
        preparer: Preparer,
        carrier: Carrier,
        emitter: Emitter,
        settings: BinderSettings,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._ledger = ledger
        self._facts = facts
        self._preparer = preparer
        self._carrier = carrier
        self._emitter = emitter
        self._settings = settings
        self._clock = clock
        self._insist = Insist("ledger", (LedgerUnavailable,), clock, rng, base_s=0.02)
        self.pool = WritePool(carrier.window, self._serve, self._superseded)
        self._in_hand: dict[str, PlanInHand] = {}  # by claim
        self._plans = 0
        emitter.closed = self._closed
        self._room = asyncio.Event()

    @property
    def failing_since(self) -> float | None:
        """Since when no plan can be begun (monotonic seconds); None: they can."""
        return self._insist.failing_since

    @property
    def tasks_in_hand(self) -> int:
        return len(self._in_hand)

    @property
    def plans_in_hand(self) -> int:
        return self._plans

    # -- taking ------------------------------------------------------------------------------------------------------

    async def take(self, plans: Sequence[tuple[Plan, InHand | None]]) -> None:
        """Take plans in and put their writes on their way. Returns as soon as the writes are queued."""
        now = self._clock.monotonic()
        todo: list[tuple[PlanInHand, list[Write]]] = []
        for plan, record in plans:
            if record is not None and self._joins(plan, record):
                continue
            hand = PlanInHand(plan, record, now)
            if not plan.assignments:
                hand.left = 0
                if record is not None:
                    record.part_done()
                    self._emitter.read_finished()
                continue
            self._plans += 1
            writes = [Write(hand, assignment, now, self._settings.give_up_s) for assignment in plan.assignments]
            for write in writes:
                self._in_hand[write.assignment.claim] = hand
            writes = self._recheck(hand, writes, begun=False)
            if writes:
                todo.append((hand, writes))
        batch: list[tuple[PlanInHand, list[Write]]] = []
        size = 0
        for hand, writes in todo:
            batch.append((hand, writes))
            size += len(writes)
            if size >= _BEGIN_TASKS:
                await self._begin(batch)
                batch, size = [], 0
        if batch:
            await self._begin(batch)

    def _joins(self, plan: Plan, record: InHand) -> bool:
        """A plan that is in hand as a whole is not carried out twice: its message ends with it."""
        hands = {id(h): h for a in plan.assignments if (h := self._in_hand.get(a.claim)) is not None}
        if not hands or not all(a.claim in self._in_hand for a in plan.assignments):
            return False
        record.open += len(hands) - 1
        for hand in hands.values():
            hand.records.append(record)
        return True

    def _recheck(self, hand: PlanInHand, writes: list[Write], *, begun: bool) -> list[Write]:
        """Those that their nodes still admit. Of a gang, one that is not admitted takes all with it: before the first
        write that costs nothing, after it the gang would hold room without running."""
        admitted: list[Write] = []
        turned_away: list[tuple[Write, str]] = []
        for write in writes:
            objection = self._facts.objection(write.assignment)
            if objection:
                turned_away.append((write, objection))
            else:
                admitted.append(write)
        if not turned_away:
            return writes
        metrics.OBJECTIONS.inc(len(turned_away))
        log.info("plan overtaken", plan=hand.plan.id, why=turned_away[0][1], cause=hand.plan.cause)
        if hand.plan.gang:
            turned_away += [(write, f"the gang: {turned_away[0][1]}") for write in admitted]
            admitted = []
        for write, objection in turned_away:
            if begun:
                # Another binder may have begun it before us and be writing: make that impossible, then let go.
                write.abandon(Landed.REPLAN, objection)
                self.pool.put(write)
            else:
                self._emitter.dropped(write, Landed.REPLAN, objection)
        return admitted

    async def _begin(self, batch: Sequence[tuple[PlanInHand, list[Write]]]) -> None:
        plans = [
            hand.plan
            if len(writes) == len(hand.plan.assignments)
            else msgspec.structs.replace(hand.plan, assignments=tuple(w.assignment for w in writes))
            for hand, writes in batch
        ]
        answers = await self._begin_surely(plans)
        now = self._clock.monotonic()
        for (hand, writes), refusals in zip(batch, answers, strict=True):
            for write in writes:
                write.begun_at = now
            self._go(hand, self._begun(hand, writes, refusals) if refusals else writes, recheck=True)

    async def _begin_surely(self, plans: Sequence[Plan]) -> Sequence[Mapping[str, Refusal]]:
        """Nothing may be written before the ledger has said yes, so an outage is waited out: intake stands still, and
        the service turns unready."""
        while True:
            try:
                return await self._insist.on(partial(self._ledger.begin, plans))
            except StaleGeneration as fault:
                # The data set changed, or its functions went. Plans of an older one are dead; where ours is the present
                # one and not whole yet, placement decides again when it is.
                if await self._reopened(plans):
                    continue
                log.info("plans of another data set", fault=str(fault))
                return [{a.claim: Refusal.GENERATION for a in plan.assignments} for plan in plans]

    async def _reopened(self, plans: Sequence[Plan]) -> bool:
        """Open the ledger again; whether asking once more makes sense."""
        try:
            state = await self._ledger.open()
        except LedgerUnavailable:
            return True
        again = state.whole and any(plan.generation == state.generation for plan in plans)
        if again:
            await self._clock.sleep(0.02)
        return again

    def _begun(self, hand: PlanInHand, writes: list[Write], refusals: Mapping[str, Refusal]) -> list[Write]:
        """Which writes may go after some claims were refused. What is not refused is writing now, of a gang too: the
        ledger refuses a gang as a whole unless part of it was begun before."""
        for each in refusals.values():
            metrics.LEDGER_REFUSED.labels(reason=each.value).inc()
        log.info("claims refused", plan=hand.plan.id, refused=len(refusals), cause=hand.plan.cause)
        going: list[Write] = []
        for write in writes:
            refusal = refusals.get(write.assignment.claim)
            if refusal is None:
                going.append(write)
            elif refusal in decide.LOOK_AT:
                write.stage = Stage.LOOK
                write.sent = 1  # so that the ledger is asked before it is written
                going.append(write)
            else:
                self._emitter.dropped(write, decide.refused(refusal), refusal.value)
        return going

    def _go(self, hand: PlanInHand, writes: list[Write], *, recheck: bool) -> None:
        if recheck:
            looking = [write for write in writes if write.stage is not Stage.SEND]
            sending = [write for write in writes if write.stage is Stage.SEND]
            writes = looking + (self._recheck(hand, sending, begun=True) if sending else [])
        if not writes:
            return
        if any(write.assignment.create for write in writes):
            self.pool.put(Prepare(hand, writes, self._clock.monotonic() + self._settings.give_up_s))
            return
        for write in writes:
            self.pool.put(write)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _serve(self, item: Item) -> float | None:
        if isinstance(item, Write):
            return await self._carrier.serve(item)
        pause = await self._preparer.prepare(item)
        if pause is None:
            for write in item.writes:
                self.pool.put(write)
        return pause

    def _superseded(self, write: Write) -> None:
        """A newer claim for the same task is there, so this one is closed already."""
        self._emitter.lost(write, Landed.REPLAN, "a newer decision took its place")

    def _closed(self, hand: PlanInHand) -> None:
        self._plans -= 1
        self._preparer.closed(hand)
        for assignment in hand.plan.assignments:
            if self._in_hand.get(assignment.claim) is hand:
                del self._in_hand[assignment.claim]
        self._room.set()

    async def wait_for_room(self, most_s: float) -> None:
        """Until a plan has ended, or `most_s`."""
        self._room.clear()
        await comes(self._room, most_s)

    async def drained(self) -> None:
        while self._plans:
            await self.wait_for_room(1.0)

    # -- claims past their deadline ----------------------------------------------------------------------------------

    async def expire(self) -> None:
        """Claims that nobody brought to an end. Planned ones were freed by asking; of writing ones the pod is read."""
        due = await self._ledger.expire()
        now = self._clock.monotonic()
        lapsed: dict[str, list[Due]] = {}
        for each in due:
            metrics.EXPIRED.labels(state=each.state).inc()
            if each.plan is not None and each.claim not in self._in_hand and each.state in ("planned", "writing"):
                lapsed.setdefault(each.plan.id, []).append(each)
        for group in lapsed.values():
            self._resolve(group, now)

    def _resolve(self, group: Sequence[Due], now: float) -> None:
        plan = group[0].plan
        if plan is None:
            return
        states = {each.claim: each.state for each in group}
        mine = tuple(a for a in plan.assignments if a.claim in states)
        if not mine:
            return
        hand = PlanInHand(msgspec.structs.replace(plan, assignments=mine), None, now)
        self._plans += 1
        rolling: list[Write] = []
        for assignment in mine:
            write = Write(hand, assignment, now, self._settings.give_up_s)
            if states[assignment.claim] == "planned":
                self._emitter.lost(write, Landed.REPLAN, "the claim expired")
                continue
            self._in_hand[assignment.claim] = hand
            if assignment.create:
                rolling.append(write)  # cannot be fenced: rolled forward under its own name
            else:
                write.stage = Stage.LOOK
                write.give_up_at = now  # read; if it is not bound, fence it and let go
                self.pool.put(write)
        if rolling:
            for write in rolling:
                write.sent = 1
                write.stage = Stage.LOOK
            self._go(hand, rolling, recheck=False)
