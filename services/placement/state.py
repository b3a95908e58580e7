"""What the parts of placement share: the pending set, who waits, the view, the tenures; and the moves between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from libs.contracts.events import PodFact
from libs.domain.plans import EvictionPlan, Plan
from libs.domain.verdicts import Wake
from libs.engine.api import Start
from libs.engine.loans import Loans
from services.placement.decide import Tenure
from services.placement.jobs import Claim, Evicting, Gathering, Job, Pending
from services.placement.view import View
from services.placement.wake import Waiting

#: How long a pod that others have marked is passed over before it is tried again.
FOREIGN_MARK_S: Final = 30.0
#: Something is being placed as long as the last claim is no older, seconds.
BUSY_S: Final = 1.0


@dataclass(slots=True)
class Return:
    """Claims and earmarks that a job no longer wants."""

    job: str
    generation: int
    ids: tuple[str, ...]


@dataclass(slots=True)
class State:
    """`active` partitions are taken and listed: their jobs are decided. `victims` leads from a victim's uid to the job
    it makes room for; `awaited` from a node to the jobs that wait for victims on it. A victim is marked in the view as
    long as it is expected to leave, so that no other job chooses it; `foreign` are those that other replicas marked, as
    a refusal told, with the time of it."""

    view: View
    pending: Pending = field(default_factory=Pending)
    waiting: Waiting = field(default_factory=Waiting)
    tenures: dict[int, Tenure] = field(default_factory=dict)
    active: set[int] = field(default_factory=set)
    victims: dict[str, str] = field(default_factory=dict)
    awaited: dict[str, set[str]] = field(default_factory=dict)
    foreign: dict[str, float] = field(default_factory=dict)
    #: Queue -> the job of ours for which room is kept.
    gatherers: dict[str, str] = field(default_factory=dict)
    #: What is to be given back to the ledger, and a sign that there is something.
    returns: list[Return] = field(default_factory=list)
    returns_event: asyncio.Event = field(default_factory=asyncio.Event)
    #: Gangs anywhere of which fewer tasks run than must hold together: key -> the fact last seen of one of them.
    short: dict[str, PodFact] = field(default_factory=dict)
    #: Whether used room was read in full; cleared to have it read again.
    uses_ready: asyncio.Event = field(default_factory=asyncio.Event)
    #: Set whenever there may be something to decide.
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    #: Jobs of TrainingJob objects, and gangs that wait, one of whose pods ended: the controller looks.
    look: set[str] = field(default_factory=set)
    look_event: asyncio.Event = field(default_factory=asyncio.Event)
    #: When something was placed last (monotonic).
    claimed_at: float = float("-inf")
    #: Called with a job and how many of its tasks were just found bound.
    on_bound: Callable[[Job, int], None] = lambda _job, _count: None

    def __post_init__(self) -> None:
        self.pending.marked = self.view.marked
        self.view.on_pod = self._pod
        self.view.on_freed = self._freed
        self.view.on_queue_use = self.pending.line_moved
        self.pending.stands = lambda head, now, gpus: self.view.engine.place(head, now, gpus)
        self.waiting.place = self.pending.place

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def poke(self, job: Job) -> None:
        """This very job is to be decided, whatever its look-alikes wait for."""
        self.waiting.wake_one(job.head.key)
        self.pending.dirty(job)
        self.wake.set()

    def forget(self, key: str) -> Job | None:
        """The job is no more: what the ledger keeps for it is given back."""
        job = self.pending.remove(key)
        self.waiting.leave(key)
        if job is not None:
            self.stop_evicting(job)
            self.stop_gathering(job)
            self.give_back(job, claims=True)
        return job

    def lose(self, partition: int) -> None:
        """The partition is somebody else's: nothing of it is decided here from now on."""
        self.active.discard(partition)
        self.tenures.pop(partition, None)
        for job in self.pending.drop_partition(partition):
            self.waiting.leave(job.head.key)
            self.stop_gathering(job)
            if job.evicting is not None:
                # The next owner waits for these victims. That they are marked still holds, as far as we know.
                self.foreign.update(dict.fromkeys(job.evicting.victims, job.evicting.since))
                self._await_none(job)

    def idle(self, job: Job) -> None:
        """Some of the job's tasks were bound or ended: forget it if nothing is left to do."""
        if not job.tasks:
            self.waiting.leave(job.head.key)
            job.verdict = None
            if not job.claims:
                # Nobody is left whom the leaving victims could help: their room is everybody's, at once.
                self.stop_evicting(job)
                self.stop_gathering(job)
                self.give_back(job)
        if self.pending.drop_if_idle(job):
            self.waiting.leave(job.head.key)

    def bound(self, job: Job, tasks: Iterable[str]) -> None:
        """Tasks of the job are bound, as the binder reports or as their pods show; what comes second is nothing new."""
        fresh = [task for task in tasks if task in job.tasks or task in job.claims]
        unsure = self.pending.unsure(job)
        self.pending.take_bound(job, fresh)
        if fresh:
            job.failures = job.refusals = job.evictions = 0
            self.on_bound(job, len(fresh))
        if unsure and job.waiting and not self.pending.unsure(job):
            self.poke(job)
        self.idle(job)

    def forget_assumed(self) -> None:
        """What rules of other pods saw for claims that have ended, whichever way, is forgotten."""
        claimed = {task for job in self.pending.jobs.values() for task in job.claims}
        self.not_placed(self.view.engine.assumed() - claimed)

    def not_placed(self, tasks: Iterable[str]) -> None:
        """These hold nothing after all: whom they kept away, or held in balance, may be placed."""
        engine = self.view.engine
        assumed = engine.assumed().intersection(tasks)
        for task in assumed:
            engine.forget(task)
        if assumed:
            self.view.news.kinds.add(Wake.PODS_CHANGED)
            self.wake.set()

    def ended(self, job: Job) -> None:
        """A pod of a TrainingJob ended, or one of its tasks can no longer be: its controller looks at the truth. The
        same for a gang of pods whose others wait and are too few by themselves: it may have ended well."""
        head = job.head
        if not head.uid:
            if head.gang_min <= 1:
                return
            job.doubt = True
            if not job.waiting or self.pending.held(job) >= head.gang_min:
                return
        self.look.add(head.key)
        self.look_event.set()

    def ended_well(self, job: Job, tasks: Iterable[str]) -> None:
        """Members of a gang whose pods are listed as ended well, all of them: they count towards its minimum."""
        before, job.done, job.doubt = job.done, set(tasks), False
        fact = self.short.get(job.head.key)
        if fact is not None:
            self._shortness(job.head.key, fact)
        if before != job.done and job.waiting:
            self.poke(job)

    # -- claims and evictions -----------------------------------------------------------------------------------------

    def claimed(self, job: Job, plan: Plan, claims: Iterable[str], now: float) -> None:
        names = frozenset(claims)
        self.claimed_at = now
        for a in plan.assignments:
            if a.claim in names:
                job.claims[a.task] = Claim(a.claim, now)
                if a.task in job.tasks:
                    self.view.engine.assume(job.tasks[a.task], a.node)

    def evicting(self, job: Job, plan: EvictionPlan, now: float) -> None:
        victims = {v.uid: v.node for v in plan.victims if v.uid in self.view.pods}
        job.earmarks.update(a.claim for a in plan.assignments)
        before = job.evicting.victims if job.evicting is not None else {}
        job.evicting = Evicting(plan.id, {**before, **victims}, now, plan.rule)
        for uid, node in victims.items():
            self.victims[uid] = job.head.key
            self.awaited.setdefault(node, set()).add(job.head.key)
            self.foreign.pop(uid, None)
        self.view.mark(victims)

    def release_victims(self, job: Job, uids: Iterable[str]) -> None:
        """These stay after all; the others are still waited for."""
        if job.evicting is None:
            return
        uids = tuple(uids)
        self._unmark(uids)
        for uid in uids:
            self.victims.pop(uid, None)
            node = job.evicting.victims.pop(uid, None)
            if node is not None and node not in job.evicting.victims.values():
                self._unawait(node, job.head.key)
        if not job.evicting.victims:
            job.evicting = None

    def stop_evicting(self, job: Job) -> None:
        """Nothing is waited for any more; who has not left stays, and may be chosen by others."""
        if job.evicting is None:
            return
        self._unmark(job.evicting.victims)
        self._await_none(job)

    # -- reservations -------------------------------------------------------------------------------------------------

    def gather(self, job: Job, plan: EvictionPlan, start: Start, now: float) -> None:
        """Room is kept for the job from now on; whoever of its queue had a reservation here has none any more."""
        before = self.pending.jobs.get(self.gatherers.get(job.head.queue, ""))
        if before is not None:
            self.stop_gathering(before)
        ids, nodes = frozenset(a.claim for a in plan.assignments), frozenset(a.node for a in plan.assignments)
        charges = tuple((a.node, a.charge) for a in plan.assignments)
        job.gathering = Gathering(plan.id, ids, nodes, now + plan.gather_s, start, charges, plan.since)
        loans = self.pending.loans.setdefault(job.head.queue, Loans())
        loans.end(self.pending.wall())
        if plan.since:
            loans.keep(charges, plan.since)
        job.earmarks |= ids
        self.gatherers[job.head.queue] = job.head.key
        for node in nodes:
            self.awaited.setdefault(node, set()).add(job.head.key)

    def stop_gathering(self, job: Job) -> None:
        """The reservation is over in the ledger, or will be at its deadline or when its earmarks are given back."""
        gathering, job.gathering = job.gathering, None
        if gathering is None:
            return
        self.pending.loans[job.head.queue].end(self.pending.wall())
        if self.gatherers.get(job.head.queue) == job.head.key:
            del self.gatherers[job.head.queue]
        waits_on = set(job.evicting.victims.values()) if job.evicting is not None else set()
        for node in gathering.nodes - waits_on:
            self._unawait(node, job.head.key)

    def keep_none(self, job: Job) -> None:
        """Room that was kept for the job is everybody's again."""
        self.stop_gathering(job)
        self.give_back(job)

    def give_back(self, job: Job, *, claims: bool = False) -> None:
        """Its earmarks are dropped, with `claims` also what is not written yet. What is used or over is no matter."""
        ids = tuple(sorted(job.earmarks)) + (tuple(c.id for c in job.claims.values()) if claims else ())
        job.earmarks.clear()
        tenure = self.tenures.get(job.partition)
        if ids and tenure is not None:
            self.returns.append(Return(job.head.key, tenure.generation, ids))
            self.returns_event.set()

    def give_up(self, job: str, generation: int, ids: Iterable[str]) -> None:
        """These were taken for a job that is gone."""
        ids = tuple(ids)
        if ids:
            self.returns.append(Return(job, generation, ids))
            self.returns_event.set()

    def marked_by_others(self, uids: Iterable[str], now: float) -> None:
        """The ledger refused these victims: they make room for somebody else, or have just left."""
        fresh = [uid for uid in uids if uid not in self.victims]
        self.foreign.update(dict.fromkeys(fresh, now))
        self.view.mark(fresh)

    def forget_foreign_marks(self, now: float) -> None:
        """Whether others' marks still hold is not told to us: after a while they are tried again."""
        old = [uid for uid, at in self.foreign.items() if now - at > FOREIGN_MARK_S]
        for uid in old:
            del self.foreign[uid]
        self._unmark(old)

    def _unmark(self, uids: Collection[str]) -> None:
        """They stay after all: a gang that waits for others counts on them again."""
        self.view.unmark(uids)
        for uid in uids:
            fact = self.view.pods.get(uid)
            job = self.pending.jobs.get(fact.job) if fact is not None and fact.gang_min > 1 else None
            if job is not None and job.waiting:
                self.poke(job)

    def _await_none(self, job: Job) -> None:
        if job.evicting is None:
            return
        for uid, node in job.evicting.victims.items():
            self.victims.pop(uid, None)
            self._unawait(node, job.head.key)
        job.evicting = None

    def _unawait(self, node: str, key: str) -> None:
        keys = self.awaited.get(node)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self.awaited[node]

    # -- what the view sees -------------------------------------------------------------------------------------------

    def _pod(self, fact: PodFact, holds: bool) -> None:
        key = fact.job
        if key and fact.ours:
            task = f"{fact.job_uid}/{fact.task}" if fact.task and fact.job_uid else fact.uid
            job = self.pending.jobs.get(key)
            if fact.gang_min > 1 or fact.job_uid:
                self._count(key, task, holds and not fact.terminating, fact)
            if job is not None:
                if holds and (task in job.tasks or task in job.claims):
                    # Seen bound: what the outcome says too, or would have said if it had not been lost.
                    self.bound(job, (task,))
                if not holds or (fact.terminating and not fact.job_uid):
                    # Who leaves holds his room still, but a gang is not completed with him.
                    job.bound.discard(task)
                    self.ended(job)
        if not holds:
            self._left(fact.uid)
            self._freed(fact.node)  # the ledger may have told of the room before it was known whose that was

    def _count(self, key: str, task: str, holds: bool, fact: PodFact) -> None:
        running = self.pending.running
        tasks = running.setdefault(key, set())
        (tasks.add if holds else tasks.discard)(task)
        self._shortness(key, fact)
        if not tasks:
            del running[key]

    def _shortness(self, key: str, fact: PodFact) -> None:
        tasks = self.pending.running.get(key, set())
        job = self.pending.jobs.get(key)
        together = len(tasks | job.done) if job is not None and job.done else len(tasks)
        if tasks and together < fact.gang_min:
            self.short[key] = fact
        else:
            self.short.pop(key, None)

    def _left(self, uid: str) -> None:
        self.foreign.pop(uid, None)
        key = self.victims.pop(uid, None)
        job = self.pending.jobs.get(key) if key is not None else None
        if job is None or job.evicting is None:
            return
        node = job.evicting.victims.pop(uid, None)
        if node is not None and node not in job.evicting.victims.values():
            self._unawait(node, job.head.key)
        if not job.evicting.victims:
            job.evicting = None
            job.settling, job.not_before = True, 0.0
        self.poke(job)

    def _freed(self, node: str) -> None:
        """Room came free on a node: whoever waits for a victim there may find its earmark filled."""
        for key in list(self.awaited.get(node, ())):
            job = self.pending.jobs.get(key)
            if job is not None:
                self.poke(job)
