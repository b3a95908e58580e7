"""Refusals in words: what is in the way, on how many nodes, what would change it, whether more nodes would.

`more_nodes_help` answers what autoscalers ask: would further nodes *of kinds that the cluster has* take the task? True
where some node would take it if it were empty and open. Also true where no node has the labels or the GPU model that
are asked for (or there is no node at all): an autoscaler knows node groups that are scaled to zero, and simulates
them. False where nodes of the right kind exist and are too small, for taints, for quotas and for pods not understood,
and where the pod has to be near others that do not run or that it could only join on their own node.
"""

from __future__ import annotations

import msgspec
import numpy as np

from libs.domain.jobs import Barred
from libs.domain.resources import WHOLE
from libs.domain.verdicts import LASTING, Kind, Reason, Verdict, Wake
from libs.engine.ask import Ask
from libs.engine.feasible import Feasibility
from libs.engine.filters import CODES
from libs.engine.queues import Line
from libs.engine.snapshot import Snapshot

ROOM = (Wake.ROOM_FREED, Wake.NODE_ADDED)
FACTS = (Wake.NODE_ADDED, Wake.NODE_CHANGED, Wake.SPEC_CHANGED)
_MISSING_KIND = frozenset({Reason.SELECTOR, Reason.AFFINITY, Reason.TOPOLOGY, Reason.VOLUME_NODE, Reason.GPU_MODEL}) | {
    Reason.PRECISION
}
#: Reasons that end when a node's facts change, not when room is freed.
_FACTUAL = frozenset({Reason.NOT_READY, Reason.CORDONED})
#: Reasons that pods coming, leaving or changing labels can end.
_OF_PODS = frozenset(
    {
        Reason.EXTRA,
        Reason.PORTS,
        Reason.SPREAD,
        Reason.POD_AFFINITY,
        Reason.ANTI_AFFINITY,
        Reason.REPELLED,
        Reason.VOLUME_LIMIT,
        Reason.VOLUME_IN_USE,
        Reason.VOLUME_UNBOUND,
        Reason.VOLUME_NODE,
        Reason.VOLUME_STATIC,
    }
)

#: The whole answer where nobody will read one.
UNEXPLAINED = Verdict(Kind.NOT_NOW, message="no node takes it now", wakes_on=ROOM)


def refusal(snapshot: Snapshot, view: Feasibility, task: str) -> Verdict:
    """Why one task fits no node now. Alike tasks share the answer until the snapshot changes."""
    told = view.told
    if told is None or told[0] != snapshot.version:
        told = view.told = (snapshot.version, _refusal(snapshot, view))
    return msgspec.structs.replace(told[1], task=task)


def _refusal(snapshot: Snapshot, view: Feasibility) -> Verdict:
    codes = view.codes_now()
    alive = codes[snapshot.alive]
    total = len(alive)
    if not total:
        helps: tuple[str, ...] = ("a node joining the cluster",)
        return Verdict(Kind.NOT_NOW, Reason.NO_NODES, _say("the cluster has no nodes", helps), {},
                       (Wake.NODE_ADDED,), True, helps)  # fmt: skip
    counts = np.bincount(alive, minlength=len(CODES)).tolist()
    nodes = {reason: n for reason, n in zip(CODES, counts, strict=True) if reason is not None and n}
    passing = {reason: n for reason, n in nodes.items() if reason not in LASTING}
    never = not passing
    reason = max(nodes if never else passing, key=lambda r: (nodes[r], -CODES.index(r)))
    ordered = sorted(nodes.items(), key=lambda item: (-item[1], item[0]))
    helps = _helps(snapshot, view.ask, nodes)
    more = view.more_nodes_help() or all(r in _MISSING_KIND or _unknown(snapshot, view.ask, r) for r in nodes)
    if never:
        wakes: tuple[Wake, ...] = FACTS
    else:
        wakes = ROOM if any(r not in _FACTUAL for r in passing) else (Wake.NODE_ADDED,)
        if len(nodes) > len(passing) or any(r in _FACTUAL for r in passing):
            wakes = (*wakes, Wake.NODE_CHANGED)
    if not _OF_PODS.isdisjoint(nodes):
        wakes = (*wakes, Wake.PODS_CHANGED)
    text = f"0/{total} nodes fit: " + ", ".join(f"{n} {r}" for r, n in ordered)
    return Verdict(
        Kind.NEVER if never else Kind.NOT_NOW,
        reason,
        _say(text, helps),
        {str(r): n for r, n in ordered},
        wakes,
        more,
        helps,
    )


