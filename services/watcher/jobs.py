"""One job event: checked, made into a TrainingJob object or a dead letter, answered with a status.

Every event that is served ends in exactly one of: an object (new, or the one that was there), a deletion, a dead
letter; an event whose object exists is never called rejected. What may be cured by waiting is raised as `PassingFault`,
and the caller serves the event again later, or has it given up; nothing else is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from libs.bus.letters import dead_letter, status_value
from libs.bus.pack import cut
from libs.bus.port import Bus, BusUnavailable, Incoming, Outgoing, onward
from libs.contracts.events import DeadLetter, EventType, JobChanged, JobStatus
from libs.contracts.strict import Rejected
from libs.contracts.submission import CancelJob, Submission, job_id, parse_cancel, parse_submit
from libs.contracts.tenants import TenantPolicy, foreign_queues
from libs.contracts.topics import DEAD_LETTERS, STATUS, TASKS
from libs.domain import keys
from libs.domain.jobs import Phase, partition_of
from libs.kube import trainingjobs, writes
from libs.kube.grouping import NOTHING_KNOWN, Known
from libs.kube.outcomes import Outcome, classify, status_of, why
from libs.kube.port import Answer, Kube
from libs.kube.trainingjobs import TrainingJobView
from libs.runtime.clock import Clock
from services.watcher import metrics
from services.watcher.answers import Answers
from services.watcher.emit import hint_records
from services.watcher.limits import TENANT_LABEL, PendingJobs
from services.watcher.settings import WatcherSettings

log = structlog.get_logger()

_encode = msgspec.json.encode


#: Of a reason that is told.
_WORDS: Final = 400


class PassingFault(Exception):
    """The event may be served later: the API server or the broker did not do its part."""


class JobEvents:
    def __init__(
        self,
        kube: Kube,
        bus: Bus,
        settings: WatcherSettings,
        clock: Clock,
        known: Callable[[], tuple[Known, str]] = lambda: (NOTHING_KNOWN, ""),
    ) -> None:
        self._kube = self._answers = Answers(kube, clock)
        self._clock = clock
        self._bus = bus
        self._publisher = bus.publisher()
        self._settings = settings
        self._known = known
        self._tenants = {tenant.topic: tenant for tenant in settings.tenants}
        self._foreign = {tenant.name: foreign_queues(tenant, settings.tenants) for tenant in settings.tenants}
        self._pending = PendingJobs(self._kube, clock)

    @property
    def answered_at(self) -> float:
        """When the API server last answered any event's call for good (monotonic): whom it does not serve then has a
        fault of its own."""
        return self._answers.at

    async def serve(self, record: Incoming) -> None:
        """Raises PassingFault and BusUnavailable only."""
        tenant = self._tenants[record.topic]
        try:
            await self._serve(record, tenant)
        except (PassingFault, BusUnavailable):
            raise
        except Exception as error:
            # A fault of ours, and this event brings it about: it must not come back for ever and stop the others.
            log.exception("job event could not be served", topic=record.topic, offset=record.offset, cause=record.id)
            await self._reject_surely(record, tenant, Rejected(f"could not be served: {type(error).__name__}"))

    async def give_up(self, record: Incoming, fault: str, waited_s: float) -> None:
        """The last word on an event that was parked for too long: a job whose object is there after all is accepted,
        all else is a dead letter. Raises BusUnavailable."""
        tenant = self._tenants[record.topic]
        log.warning("job event given up", topic=record.topic, offset=record.offset, cause=record.id, fault=fault)
        words = f"could not be served for {waited_s:.0f} s ({cut(fault, _WORDS)}); submit it again"
        said = Rejected(words, "", cut(job_id(record.value), 200))
        try:
            if await self._there_after_all(record, tenant):
                return
        except BusUnavailable:
            raise
        except Exception:
            log.exception("given up without a look", topic=record.topic, offset=record.offset, cause=record.id)
        await self._reject_surely(record, tenant, said, "NotServed")

    async def turn_away(self, record: Incoming, why: str) -> None:
        """Not looked at, so nothing came of it. Raises BusUnavailable."""
        said = Rejected(why, "", cut(job_id(record.value), 200))
        await self._reject_surely(record, self._tenants[record.topic], said, "TooManyWaiting")

    async def _there_after_all(self, record: Incoming, tenant: TenantPolicy) -> bool:
        if record.fault or record.type != EventType.JOB_SUBMIT:
            return False
        submission = parse_submit(record.value, tenant, self._foreign[tenant.name])
        if isinstance(submission, Rejected):
            return False
        # A creation that nobody answered may land as late as this.
        await self._clock.sleep(self._settings.longest_write_s)
        name = trainingjobs.object_name(tenant.name, submission.id)
        answer = await writes.get_trainingjob(self._kube, submission.namespace, name)
        if not answer.ok:
            return False
        view = trainingjobs.parse(answer.body)
        if view.deleting or view.spec.hash != submission.hash:
            return False
        await self._accept(record, tenant, view, duplicate=False)
        return True

    async def _serve(self, record: Incoming, tenant: TenantPolicy) -> None:
        if record.fault:
            await self._reject(record, tenant, Rejected(record.fault))
        elif record.type == EventType.JOB_CANCEL:
            cancel = parse_cancel(record.value)
            if isinstance(cancel, Rejected):
                await self._reject(record, tenant, cancel)
            else:
                await self._cancel(record, tenant, cancel)
        elif record.type == EventType.JOB_SUBMIT:
            submission = parse_submit(record.value, tenant, self._foreign[tenant.name])
            if isinstance(submission, Rejected):
                await self._reject(record, tenant, submission)
            else:
                await self._submit_within_limit(record, tenant, submission)
        else:
            unknown = f"no event type {record.type[:100]!r} is known here"
            await self._reject(record, tenant, Rejected(unknown, "ce_type"))

    # -- submit --------------------------------------------------------------------------------------------------------

    async def _submit_within_limit(self, record: Incoming, tenant: TenantPolicy, submission: Submission) -> None:
        pending = self._pending
        if not pending.plenty(tenant):
            async with pending.turn(tenant):
                name = trainingjobs.object_name(tenant.name, submission.id)
                room = await self._may_have_more(tenant, submission.namespace, name)
                if room and not pending.plenty(tenant):
                    await self._submit(record, tenant, submission)
                    return
            if not room:
                too_many = f"tenant {tenant.name} has {tenant.max_pending_jobs} unfinished jobs, as many as it may have"
                await self._reject(record, tenant, Rejected(too_many, "", submission.id), "TooManyPending")
                return
        await self._submit(record, tenant, submission)

    async def _submit(self, record: Incoming, tenant: TenantPolicy, submission: Submission) -> None:
        name = trainingjobs.object_name(tenant.name, submission.id)
        answer = await writes.create_trainingjob(
            self._kube, submission.namespace, name, submission.spec,
            labels={TENANT_LABEL: tenant.name},
            annotations={keys.TRACEPARENT: traced} if (traced := record.headers.get("traceparent")) else None,
            timeout_s=self._settings.write_timeout_s,
        )  # fmt: skip
        outcome = classify(answer)
        duplicate = False
        if outcome in (Outcome.EXISTS, Outcome.UNSURE):
            duplicate = outcome is Outcome.EXISTS
            made = answer
            answer = await writes.get_trainingjob(self._kube, submission.namespace, name)
            if not answer.ok:
                raise PassingFault(
                    f"job object cannot be read: {why(answer)}" if duplicate else f"not created: {why(made)}"
                )
        elif permanent(answer):
            await self._reject(record, tenant, Rejected(why(answer), "", submission.id))
            return
        elif outcome is not Outcome.DONE:
            raise PassingFault(why(answer))
        if not duplicate:
            self._pending.added(tenant)
        try:
            view = trainingjobs.parse(answer.body)
        except msgspec.MsgspecError as error:
            raise PassingFault(f"the API server's answer is no TrainingJob: {error}") from error
        if view.deleting:
            # An earlier job of this id is on its way out: until it is gone its name cannot be had again, and calling
            # this event its duplicate would lose the job.
            raise PassingFault("the job that had this id before is still being deleted")
        if view.spec.hash != submission.hash:
            await self._reject(record, tenant, Rejected("this id was used for another job", "id", submission.id))
            return
        await self._accept(record, tenant, view, duplicate=duplicate)

    async def _accept(self, record: Incoming, tenant: TenantPolicy, view: TrainingJobView, *, duplicate: bool) -> None:
        """The object exists, so this is the answer, whatever becomes of the hint: without one placement finds the job
        in its next slow pass."""
        hints: list[Outgoing] = []
        if not view.ended:
            try:
                hints = self._hints(record, view)
            except Exception:
                log.exception("no hint about a job", job=view.key, cause=record.id)
        status = JobStatus(
            view.spec.id, view.key, tenant.name, view.namespace, view.status.phase,
            reason="Duplicate" if duplicate else "Accepted", tasks=view.replicas, cause=record.id,
        )  # fmt: skip
        await self._publisher.publish([*hints, self._status(record, status)])
        metrics.INTAKE.labels(tenant.name, "duplicate" if duplicate else "accepted").inc()

    async def _may_have_more(self, tenant: TenantPolicy, namespace: str, name: str) -> bool:
        if await self._pending.room(tenant):
            return True
        # What is there already adds nothing: it is answered as the duplicate that it is.
        answer = await writes.get_trainingjob(self._kube, namespace, name)
        if not answer.ok and classify(answer) is not Outcome.GONE:
            raise PassingFault(why(answer))
        return answer.ok

    def _hints(self, record: Incoming, view: TrainingJobView) -> list[Outgoing]:
        known, seen = self._known()
        head, tasks = trainingjobs.expand(view, view.status.attempt, known)
        traceparent = record.headers.get("traceparent", "")
        hint = JobChanged(head, tuple(tasks), cause=record.id, traceparent=traceparent, seen=seen)
        return hint_records([hint], self._bus.partitions(TASKS.name))

    # -- cancel --------------------------------------------------------------------------------------------------------

    async def _cancel(self, record: Incoming, tenant: TenantPolicy, cancel: CancelJob) -> None:
        if cancel.namespace is not None and cancel.namespace not in tenant.namespaces:
            foreign = f"tenant {tenant.name} has no namespace {cancel.namespace}"
            await self._reject(record, tenant, Rejected(foreign, "namespace", cancel.id))
            return
        name = trainingjobs.object_name(tenant.name, cancel.id)
        found = ""
        for namespace in (cancel.namespace,) if cancel.namespace else tenant.namespaces:
            answer = await writes.delete_trainingjob(self._kube, namespace, name)
            if classify(answer) is Outcome.DONE:
                found = namespace
            elif not _absent(answer):
                raise PassingFault(why(answer))
        namespace = found or cancel.namespace or tenant.namespaces[0]
        status = JobStatus(
            cancel.id, f"job/{namespace}/{name}", tenant.name, namespace, Phase.CANCELLED,
            reason="Cancelled" if found else "NothingToCancel", cause=record.id,
        )  # fmt: skip
        await self._publisher.publish([self._status(record, status)])
        metrics.INTAKE.labels(tenant.name, "cancelled").inc()

    # -- what leaves ---------------------------------------------------------------------------------------------------

    async def _reject_surely(
        self, record: Incoming, tenant: TenantPolicy, rejected: Rejected, reason: str = "Rejected"
    ) -> None:
        """Whatever is in the event: what cannot be said with its own words is said without them. Raises BusUnavailable
        only."""
        try:
            await self._reject(record, tenant, rejected, reason)
            return
        except BusUnavailable:
            raise
        except Exception:
            log.exception("dead letter without the event's words", topic=record.topic, offset=record.offset)
        letter = DeadLetter("could not be served", record.topic, record.partition, record.offset)
        status = JobStatus("unreadable", "", tenant.name, "", Phase.REJECTED, reason=reason, message=letter.reason)
        place = f"{record.topic}/{record.partition}/{record.offset}"
        await self._publisher.publish(
            [
                Outgoing(DEAD_LETTERS.name, place, _encode(letter), EventType.DEAD_LETTER),
                Outgoing(STATUS.name, place, _encode(status), EventType.STATUS, 0),
            ]
        )
        metrics.INTAKE.labels(tenant.name, "dead-letter").inc()

    async def _reject(
        self, record: Incoming, tenant: TenantPolicy, rejected: Rejected, reason: str = "Rejected"
    ) -> None:
        """The dead letter is acknowledged before the offset is committed; without it the event stays."""
        external = cut(rejected.id or record.key or record.id)
        status = JobStatus(
            external, "", tenant.name, "", Phase.REJECTED, reason=reason, message=cut(str(rejected)),
            cause=record.id,
        )  # fmt: skip
        await self._publisher.publish(
            [dead_letter(record, str(rejected), id=rejected.id), self._status(record, status)]
        )
        metrics.INTAKE.labels(tenant.name, "dead-letter").inc()

    def _status(self, record: Incoming, status: JobStatus) -> Outgoing:
        status = msgspec.structs.replace(status, traceparent=record.headers.get("traceparent", ""))
        headers = onward(record.id, status.traceparent)
        key = status.job or status.id
        partition = partition_of(key, self._bus.partitions(STATUS.name))
        return Outgoing(STATUS.name, key, status_value(status), EventType.STATUS, partition, headers=headers)


def permanent(answer: Answer) -> bool:
    """Whether this creation will be refused again whenever it is tried. Of the 404s only one that names the namespace:
    a path that the server does not know is a CRD that is not there (yet). A refused account is the operator's to cure;
    the job is not to blame, nor is it for a quota that has not been counted yet."""
    outcome = classify(answer)
    if outcome is Outcome.GONE:
        said = status_of(answer)
        return said.reason == "NotFound" and (said.message or "").startswith("namespaces ")
    if outcome is not Outcome.REFUSED:
        return False
    message = (status_of(answer).message or "") if answer.status == 403 else ""
    return not any(words in message for words in _PASSING_403)


#: Of our rights, and of a ResourceQuota that its controller has not looked at yet.
_PASSING_403: Final = (" cannot create resource ", "status unknown for quota")


def _absent(answer: Answer) -> bool:
    """Whether the object, or its namespace, is not there; a path that the server does not know says nothing."""
    return classify(answer) is Outcome.GONE and status_of(answer).reason == "NotFound"
