"""What placement concludes, without doing anything: plans from placements, words from verdicts, what follows a refusal.

Everything here is a function of its arguments; random numbers are handed in.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from libs.contracts.events import JobStatus, Landed
from libs.domain.jobs import Phase, Task
from libs.domain.line import Turn
from libs.domain.nodes import newer
from libs.domain.plans import Assignment, EvictionPlan, Plan
from libs.domain.verdicts import FITS, Kind, Reason, Verdict, Wake
from libs.engine.api import Decision, Placement
from libs.store.port import Refusal
from services.placement.jobs import Job

# --- fences and ids --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tenure:
    """Our life as owner of one partition: what every plan of it is fenced by, and the next plan's number."""

    partition: int
    epoch: int
    generation: int
    seq: int = 0

    def next_id(self) -> str:
        """Unique for ever: a data set has one generation, an epoch in it one owner, an owner one sequence."""
        self.seq += 1
        return f"{self.generation}.{self.partition}.{self.epoch}.{self.seq}"


def plan_of(
    job: Job,
    placements: Sequence[Placement],
    tenure: Tenure,
    *,
    gang: bool,
    ends_s: int = 0,
    yields: bool = False,
    first_use: Callable[[Task], tuple[str, ...]] = lambda _: (),
) -> Plan:
    """`first_use` names the volume claims of a task that wait for its first use."""
    head, plan_id = job.head, tenure.next_id()
    return Plan(
        id=plan_id,
        job=head.key,
        job_uid=head.uid,
        namespace=head.namespace,
        queue=head.queue,
        partition=tenure.partition,
        epoch=tenure.epoch,
        generation=tenure.generation,
        gang=gang,
        assignments=_assignments(plan_id, placements, first_use),
        cause=job.cause,
        priority=head.priority,
        tenant=head.tenant,
        attempt=head.attempt,
        traceparent=job.traceparent,
        ends_s=ends_s,
        yields=yields,
        together=head.gang_min > 1 or bool(head.role_min),
    )


def eviction_of(job: Job, decision: Decision, placements: Sequence[Placement], tenure: Tenure) -> EvictionPlan:
    """`placements` are the decision's, with what can be granted."""
    head, plan_id = job.head, tenure.next_id()
    return EvictionPlan(
        id=plan_id,
        job=head.key,
        job_uid=head.uid,
        namespace=head.namespace,
        queue=head.queue,
        partition=tenure.partition,
        epoch=tenure.epoch,
        generation=tenure.generation,
        priority=head.priority,
        victims=decision.victims,
        assignments=_assignments(plan_id, placements, lambda _: ()),
        rule=decision.rule,
        cause=job.cause,
        tenant=head.tenant,
        traceparent=job.traceparent,
    )


def gather_of(
    job: Job,
    placements: Sequence[Placement],
    tenure: Tenure,
    *,
    place: tuple[int, int, float, str],
    gather_s: int,
    start_s: int = 0,
    since: float = 0.0,
) -> EvictionPlan:
    """Nobody is evicted: the room is kept as it comes free."""
    decision = Decision(job.head.key, FITS, tuple(placements), rule="reservation")
    plan = eviction_of(job, decision, placements, tenure)
    return msgspec.structs.replace(plan, place=place, gather_s=gather_s, start_s=start_s, since=since)


def _assignments(
    plan_id: str, placements: Sequence[Placement], first_use: Callable[[Task], tuple[str, ...]]
) -> tuple[Assignment, ...]:
    return tuple(
        Assignment(
            claim=f"{plan_id}.{number}",
            task=p.task.id,
            name=p.task.name,
            node=p.node,
            node_spec=p.node_spec,
            charge=p.charge,
            version=p.task.version,
            create=p.task.create,
            role=p.task.role,
            index=p.task.index,
            claims=first_use(p.task),
        )
        for number, p in enumerate(placements)
    )


# --- who looks alike -------------------------------------------------------------------------------------------------


