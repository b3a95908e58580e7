"""The engine that services, embedded mode and simulator share: facts in, decisions out.

Guarantees, for any input: no capacity or limit of the snapshot is exceeded by what is decided, tentative decisions
included; a gang's minimum is placed together or not at all; victims are of lower priority, sufficient, and none of them
is superfluous; the same facts and jobs give the same decisions, in whatever order the facts came.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import inf
from typing import Final

from libs.domain.jobs import JobHead, Task
from libs.domain.nodes import Node
from libs.domain.queues import Queue, QueueHistory
from libs.domain.resources import WHOLE
from libs.domain.usage import NodeUse, QueueUse
from libs.domain.volumes import Claim
from libs.engine.actions import ACTIONS
from libs.engine.actions.owed import owed
from libs.engine.actions.recall import borrows
from libs.engine.actions.rights import by_models
from libs.engine.api import Borrowing, Decision, EngineConfig, PendingJob, Placement, Reserved, RunningTask
from libs.engine.ask import ask_key
from libs.engine.capacity import Capacity
from libs.engine.consolidate.plan import Limits
from libs.engine.fair import NO_MODELS, Line, Place, Shares, amounts_of, asked, everything, models_of
from libs.engine.fair.runs import Basis
from libs.engine.filters import CODES
from libs.engine.mix import MixState
from libs.engine.reserve import backfill, in_turn, reserve
from libs.engine.session import Session
from libs.engine.topology.evicting import act
from libs.engine.topology.parts import demanding
from libs.engine.whatif import WhatIf, said, what_if

#: What looking for moves may take where a service answers beside its work.
_ASIDE: Final = Limits(work=3_000, search_work=1_000)


class PlacementEngine:
    def __init__(self, config: EngineConfig | None = None) -> None:
        self._session = Session(config or EngineConfig())
        self._capacity = Capacity(self._session.snapshot)

    # -- facts ------------------------------------------------------------------------------------------------------
    def node_seen(self, node: Node) -> None:
        if self._session.snapshot.node_seen(node):
            self._session.row_replaced(self._session.snapshot.rows[node.name])

    def node_gone(self, name: str) -> None:
        row = self._session.snapshot.rows.get(name)
        if row is not None:
            self._session.snapshot.node_gone(name)
            self._session.row_gone(row)

    def use_seen(self, use: NodeUse) -> bool:
        return self._session.use_seen(use)

    def queue_seen(self, queue: Queue) -> None:
        self._session.queues.queue_seen(queue)

    def queue_gone(self, path: str) -> None:
        self._session.queues.queue_gone(path)

    def queue_use_seen(self, use: QueueUse) -> None:
        self._session.queues.use_seen(use)

    def queue_history_seen(self, history: QueueHistory) -> None:
        self._session.queues.history_seen(history)
        if history.recent:
            self._session.running.told(history.recent)
        self._session.service.changed()

    def pod_seen(self, task: RunningTask) -> None:
        self._session.running.seen(task)
        if task.task:
            self._session.book.forget(task.task)
        self._session.book.seen(task)

    def pod_gone(self, uid: str) -> None:
        task = self._session.running.by_uid.get(uid)
        if task is not None and self._session.running.stays(task):
            self._session.runs.ended(task, self._session.now)
        self._session.running.gone(uid)
        self._session.book.gone(uid)

    def namespace_seen(self, name: str, labels: Mapping[str, str]) -> None:
        self._session.book.namespace_seen(name, labels)

    def namespace_gone(self, name: str) -> None:
        self._session.book.namespace_gone(name)

    def claim_seen(self, claim: Claim) -> None:
        self._session.book.claim_seen(claim)

    def claim_gone(self, namespace: str, name: str) -> None:
        self._session.book.claim_gone(namespace, name)

    def volume_limits(self, node: str, limits: Mapping[str, int]) -> None:
        self._session.book.volume_limits(node, limits)

    def assume(self, task: Task, node: str) -> None:
        self._session.assume(task, node)

    def assumed(self) -> frozenset[str]:
        return frozenset(self._session.book.assumed)

    def forget(self, task: str) -> None:
        self._session.book.forget(task)

    def begin_at(self, share: float) -> None:
        self._session.snapshot.begin_at(share)

    # -- decisions --------------------------------------------------------------------------------------------------
    def decide(self, jobs: list[PendingJob], now: float = 0.0) -> list[Decision]:
        """Decisions stand in the order of `jobs`; they are made in the order of the line over the queues."""
        self._session.begin(now)
        for job in jobs:
            for task in job.tasks:
                self._session.book.forget(task.id)  # to be placed again: what it was assumed to hold has ended
        decisions: dict[int, Decision] = {}
        for at in self._in_line(jobs, decisions):
            decisions[at] = self._decide(jobs[at])
            if self._session.declares:
                self._session.precisions.learn(jobs[at])
            self._session.mix.learn(jobs[at])  # what comes later is decided by what came before
        return [decisions[at] for at in range(len(jobs))]

    def _in_line(self, jobs: list[PendingJob], decisions: Mapping[int, Decision]) -> Iterator[int]:
        """Whose turn it is, one after the other; what was decided counts as used by then."""
        now, service = self._session.now, self._session.service
        places = [service.place(job.head, now, self._gpus(job)) for job in jobs]
        if len({job.head.queue for job in jobs}) < 2 or self._session.queues.shares.silent:
            yield from sorted(range(len(jobs)), key=places.__getitem__)
            return
        line: Line[int] = Line(self.shares)
        for at, job in enumerate(jobs):
            line.put(at, job.head.queue, places[at], asked(job.head, job.tasks, job.held),
                     models_of(job.head, job.tasks, job.held))  # fmt: skip
        told_apart = bool(self._session.queues.shares.models)
        while (entry := line.next()) is not None:
            yield entry.key
            for placement in decisions[entry.key].placements:
                models = by_models(self._session, (placement,)) if told_apart else NO_MODELS
                line.charge(entry.path, amounts_of(placement.charge), models)

    def _gpus(self, job: PendingJob) -> float:
        """All that it asks for, where that may matter."""
        if self._session.now - job.head.created < self._session.config.overdue_s:
            return 0.0
        return everything(job.tasks)[0] / WHOLE

    def place(self, head: JobHead, now: float, gpus: float = 0.0) -> Place:
        return self._session.service.place(head, now, gpus)

    def line_seen(self, gpus: float, waits: Callable[[str], bool], now: float) -> set[str]:
        service = self._session.service
        service.waiting = gpus
        service.keep(waits)
        service.review(now)
        moved, service.moved = service.moved, set()
        return moved

    def turns(self, head: JobHead, now: float) -> float:
        """In how many seconds a job that waits will have waited too long; not above 0 where it has."""
        return self._session.service.turns(head, now)

    @property
    def shares(self) -> Shares:
        session = self._session
        shares = session.queues.shares
        shares.now = session.now
        shares.total_seen(session.snapshot.total())
        if shares.models:
            shares.models_seen(self._capacity.by_model(shares.models))
        return shares

    def _decide(self, job: PendingJob) -> Decision:
        decision: Decision | None = None
        session, confined = self._session, False
        for action in ACTIONS:
            decision = act(session, job, action, decision) if confined else action(session, job, decision)
            if decision.placements or not (session.running.by_uid or job.evicting):
                break  # nobody is there who could yield or move
            if action is ACTIONS[0]:
                confined = demanding(job.tasks)
        if decision is None:
            raise AssertionError("there are no actions")
        return decision

    def settle(self) -> None:
        self._session.settle()

    def abandon(self) -> None:
        """After any other call raised: what it left half done is undone, with all that was taken since `settle`."""
        self._session.abandon()

    def reserve(self, job: PendingJob, now: float) -> Reserved | None:
        self._session.begin(now)
        return reserve(self._session, job)

    def in_turn(self, jobs: Sequence[PendingJob], now: float) -> list[Reserved | None]:
        self._session.begin(now)
        return in_turn(self._session, jobs)

    def backfill(self, job: PendingJob, lenders: Sequence[str], now: float) -> tuple[Placement, ...]:
        self._session.now = now
        return backfill(self._session, job, lenders)

    def borrows(self, job: PendingJob, now: float) -> Borrowing | None:
        self._session.now = now
        return borrows(self._session, job)

    def longest_left(self, now: float, *, gpus: bool = True, declared: bool = False) -> float | None:
        runs, longest = self._session.runs, 0.0
        for task in self._session.running.by_uid.values():
            if task.charge.gpus or not gpus:
                end = runs.end_of(task, now)
                if end.high == inf or (declared and end.basis is not Basis.DECLARED):
                    return None
                longest = max(longest, end.high - now)
        return longest

    def owed(self, jobs: Sequence[PendingJob], now: float) -> str:
        self._session.begin(now)
        return owed(self._session, jobs)

    def kept(self) -> Mapping[str, frozenset[str]]:
        return {key: frozenset(names) for key, names in self._session.snapshot.earmarks.items() if names}

    def scope_of(self, task: Task) -> Hashable:
        session = self._session
        scope = ask_key(task, session.book.speaking_of(task))[3]
        return scope if task.topology is None else (scope, task.topology)

    def takers(self, task: Task) -> frozenset[str]:
        """Names of the nodes that would take the task now."""
        session = self._session
        session.begin()
        view = session.feasible(task)
        states = session.snapshot.states
        return frozenset(s.name for row, s in enumerate(states) if s is not None and view.fits(row))

    def why(self, task: Task) -> dict[str, str]:
        """The first reason of each node that would not take the task now."""
        session = self._session
        session.begin()
        codes = session.feasible(task).codes_now().tolist()
        return {s.name: str(CODES[codes[row]]) for row, s in enumerate(session.snapshot.states) if s and codes[row] > 0}

    def keeps(self, workload: str) -> bool:
        return bool(self._session.keeping.of(workload))

    def what_if(self, job: PendingJob, now: float = 0.0) -> WhatIf:
        """What would change the answer for a job that waits. Between passes only: it ends with `settle`."""
        return what_if(self._session, job, now)

    def helps(self, job: PendingJob, now: float = 0.0) -> tuple[str, ...]:
        return said(what_if(self._session, job, now, _ASIDE))

    # -- what was learned --------------------------------------------------------------------------------------------
    def learned(self, slot: int = 0) -> MixState:
        """One slot of what was learned, to be kept over a restart or given to another replica."""
        return self._session.mix.state(slot)._replace(demand=self._session.precisions.state(slot))

    def counted(self, slot: int = 0) -> int:
        """How many tasks that slot has seen, in its life."""
        return self._session.mix.counted(slot)

    def recall(self, state: MixState, slot: int = 0) -> None:
        """Take over a slot that was kept, in place of what the slot has."""
        self._session.mix.restore(state, slot)
        self._session.precisions.restore(state.demand, slot, state.until)

    # -- inspection -------------------------------------------------------------------------------------------------
    def free_room(self) -> dict[str, tuple[int, int, int, tuple[tuple[int, int], ...]]]:
        """CPU, memory, pods and (milli, MiB) per device that are free on each node, tentative decisions deducted."""
        states = sorted((s for s in self._session.snapshot.states if s is not None), key=lambda s: s.name)
        return {s.name: (s.cpu, s.mem, s.pods, tuple(zip(s.milli, s.mib, strict=True))) for s in states}

    def queue_room(self) -> dict[str, tuple[int, int, int]]:
        """Milli GPUs, milli CPU and MiB used per queue, tentative decisions included."""
        return self._session.queues.truth()
