"""The controller of TrainingJob objects in our partitions: attempts, success, failure, cancel, clean-up.

The object and its pods are the truth; the status is a summary that can be worked out again at any time.
`status.attempt` is the first attempt number of the present round: pods of lower numbers are of a round that failed. A
pod that was lost (evicted, deleted, refused by kubelet) is no failure: its task is placed again under a higher number,
beside those that still run. Job objects are looked at when one of their pods ended, and in every slow pass; never in
the hot path. Looks and deletions take turns, a few at a time each: with jobs ending all the time neither may wait until
the other has nothing left to do.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Final

import msgspec
import structlog

from libs.domain import keys
from libs.domain.jobs import Phase, partition_of
from libs.kube import trainingjobs, writes
from libs.kube.errors import ReadFailed
from libs.kube.outcomes import Outcome, classify
from libs.kube.pods import PodView, parse_pod
from libs.kube.port import Kube
from libs.kube.trainingjobs import TrainingJobStatus, TrainingJobView
from libs.observe.faults import words
from libs.runtime.backoff import Backoff
from libs.runtime.clock import Clock
from libs.runtime.tasks import comes
from services.placement.assess import Assessment, assess
from services.placement.decide import told
from services.placement.guard import FAULTS
from services.placement.jobs import Job
from services.placement.outbox import Haste
from services.placement.state import State
from services.placement.status import ObjectWords, Teller
from services.placement.truth import Truth, read_done, read_each

log = structlog.get_logger()

#: How long a look waits for further pods of the job to end.
_GATHER_S: Final = 0.1
#: Calls at once. One after the other, the time of an answer would set the pace at which jobs may end.
WIDTH: Final = 8


class Controller:
    def __init__(self, state: State, kube: Kube, teller: Teller, clock: Clock, partitions: int) -> None:
        self._state = state
        self._kube = kube
        self._teller = teller
        self._clock = clock
        self._partitions = partitions
        #: The status as last written or read, by job key; and what was read of the object, where it was.
        self._status: dict[str, TrainingJobStatus] = {}
        self._leaving: list[tuple[float, str, str, str]] = []  # (wall time, namespace, name, uid)
        self._due: dict[str, tuple[str, str]] = {}  # those whose time has come: uid -> (namespace, name)
        self._to_leave: set[str] = set()  # uids of both
        self._doomed: dict[str, PodView] = {}
        teller.waiting_object = self.waiting

    # -- what happened ------------------------------------------------------------------------------------------------

    def bound(self, job: Job, _count: int) -> None:
        """Tasks were found bound. A job that simply starts is written once: when its last task is bound."""
        self._teller.bound(job)
        if job.head.uid and not job.tasks and not job.claims:
            self._running(job)

    def _running(self, job: Job) -> None:
        known = self._known(job)
        self._write(
            job,
            msgspec.structs.replace(
                known,
                phase=Phase.RUNNING,
                reason="",
                message="",
                bound=len(job.bound),
                start_time=known.start_time or trainingjobs.when(self._clock.wall()),
            ),
        )

    def waiting(self, job: Job, reason: str, message: str, haste: Haste) -> None:
        known = self._known(job)
        phase = Phase.RUNNING if known.phase is Phase.RUNNING else Phase.PENDING
        self._write(job, msgspec.structs.replace(known, phase=phase, reason=reason, message=message), haste)

    def cancelled(self, key: str) -> None:
        """The object is being deleted or is gone. Its claims are dropped; garbage collection takes its pods."""
        job = self._state.forget(key)
        known = self._status.pop(key, None)
        if job is None:
            return
        if known is None or known.phase not in (Phase.SUCCEEDED, Phase.FAILED):
            self._teller.say(told(job, Phase.CANCELLED, reason="Deleted", message="the job object was deleted"))
        if job.head.uid:
            self._teller.forget(job.head.uid)

    def reviewed(self, truth: Truth) -> None:
        """Job objects of our partitions as listed just now."""
        moved = self._state.pending.moved_since(truth.stamp)
        for key, view in truth.objects.items():
            if view.deleting:
                self.cancelled(key)
            else:
                self._apply(view, truth.owned.get(view.uid, ()), moved.get(view.uid, ()))
        # Of jobs whose end nobody told us, and of partitions that others have by now.
        for key in [k for k in self._status if k not in truth.objects and k not in self._state.pending.jobs]:
            del self._status[key]
        self._teller.retell()

    def _apply(self, view: TrainingJobView, pods: Collection[PodView], moved: Collection[str]) -> None:
        """As `apply`; where that fails, this job is told so and no other has to suffer."""
        try:
            self.apply(view, pods, moved)
        except Exception as error:
            FAULTS.seen("job object", view.key, error)
            status = msgspec.structs.replace(
                view.status,
                reason="CouldNotBeDecided",
                message=f"looking at the job fails by a fault of Drystone's own ({words(error)})",
            )
            if status != view.status:
                self._teller.write(
                    ObjectWords(view.namespace, view.name, view.uid, status, Haste.STARTED, view.spec.queue)
                )

    def apply(self, view: TrainingJobView, pods: Collection[PodView], moved: Collection[str]) -> None:
        """Bring the pending set, the status and the pods in line with what the object and its pods amount to. Tasks
        that `moved` since these began to be listed are left as they are, and looked at again."""
        state, key = self._state, view.key
        job = state.pending.jobs.get(key)
        if job is not None and job.head.uid != view.uid:
            self.cancelled(key)
            job = None
        mine = self._status.get(key)
        if (
            job is not None
            and mine is not None
            and (mine.attempt, mine.failed) > (view.status.attempt, view.status.failed)
        ):
            # Our own write is still on its way: by the older status the same failure would be counted twice.
            view = msgspec.structs.replace(view, status=mine)
        claimed = tuple(job.claims) if job is not None else ()
        if moved:
            claimed = (*claimed, *moved)
            state.look.add(key)
            state.look_event.set()
        found = assess(
            view,
            pods,
            claimed=claimed,
            ended=state.pending.ended,
            now=trainingjobs.when(self._clock.wall()),
            known=state.view.known,
            refusal=job.refusal if job is not None else "",
        )
        if job is not None:
            job.refusal = ""
        for pod in found.doomed:
            self._doomed[pod.uid] = pod
        if found.doomed:
            state.look_event.set()
        if found.status.phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.REJECTED):
            self._end(view, job, found)
            return
        partition = partition_of(key, self._partitions)
        if job is None:
            job = Job(head=found.head, partition=partition, since=self._clock.monotonic())
            state.pending.jobs[key] = job
        if found.status.attempt != view.status.attempt:
            job.evictions = job.refusals = 0
            self._teller.say(told(job, Phase.PENDING, reason=found.status.reason, message=found.status.message))
        self._status[key] = view.status
        self._place(job, found)
        if found.status != view.status and (found.status.attempt != view.status.attempt or not job.tasks):
            self._write(job, found.status)

    def _place(self, job: Job, found: Assessment) -> None:
        state = self._state
        kept = {t: task for t, task in job.tasks.items() if t in job.claims}
        wanted = {t.id: t for t in found.tasks}
        dropped = [t for t in job.tasks if t not in kept and t not in wanted]
        state.pending.ended.add(dropped)
        head = found.head
        if job.head.tenant and job.head.uid == head.uid:
            head = msgspec.structs.replace(head, tenant=job.head.tenant, queue=job.head.queue)
        changed = (
            job.tasks.keys() != kept.keys() | wanted.keys()
            or job.head.attempt != head.attempt
            or job.bound != found.held
        )
        job.head, job.tasks, job.bound = head, {**kept, **wanted}, found.held
        if changed and wanted:
            state.poke(job)

    def _end(self, view: TrainingJobView, job: Job | None, found: Assessment) -> None:
        state, key, status = self._state, view.key, found.status
        fresh = not view.ended
        if job is None:
            job = Job(head=found.head, partition=partition_of(key, self._partitions), since=self._clock.monotonic())
        state.forget(key)
        if fresh and self._status.get(key) != status:
            self._write(job, status)
            job.bound = found.held
            self._teller.say(told(job, status.phase, reason=status.reason, message=status.message))
        elif not fresh:
            self._status.pop(key, None)  # the object itself says it: nothing is left to be remembered
        ttl = view.spec.ttl_seconds_after_finished
        if ttl is not None:
            at = ttl + (_seconds(status.completion_time) or self._clock.wall())
            if view.uid not in self._to_leave:
                self._to_leave.add(view.uid)
                heapq.heappush(self._leaving, (at, view.namespace, view.name, view.uid))
                state.look_event.set()

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever: look at jobs and gangs whose pods ended, delete what is to go."""
        state = self._state
        pause = Backoff(0.2, 5.0)
        while True:
            state.look_event.clear()
            try:
                await self._turn()
                pause.reset()
            except ReadFailed as error:
                log.warning("job objects could not be served", error=str(error), tries=pause.tries)
                await self._clock.sleep(pause.next())
                continue
            wait = self._leaving[0][0] - self._clock.wall() if self._leaving else None
            if await comes(state.look_event, None if wait is None else min(max(wait, 0.05), 60.0)):
                await self._clock.sleep(_GATHER_S)  # a gang's pods end together: one look serves them all

    async def _turn(self) -> None:
        """Raises ReadFailed where something failed, after all else was tried."""
        failed = await _at_once(list(self._doomed), self._delete_pod)
        failed += await _at_once(list(self._state.look), self._look_once)
        while self._leaving and self._leaving[0][0] <= self._clock.wall():
            _, namespace, name, uid = heapq.heappop(self._leaving)
            self._due[uid] = (namespace, name)
        failed += await _at_once(list(self._due), self._delete_object)
        if failed:
            raise failed[0]

    async def _delete_pod(self, uid: str) -> None:
        pod = self._doomed[uid]
        answer = await writes.delete_pod(self._kube, pod.namespace, pod.name, uid)
        if classify(answer) in (Outcome.UNSURE, Outcome.THROTTLED):
            raise ReadFailed(pod.name, answer)
        del self._doomed[uid]

    async def _delete_object(self, uid: str) -> None:
        namespace, name = self._due[uid]
        answer = await writes.delete_trainingjob(self._kube, namespace, name, uid)
        if classify(answer) in (Outcome.UNSURE, Outcome.THROTTLED):
            raise ReadFailed(name, answer)
        del self._due[uid]
        self._to_leave.discard(uid)

    async def _look_once(self, key: str) -> None:
        # Taken out before: what happens to the job while we read calls for another look.
        self._state.look.discard(key)
        try:
            await self._look(key)
        except BaseException:
            self._state.look.add(key)
            raise

    async def _look(self, key: str) -> None:
        kind, namespace, name = key.split("/", 2)
        if partition_of(key, self._partitions) not in self._state.active:
            return  # its owner looks, or we do when we have taken it
        if kind != "job":
            await self._look_at_gang(key, namespace)
            return
        stamp = self._state.pending.stamp
        answer = await writes.get_trainingjob(self._kube, namespace, name)
        if answer.status == 404:
            self.cancelled(key)
            return
        if not answer.ok:
            raise ReadFailed(key, answer)
        view = next(read_each(trainingjobs.parse, (answer.body,)), None)
        if view is None:
            return
        if view.deleting:
            self.cancelled(key)
            return
        listed = await writes.list_all(self._kube, writes.pods_path(namespace), label_selector=f"{keys.JOB}={name}")
        found = read_each(parse_pod, listed.items)
        pods = [p for p in found if p.training_job is not None and p.training_job.uid == view.uid]
        if partition_of(key, self._partitions) in self._state.active:
            self._apply(view, pods, self._state.pending.moved_since(stamp).get(view.uid, ()))

    async def _look_at_gang(self, key: str, namespace: str) -> None:
        """A gang of pods without an object: all that is asked is which of its members ended well."""
        if key not in self._state.pending.jobs:
            return
        done = await read_done(self._kube, namespace, (key,))
        job = self._state.pending.jobs.get(key)
        if job is not None and not job.head.uid:
            self._state.ended_well(job, done[key])

    # -- status -------------------------------------------------------------------------------------------------------

    def _known(self, job: Job) -> TrainingJobStatus:
        return self._status.get(job.head.key) or TrainingJobStatus(attempt=job.head.attempt)

    def _write(self, job: Job, status: TrainingJobStatus, haste: Haste = Haste.STARTED) -> None:
        key = job.head.key
        if self._status.get(key) == status:
            return
        self._status[key] = status
        _, namespace, name = key.split("/", 2)
        self._teller.write(ObjectWords(namespace, name, job.head.uid, status, haste, job.head.queue))


async def _at_once(items: Collection[str], call: Callable[[str], Awaitable[None]]) -> list[ReadFailed]:
    """`call` each, a few at a time. Returns what failed; after a few failures the API server is away, and no more are
    begun."""
    left, failed = iter(items), list[ReadFailed]()

    async def some() -> None:
        for item in left:
            try:
                await call(item)
            except ReadFailed as error:
                failed.append(error)
            if len(failed) >= WIDTH:
                return

    async with asyncio.TaskGroup() as tasks:
        for number in range(min(WIDTH, len(items))):
            tasks.create_task(some(), name=f"job objects {number}")
    return failed


def _seconds(text: str | None) -> float | None:
    """Seconds since the epoch of an RFC 3339 time."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
