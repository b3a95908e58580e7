"""The watcher: one leader reports reality, every replica takes job events.

Guarantees: what the API server shows is in the ledger and on the topics within the time of a watch event, and after any
loss within one slow pass; a job event becomes one object or one dead letter, whichever replica reads it, however often.
"""

from __future__ import annotations

import asyncio

import structlog

from libs.contracts.tenants import most_tasks
from libs.host.parts import Parts
from libs.kube.grouping import Known
from libs.kube.lease import LeaderLease
from libs.runtime.backoff import Backoff
from libs.runtime.lifecycle import Health
from libs.runtime.phases import Phase, run_phases
from libs.runtime.tasks import comes, ended, never_ends
from libs.store.port import LedgerUnavailable, StaleGeneration
from services.watcher import metrics
from services.watcher.intake import Intake
from services.watcher.knowledge import Knowledge
from services.watcher.lead import Leadership, LedgerLost
from services.watcher.settings import WatcherSettings

log = structlog.get_logger()


class Watcher:
    name = "watcher"

    def __init__(self, settings: WatcherSettings, parts: Parts) -> None:
        self._settings = settings
        self._parts = parts
        self._lease = LeaderLease(
            parts.kube,
            settings.lease_namespace,
            settings.lease_name,
            settings.replica_id,
            duration_s=settings.lease_s,
            renew_s=settings.renew_s,
        )
        self._leadership: Leadership | None = None
        self._led = False
        self._knowledge = Knowledge(settings.tenant_by_namespace, most_tasks(settings.job_tasks, settings.tenants))
        self._intake = Intake(parts.kube, parts.bus, settings, parts.clock, self._known)
        self._stopping = False

    async def serve(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            eternal = [
                tasks.create_task(never_ends(self._lease.run(), "lease"), name="lease"),
                tasks.create_task(never_ends(self._lead(), "leader"), name="leader"),
            ]
            follow = self._knowledge.follow(self._parts.bus, self._parts.clock, self._leads)
            eternal.append(tasks.create_task(never_ends(follow, "knowledge"), name="knowledge"))
            intake = tasks.create_task(self._take_job_events(stop), name="job events")
            await stop.wait()
            self._stopping = True
            # What is not finished by then was not committed and comes again.
            await run_phases(
                [
                    Phase("finish job events", 8.0, lambda: asyncio.wait({intake})),
                    Phase("keep what queues used", 3.0, self._keep),
                ],
                self._parts.clock,
            )
            await ended((intake, *eternal))

    async def _lead(self) -> None:
        """For ever: wait to lead, lead until the lease is lost or the ledger changes under us."""
        pause = Backoff(0.2, 5.0)
        while True:
            await self._lease.won.wait()
            try:
                term = await self._term()
                leadership = self._leadership = Leadership(
                    self._parts.kube,
                    self._parts.ledger,
                    self._parts.bus,
                    self._settings,
                    self._parts.clock,
                    term,
                    first=term == 1 and not self._led,
                )
                self._led = True
                metrics.LEADER.set(1)
                log.info("leading", term=term)
                async with asyncio.TaskGroup() as tasks:
                    work = tasks.create_task(never_ends(leadership.run(), "leadership"), name="leadership")
                    tasks.create_task(_until(self._lease.lost, work), name="lease lost")
            except* (StaleGeneration, LedgerLost, LedgerUnavailable) as faults:
                log.warning("the ledger changed, beginning anew", faults=[str(f) for f in faults.exceptions])
                await self._keep()
                await self._parts.clock.sleep(pause.next())
            else:
                pause.reset()
            finally:
                self._leadership = None
                metrics.LEADER.set(0)

    async def _keep(self) -> None:
        """For whoever leads next."""
        leadership = self._leadership
        if leadership is not None and self._lease.is_leader:
            await leadership.keep()

    async def _term(self) -> int:
        """The lease's term; more than that where the ledger has seen a higher one although we lead. That is so when the
        Lease was deleted and counts from one again: every call of ours would be refused for ever."""
        seen = (await self._parts.ledger.open()).term
        if seen > self._lease.term and self._lease.is_leader:
            log.warning("the lease counts anew", lease=self._lease.term, ledger=seen)
            return seen + 1
        return self._lease.term

    async def _take_job_events(self, stop: asyncio.Event) -> None:
        """Queues and priorities are known first, if the broker lets us: a hint without them names the wrong ones."""
        if not await comes(self._knowledge.ready, 5.0):
            log.warning("the topic's content is not known yet, job events are taken without it")
        await self._intake.run(stop)

    def _leads(self) -> bool:
        return self._leadership is not None and self._leadership.synced

    def _known(self) -> tuple[Known, str]:
        """Queues and priorities, and the greatest version seen of what they depend on."""
        leadership = self._leadership
        if leadership is not None and leadership.synced:
            return leadership.picture.known, leadership.picture.seen
        return self._knowledge.known, self._knowledge.seen

    def health(self) -> Health:
        leadership = self._leadership
        detail = {"role": "leader" if leadership is not None else "standby", "job events": str(self._intake.in_hand)}
        ready = not self._stopping
        if leadership is not None:
            detail |= leadership.health()
            ready = ready and leadership.synced
        elif not self._lease.won.is_set() and not self._lease.seen_holder:
            ready = False
            detail["lease"] = "nobody was seen to hold it"
        return Health(ready, detail=detail)


async def _until(lost: asyncio.Event, work: asyncio.Task[object]) -> None:
    await lost.wait()
    await ended((work,))


def build(settings: WatcherSettings, parts: Parts) -> Watcher:
    return Watcher(settings, parts)