def _unknown(snapshot: Snapshot, ask: Ask, reason: Reason) -> bool:
    """Whether a node is too small because no node has any of that resource: a kind that is missing, not a size."""
    if reason is not Reason.EXTRA_TOTAL:
        return False
    held = {name for state in snapshot.states if state is not None for name in state.node.extra}
    return any(name not in held for name, _ in ask.extra)


def _say(text: str, helps: tuple[str, ...]) -> str:
    return f"{text}; helps: {', '.join(helps)}" if helps else text


def _helps(snapshot: Snapshot, ask: Ask, nodes: dict[Reason, int]) -> tuple[str, ...]:
    columns = snapshot.columns()
    said: list[str] = []
    if Reason.GPU_COUNT in nodes:
        most = int(columns.idle.max(initial=0))
        said.append(f"{ask.count} idle GPUs on one node (at most {most} are now)")
    if Reason.GPU_SHARE in nodes:
        what = f"{ask.milli / WHOLE:g} of a GPU" if ask.milli else f"{ask.mib} MiB on a GPU"
        said.append(f"{what} freed" + (f" on {ask.count} GPUs of one node" if ask.count > 1 else ""))
    if Reason.CPU in nodes:
        said.append(f"{ask.cpu}m CPU free on one node")
    if Reason.MEMORY in nodes:
        said.append(f"{ask.mem} MiB of memory free on one node")
    if Reason.PODS in nodes:
        said.append("a pod slot freed")
    if Reason.CORDONED in nodes:
        said.append(f"{nodes[Reason.CORDONED]} nodes uncordoned")
    if Reason.NOT_READY in nodes:
        said.append(f"{nodes[Reason.NOT_READY]} nodes becoming ready")
    if Reason.GPU_FOREIGN in nodes:
        said.append("foreign GPU pods leaving")
    said += _rules_help(ask, nodes)
    if said:
        return tuple(said)
    if Reason.TAINT in nodes:
        said.append("a toleration of the nodes' taints")
    if Reason.SELECTOR in nodes:
        said.append("nodes labelled " + ", ".join(f"{k}={v}" for k, v in ask.selector))
    if Reason.AFFINITY in nodes:
        said.append("nodes that the pod's node affinity asks for")
    if Reason.TOPOLOGY in nodes and ask.rules is not None:
        keys = {term.topology for term in ask.rules.affinity} | {term.topology for term in ask.rules.spread}
        said.append("nodes labelled with " + " and ".join(sorted(keys)))
    if Reason.VOLUME_NODE in nodes:
        said.append("nodes from which the pod's volumes can be reached")
    if Reason.VOLUME_STATIC in nodes:
        said.append("a claim that is bound before its pod is placed")
    if Reason.EXTRA_TOTAL in nodes:
        said.append("nodes with " + ", ".join(f"{n} of {name}" for name, n in ask.extra))
    if Reason.GPU_MODEL in nodes:
        said.append("nodes with GPU " + " or ".join(sorted(ask.gpu.models)))
    if Reason.PRECISION in nodes:
        said.append(f"nodes with a GPU that computes {ask.gpu.precision}: {', '.join(ask.supporting())}")
    if Reason.GPU_TOTAL in nodes:
        said.append(f"asking for at most {int(columns.devices.max(initial=0))} GPUs per task")
    if Reason.GPU_MEMORY_TOTAL in nodes:
        said.append(f"asking for at most {int(columns.dev_mib.max(initial=0))} MiB per GPU")
    if Reason.CPU_TOTAL in nodes:
        said.append(f"asking for at most {int(columns.cap_cpu.max(initial=0))}m CPU per task")
    if Reason.MEMORY_TOTAL in nodes:
        said.append(f"asking for at most {int(columns.cap_mem.max(initial=0))} MiB per task")
    if Reason.GPU_CLOSED in nodes:
        said.append("nodes whose GPUs are given out by index (no MIG, no time-slicing)")
    return tuple(said)


