"""Before the first pod of a plan is created: its job object, read once for all of them.

A job that is gone, being deleted, ended or in a later attempt gets no pods any more, however late its plan comes.
"""

from __future__ import annotations

from typing import Final

from libs.contracts.events import Landed
from libs.kube import trainingjobs, writes
from libs.kube.outcomes import retry_after, why
from libs.kube.port import Kube
from libs.runtime.clock import Clock
from services.binder import metrics
from services.binder.hand import PlanInHand, Prepare
from services.binder.pauses import Pauses

#: Bytes of job objects in hand; further ones are read when plans have ended.
MOST_HELD: Final = 64 * 1024 * 1024
#: Of an object that is being read.
_ONE: Final = 1024 * 1024
_ROOM_S: Final = 0.05


class Preparer:
    def __init__(self, kube: Kube, pauses: Pauses, timeout_s: float, clock: Clock) -> None:
        """`timeout_s` limits one read, in seconds."""
        self._kube = kube
        self._pauses = pauses
        self._timeout_s = timeout_s
        self._clock = clock
        self._held = 0
        self._reading = 0

    def closed(self, hand: PlanInHand) -> None:
        """The plan has ended: its object is not needed any more."""
        self._held -= hand.job_bytes
        hand.job, hand.job_bytes = None, 0

    async def prepare(self, item: Prepare) -> float | None:
        """None: its writes may be put on their way, whatever stage they are in now. Else the seconds after which to
        come back."""
        if self._held + self._reading * _ONE >= MOST_HELD:
            return _ROOM_S
        plan = item.hand.plan
        name = plan.job.rsplit("/", 1)[-1]
        self._reading += 1
        try:
            answer = await writes.get_trainingjob(self._kube, plan.namespace, name, timeout_s=self._timeout_s)
        finally:
            self._reading -= 1
        metrics.CALLS.labels(call="get-job", code=str(answer.status)).inc()
        if answer.ok:
            job = trainingjobs.parse(answer.body)
            reason = _ended(job, plan.job_uid, plan.attempt)
            if not reason:
                item.hand.job, item.hand.job_bytes = job, len(answer.body)
                self._held += len(answer.body)
                return None
            landed = Landed.GONE
        elif answer.status == 404:
            landed, reason = Landed.GONE, _GONE
        elif answer.status in (400, 403, 422):
            landed, reason = Landed.REFUSED, why(answer)
        elif self._clock.monotonic() < item.give_up_at:
            item.tries += 1
            return self._pauses.after(item.tries, retry_after(answer) or 0.0)
        else:
            landed, reason = Landed.REPLAN, why(answer)
        for write in item.writes:
            write.abandon(landed, reason)
        return None


_GONE = "the job is gone"


def _ended(job: trainingjobs.TrainingJobView, uid: str, attempt: int) -> str:
    """Why the attempt of the job with this uid gets no pods any more, empty if it does."""
    if job.uid != uid:
        return _GONE
    if job.deleting:
        return "the job is being deleted"
    return "the attempt has ended" if job.ended or job.status.attempt > attempt else ""
