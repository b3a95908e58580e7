"""One write, step by step, from the first request to the moment its task has surely landed.

A write is sent, and what the answer leaves open is read off the pod. Nothing is let go before its late write has become
impossible: a Binding by changing the pod's version, a pod that is created bound by rolling it forward under its own
name or, where it must not be created any more, by waiting until no request of ours can still arrive and reading once
more. Another binder may carry the same claim at the same time (redelivery): both write the same thing, one of them
reads it.

What remains: a binder that is stopped between asking the ledger and sending a create, for longer than the claim lives,
creates a pod under a claim that was let go. A Binding cannot do that.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
import structlog

from libs.contracts.events import Landed
from libs.kube import boundpods, writes
from libs.kube.objects import bare_decoder
from libs.kube.outcomes import Outcome, classify, retry_after, why
from libs.kube.pods import PodView, parse_pod
from libs.kube.port import Answer, Kube
from libs.runtime.clock import Clock
from services.binder import claims, decide, metrics
from services.binder.claims import ClaimState
from services.binder.decide import Seen, Step
from services.binder.facts import NodeFacts
from services.binder.hand import Stage, Write
from services.binder.pauses import Pauses
from services.binder.settings import BinderSettings
from services.binder.tenure import STALE_S, Tenure
from services.binder.window import Window

log = structlog.get_logger()

_MOST_CONFLICTS: Final = 3


class Landing(Protocol):
    """Where a task's end is reported."""

    def bound(self, write: Write, uid: str) -> None: ...

    def freed(self, write: Write, landed: Landed, why: str) -> None:
        """No write under the claim can land any more: free it in the ledger."""
        ...

    def dropped(self, write: Write, landed: Landed, why: str) -> None:
        """We have not begun the claim, or lost it: free it if it is still only planned."""
        ...