def _rules_help(ask: Ask, nodes: dict[Reason, int]) -> list[str]:
    said = []
    if Reason.EXTRA in nodes:
        said.append(", ".join(f"{n} of {name}" for name, n in ask.extra) + " free on one node")
    if Reason.PORTS in nodes and ask.rules is not None:
        said.append("host ports free: " + ", ".join(f"{p.port}/{p.protocol}" for p in ask.rules.ports))
    if Reason.VOLUME_LIMIT in nodes:
        said.append("a volume detached from a node")
    if Reason.VOLUME_IN_USE in nodes:
        said.append("the pod that uses the volume leaving")
    if Reason.VOLUME_UNBOUND in nodes:
        said.append("the pod's volume claims bound")
    if Reason.SPREAD in nodes:
        said.append("room in the topology domains that hold fewer of these pods")
    if Reason.POD_AFFINITY in nodes:
        said.append("a pod running, with room near it, that the pod's affinity asks for")
    if Reason.ANTI_AFFINITY in nodes or Reason.REPELLED in nodes:
        said.append("room away from the pods that anti-affinity names")
    return said


def gang_room(fitted: int, missing: int, first: Verdict) -> Verdict:
    """A gang of which only some tasks fit together now; `first` explains the first that does not."""
    said = f"{fitted} of {missing} tasks fit at once; for the next, {first.message}"
    wakes = first.wakes_on if first.kind is Kind.NOT_NOW else (*ROOM, Wake.NODE_CHANGED)
    return Verdict(
        Kind.NOT_NOW, Reason.GANG_ROOM, said, first.nodes, wakes, first.more_nodes_help, first.helps, first.task
    )  # fmt: skip


def gang_never(possible: int, missing: int, more: bool, task: str, nodes: dict[str, int]) -> Verdict:
    helps = (f"nodes for {missing - possible} more tasks",) if more and missing > possible else ()
    helps = (*helps, "a smaller gang") if possible else helps
    text = f"even empty, these nodes take {possible} of the {missing} tasks that must start together"
    return Verdict(Kind.NEVER, Reason.GANG_ROOM, _say(text, helps), nodes, FACTS, more, helps, task)


def quota(line: Line, short: str, amounts: tuple[int, int, int], task: str) -> Verdict:
    """Not now: something else holds the quota. `amounts` asked: milli GPUs, milli CPU, MiB."""
    text, _ = _of(line, short, amounts)
    helps = (f"{short} quota freed in queue {line.path}", "a higher limit")
    wakes = (Wake.QUOTA_FREED,)
    return Verdict(Kind.NOT_NOW, Reason.QUOTA, _say(text, helps), {}, wakes, False, helps, task)


def quota_never(line: Line, short: str, amounts: tuple[int, int, int], task: str) -> Verdict:
    _, (asked, _, limit) = _of(line, short, amounts)
    helps = (f"a higher {short} limit on queue {line.path}", "a smaller request")
    text = f"queue {line.path}: {asked} of {short} asked at once, the limit is {limit}"
    wakes = (Wake.QUOTA_FREED, Wake.SPEC_CHANGED)
    return Verdict(Kind.NEVER, Reason.QUOTA_NEVER, _say(text, helps), {}, wakes, False, helps, task)


