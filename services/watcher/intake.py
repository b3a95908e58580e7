"""Job events from other systems: checked, made into TrainingJob objects, answered with a status.

An offset is committed when its event is finished: the object exists (or the dead letter is acknowledged) and the status
and the hint are acknowledged. Events of one key stay in order; a key whose event met a passing fault waits with all
that came behind it, and other keys pass. Reading stops when too many events are ahead of the slowest.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from libs.bus.port import Bus, BusUnavailable, GroupReader, Incoming, Outgoing
from libs.bus.positions import InHand, Positions
from libs.contracts.events import DeadLetter, EventType, JobChanged, JobStatus
from libs.contracts.submission import CancelJob, Rejected, Submission, TenantPolicy, parse_cancel, parse_submit
from libs.contracts.topics import DEAD_LETTERS, STATUS, TASKS
from libs.domain.jobs import Phase, partition_of
from libs.kube import trainingjobs, writes
from libs.kube.grouping import NOTHING_KNOWN, Known
from libs.kube.outcomes import Outcome, classify, why
from libs.kube.port import Kube
from libs.runtime.backoff import Backoff
from libs.runtime.clock import Clock
from services.watcher import metrics
from services.watcher.emit import hint_records
from services.watcher.settings import WatcherSettings

log = structlog.get_logger()

GROUP = "drystone-intake"
_MOST_QUOTED = 64 * 1024
_encode = msgspec.json.encode


class PassingFault(Exception):
    """The event may be served later: the API server or the broker did not do its part."""


@dataclass(slots=True)
class _Lane:
    """Events of one key, in order; one task works on it."""

    waiting: deque[tuple[Incoming, InHand]] = field(default_factory=deque)


class Intake:
    def __init__(
        self,
        kube: Kube,
        bus: Bus,
        settings: WatcherSettings,
        clock: Clock,
        known: Callable[[], Known] = lambda: NOTHING_KNOWN,
    ) -> None:
        self._kube = kube
        self._bus = bus
        self._publisher = bus.publisher()
        self._settings = settings
        self._clock = clock
        self._known = known
        self._tenants = {tenant.topic: tenant for tenant in settings.tenants}
        self._positions = Positions()
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._slots = asyncio.Semaphore(settings.intake_width)
        self._moved = asyncio.Event()
        self._parked: set[tuple[str, str]] = set()
        self._reader: GroupReader | None = None

    @property
    def in_hand(self) -> int:
        return sum(len(lane.waiting) for lane in self._lanes.values())

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then what was read is finished, as far as the caller lets it."""
        reader = self._bus.group(GROUP, sorted(self._tenants), rebalanced=self._rebalanced)
        self._reader = reader
        async with asyncio.TaskGroup() as tasks:
            while not stop.is_set():
                await self._commit()
                if self.in_hand >= self._settings.intake_ahead:
                    await self._wait(0.2)
                    continue
                # With events in hand, come back soon to commit what finishes.
                for record in await reader.batch(500, 0.2 if not self._lanes else 0.02):
                    self._take(record, tasks)
            while self._lanes:
                await self._wait(0.2)
                await self._commit()
        await self._commit()

    def _take(self, record: Incoming, tasks: asyncio.TaskGroup) -> None:
        held = self._positions.read(record)
        # Events without a key are told apart by their own id, else they would all queue behind one another.
        key = (record.topic, record.key or record.id)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
            lane.waiting.append((record, held))
            tasks.create_task(self._work(key, lane), name=f"job events {key[1][:40]}")
        else:
            lane.waiting.append((record, held))

    async def _work(self, key: tuple[str, str], lane: _Lane) -> None:
        try:
            while lane.waiting:
                record, held = lane.waiting[0]
                await self._finish(key, record)
                lane.waiting.popleft()
                held.part_done()
                self._moved.set()
        finally:
            del self._lanes[key]
            self._moved.set()

    async def _finish(self, key: tuple[str, str], record: Incoming) -> None:
        pause = Backoff(0.1, 5.0)
        while True:
            try:
                async with self._slots:
                    await self._serve(record)
                break
            except (PassingFault, BusUnavailable) as fault:
                if key not in self._parked:
                    log.warning("job event parked", key=key[1], topic=key[0], fault=str(fault), cause=record.id)
                self._parked.add(key)
                metrics.PARKED.set(len(self._parked))
                await self._clock.sleep(pause.next())
        if key in self._parked:
            self._parked.discard(key)
            metrics.PARKED.set(len(self._parked))

    async def _commit(self) -> None:
        due = self._positions.due()
        if due and self._reader is not None:
            await self._reader.done(due)

    async def _wait(self, seconds: float) -> None:
        self._moved.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._moved.wait()
        except TimeoutError:
            return

    def _rebalanced(self, _gained: frozenset[tuple[str, int]], lost: frozenset[tuple[str, int]]) -> None:
        self._positions.forget(lost)

    # -- one event -----------------------------------------------------------------------------------------------------

    async def _serve(self, record: Incoming) -> None:
        tenant = self._tenants[record.topic]
        if record.fault:
            await self._reject(record, tenant, Rejected(record.fault))
        elif record.type == EventType.JOB_CANCEL:
            cancel = parse_cancel(record.value)
            if isinstance(cancel, Rejected):
                await self._reject(record, tenant, cancel)
            else:
                await self._cancel(record, tenant, cancel)
        elif record.type == EventType.JOB_SUBMIT:
            submission = parse_submit(record.value, tenant)
            if isinstance(submission, Rejected):
                await self._reject(record, tenant, submission)
            else:
                await self._submit(record, tenant, submission)
        else:
            await self._reject(
                record, tenant, Rejected(f"no event type {record.type[:100]!r} is known here", "ce_type")
            )

    async def _submit(self, record: Incoming, tenant: TenantPolicy, submission: Submission) -> None:
        name = trainingjobs.object_name(tenant.name, submission.id)
        namespace = submission.namespace
        answer = await writes.create_trainingjob(
            self._kube, namespace, name, submission.spec,
            labels={"drystone.dev/tenant": tenant.name},
            timeout_s=self._settings.write_timeout_s,
        )  # fmt: skip
        outcome = classify(answer)
        duplicate = False
        if outcome is Outcome.EXISTS or answer.unsure:
            answer = await writes.get_trainingjob(self._kube, namespace, name)
            if not answer.ok:
                raise PassingFault(f"job object cannot be read: {why(answer)}")
            duplicate = outcome is Outcome.EXISTS
        elif outcome is Outcome.GONE or outcome is Outcome.REFUSED:
            await self._reject(record, tenant, Rejected(why(answer), "", submission.id))
            return
        elif outcome is not Outcome.DONE:
            raise PassingFault(why(answer))
        view = trainingjobs.parse(answer.body)
        if view.spec.hash != submission.hash:
            await self._reject(record, tenant, Rejected("this id was used for another job", "id", submission.id))
            return
        head, tasks = trainingjobs.expand(view, view.status.attempt, self._known())
        out: list[Outgoing] = []
        if not view.ended and not view.deleting:
            hint = JobChanged(head, tuple(tasks), cause=record.id, traceparent=record.headers.get("traceparent", ""))
            out += hint_records([hint], self._bus.partitions(TASKS.name))
        out.append(
            self._status(record, JobStatus(submission.id, view.key, tenant.name, namespace, view.status.phase,
                                           reason="Duplicate" if duplicate else "Accepted", tasks=view.replicas,
                                           cause=record.id)))  # fmt: skip
        await self._publisher.publish(out)
        metrics.INTAKE.labels(tenant.name, "duplicate" if duplicate else "accepted").inc()

    async def _cancel(self, record: Incoming, tenant: TenantPolicy, cancel: CancelJob) -> None:
        if cancel.namespace is not None and cancel.namespace not in tenant.namespaces:
            foreign = f"tenant {tenant.name} has no namespace {cancel.namespace}"
            await self._reject(record, tenant, Rejected(foreign, "namespace", cancel.id))
            return
        name = trainingjobs.object_name(tenant.name, cancel.id)
        found = ""
        for namespace in (cancel.namespace,) if cancel.namespace else tenant.namespaces:
            answer = await writes.delete_trainingjob(self._kube, namespace, name)
            outcome = classify(answer)
            if outcome is Outcome.DONE:
                found = namespace
            elif outcome is not Outcome.GONE:
                raise PassingFault(why(answer))
        namespace = found or cancel.namespace or tenant.namespaces[0]
        status = JobStatus(
            cancel.id, f"job/{namespace}/{name}", tenant.name, namespace, Phase.CANCELLED,
            reason="Cancelled" if found else "NothingToCancel", cause=record.id,
        )  # fmt: skip
        await self._publisher.publish([self._status(record, status)])
        metrics.INTAKE.labels(tenant.name, "cancelled").inc()

    async def _reject(self, record: Incoming, tenant: TenantPolicy, rejected: Rejected) -> None:
        """The dead letter is acknowledged before the offset is committed; without it the event stays."""
        external = rejected.id or record.key or record.id
        status = JobStatus(
            external, "", tenant.name, "", Phase.REJECTED, reason="Rejected", message=str(rejected)[:1000],
            cause=record.id,
        )  # fmt: skip
        await self._publisher.publish([dead_letter(record, rejected), self._status(record, status)])
        metrics.INTAKE.labels(tenant.name, "dead-letter").inc()

    def _status(self, record: Incoming, status: JobStatus) -> Outgoing:
        headers = {k: v for k, v in record.headers.items() if k == "traceparent"}
        key = status.job or status.id
        partition = partition_of(key, self._bus.partitions(STATUS.name))
        return Outgoing(STATUS.name, key, _encode(status), EventType.STATUS, partition, headers=headers)


def dead_letter(record: Incoming, rejected: Rejected) -> Outgoing:
    value = record.value or b""
    letter = DeadLetter(
        reason=str(rejected)[:1000],
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key[:1000],
        id=rejected.id or record.id,
        value=base64.b64encode(value[:_MOST_QUOTED]).decode(),
        truncated=len(value) > _MOST_QUOTED,
    )
    return Outgoing(DEAD_LETTERS.name, record.key, _encode(letter), EventType.DEAD_LETTER)
