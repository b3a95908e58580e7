"""The laws on a live system, API server against ledger: what `drystone check` and the chaos runner hold it to.

Both are read while they change, so a difference counts only if a second read after two seconds shows it again. What
the services have a while to put right (a gang that lost a member, a claim whose job has gone) counts only if it stands
as long as that.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from libs.domain.queues import ancestors
from libs.domain.resources import WHOLE
from libs.host.seen import Seen, look
from libs.kube.grouping import job_key
from libs.kube.pods import PodView
from libs.kube.port import Kube
from libs.store.port import Holder, Ledger

SETTLE_S = 2.0
#: Until placement has put back what is left of a gang: its grace by default, and its slow pass.
GANG_GRACE_S = 95.0
#: Until what a job left behind is found: by its deadline (10 s), a resolver, or placement's slow pass (30 s).
ORPHAN_GRACE_S = 45.0
#: Until a Queue's new limits are the ledger's, a new leader of the watcher included.
TOLD_S = 30.0


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken law: which, about what, in words. Equal ones in two reads are one confirmed violation."""

    law: str
    about: str
    detail: str
    #: So long it may stand, seconds.
    grace_s: float = 0.0


def laws(seen: Seen) -> set[Violation]:
    """Every law of one read; pure."""
    return {
        *_devices(seen),
        *_capacity(seen),
        *_agreement(seen),
        *_sums(seen),
        *_limits(seen),
        *_nobodys(seen),
        *_gangs(seen),
    }


def _devices(seen: Seen) -> Iterable[Violation]:
    """No device promised twice: among pods by their annotations, and in the ledger by its charges."""
    for side, charges in (
        ("pods", [(p.node, p.name, p.charge()) for p in seen.pods if p.holds and p.ours]),
        # An earmark and what it still lacks are charged before its victims have left.
        ("ledger", [(h.node, h.id, h.charge) for h in seen.holders if h.state not in ("earmark", "pending")]),
    ):
        milli: defaultdict[tuple[str, int], int] = defaultdict(int)
        mib: defaultdict[tuple[str, int], int] = defaultdict(int)
        for node, _, charge in charges:
            for grant in charge.gpus:
                milli[node, grant.index] += grant.milli
                mib[node, grant.index] += grant.mib
        for (node, index), used in milli.items():
            if used > WHOLE:
                yield Violation("device promised twice", f"{node}/{index}", f"{side}: {used} milli of one device")
        for (node, index), used in mib.items():
            size = next((g.mib for g in seen.nodes[node].gpus if g.index == index), 0) if node in seen.nodes else 0
            if size and used > size:
                yield Violation("device memory over capacity", f"{node}/{index}", f"{side}: {used} of {size} MiB")


def _capacity(seen: Seen) -> Iterable[Violation]:
    """Pods of ours on a node stay within what it can give."""
    cpu: defaultdict[str, int] = defaultdict(int)
    mem: defaultdict[str, int] = defaultdict(int)
    count: defaultdict[str, int] = defaultdict(int)
    gpus: defaultdict[str, int] = defaultdict(int)
    for pod in seen.pods:
        if pod.holds:
            charge = pod.charge()
            cpu[pod.node] += charge.cpu
            mem[pod.node] += charge.mem
            gpus[pod.node] += charge.gpu_milli
            count[pod.node] += 1
    for name, node in seen.nodes.items():
        for what, used, most in (
            ("CPU", cpu[name], node.cpu),
            ("memory", mem[name], node.mem),
            ("pods", count[name], node.pods),
            ("GPU", gpus[name], len(node.gpus) * WHOLE),
        ):
            if used > most:
                yield Violation(f"{what} over capacity", name, f"{used} of {most}")


def _agreement(seen: Seen) -> Iterable[Violation]:
    """What is bound is charged, what is charged as bound exists, and both say the same node and devices."""
    bound = {h.id: h for h in seen.holders if h.state == "bound"}
    pods = {p.uid: p for p in seen.pods if p.holds}
    for uid, pod in pods.items():
        holder = bound.get(uid)
        if holder is None:
            yield Violation("bound pod not charged", f"{pod.namespace}/{pod.name}", uid)
        elif holder.node != pod.node:
            yield Violation("charged to another node", f"{pod.namespace}/{pod.name}", f"{holder.node}, on {pod.node}")
        elif pod.ours and [g.index for g in holder.charge.gpus] != [g.index for g in pod.charge().gpus]:
            yield Violation("devices differ from the annotation", f"{pod.namespace}/{pod.name}", str(holder.charge))
    for uid in bound.keys() - pods.keys():
        yield Violation("charged pod does not exist", uid, bound[uid].node)


def _sums(seen: Seen) -> Iterable[Violation]:
    """Usage of nodes and queues equals the sum of charges."""
    nodes: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    queues: defaultdict[str, int] = defaultdict(int)
    models: defaultdict[tuple[str, str], int] = defaultdict(int)
    for holder in seen.holders:
        row = nodes[holder.node]
        row[0] += holder.charge.cpu
        row[1] += holder.charge.mem
        row[2] += 1
        if holder.queue:
            for path in ancestors(holder.queue):
                queues[path] += holder.charge.gpu_milli
                for model, milli in holder.models.items():
                    models[path, model] += milli
    earmarked = {h.node for h in seen.holders if h.state == "earmark"}
    for name, use in seen.node_use.items():
        # Room of an earmark counts from the moment its victims leave, so a node with one is left to the ledger's test.
        if name not in earmarked and [use.cpu, use.mem, use.pods] != nodes[name]:
            yield Violation("node usage is not the sum", name, f"{[use.cpu, use.mem, use.pods]}, sum {nodes[name]}")
    if not earmarked:
        for path, usage in seen.queue_use.items():
            if usage.gpu_milli != queues[path]:
                yield Violation("queue usage is not the sum", path, f"{usage.gpu_milli}, sum {queues[path]}")
        for (path, model), milli in models.items():
            # More than the sum is left by releases that do not know models, and sinks (docs/queues.md); less never is.
            told = seen.queue_use[path].models.get(model, 0) if path in seen.queue_use else 0
            if told < milli:
                yield Violation("queue usage of a model is below the sum", f"{path} {model}", f"{told}, sum {milli}")