def _of(line: Line, short: str, amounts: tuple[int, int, int]) -> tuple[str, tuple[str, str, str]]:
    milli, cpu, mem = amounts
    if short == "GPU":
        used, asked, limit = line.milli + line.taken_milli, milli, line.limit_gpu
        scale, unit = WHOLE, ""
    elif short.startswith("GPU "):
        models = short[4:].split(" or ")
        used = sum(line.models.get(m, 0) + line.taken_models.get(m, 0) for m in models)
        asked, limit = milli, sum(line.limit_models.get(m, 0) for m in models)
        scale, unit = WHOLE, ""
    elif short == "CPU":
        used, asked, limit, scale, unit = line.cpu + line.taken_cpu, cpu, line.limit_cpu, WHOLE, " cores"
    else:
        used, asked, limit, scale, unit = line.mem + line.taken_mem, mem, line.limit_mem, 1, " MiB"
    words = (f"{asked / scale:g}{unit}", f"{used / scale:g}{unit}", f"{(limit or 0) / scale:g}{unit}")
    return f"queue {line.path}: {words[1]} of {words[2]} {short} used, {words[0]} more asked", words


def incomplete(known: int, minimum: int) -> Verdict:
    return Verdict(
        Kind.NOT_NOW,
        Reason.GANG_INCOMPLETE,
        f"{known} of at least {minimum} pods exist; helps: {minimum - known} more pods created",
        wakes_on=(Wake.TASKS_ADDED,),
        helps=(f"{minimum - known} more pods created",),
    )


def role_incomplete(role: str, known: int, minimum: int) -> Verdict:
    verdict = incomplete(known, minimum)
    return msgspec.structs.replace(verdict, message=f"role {role}: {verdict.message}")


def unsupported(features: tuple[str, ...], task: str) -> Verdict:
    names = ", ".join(features)
    return Verdict(
        Kind.NEVER,
        Reason.UNSUPPORTED,
        f"not understood by this scheduler: {names}; helps: a pod without {names}",
        wakes_on=(Wake.SPEC_CHANGED,),
        helps=(f"a pod without {names}",),
        task=task,
    )


def gated(features: tuple[str, ...], task: str) -> Verdict:
    return Verdict(
        Kind.NOT_NOW,
        Reason.GATED,
        f"{', '.join(features)}; helps: the pod's scheduling gates removed",
        wakes_on=(Wake.SPEC_CHANGED,),
        helps=("the pod's scheduling gates removed",),
        task=task,
    )


def barred(bar: Barred) -> Verdict:
    return Verdict(
        Kind.NEVER if bar.never else Kind.NOT_NOW,
        bar.reason,
        f"{bar.message}; helps: {bar.helps}",
        wakes_on=(Wake.SPEC_CHANGED,),
        helps=(bar.helps,),
    )


def evicting(victims: int, nodes: int) -> Verdict:
    return Verdict(
        Kind.NOT_NOW,
        Reason.EVICTING,
        f"{victims} running tasks on {nodes} nodes make room",
        wakes_on=(Wake.ROOM_FREED,),
    )


def moving(tasks: int, nodes: int) -> Verdict:
    return Verdict(
        Kind.NOT_NOW,
        Reason.EVICTING,
        f"{tasks} running tasks on {nodes} nodes move to other nodes to make room",
        wakes_on=(Wake.ROOM_FREED,),
    )


def expecting(pods: int, verdict: Verdict, until: float) -> Verdict:
    """Waits for room that is being freed for others and is more than they need, no longer than `until`."""
    text = f"the room of {pods} pods that leave for others is enough; {verdict.message}"
    wakes = (*verdict.wakes_on, Wake.TIME)
    return msgspec.structs.replace(verdict, reason=Reason.EVICTING, message=text, wakes_on=wakes, until=until)


def still_evicting(verdict: Verdict) -> Verdict:
    """Not evicting more while the victims of an earlier decision leave."""
    text = f"victims of an earlier decision are still leaving; {verdict.message}"
    return msgspec.structs.replace(verdict, reason=Reason.EVICTING, message=text)