def signature(
    job: Job,
    tasks: Sequence[Task],
    held: int,
    *,
    may_evict: bool,
    scope_of: Callable[[Task], Hashable] = lambda task: task.rules,
) -> Hashable:
    """Jobs with equal signatures get equal verdicts from one and the same view. A job whose victims are leaving has
    room of its own, one that is to be near its running tasks places of its own: they look like nobody. `scope_of` says
    what placement rules tell tasks apart by."""
    if job.evicting is not None or (held and any(task.topology is not None for task in tasks)):
        return job.head.key
    head = job.head
    if head.barred is not None:
        return head.queue, head.barred
    looks = (_looks(tasks[0], scope_of),) if len(tasks) == 1 else _counted(tasks, scope_of)
    return (
        head.queue,
        head.priority,
        head.expected_s.bit_length(),  # who runs shortly may be lent room, and who saves its work
        head.checkpoint_s > 0,
        head.preempts and may_evict,
        head.gang_min,
        held,
        tuple(sorted(head.role_min.items())) if head.role_min else (),
        looks,
    )


def task_signature(task: Task) -> Hashable:
    return (
        task.request.cpu,
        task.request.mem,
        msgspec.structs.astuple(task.request.gpu),
        task.request.extra,
        tuple(sorted(task.node_selector.items())) if task.node_selector else (),
        tuple(msgspec.structs.astuple(t) for t in task.tolerations),
        task.unsupported,
    )


def _looks(task: Task, scope_of: Callable[[Task], Hashable]) -> Hashable:
    return task_signature(task), scope_of(task)


def _counted(tasks: Sequence[Task], scope_of: Callable[[Task], Hashable]) -> Hashable:
    counts: dict[Hashable, int] = {}
    for task in tasks:
        key = (task.role, _looks(task, scope_of))
        counts[key] = counts.get(key, 0) + 1
    return tuple(counts.items())


# --- verdicts ---------------------------------------------------------------------------------------------------------


_CATCHES_UP: Final = (Wake.TIME, Wake.NODE_ADDED, Wake.NODE_CHANGED, Wake.QUOTA_FREED)


def too_old(seen: str, view: str) -> bool:
    """Whether the view has yet to see what the sender of the event had seen."""
    return bool(seen) and newer(seen, view)


def tempered(verdict: Verdict, *, seen: str, view: str, waited_s: float, bound_s: float) -> Verdict:
    """Never is said only by a view at least as new as the event's: a task can outrun its queue or its node on another
    topic. After `bound_s` the job is told what stands in its way as the view sees it, yet as something that may pass:
    what the event saw may since have been deleted or compacted away, or not be read yet."""
    if verdict.kind is not Kind.NEVER or not too_old(seen, view):
        return verdict
    if waited_s >= bound_s:
        return msgspec.structs.replace(
            verdict, kind=Kind.NOT_NOW, wakes_on=tuple(dict.fromkeys((*verdict.wakes_on, *_CATCHES_UP)))
        )
    return Verdict(
        kind=Kind.WAIT,
        reason=Reason.RETRY,
        message="the view of nodes and queues is older than the job; decided again as it catches up",
        wakes_on=_CATCHES_UP,
    )


#: Of a job of which the API server refused a pod, waiting or ended.
REFUSED_WORD: Final = "RefusedByServer"
_WORDS: Final = {
    Reason.QUOTA: "QuotaExceeded",
    Reason.QUOTA_NEVER: "QuotaExceeded",
    Reason.GANG_INCOMPLETE: "GangIncomplete",
    Reason.UNSUPPORTED: "Unsupported",
    Reason.GATED: "SchedulingGated",
    Reason.POD_GROUP: "PodGroupNotSeen",
    Reason.QUEUE_CLOSED: "QueueNotOpen",
    Reason.EVICTING: "WaitingForEvictions",
    Reason.FAULT: "CouldNotBeDecided",
    Reason.TOO_MANY_TASKS: "TooManyTasks",
    Reason.REFUSED: REFUSED_WORD,
}


def reason_word(verdict: Verdict) -> str:
    """The pod condition's reason. `Unschedulable` makes an autoscaler add nodes: it is said exactly when that helps."""
    if verdict.more_nodes_help:
        return "Unschedulable"
    if verdict.reason in _WORDS:
        return _WORDS[verdict.reason]
    return "NeverFits" if verdict.kind is Kind.NEVER else "Waiting"


def words(verdict: Verdict) -> str:
    """The verdict as a sentence for people; at most 1,000 characters."""
    parts = [verdict.message or (str(verdict.reason) if verdict.reason else str(verdict.kind))]
    if verdict.nodes and not any(reason in parts[0] for reason in verdict.nodes):
        ranked = sorted(verdict.nodes.items(), key=lambda item: (-item[1], item[0]))
        parts.append("nodes: " + ", ".join(f"{count} {reason}" for reason, count in ranked))
    if verdict.helps and not any(help_ in parts[0] for help_ in verdict.helps):
        parts.append("would help: " + "; ".join(verdict.helps))
    return ". ".join(part.rstrip(".") for part in parts)[:1000]