def _gangs(seen: Seen) -> Iterable[Violation]:
    """A gang below its minimum holds nothing, unless it has just lost a member."""
    held: defaultdict[str, list[PodView]] = defaultdict(list)
    for pod in seen.pods:
        if pod.ours and pod.holds and not pod.terminating and pod.gang_min > 1:
            held[job_key(pod)].append(pod)
    ended: defaultdict[str, int] = defaultdict(int)
    for pod in seen.pods:
        if pod.ours and pod.ended and pod.gang_min > 1:
            ended[job_key(pod)] += 1
    for job, members in held.items():
        minimum = max(p.gang_min for p in members)
        if len(members) + ended[job] < minimum:
            yield Violation("gang below its minimum holds room", job, f"{len(members)} of {minimum}", GANG_GRACE_S)


def _limits(seen: Seen) -> Iterable[Violation]:
    """No queue was given more than its limits. What stood when a limit was lowered, or a queue moved, may go on: so the
    latest pod that was bound by a claim has to be younger than that. Others' bindings and what was resized in place
    since were nobody's decision here, and are left out."""
    pods = {p.uid: p for p in seen.pods if p.holds and p.claim and p.uid in seen.bound_at}
    by_queue: defaultdict[str, list[Holder]] = defaultdict(list)
    for holder in seen.holders:
        if holder.state == "bound" and holder.id in pods and holder.queue:
            for path in ancestors(holder.queue):
                by_queue[path].append(holder)
    for path, holders in by_queue.items():
        queue = seen.queues.get(path)
        if queue is None:
            continue
        related = [at for other, at in seen.limited_since.items() if _related(other, path)]
        if max(seen.bound_at[h.id] for h in holders) <= max(related, default=0.0) + TOLD_S:
            continue
        charges = [h.charge for h in holders]
        used: list[tuple[str, int, int | None]] = [("GPU", sum(c.gpu_milli for c in charges), queue.gpu_milli)]
        if seen.resized.isdisjoint(h.id for h in holders):
            used += [
                ("CPU", sum(c.cpu for c in charges), queue.cpu),
                ("memory", sum(c.mem for c in charges), queue.mem),
            ]
        used += [(model, sum(h.models.get(model, 0) for h in holders), most) for model, most in queue.models.items()]
        for what, amount, most in used:
            if most is not None and amount > most:
                yield Violation(f"queue over its limit of {what}", path, f"{amount} of {most}")


def _related(one: str, other: str) -> bool:
    """Whether one queue is the other, or above it or below it in the tree."""
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")


def _nobodys(seen: Seen) -> Iterable[Violation]:
    """Claims and earmarks are somebody's: of a job that is there and has not ended, a claim of a task that is there."""
    objects = {job.uid for job in seen.jobs.values() if not job.ended}
    jobs = {key for key, job in seen.jobs.items() if not job.ended}
    jobs |= {job_key(pod) for pod in seen.pods if pod.ours and not pod.ended}
    uids = {pod.uid for pod in seen.pods if not pod.ended}
    for holder in seen.holders:
        if holder.state == "bound":
            continue
        what = "claim" if holder.state in ("planned", "writing") else "earmark"
        if holder.job not in jobs:
            yield Violation(
                f"{what} of a job that does not exist", holder.id, f"{holder.job}, on {holder.node}", ORPHAN_GRACE_S
            )
        elif what == "claim" and holder.task.partition("/")[0] not in (objects if "/" in holder.task else uids):
            yield Violation(
                "claim of a task that does not exist", holder.id, f"{holder.task}, on {holder.node}", ORPHAN_GRACE_S
            )


async def violations(
    kube: Kube,
    ledger: Ledger,
    *,
    settle_s: float = SETTLE_S,
    waiting: Callable[[int, float], None] = lambda _count, _seconds: None,
) -> list[Violation]:
    """Confirmed ones only: seen again and again until their grace is over, two seconds at the least. Returns as soon as
    nothing is left to be waited for; `waiting` is told once, how many stand and for how long they may."""
    began = time.monotonic()
    left = {(v.law, v.about): v for v in laws(await look(kube, ledger))}
    confirmed: dict[tuple[str, str], Violation] = {}
    told = False
    while left:
        await asyncio.sleep(settle_s)
        stood_s = time.monotonic() - began
        again = {(v.law, v.about): v for v in laws(await look(kube, ledger))}
        left = {key: again[key] for key in left if key in again}
        # Once confirmed, always: what is waited for are the others.
        confirmed |= {key: v for key, v in left.items() if v.grace_s <= stood_s}
        left = {key: v for key, v in left.items() if key not in confirmed}
        if left and not told:
            told = True
            waiting(len(left), max(v.grace_s for v in left.values()) - stood_s)
    return sorted(confirmed.values(), key=lambda v: (v.law, v.about))
