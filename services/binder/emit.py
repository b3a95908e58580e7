"""What leaves the binder besides writes: confirmations and releases to the ledger, outcomes, offsets. In that order.

Tasks land one by one; whatever has landed by the time the last flush is done goes out with the next one, in one ledger
call per kind and one publish. An offset is committed only after its plans' claims are settled in the ledger and their
outcomes are acknowledged, so a crash at any point brings the plan back instead of losing it.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, TypeVar

import msgspec
import structlog

from libs.bus.pack import cut, halved, packed
from libs.bus.port import BusUnavailable, GroupReader, Outgoing, Publisher, onward
from libs.bus.positions import InHand, Positions
from libs.contracts.events import EventType, Landed, PlanOutcome, TaskOutcome
from libs.contracts.topics import OUTCOMES
from libs.runtime.clock import Clock
from libs.runtime.insist import Insist
from libs.runtime.pace import Pace
from libs.store.port import Ledger, LedgerUnavailable, StaleGeneration
from services.binder import metrics
from services.binder.hand import PlanInHand, Write

log = structlog.get_logger()

T = TypeVar("T")

_LEDGER_BATCH: Final = 256
#: Between two flushes of a burst, seconds.
FLUSH_EVERY_S: Final = 0.03
#: The same where all that landed is bound, so that nobody has to decide again.
BOUND_EVERY_S: Final = 0.1
#: Characters that are told of why a task was not bound.
_WHY: Final = 600


class Emitter:
    def __init__(
        self, ledger: Ledger, publisher: Publisher, positions: Positions, clock: Clock, rng: random.Random
    ) -> None:
        self._ledger = ledger
        self._publisher = publisher
        self._positions = positions
        self._clock = clock
        self._insist = Insist("reports", (LedgerUnavailable, BusUnavailable), clock, rng)
        self.reader: GroupReader | None = None
        self._confirm: defaultdict[int, dict[str, str]] = defaultdict(dict)
        self._release: defaultdict[int, list[str]] = defaultdict(list)
        self._drop: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        self._ended: list[PlanInHand] = []
        self._letters: list[tuple[Outgoing, InHand]] = []
        self._news = asyncio.Event()
        self._hasty = False
        self._flushing = False
        self._flushed_at = float("-inf")
        self._pace = Pace()
        self.closed: Callable[[PlanInHand], None] = lambda _hand: None

    @property
    def failing_since(self) -> float | None:
        return self._insist.failing_since

    # -- landing -----------------------------------------------------------------------------------------------------

    def bound(self, write: Write, uid: str) -> None:
        self._confirm[write.hand.plan.generation][write.assignment.claim] = uid
        self._land(write, Landed.BOUND, "", uid if write.assignment.create else "")

    def freed(self, write: Write, landed: Landed, why: str) -> None:
        self._release[write.hand.plan.generation].append(write.assignment.claim)
        self._land(write, landed, why)

    def lost(self, write: Write, landed: Landed, why: str) -> None:
        self._land(write, landed, why)

    def dropped(self, write: Write, landed: Landed, why: str) -> None:
        """The claim was not begun by us: free it if it is still only planned."""
        plan = write.hand.plan
        self._drop[(plan.job, plan.generation)].append(write.assignment.claim)
        self._land(write, landed, why)

    def _land(self, write: Write, landed: Landed, why: str, uid: str = "") -> None:
        assignment = write.assignment
        self._hasty = self._hasty or landed is not Landed.BOUND
        lasting = write.lasting and landed is Landed.REFUSED
        outcome = TaskOutcome(assignment.task, landed, cut(why, _WHY), uid, assignment.node, lasting)
        metrics.LANDED_AS[landed].inc()
        for each in (write, *write.same):
            hand = each.hand
            hand.outcomes.append(outcome)
            hand.left -= 1
            if hand.left == 0:
                self._ended.append(hand)
        self._news.set()

    def read_finished(self) -> None:
        """A record had nothing to carry out: its offset may go."""
        self._news.set()

    def letter(self, record: Outgoing, held: InHand) -> None:
        self._letters.append((record, held))
        metrics.DEAD_LETTERS.inc()
        self._hasty = True
        self._news.set()

    # -- flushing ------------------------------------------------------------------------------------------------------

    async def drained(self) -> None:
        while self._flushing or self._news.is_set():
            await self._clock.sleep(0.01)

    async def forever(self) -> None:
        while True:
            await self._news.wait()
            # Nobody waits for a report by the millisecond, and each costs a ledger call and a publication: the first
            # leaves at once, those of a burst together. In steps: what lands meanwhile may be more urgent.
            paced = (now := self._clock.monotonic()) + self._pace.pause(now)
            while (pause := max(paced, self._gathered_at()) - self._clock.monotonic()) > 0:
                await self._clock.sleep(min(pause, FLUSH_EVERY_S))
            self._flushing = True
            self._flushed_at = self._clock.monotonic()
            self._pace.began(self._flushed_at)
            try:
                await self.flush()
            finally:
                self._flushing = False
                self._pace.ended(self._clock.monotonic())

    def _gathered_at(self) -> float:
        return self._flushed_at + (FLUSH_EVERY_S if self._hasty else BOUND_EVERY_S)

    async def flush(self) -> None:
        """Everything that has landed by now. Returns when it is acknowledged; retries passing faults until then."""
        self._news.clear()
        self._hasty = False
        confirm, self._confirm = self._confirm, defaultdict(dict)
        release, self._release = self._release, defaultdict(list)
        drop, self._drop = self._drop, defaultdict(list)
        ended, self._ended = self._ended, []
        letters, self._letters = self._letters, []
        for generation, claims in confirm.items():
            for some in _chunks(claims.items()):
                await self._report(partial(self._ledger.confirm, dict(some), generation))
        for generation, freed in release.items():
            for batch in _chunks(freed):
                await self._report(partial(self._ledger.release, batch, generation))
        for (job, generation), planned in drop.items():
            for batch in _chunks(planned):
                await self._report(partial(self._ledger.drop, job, batch, generation))
        records = [*outcome_records(ended), *(record for record, _ in letters)]
        if records:
            await self._insist.on(partial(self._publisher.publish, records))
        now = self._clock.monotonic()
        for hand in ended:
            metrics.PLAN_SECONDS.observe(now - hand.taken_at)
            for record in hand.records:
                record.part_done()
            self.closed(hand)
        for _, held in letters:
            held.part_done()
        due = self._positions.due()
        if due and self.reader is not None:
            await self._insist.on(partial(self.reader.done, due))

    async def _report(self, call: Callable[[], Awaitable[None]]) -> None:
        """To the ledger. A data set that changed under us has forgotten our claims: the watcher charges what is bound,
        and nothing else needs saying."""
        with suppress(StaleGeneration):
            await self._insist.on(call)


def outcome_records(hands: Sequence[PlanInHand]) -> list[Outgoing]:
    """One record per partition, more where they say more than one takes."""
    by_partition: defaultdict[int, list[PlanOutcome]] = defaultdict(list)
    for hand in hands:
        plan = hand.plan
        by_partition[plan.partition].append(
            PlanOutcome(
                plan.id, plan.job, plan.partition, tuple(hand.outcomes), plan.cause, traceparent=plan.traceparent
            )
        )
    return [
        _record(partition, items[0], value)
        for partition, outcomes in by_partition.items()
        for items, value in packed(outcomes, _halves)
    ]


def _halves(outcome: PlanOutcome) -> list[PlanOutcome]:
    return [msgspec.structs.replace(outcome, tasks=tasks) for tasks in halved(outcome.tasks) if tasks]


def _record(partition: int, first: PlanOutcome, value: bytes) -> Outgoing:
    return Outgoing(
        topic=OUTCOMES.name,
        key=first.job,
        value=value,
        type=EventType.OUTCOMES,
        partition=partition,
        headers=onward(first.cause, first.traceparent),
    )


def _chunks(items: Iterable[T]) -> Iterable[list[T]]:
    left = iter(items)
    while some := list(islice(left, _LEDGER_BATCH)):
        yield some
