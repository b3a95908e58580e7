"""Broken gangs: fewer tasks run than must hold together, and the missing ones find no room.

A gang below its minimum computes nothing and holds room that would let another one start. It is refilled first: its
missing tasks are decided like any others. Where that does not help within a grace, the gang is released as a whole and
waits as a whole. Of several broken gangs the lowest in order yields, one at a time: its room may be what another lacks.
Every replica counts all broken gangs of the cluster and waits longer for its own the more of them stand lower in order,
so that replicas need not talk to each other; what they see at different times costs a release too many, never a pod of
another job, since each deletion names the pod's uid.

A gang some of whose members ended well is not broken, and neither is one that nobody asks to refill: its other members
may have ended well and been cleaned up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

import structlog

from libs.domain import keys
from libs.domain.jobs import Phase
from libs.kube import writes
from libs.kube.errors import ReadFailed
from libs.kube.grouping import job_key
from libs.kube.outcomes import Outcome, classify
from libs.kube.pods import PodView, parse_pod
from libs.kube.port import Kube
from libs.runtime.clock import Clock
from services.placement import measures
from services.placement.decide import told
from services.placement.jobs import Job, Order
from services.placement.settings import PlacementSettings
from services.placement.state import State
from services.placement.status import Teller

log = structlog.get_logger()

_AT_ONCE: Final = 32


@dataclass(slots=True)
class Patience:
    """Since when each gang is broken, and when one of them last ceased to be. Pure: time is handed in."""

    grace_s: float
    settle_s: float
    since: dict[str, float] = field(default_factory=dict)
    changed_at: float = float("-inf")
    yielding: dict[str, float] = field(default_factory=dict)

    def see(self, broken: Collection[str], now: float) -> None:
        for key in [key for key in self.since if key not in broken]:
            self.yielding.pop(key, None)
            if now - self.since.pop(key) >= self.settle_s:
                self.changed_at = now  # one that was truly broken, not one that was just starting
        for key in broken:
            self.since.setdefault(key, now)

    def to_release(self, orders: Mapping[str, Order], ours: Iterable[str], now: float) -> str | None:
        """The gang of ours that yields now, if any. `orders` has all broken gangs of the cluster."""
        if now - self.changed_at < self.settle_s or any(now - at < self.grace_s for at in self.yielding.values()):
            return None
        lowest_first = sorted(self.since, key=lambda key: orders[key], reverse=True)
        mine = frozenset(ours)
        for rank, key in enumerate(lowest_first):
            if key in mine and now - self.since[key] >= self.grace_s + rank * self.settle_s:
                return key
        return None


def alive(key: str, gang_min: int, pods: Iterable[PodView]) -> list[PodView]:
    """The pods that hold room for nothing; none where the gang holds its minimum, counting what ended well."""
    mine = [pod for pod in pods if pod.ours and job_key(pod) == key]
    held = [pod for pod in mine if pod.holds and not pod.terminating]
    done = sum(1 for pod in mine if pod.phase == "Succeeded")
    return held if len(held) + done < gang_min else []


class Mender:
    def __init__(self, state: State, kube: Kube, teller: Teller, settings: PlacementSettings, clock: Clock) -> None:
        self._state = state
        self._kube = kube
        self._teller = teller
        self._clock = clock
        self._patience = Patience(settings.placement_gang_grace_s, settings.placement_gang_settle_s)
        self._tick_s = min(max(min(settings.placement_gang_grace_s, settings.placement_gang_settle_s) / 5, 0.05), 5.0)

    async def run(self) -> NoReturn:
        """For ever. Nothing here is urgent, and what fails now is tried again at the next look."""
        while True:
            await self._clock.sleep(self._tick_s)
            key = self._next()
            if key is not None:
                try:
                    await self._release(self._state.pending.jobs[key])
                except ReadFailed as error:
                    log.warning("broken gang could not be read", job=key, error=str(error))

    def _next(self) -> str | None:
        state, now = self._state, self._clock.monotonic()
        self._patience.see(state.short.keys(), now)
        if not state.short:
            return None
        ours = [key for key in state.short if (job := state.pending.jobs.get(key)) is not None and self._stuck(job)]
        if not ours:
            return None
        orders = {key: self._order(key) for key in state.short}
        return self._patience.to_release(orders, ours, now)

    def _stuck(self, job: Job) -> bool:
        """Ours, and its missing tasks wait without hope of their own: nothing claimed, nobody leaving for them."""
        return (
            job.partition in self._state.active
            and job.verdict is not None
            and bool(job.tasks)
            and not job.claims
            and job.evicting is None
        )

    def _order(self, key: str) -> Order:
        job, fact = self._state.pending.jobs.get(key), self._state.short[key]
        return job.order if job is not None else (-fact.priority, fact.started, key)

    async def _release(self, job: Job) -> None:
        pods = alive(job.head.key, job.head.gang_min, await self._pods(job))
        if not pods:
            self._state.ended(job)  # not broken after all: what ended well counts, and lets the others start
            return
        if not self._stuck(job):
            return
        log.info(
            "broken gang released",
            job=job.head.key,
            held=len(pods),
            minimum=job.head.gang_min,
            cause=job.cause,
        )
        measures.RELEASED.inc()
        self._patience.yielding[job.head.key] = self._clock.monotonic()
        # What was kept for those that were missing would take the room that the others leave, too little for all.
        self._state.keep_none(job)
        slots = asyncio.Semaphore(_AT_ONCE)

        async def delete(pod: PodView) -> None:
            async with slots:
                answer = await writes.delete_pod(self._kube, pod.namespace, pod.name, pod.uid)
            if classify(answer) not in (Outcome.DONE, Outcome.GONE):
                # It holds on: the next look finds the gang broken still.
                log.warning("member of a broken gang not deleted", pod=pod.name, status=answer.status)

        async with asyncio.TaskGroup() as tasks:
            for pod in pods:
                tasks.create_task(delete(pod), name=f"release {pod.uid}")
        self._teller.say(
            told(
                job,
                Phase.PENDING,
                reason="GangBroken",
                message=f"{len(pods)} tasks of a minimum of {job.head.gang_min} ran and the others found no room; "
                "released as a whole",
            )
        )

    async def _pods(self, job: Job) -> list[PodView]:
        """Consistent and complete: what is released is decided by it, not by facts that may be late."""
        selector = f"{keys.JOB}={job.head.key.split('/', 2)[2]}" if job.head.uid else ""
        listed = await writes.list_all(self._kube, writes.pods_path(job.head.namespace), label_selector=selector)
        return [parse_pod(raw) for raw in listed.items]
