"""What the binder concludes, without doing anything: is a plan still admitted, and what does an answer mean.

A decision is minutes or milliseconds old when it is carried out. Two questions are asked of it: does its node still
admit it (`objection`), and, where the API server's answer leaves room for doubt, what does the pod itself say
(`judge`). The pod is the truth: a conflict means four different things, and an unsure write is resolved by reading,
never assumed.
"""

from __future__ import annotations

import enum
from typing import Final

from libs.contracts.events import Landed
from libs.domain import keys
from libs.domain.nodes import Node
from libs.domain.plans import Assignment
from libs.domain.resources import WHOLE, Request
from libs.kube.outcomes import Outcome, classify, status_of
from libs.kube.pods import PodView
from libs.kube.port import Answer
from libs.store.port import Refusal

_BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})


# --- does the node still admit it -----------------------------------------------------------------------------------


def objection(assignment: Assignment, now: Node | None, then: Node | None) -> str:
    """Why the node no longer admits the assignment, empty if it does.

    `then` is the node as the decision saw it, None where it is no longer remembered. An equal digest means that nothing
    placement looks at has changed. A different one is no refusal by itself: a label that was added, or room that grew,
    hurts nobody. What the decision relied on is not known here, so every loss counts: a new blocking taint, a label
    that is gone or different, less room. The price of a false objection is one more decision.
    """
    if now is None:
        return "node is gone"
    if now.spec == assignment.node_spec:
        return ""
    if now.unschedulable:
        return "node was cordoned"
    if not now.ready:
        return "node is not ready"
    known = frozenset(then.taints) if then is not None else frozenset()
    for taint in now.taints:
        if taint.effect in _BLOCKING and taint not in known:
            return f"node has a new taint {taint.key}:{taint.effect}"
    if assignment.charge.gpus:
        if now.gpus_closed:
            return f"node gives out no GPU by index: {now.gpus_closed}"
        have = {gpu.index: gpu.mib for gpu in now.gpus}
        for grant in assignment.charge.gpus:
            if have.get(grant.index, -1) < grant.mib:
                return f"node has no GPU {grant.index} of {grant.mib} MiB"
    if now.cpu < assignment.charge.cpu or now.mem < assignment.charge.mem:
        return "node is too small"
    if then is None:
        return ""
    if now.cpu < then.cpu or now.mem < then.mem or now.pods < then.pods:
        return "node has shrunk"
    if any(now.extra.get(name, 0) < amount for name, amount in then.extra.items()):
        return "node has less of another resource"
    if any(now.labels.get(key) != value for key, value in then.labels.items()):
        return "node's labels changed"
    return ""


# --- what the ledger's refusal means ----------------------------------------------------------------------------------

#: The claim may have been carried out already (a redelivery after the confirmation): only the pod tells.
LOOK_AT: Final = frozenset({Refusal.HELD, Refusal.UNKNOWN})


def refused(refusal: Refusal) -> Landed:
    """What becomes of a task whose claim could not be begun."""
    return Landed.GONE if refusal is Refusal.TOMBSTONE else Landed.REPLAN


# --- what an answer means -------------------------------------------------------------------------------------------


class Step(enum.Enum):
    """What follows an answer to a write."""

    BOUND = "bound"
    LOOK = "look"  # read the pod: unsure, or one of the meanings of a conflict
    AGAIN = "again"  # surely not done: send again after a pause
    GONE = "gone"  # there is nothing to write to; no write of ours can land any more
    REFUSED = "refused"  # surely not done, and it will be refused again


def after_write(answer: Answer, *, create: bool) -> Step:
    if answer.status == 0 and not answer.unsure:
        return Step.AGAIN  # never left this machine
    match classify(answer):
        case Outcome.DONE:
            return Step.BOUND
        case Outcome.UNSURE | Outcome.CONFLICT | Outcome.EXISTS:
            return Step.LOOK
        case Outcome.THROTTLED:
            return Step.AGAIN
        case Outcome.GONE:
            return Step.GONE
        case Outcome.REFUSED:
            if answer.status == 401:  # a token is being rotated
                return Step.AGAIN
            if create and b"NamespaceTerminating" in answer.body:
                return Step.GONE
            return Step.REFUSED


def lasting(answer: Answer) -> bool:
    """Whether a refused creation will be refused again, whatever time passes: the template is not valid, too large, or
    not what the namespace's Pod Security allows. The other 403s (quotas, webhooks, rights, what a pod names and is not
    there yet) may pass."""
    if answer.status == 403:
        return "violates PodSecurity" in (status_of(answer).message or "")
    return answer.status in (400, 413, 422)


class Seen(enum.Enum):
    """What a pod that was read says about one assignment."""

    BOUND = "bound"  # as claimed
    ELSEWHERE = "elsewhere"  # bound, but not by this claim: somebody else serves the task
    GONE = "gone"  # another uid, ended or being deleted
    FENCED = "fenced"  # this claim was taken back; it must not be written again
    CHANGED = "changed"  # asks for something else by now, or is gated
    FOREIGN = "foreign"  # the name of a pod to be created is taken by somebody else's pod
    UNBOUND = "unbound"  # free to be bound with its present version


def judge_bind(assignment: Assignment, pod: PodView) -> Seen:
    if pod.uid != assignment.task:
        return Seen.GONE
    if pod.bound:
        ours = pod.node == assignment.node and pod.claim == assignment.claim
        return Seen.BOUND if ours else Seen.ELSEWHERE
    if not pod.pending:
        return Seen.GONE
    # Without this a binder that wakes up late, reads the fenced pod's new version and asks the ledger just before the
    # claim is released there would bind under a claim that is free a moment later.
    if pod.annotations.get(keys.FENCE) == assignment.claim:
        return Seen.FENCED
    if pod.gated or not still_wanted(assignment, pod.request):
        return Seen.CHANGED
    return Seen.UNBOUND


def judge_created(assignment: Assignment, pod: PodView, job_uid: str) -> Seen:
    """A pod found under the name that we wanted to create. Ours only if owner, claim and node agree."""
    if not any(owner.uid == job_uid for owner in pod.owners):
        return Seen.FOREIGN
    if pod.claim == assignment.claim and pod.node == assignment.node:
        return Seen.BOUND
    return Seen.GONE if pod.terminating or pod.ended else Seen.ELSEWHERE


def still_wanted(assignment: Assignment, wish: Request) -> bool:
    """Whether the grant still answers what the pod asks for. A status patch changes the version and not this; an edited
    annotation can ask for another share of a device."""
    charge = assignment.charge
    if (wish.cpu, wish.mem, wish.gpu.count) != (charge.cpu, charge.mem, len(charge.gpus)):
        return False
    if wish.gpu.milli:
        return all(grant.milli == wish.gpu.milli for grant in charge.gpus)
    if wish.gpu.mib:
        return all(grant.mib == wish.gpu.mib for grant in charge.gpus)
    return all(grant.milli == WHOLE for grant in charge.gpus)