class Carrier:
    """Writes one after the other or many at a time: nothing is remembered here but in the writes themselves."""

    def __init__(
        self,
        kube: Kube,
        tenure: Tenure,
        facts: NodeFacts,
        window: Window,
        landing: Landing,
        pauses: Pauses,
        settings: BinderSettings,
        clock: Clock,
    ) -> None:
        self._kube = kube
        self._tenure = tenure
        self._facts = facts
        self.window = window
        self._landing = landing
        self._pauses = pauses
        self._settings = settings
        self._clock = clock

    async def serve(self, write: Write) -> float | None:
        """Carry a write on. None: it is done with. Else the seconds after which to come back."""
        while True:
            match write.stage:
                case Stage.SEND:
                    pause = await self._send(write)
                case Stage.LOOK:
                    pause = await self._look(write)
                case Stage.FENCE:
                    pause = await self._fence(write)
                case Stage.SETTLE:
                    pause = await self._settle(write)
                case Stage.LANDED:
                    return None
            if pause > 0:
                return pause

    # -- sending ---------------------------------------------------------------------------------------------------

    async def _send(self, write: Write) -> float:
        assignment = write.assignment
        objection = self._facts.objection(assignment)
        if objection:
            return self._abandon(write, Landed.REPLAN, objection)
        if not write.claims_bound:
            pause = await self._bring_claims(write)
            if pause is not None:
                return pause
        started = self._clock.monotonic()
        if write.sent or started - write.begun_at > STALE_S:
            ours = await self._tenure.still_ours(write)
            if ours is None:
                return self._pause(write)
            if not ours:
                return self._lost(write, Landed.REPLAN, "the claim was taken back")
            started = self._clock.monotonic()
        timeout_s = self._settings.write_timeout_s
        write.sent += 1
        namespace = write.hand.plan.namespace
        if assignment.create:
            job = write.hand.job
            if job is None:
                return self._abandon(write, Landed.REPLAN, "the job was not read")
            try:
                manifest = boundpods.pod_manifest(job, assignment, write.hand.plan.attempt)
            except ValueError as error:
                write.lasting = True
                return self._abandon(write, Landed.REFUSED, str(error))
            answer = await writes.create_pod(self._kube, namespace, manifest, timeout_s=timeout_s)
        else:
            answer = await writes.bind(
                self._kube,
                namespace,
                assignment.name,
                assignment.task,
                write.version,
                assignment.node,
                boundpods.grant_annotations(assignment),
                timeout_s=timeout_s,
            )
        self._measure("create" if assignment.create else "bind", answer, started)
        step = decide.after_write(answer, create=assignment.create)
        if step is Step.BOUND:
            uid = bare_decoder.decode(answer.body).metadata.uid if assignment.create else assignment.task
            return self._bound(write, uid)
        return self._not_bound(write, step, answer, started + timeout_s)

    async def _bring_claims(self, write: Write) -> float | None:
        """None: all volume claims that waited for first use are bound for this node."""
        assignment = write.assignment
        for name in assignment.claims:
            state = await claims.bring(
                self._kube,
                write.hand.plan.namespace,
                name,
                assignment.node,
                timeout_s=self._settings.write_timeout_s,
            )
            metrics.CALLS.labels(call="claim", code=state.name.lower()).inc()
            if state is ClaimState.READY:
                continue
            reason = f"volume claim {name} {state.value}"
            if state is ClaimState.REFUSED:
                return self._abandon(write, Landed.REFUSED, reason)
            waits = state in (ClaimState.WAITING, ClaimState.UNSURE)
            if not waits or self._clock.monotonic() >= write.give_up_at:
                return self._abandon(write, Landed.REPLAN, reason)
            return self._pause(write)
        write.claims_bound = True
        write.tries = 0
        return None

    def _not_bound(self, write: Write, step: Step, answer: Answer, lands_until: float) -> float:
        match step:
            case Step.GONE:
                if write.assignment.create:  # the namespace is gone or going
                    return self._abandon(write, Landed.GONE, why(answer))
                return self._freed(write, Landed.GONE, why(answer))
            case Step.REFUSED:
                metrics.REFUSALS.labels(code=str(answer.status)).inc()
                write.lasting = write.assignment.create and decide.lasting(answer)
                return self._abandon(write, Landed.REFUSED, why(answer))
            case Step.AGAIN:
                if self._clock.monotonic() >= write.give_up_at:
                    return self._abandon(write, Landed.REPLAN, why(answer))
                metrics.RETRIES.labels(code=str(answer.status)).inc()
                return self._pause(write, retry_after(answer) or 0.0)
            case _:
                write.stage = Stage.LOOK
                write.why = why(answer)
                if classify(answer) is Outcome.UNSURE:
                    metrics.UNSURE.inc()
                    write.unsure_until = lands_until + self._settings.settle_s
                    return self._pause(write)
                write.conflicts += 1
                return 0.0

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _look(self, write: Write) -> float:
        read = await self._read(write)
        if read is None:
            return self._pause(write)
        if isinstance(read, PodView):
            if write.assignment.create:
                return self._judge_created(write, read)
            return self._judge_bind(write, read)
        if not write.assignment.create:
            return self._freed(write, Landed.GONE, "the pod is gone")
        return self._once_more(write)

    def _judge_bind(self, write: Write, pod: PodView) -> float:
        seen = decide.judge_bind(write.assignment, pod)
        match seen:
            case Seen.BOUND:
                return self._bound(write, pod.uid)
            case Seen.ELSEWHERE:
                return self._freed(write, Landed.GONE, f"bound to {pod.node} by somebody else")
            case Seen.GONE:
                return self._freed(write, Landed.GONE, "the pod is gone or ending")
            case Seen.FENCED if pod.version != write.version:
                # Written under that version, the fence would have stood there before: nobody's who fences a late write.
                return self._freed(write, Landed.REPLAN, "the claim was taken back")
            case Seen.UNBOUND if write.conflicts <= _MOST_CONFLICTS:
                write.version = pod.version
                return self._once_more(write)
            case Seen.UNBOUND:
                return self._abandon(write, Landed.REPLAN, "the pod keeps changing")
            case _:
                return self._abandon(write, Landed.REPLAN, "the pod changed")

    def _judge_created(self, write: Write, pod: PodView) -> float:
        seen = decide.judge_created(write.assignment, pod, write.hand.plan.job_uid)
        match seen:
            case Seen.BOUND:
                return self._bound(write, pod.uid)
            case Seen.FOREIGN:
                return self._freed(write, Landed.REFUSED, f"the name {pod.name} is taken by another pod")
            case _:
                # One pod per (job, role, index, attempt): this one serves or served the task.
                return self._freed(write, Landed.GONE, "the task's pod exists under another claim")

    def _once_more(self, write: Write) -> float:
        """Not done: write again if there is time."""
        if self._clock.monotonic() >= write.give_up_at:
            return self._abandon(write, Landed.REPLAN, write.why or "out of time")
        write.stage = Stage.SEND
        metrics.RETRIES.labels(code="read").inc()
        return 0.0 if not write.tries else self._pause(write)

    async def _read(self, write: Write) -> PodView | str | None:
        """The pod; "" where there is none; None where that could not be learned now."""
        answer = await writes.get_pod(
            self._kube, write.hand.plan.namespace, write.assignment.name, timeout_s=self._settings.write_timeout_s
        )
        metrics.CALLS.labels(call="get", code=str(answer.status)).inc()
        if answer.status == 404:
            return ""
        if not answer.ok:
            return None
        try:
            return parse_pod(answer.body)
        except msgspec.MsgspecError:
            return None

    # -- letting go ----------------------------------------------------------------------------------------------------

    def _abandon(self, write: Write, landed: Landed, reason: str) -> float:
        write.abandon(landed, reason)
        return 0.0

    async def _fence(self, write: Write) -> float:
        assignment = write.assignment
        answer = await writes.fence_pod(
            self._kube,
            write.hand.plan.namespace,
            assignment.name,
            assignment.task,
            assignment.claim,
            timeout_s=self._settings.write_timeout_s,
        )
        metrics.CALLS.labels(call="fence", code=str(answer.status)).inc()
        match classify(answer):
            case Outcome.DONE:
                pod = parse_pod(answer.body)
                seen = decide.judge_bind(assignment, pod)
                if seen is Seen.BOUND:
                    return self._bound(write, pod.uid)
                gone = seen in (Seen.ELSEWHERE, Seen.GONE)
                return self._freed(write, Landed.GONE if gone else write.end, write.why)
            case Outcome.GONE:
                return self._freed(write, Landed.GONE, "the pod is gone")
            case Outcome.CONFLICT | Outcome.EXISTS:
                write.stage = Stage.SETTLE  # another pod has the name by now, most likely: read
                return 0.0
            case Outcome.REFUSED if answer.status != 401:
                log.warning("cannot fence", pod=assignment.name, why=why(answer), cause=write.hand.plan.cause)
                write.unsure_until = self._clock.monotonic() + self._settings.write_timeout_s + self._settings.settle_s
                write.stage = Stage.SETTLE
                return 0.0
            case _:
                return self._pause(write, retry_after(answer) or 0.0)

    async def _settle(self, write: Write) -> float:
        wait = write.unsure_until - self._clock.monotonic()
        if wait > 0:
            return wait
        read = await self._read(write)
        if read is None:
            return self._pause(write)
        if not isinstance(read, PodView):
            return self._freed(write, write.end if write.assignment.create else Landed.GONE, write.why)
        if write.assignment.create:
            return self._judge_created(write, read)
        seen = decide.judge_bind(write.assignment, read)
        if seen is Seen.BOUND:
            return self._bound(write, read.uid)
        return self._freed(write, Landed.GONE if seen in (Seen.ELSEWHERE, Seen.GONE) else write.end, write.why)

    # -- small things ------------------------------------------------------------------------------------------------

    def _bound(self, write: Write, uid: str) -> float:
        write.stage = Stage.LANDED
        if write.unsure_until:
            metrics.RESOLVED.labels(found="bound").inc()
        self._landing.bound(write, uid)
        return 0.0

    def _freed(self, write: Write, landed: Landed, reason: str) -> float:
        write.stage = Stage.LANDED
        if write.unsure_until:
            metrics.RESOLVED.labels(found="not bound").inc()
        self._landing.freed(write, landed, reason)
        return 0.0

    def _lost(self, write: Write, landed: Landed, reason: str) -> float:
        write.stage = Stage.LANDED
        self._landing.dropped(write, landed, reason)
        return 0.0

    def _pause(self, write: Write, asked_s: float = 0.0) -> float:
        write.tries += 1
        return self._pauses.after(write.tries, asked_s)

    def _measure(self, call: str, answer: Answer, started: float) -> None:
        now = self._clock.monotonic()
        took = now - started
        metrics.called(call, answer.status)
        metrics.WRITE_SECONDS.observe(took)
        enough = answer.status in (0, 429, 503, 504)
        self.window.answered(took, enough=enough, now=now)
