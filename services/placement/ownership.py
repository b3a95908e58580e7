"""Which partitions are ours, and what is pending in them: take-over, replay from the truth, and the slow pass.

A partition's first act is `take`: it raises the epoch, so that the last owner's late plans are refused, and returns the
open claims; planned ones are published again unchanged, because the last owner may have died between its commit and its
publication. Then the API server is listed, consistently; what waits there and is not claimed is the pending set. The
same list every slow pass repairs whatever lost hints left behind, so a lost message costs latency only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from itertools import pairwise
from typing import Final

import structlog

from libs.domain.jobs import JobHead, partition_of
from libs.domain.plans import Plan
from libs.engine.api import Start
from libs.kube.errors import ReadFailed
from libs.kube.port import Kube
from libs.runtime.backoff import Backoff
from libs.runtime.clock import Clock
from libs.runtime.tasks import comes
from libs.store.port import Ledger, LedgerUnavailable, StaleGeneration
from services.placement import measures
from services.placement.decide import Tenure
from services.placement.emit import Emitter
from services.placement.jobs import Claim, Job
from services.placement.settings import PlacementSettings
from services.placement.state import BUSY_S, State
from services.placement.truth import Truth, read_truth

log = structlog.get_logger()

#: Jobs of a list that are taken in at a stretch.
_STRETCH: Final = 100
#: A slow pass is put off for this part of its time while pods are being placed.
PUT_OFF: Final = 0.5
_TICK_S: Final = 1.0


def begins_at(owned: frozenset[int], partitions: int, seat: tuple[int, int] | None = None) -> float:
    """Where in 0..1 the owner of these partitions begins, so that all owners begin evenly apart: by its `seat` (which
    of how many) where the group tells it, else by what it owns, without a word between as many as there seem to be.
    These may clash where partitions moved about; that costs refusals and nothing else."""
    if not owned:
        return 0.0
    if seat is not None:
        return seat[0] / seat[1]
    places = sorted(owned)
    owners = max(1, round(partitions / len(places)))
    dealt_in_turn = owners > 1 and all(b - a == owners for a, b in pairwise(places))
    number = places[0] % owners if dealt_in_turn else places[len(places) // 2] * owners // partitions
    return number / owners


class Ownership:
    def __init__(
        self,
        state: State,
        ledger: Ledger,
        kube: Kube,
        emitter: Emitter,
        settings: PlacementSettings,
        clock: Clock,
        partitions: int,
        *,
        reviewed: Callable[[Truth], None],
        cancelled: Callable[[str], None],
        follow: Callable[[frozenset[int]], None],
        followed: Callable[[], bool],
    ) -> None:
        self._state = state
        self._ledger = ledger
        self._kube = kube
        self._emitter = emitter
        self._settings = settings
        self._clock = clock
        self._partitions = partitions
        self._reviewed = reviewed
        self._cancelled = cancelled
        self._follow = follow
        self._followed = followed
        self.owned: frozenset[int] = frozenset()
        #: Which of how many owners we are, where the group tells.
        self.seat: Callable[[], tuple[int, int] | None] = lambda: None
        self.generation = 0
        self._changed = asyncio.Event()
        self._reopen = False
        self._retake_at = 0.0
        self._last_list = float("-inf")
        #: When the next slow pass is due.
        self._due = float("-inf")
        #: Partitions whose jobs were listed and that have been ours since.
        self._listed: set[int] = set()

    # -- called by others ---------------------------------------------------------------------------------------------

    def rebalanced(self, gained: frozenset[tuple[str, int]], lost: frozenset[tuple[str, int]]) -> None:
        """Called before reading goes on. Losing takes effect at once; gaining begins with a take-over."""
        for _, partition in lost:
            self._state.lose(partition)
            self._listed.discard(partition)
        self.owned = (self.owned - {p for _, p in lost}) | {p for _, p in gained}
        self._state.view.begin_at(begins_at(self.owned, self._partitions, self.seat()))
        if gained or lost:
            self._follow(self.owned)
            self._changed.set()

    def fenced(self, partition: int | None) -> None:
        """The ledger refused our fences. One partition: its epoch is another's; if the group still says that it is
        ours, it is taken again after a pause (a rebalance under way would tell us soon). None: the data set changed."""
        if partition is None:
            self._state.active.clear()
            self._reopen = True
        else:
            self._state.active.discard(partition)
            self._listed.discard(partition)
            self._retake_at = self._clock.monotonic() + 1.0
        self._changed.set()

    # -- the loops ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever: take what is owned and not active; every slow pass look at the truth again."""
        pause = Backoff(0.1, 5.0)
        while True:
            self._changed.clear()
            try:
                if self._reopen or self.generation == 0:
                    await self._open()
                missing = self.owned - self._state.active
                if missing:
                    wait = self._retake_at - self._clock.monotonic()
                    if wait > 0:
                        await self._clock.sleep(wait)
                        missing = self.owned - self._state.active
                    await self._until_followed()
                    await self._take(missing)
                elif self._slow_pass_is_due(self._clock.monotonic()):
                    await self._look(self.owned, repair=True)
                pause.reset()
            except StaleGeneration:
                self.fenced(None)
                await self._clock.sleep(pause.next())
                continue
            except (LedgerUnavailable, ReadFailed) as error:
                log.warning("take-over or slow pass failed", error=str(error), tries=pause.tries)
                await self._clock.sleep(pause.next())
                continue
            measures.PARTITIONS.set(len(self._state.active))
            if self.owned - self._state.active or self._reopen:
                continue
            await self._tick()

    def _slow_pass_is_due(self, now: float) -> bool:
        """Not while pods are being placed, which it would delay, unless it has been put off for long."""
        busy = now - self._state.claimed_at < BUSY_S
        return now >= self._due + (self._settings.placement_slow_pass_s * PUT_OFF if busy else 0.0)

    async def _tick(self) -> None:
        """Time in which the process stood still does not count: what was said meanwhile is about to be read."""
        now = self._clock.monotonic()
        wait = min(max(self._due - now, 0.1), _TICK_S)
        await comes(self._changed, wait)
        self._due += max(0.0, self._clock.monotonic() - now - wait - _TICK_S)

    async def _open(self) -> None:
        """Wait until the ledger is whole, and begin anew if its data set is another one: older claims are dead."""
        pause = Backoff(0.05, 0.25)
        told = False
        while True:
            state = await self._ledger.state()
            if state.whole and state.generation:
                break
            if not told:
                told = True
                log.info("waiting for the ledger to be rebuilt", generation=state.generation)
            await self._clock.sleep(pause.next())
        if state.generation != self.generation:
            if self.generation:
                await self._ledger.open()
                # Nothing is decided before the new data set's room is known: the reader of the stream dumps it.
                self._state.view.restart_uses()
                self._state.uses_ready.clear()
                await self._until_read()
                for job in self._state.pending.jobs.values():
                    job.claims.clear()
                    job.earmarks.clear()
                    self._state.stop_gathering(job)
                    self._state.stop_evicting(job)
            log.info("ledger generation", generation=state.generation, before=self.generation)
            self.generation = state.generation
        self._state.active.clear()
        self._reopen = False

    async def _until_read(self) -> None:
        if not await comes(self._state.uses_ready, 30.0):
            raise LedgerUnavailable("used room could not be read within 30 s")

    async def _until_followed(self) -> None:
        """Outcomes are read from a known place before anything is claimed: one that came before that place was known
        would be lost, and its claim would be waited for in vain."""
        deadline = self._clock.monotonic() + 10.0
        while not self._followed():
            if self._clock.monotonic() > deadline:
                log.warning("outcomes cannot be followed yet; what is missed is found by the slow pass")
                return
            await self._clock.sleep(0.01)

    async def _take(self, partitions: frozenset[int]) -> None:
        state, now = self._state, self._clock.monotonic()
        taken: list[int] = []
        for partition in sorted(partitions):
            if partition not in self.owned:
                continue
            answer = await self._ledger.take(partition)
            if partition not in self.owned:
                continue
            tenure = Tenure(partition, answer.epoch, self.generation)
            state.tenures[partition] = tenure
            taken.append(partition)
            if answer.planned:
                self._emitter.plans(answer.planned)
            evictions = [plan for plan in answer.evictions if not plan.gather_s]
            if evictions:
                self._emitter.evictions(evictions)
            for plan in (*answer.planned, *answer.writing):
                self._claimed(plan, now)
            for eviction in answer.evictions:
                job = self._job(eviction.job, partition, eviction.namespace, eviction.tenant, eviction.queue, now)
                if eviction.gather_s:
                    state.gather(job, eviction, Start(), now)
                else:
                    state.evicting(job, eviction, now)
            log.info(
                "partition taken",
                partition=partition,
                epoch=answer.epoch,
                planned=len(answer.planned),
                writing=len(answer.writing),
                evictions=len(answer.evictions),
            )
        # Nobody else has owned these meanwhile: what waits in them is known, and what was missed is found right after.
        known = [partition for partition in taken if partition in self._listed]
        self._activate(known)
        if known:
            self._last_list = self._due = float("-inf")
        rest = [partition for partition in taken if partition not in self._listed]
        if rest:
            await self._look(frozenset(rest), repair=False)
            self._activate(rest)
            self._listed.update(p for p in rest if p in self._state.active)

    def _activate(self, partitions: Collection[int]) -> None:
        state = self._state
        for partition in partitions:
            if partition in self.owned and not self._reopen:
                state.active.add(partition)
                for job in state.pending.of_partition(partition):
                    if job.waiting:
                        state.pending.dirty(job)
        state.wake.set()

    def _claimed(self, plan: Plan, now: float) -> None:
        """The plan of an earlier owner: its tasks are claimed here too. Their tasks come with the list."""
        job = self._job(plan.job, plan.partition, plan.namespace, plan.tenant, plan.queue, now)
        for a in plan.assignments:
            job.claims[a.task] = Claim(a.claim, now)

    def _job(self, key: str, partition: int, namespace: str, tenant: str, queue: str, now: float) -> Job:
        job = self._state.pending.jobs.get(key)
        if job is None:
            head = JobHead(key=key, tenant=tenant, namespace=namespace, queue=queue)
            job = self._state.pending.jobs[key] = Job(head=head, partition=partition, since=now)
        return job

    # -- the truth ----------------------------------------------------------------------------------------------------

    async def _look(self, partitions: frozenset[int], *, repair: bool) -> None:
        """List, merge what waits, forget what does not. Only what was known before the list began is forgotten."""
        state = self._state
        before = {
            job.head.key: frozenset(job.tasks) for job in state.pending.jobs.values() if job.partition in partitions
        }
        began, stamp = self._clock.monotonic(), state.pending.stamp
        # Partitions that come meanwhile do not wait for a slow pass that is taking its time.
        rest = partial(comes, self._changed) if repair else None
        truth = await read_truth(self._kube, state.view.known, partitions, self._partitions, state.pending.jobs, rest)
        truth.stamp = stamp
        if repair or partitions == self.owned:
            self._last_list = began
            self._due = began + self._settings.placement_slow_pass_s
        await self._merge(truth, partitions, before, repair=repair)
        if repair:
            await self._check_claims()
            state.view.forget_old_measurements(self._clock.monotonic())
            state.forget_foreign_marks(self._clock.monotonic())

    async def _merge(
        self, truth: Truth, partitions: frozenset[int], before: dict[str, frozenset[str]], *, repair: bool
    ) -> None:
        """Others have the loop now and then. What they learn meanwhile is newer than the list, and stands: what was
        bound or has ended is remembered, and what came since is not in `before`."""
        state, now = self._state, self._clock.monotonic()
        for number, (key, change) in enumerate(truth.jobs.items(), 1):
            if not number % _STRETCH:
                await asyncio.sleep(0)
            partition = partition_of(key, self._partitions)
            if partition not in self.owned:
                continue
            job = state.pending.merge(change, partition, now)
            if job is not None:
                if repair:
                    measures.REPAIRED.labels("found").inc()
                state.wake.set()
            if key in truth.done and (known := state.pending.jobs.get(key)) is not None:
                state.ended_well(known, truth.done[key])
        for number, (key, tasks) in enumerate(before.items(), 1):
            if not number % _STRETCH:
                await asyncio.sleep(0)
            job = state.pending.jobs.get(key)
            if job is None or job.head.uid:
                continue
            listed = truth.jobs.get(key)
            present = {t.id for t in listed.tasks} if listed is not None else set()
            missing = [t for t in tasks if t not in present and t in job.tasks]
            if not missing:
                continue
            measures.REPAIRED.labels("gone").inc(len(missing))
            held = state.pending.running.get(key, set())
            state.pending.take_gone(job, [t for t in missing if t not in held])
            state.bound(job, [t for t in missing if t in held])
            state.idle(job)
            if job.tasks and job.head.gang_min > 1:
                state.poke(job)
        self._reviewed(truth)
        for job in list(state.pending.jobs.values()):
            if job.partition not in partitions:
                continue
            if job.head.uid and job.head.key not in truth.objects and job.since < self._last_list:
                self._cancelled(job.head.key)
            elif not job.tasks and not job.claims and not job.head.uid:
                state.forget(job.head.key)
        self._check_victims(now)

    def _check_victims(self, now: float) -> None:
        state = self._state
        for job in list(state.pending.jobs.values()):
            if job.evicting is None:
                continue
            left = [uid for uid in job.evicting.victims if uid not in state.view.pods]
            if len(left) == len(job.evicting.victims) or now - job.evicting.since > self._settings.placement_evicting_s:
                state.stop_evicting(job)
                state.poke(job)

    async def _check_claims(self) -> None:
        """A claim that is old while its pod is listed unbound, and that is not being written: freed by its deadline
        with the outcome lost. Should it still be planned after all, the next commit is refused as held."""
        state, now = self._state, self._clock.monotonic()
        state.forget_assumed()
        for job in list(state.pending.jobs.values()):
            old = [(t, c) for t, c in job.claims.items() if now - c.at > self._settings.placement_claim_s]
            for task, claim in old:
                if not await self._ledger.writing((claim.id,)) and job.claims.get(task) is claim:
                    del job.claims[task]
                    measures.REPAIRED.labels("claim").inc()
                    state.poke(job)
