"""The laws on a live system, API server against ledger: what `drystone check` and the chaos runner hold it to.

Both are read while they change, so a difference counts only if a second read after two seconds shows it again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from libs.domain.nodes import Node
from libs.domain.queues import ancestors
from libs.domain.resources import WHOLE
from libs.domain.usage import NodeUse, QueueUse
from libs.kube.grouping import job_key
from libs.kube.nodes import parse_node
from libs.kube.pods import PodView, parse_pod
from libs.kube.port import Kube
from libs.kube.writes import NODES, list_all, pods_path
from libs.store.pages import all_holders, all_use
from libs.store.port import Holder, Ledger

SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken law: which, about what, in words. Equal ones in two reads are one confirmed violation."""

    law: str
    about: str
    detail: str


@dataclass(frozen=True, slots=True)
class Seen:
    """One read of both sides."""

    nodes: dict[str, Node]
    pods: list[PodView]
    holders: list[Holder]
    node_use: dict[str, NodeUse]
    queue_use: dict[str, QueueUse]


def laws(seen: Seen) -> set[Violation]:
    """Every law of one read; pure."""
    return {*_devices(seen), *_capacity(seen), *_agreement(seen), *_sums(seen), *_gangs(seen)}


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
    """A gang below its minimum holds nothing. (A gang that just lost a member has its grace: two reads decide.)"""
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
            yield Violation("gang below its minimum holds room", job, f"{len(members)} of {minimum}")


async def look(kube: Kube, ledger: Ledger) -> Seen:
    """One read of both sides, pages and all."""
    nodes = {n.name: n for n in map(parse_node, (await list_all(kube, NODES)).items)}
    pods = [parse_pod(raw) for raw in (await list_all(kube, pods_path())).items]
    return Seen(nodes, pods, await all_holders(ledger), *await all_use(ledger))


async def violations(kube: Kube, ledger: Ledger, *, settle_s: float = SETTLE_S) -> list[Violation]:
    """Confirmed ones only."""
    first = laws(await look(kube, ledger))
    if not first:
        return []
    await asyncio.sleep(settle_s)
    again = {(v.law, v.about): v for v in laws(await look(kube, ledger))}
    return sorted((again[v.law, v.about] for v in first if (v.law, v.about) in again), key=lambda v: (v.law, v.about))
