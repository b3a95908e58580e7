"""The pending set: what waits in the partitions that this replica owns. Re-derivable, so nothing here is ever saved.

Hints arrive late, twice and out of order. The rules that make that harmless: a task is merged by id, the higher version
wins; a task that was bound or has ended is remembered for a while and never comes back; a claim is held beside its
task, so a refused write finds everything needed to decide again. Pure: time is handed in, nothing is awaited.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec

from libs.contracts.events import JobChanged
from libs.domain.jobs import JobHead, Task, opens
from libs.domain.nodes import newer
from libs.domain.resources import WHOLE, Charge
from libs.domain.verdicts import Verdict
from libs.engine.api import PendingJob, Start
from libs.engine.fair import NOTHING, Line, Place, Shares, asked, everything, models_of, place
from libs.engine.loans import Loans
from libs.engine.recent import Recent
from libs.kube.trainingjobs import task_of
from services.placement.attention import SLICES, Attention

#: How many ended or bound task ids are remembered at the least. At 1,000 pods/s this is a minute, two slow passes; a
#: hint or a list that is older than that is caught by the ledger (tombstones, held tasks).
REMEMBERED: Final = 60_000
#: Tasks of job objects that moved lately. A list takes seconds.
_MOVED: Final = 65_536
#: Gangs that are remembered when they are forgotten.
_GANGS: Final = 16_384

Order = tuple[int, float, str]


@dataclass(slots=True)
class Claim:
    id: str
    at: float  # monotonic, when it was committed


@dataclass(slots=True)
class Evicting:
    """Victims that have not left yet, by uid -> node."""

    plan: str
    victims: dict[str, str]
    since: float
    rule: str = ""


@dataclass(slots=True)
class Gathering:
    """Room that is kept for the job as it comes free: earmarks `ids` on `nodes`, `until` (monotonic) at most. `charges`
    by node; `since`: seconds since the epoch, 0 where nobody knows."""

    plan: str
    ids: frozenset[str]
    nodes: frozenset[str]
    until: float
    start: Start
    charges: tuple[tuple[str, Charge], ...] = ()
    since: float = 0.0


@dataclass(slots=True, eq=False)
class Job:
    """One job with tasks that are not bound yet. `claims` is a part of `tasks`: decided, not seen bound."""

    head: JobHead
    partition: int
    since: float
    tasks: dict[str, Task] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    #: Members that ended well, as last listed: they did their part. Forgotten when their pods are deleted.
    done: set[str] = field(default_factory=set)
    #: A member of a gang holds no room any more, and how it ended is not known here.
    doubt: bool = False
    evicting: Evicting | None = None
    gathering: Gathering | None = None
    #: Reservations that ran out for it.
    turns: int = 0
    #: Ids of earmarks that the ledger may still keep for this job; they outlive the leaving of its victims.
    earmarks: set[str] = field(default_factory=set)
    verdict: Verdict | None = None
    refusals: int = 0  # by the ledger, in a row
    failures: int = 0  # by the API server, in a row
    #: The API server's sentence about a pod of its template that it will refuse again: this attempt has failed.
    refusal: str = ""
    evictions: int = 0  # decided for this job, in a row without a start
    not_before: float = 0.0
    reminder: float = 0.0
    #: Its last victim has just left: the ledger's word that their room is here is on its way (until `settles_at`).
    settling: bool = False
    settles_at: float = 0.0
    seen: str = ""
    never_since: float = 0.0
    #: Has waited so long that it is the first of its queue.
    aged: bool = False
    cause: str = ""
    traceparent: str = ""
    #: What was last said, to say nothing twice: to the world, and on each waiting pod.
    told: str = ""
    told_at: float = float("-inf")
    conditions: dict[str, str] = field(default_factory=dict)
    conditions_at: float = float("-inf")

    @property
    def order(self) -> Order:
        """Higher priority first, then the older, then by name: the order of every queue here."""
        return -self.head.priority, self.head.created, self.head.key

    @property
    def waiting(self) -> tuple[Task, ...]:
        """Tasks without a claim."""
        if not self.claims:
            return tuple(self.tasks.values())
        return tuple(t for t in self.tasks.values() if t.id not in self.claims)


class Pending:
    """Jobs by key and by partition, which of them are dirty, and which wait for a time. Dirty ones stand in `line`,
    the line over the queues; `wall` tells the seconds since the epoch (0: unknown), by which jobs age."""

    def __init__(self, *, overdue_s: float = 129_600.0, attention: Attention | None = None) -> None:
        self.jobs: dict[str, Job] = {}
        self.ended = Recent(REMEMBERED)
        #: job key -> ids of its tasks that hold room and do not leave, from the facts about running pods. Gangs only.
        self.running: dict[str, set[str]] = {}
        #: uids of pods that make room for somebody: with members that are to go no gang is completed.
        self.marked: Set[str] = frozenset()
        #: What is on loan, by the queue for whose jobs room was kept here.
        self.loans: dict[str, Loans] = {}
        self.line: Line[str] = Line(Shares(lambda _: NOTHING))
        self.attention = attention or Attention()
        self.wall: Callable[[], float] = lambda: 0.0
        self.overdue_s = overdue_s
        self.stands: Callable[[JobHead, float, float], Place] = lambda head, now, _: place(head, now, overdue_s)
        self._closed: set[str] = set()
        self._timers: list[tuple[float, str]] = []
        #: Grows with each task of a job object that is bound or goes.
        self.stamp = 0
        self._moved: dict[str, int] = {}  # task -> stamp, the latest last
        #: Gangs that were here before: members of theirs may have ended well.
        self._gangs = Recent(_GANGS)

    # -- what arrives -------------------------------------------------------------------------------------------------

    def merge(self, change: JobChanged, partition: int, now: float) -> Job | None:
        """Take in a hint or a listed job. Returns the job where it has something new to decide."""
        head = change.head
        job = self.jobs.get(head.key)
        if change.gone or change.bound:
            self.ended.add(change.gone)
            self.ended.add(change.bound)
            if job is not None:
                self._settle(job, change.bound, change.gone)
        new = False
        ended = self.ended
        for task in change.tasks:
            if task.id in ended:
                continue
            if job is None:
                job = self.jobs[head.key] = Job(head=head, partition=partition, since=now)
                job.doubt = self._was_here(head)
            known = job.tasks.get(task.id)
            if known is not None and not newer(task.version, known.version):
                continue
            if task.id in job.bound:
                continue
            job.tasks[task.id] = task
            # A task whose claim is on its way is only remembered in its new version: the binder finds out.
            new = new or task.id not in job.claims
        if job is None:
            return None
        if change.tasks or change.deleted:
            if job.head is not head and job.head != head:
                merged = _merged(job.head, head, listed=not change.seen)
                new = new or job.head.attempt != head.attempt or job.head.gang_min != head.gang_min
                new = new or merged.barred != job.head.barred
                job.head = merged
            if change.seen and newer(change.seen, job.seen):
                job.seen = change.seen
            if new:
                job.cause = change.cause or job.cause
                job.traceparent = change.traceparent or job.traceparent or head.traceparent
        if new:
            job.failures = 0 if job.failures and not job.claims else job.failures
            self.dirty(job)
        elif change.bound or change.gone:
            self.drop_if_idle(job)
        return job if new else None

    def take_bound(self, job: Job, ids: Iterable[str]) -> None:
        ids = tuple(ids)
        self.ended.add(ids)
        self._settle(job, ids, ())

    def take_gone(self, job: Job, ids: Iterable[str]) -> None:
        ids = tuple(ids)
        self.ended.add(ids)
        self._settle(job, (), ids)

    def moved_since(self, stamp: int) -> dict[str, list[str]]:
        """Tasks of job objects that were bound or have gone since, by the object's uid: a list that began at this stamp
        may or may not have their pods."""
        found: dict[str, list[str]] = {}
        for task, at in reversed(self._moved.items()):
            if at <= stamp:
                break
            found.setdefault(task.partition("/")[0], []).append(task)
        return found

    def _settle(self, job: Job, bound: Iterable[str], gone: Iterable[str]) -> None:
        keeps = job.head.gang_min > 1 or bool(job.head.uid)
        for one in bound:
            if one not in job.bound:
                self._moves(one)
            job.tasks.pop(one, None)
            job.claims.pop(one, None)
            if keeps:
                job.bound.add(one)
        for one in gone:
            if one in job.tasks or one in job.claims or one in job.bound:
                self._moves(one)
            job.tasks.pop(one, None)
            job.claims.pop(one, None)
            job.bound.discard(one)
            job.done.discard(one)

    def _moves(self, task: str) -> None:
        if "/" not in task:
            return  # a pod of its own: the list says what becomes of it
        self.stamp += 1
        self._moved.pop(task, None)
        self._moved[task] = self.stamp
        if len(self._moved) > _MOVED:
            for old in list(islice(self._moved, _MOVED // 4)):
                del self._moved[old]

    def drop_if_idle(self, job: Job) -> bool:
        """Forget a job with nothing left to do. Gangs and TrainingJobs stay (their held tasks count) until the slow
        pass finds them idle."""
        if job.tasks or job.claims or job.evicting or job.earmarks or job.head.uid or job.head.gang_min > 1:
            return False
        self.remove(job.head.key)
        return True

    def remove(self, key: str) -> Job | None:
        self.line.discard(key)
        job = self.jobs.pop(key, None)
        if job is not None and job.head.gang_min > 1 and not job.head.uid:
            self._gangs.add((key,))
        return job

    def _was_here(self, head: JobHead) -> bool:
        """Whether it is a gang of pods that was forgotten when nothing of it waited any more."""
        return head.gang_min > 1 and not head.uid and head.key in self._gangs

    def drop_partition(self, partition: int) -> list[Job]:
        lost = [job for job in self.jobs.values() if job.partition == partition]
        for job in lost:
            self.remove(job.head.key)
        return lost

    def held(self, job: Job) -> int:
        """Tasks that count towards the gang's minimum already: bound, claimed, or ended well."""
        running = self.running.get(job.head.key)
        if not job.claims and not job.bound and not job.done and not running:
            return 0
        return len(self._held(job, running))

    def _held(self, job: Job, running: set[str] | None) -> set[str]:
        held = job.bound | job.claims.keys() | job.done
        if running:
            held |= running
        return held - self.marked if self.marked else held

    def unsure(self, job: Job) -> bool:
        """Whether a gang is whole only by claims that may yet come to nothing. What came back of it then waits to see
        what becomes of them: by itself it would be bound, and the others, come back too, might find no room."""
        least = job.head.gang_min
        return least > 1 and bool(job.claims) and self.held(job) - len(job.claims) < least

    # -- what is to be decided ----------------------------------------------------------------------------------------

    def dirty(self, job: Job) -> None:
        head = job.head
        if head.key not in self.line:
            ask = asked(head, job.waiting, self.held(job) if head.gang_min > 1 else 0)
            models = models_of(head, job.waiting, self.held(job) if head.gang_min > 1 else 0)
            self.line.put(head.key, head.queue, self.place(job), ask, models)

    def place(self, job: Job) -> Place:
        """Within its queue, as things stand."""
        now, head = self.wall(), job.head
        # What it asks for matters to who may turn out to be overdue, and to those who wait for as much: of a gang, that
        # is counted when it is decided.
        asks = len(job.tasks) == 1 or now - head.created >= self.overdue_s
        return self.stands(head, now, everything(job.waiting)[0] / WHOLE if asks else 0.0)

    def moved(self, job: Job) -> None:
        """Its place in line may be another one by now."""
        if job.head.key in self.line:
            self.line.discard(job.head.key)
            self.dirty(job)

    def line_moved(self, queue: str) -> None:
        """Another amount of the queue is used."""
        self.line.touched((queue,))

    def later(self, job: Job, at: float) -> None:
        """Not before `at` (monotonic)."""
        job.not_before = max(job.not_before, at)
        heapq.heappush(self._timers, (job.not_before, job.head.key))

    def remind(self, job: Job, at: float) -> None:
        """Dirty at `at` (monotonic) at the latest; earlier if anything happens."""
        if job.reminder < at:
            job.reminder = at
            heapq.heappush(self._timers, (at, job.head.key))

    def ripen(self, now: float) -> float | None:
        """Make jobs dirty whose time has come; returns when the next one's time comes."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            _, key = heapq.heappop(timers)
            job = self.jobs.get(key)
            if job is not None and job.not_before <= now:
                self.dirty(job)
        due = timers[0][0] if timers else None
        for queue in self._closed:
            opens = self.attention.opens(queue, now)
            due = opens if due is None else min(due, opens)
        return due

    @property
    def has_dirty(self) -> bool:
        """Whether somebody's turn has come."""
        return len(self.line) > 0 and self.line.head() is not None

    def take(self, limit: int, active: Iterable[int], now: float) -> list[Job]:
        """The first dirty jobs in line, of `active` partitions, with about `limit` tasks (one job may exceed it). Jobs
        that are not to be decided yet stay out: their timer, or the take-over of their partition, makes them dirty. Of
        a queue that spent its attention on hopeless jobs nothing is taken for now."""
        open_partitions = frozenset(active)
        taken: list[Job] = []
        of_queue: dict[str, int] = {}
        slices = SLICES
        room, line = limit, self.line
        line.settle()
        for queue in [q for q in self._closed if self.attention.opens(q, now) <= now]:
            self._closed.discard(queue)
            line.open(queue)
        while room > 0 and (entry := line.head()) is not None:
            job = self.jobs.get(entry.key)
            if job is None:
                line.discard(entry.key)
                continue
            tasks = job.waiting
            if taken and len(tasks) > room:
                break
            if not tasks or job.not_before > now or job.partition not in open_partitions:
                if job.not_before > now:
                    heapq.heappush(self._timers, (job.not_before, entry.key))
                line.discard(entry.key)
                continue
            queue = entry.path
            bounded = self.attention.bounded(queue)
            if of_queue.get(queue, 0) >= self.attention.most(queue, now, limit) or (bounded and not slices):
                self._closed.add(queue)
                line.close(queue)
                continue
            line.discard(entry.key)
            amounts = entry.ask if len(tasks) == 1 else everything(tasks)
            line.charge(queue, amounts, line.likely(amounts, entry.models))
            of_queue[queue] = of_queue.get(queue, 0) + 1
            slices -= bounded
            taken.append(job)
            room -= len(tasks)
        for queue in of_queue:
            self.attention.took(queue, now)
        return taken

    def of_partition(self, partition: int) -> Iterator[Job]:
        return (job for job in self.jobs.values() if job.partition == partition)

    def to_engine(self, job: Job, *, may_evict: bool) -> PendingJob:
        return PendingJob(
            head=job.head,
            tasks=job.waiting,
            held=self.held(job),
            evicting=job.evicting is not None,
            may_evict=may_evict,
            held_roles=self._held_roles(job) if job.head.role_min else {},
            holds=tuple(sorted(job.bound | job.claims.keys())) if job.bound or job.claims else (),
            kept=job.gathering.charges if job.gathering is not None else (),
            kept_until=job.gathering.start.low if job.gathering is not None else 0.0,
            lent=self.loans.get(job.head.queue),
        )

    def _held_roles(self, job: Job) -> dict[str, int]:
        """Held tasks by role. Only job objects have minima per role, and their task ids say the role."""
        counts: dict[str, int] = {}
        for one in self._held(job, self.running.get(job.head.key)):
            parts = task_of(one)
            if parts is not None:
                counts[parts[1]] = counts.get(parts[1], 0) + 1
        return counts


def _merged(known: JobHead, head: JobHead, listed: bool = False) -> JobHead:
    """The newer words, the older age: a gang is as old as its first pod, whichever pod the hint was about. A list may
    be older than the hint that took the bar away."""
    if head.attempt < known.attempt:
        return known
    if head.barred is not None and known.barred is None and (listed or not opens(known, head)):
        return known
    if head.attempt == known.attempt and 0 < known.created < head.created:
        return msgspec.structs.replace(head, created=known.created)
    return head