def noted(verdict: Verdict, note: str) -> Verdict:
    return msgspec.structs.replace(verdict, message=f"{words(verdict)} ({note})") if note else verdict


def told(
    job: Job,
    phase: Phase,
    *,
    reason: str = "",
    message: str = "",
    verdict: Verdict | None = None,
    turn: Turn | None = None,
) -> JobStatus:
    head = job.head
    return JobStatus(
        id=head.external_id or head.key,
        job=head.key,
        tenant=head.tenant,
        namespace=head.namespace,
        phase=phase,
        reason=reason,
        message=message,
        tasks=max(head.declared, len(job.tasks) + len(job.bound)),
        bound=len(job.bound),
        attempt=head.attempt,
        verdict=verdict,
        cause=job.cause,
        turn=turn,
        traceparent=job.traceparent,
    )


# --- what follows a refusal ------------------------------------------------------------------------------------------


class Next(enum.Enum):
    AGAIN = "again"  # decide again, at once
    LATER = "later"  # decide again after a pause
    FORGET = "forget"  # the task has ended
    FENCED = "fenced"  # we are not who we think we are: open or take again first


@dataclass(frozen=True, slots=True)
class Judgement:
    next: Next
    after_s: float = 0.0


#: Refusals that mean that our fences are old, not that the decision was bad.
FENCES: Final = frozenset({Refusal.REBUILDING, Refusal.GENERATION, Refusal.EPOCH})
_STALE: Final = frozenset({Refusal.NODE_CHANGED, Refusal.NODE_GONE, Refusal.HELD, Refusal.VICTIM_STARTING})


def judge_refusal(refusal: Refusal, refusals: int, *, at_once: int, jitter: float) -> Judgement:
    """What follows the ledger's refusal. Its answer brought the node's fresh use, so a race over room is decided again
    at once; where the answer brings nothing newer (the node's facts travel on another topic, a claim must end first),
    or after `at_once` refusals in a row, there is a pause that grows."""
    if refusal in FENCES:
        return Judgement(Next.FENCED)
    if refusal is Refusal.TOMBSTONE:
        return Judgement(Next.FORGET)
    if refusal is Refusal.HELD:
        return Judgement(Next.LATER, _pause(refusals, 0.5, 5.0, jitter))
    if refusals < (1 if refusal in _STALE else at_once):
        return Judgement(Next.AGAIN)
    return Judgement(Next.LATER, _pause(refusals - at_once, 0.02, 2.0, jitter))


def judge_outcome(landed: Landed, failures: int, *, at_once: int, jitter: float) -> Judgement | None:
    """What follows the binder's report about one task; None where there is nothing to do (bound)."""
    match landed:
        case Landed.BOUND:
            return None
        case Landed.GONE:
            return Judgement(Next.FORGET)
        case Landed.REPLAN:
            if failures < at_once:
                return Judgement(Next.AGAIN)
            return Judgement(Next.LATER, _pause(failures - at_once, 0.1, 10.0, jitter))
        case Landed.REFUSED:
            return Judgement(Next.LATER, _pause(failures, 1.0, 300.0, jitter))


def refused(pod: str, why: str, *, of_object: bool, lasting: bool, until: float) -> Verdict:
    """What is said of a job whose pod the API server did not take, or not let be bound. `until`: when it is tried
    again, seconds since the epoch."""
    if lasting:
        helps = ANOTHER_TEMPLATE if of_object else "another pod"
    else:
        helps = "a change of what the API server names: a quota, a policy, a webhook, an object that is missing"
    return Verdict(
        kind=Kind.NOT_NOW,
        reason=Reason.REFUSED,
        message=f"the API server refused pod {pod}: {why}"[:_SENTENCE],
        wakes_on=(Wake.TIME, Wake.SPEC_CHANGED),
        helps=(helps,),
        task=pod,
        until=until,
    )


ANOTHER_TEMPLATE: Final = "a pod template that the API server takes, submitted as another job"
#: Characters of the API server's sentence with ours around it.
_SENTENCE: Final = 700


def _pause(times: int, base_s: float, cap_s: float, jitter: float) -> float:
    """Growing, capped; `jitter` in 0..1 takes up to half of it away."""
    return min(cap_s, base_s * 2.0 ** min(max(times, 0), 16)) * (1.0 - jitter / 2)
