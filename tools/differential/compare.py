"""One world after the other: objects into the API server, the scheduler's answers out, the engine's beside them.

The scheduler reads the cluster through several watches that are not in step with each other, so right after a world was
made its answer may be about a part of it. A case whose answers differ is therefore put anew, as a pod of another name,
until they agree or have differed every time; only the latter is a difference.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from libs.domain.usage import NodeUse
from libs.engine.api import RunningTask
from libs.engine.core import PlacementEngine
from libs.kube import writes
from libs.kube.client import KubeClient
from libs.kube.nodes import parse_node
from libs.kube.objects import namespace_decoder
from libs.kube.pods import PodView, parse_pod
from libs.kube.volumes import (
    CLAIMS,
    CLASSES,
    CSI_NODES,
    VOLUMES,
    claim_decoder,
    claim_of,
    class_decoder,
    class_of,
    csi_node_decoder,
    volume_decoder,
)
from tools.differential.objects import runtime_class, storage_classes
from tools.differential.oracle import Extender
from tools.differential.words import Object
from tools.differential.world import World, generate

TRIES: Final = 4
PER_WORLD: Final = 40
_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Difference:
    """A case in which scheduler and engine do not agree, with everything needed to look at it."""

    seed: int
    pod: Object
    scheduler: tuple[str, ...]
    engine: tuple[str, ...]
    why: dict[str, str]


@dataclass
class Result:
    cases: int = 0
    #: Generated and refused by the API server: no cases.
    refused: int = 0
    gated: int = 0
    placeable: int = 0
    asked_again: int = 0
    features: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    seconds: float = 0.0


async def run(kube: KubeClient, extender: Extender, cases: int, first_seed: int) -> Result:
    result = Result()
    begun = time.monotonic()
    await _create(kube, "/apis/node.k8s.io/v1/runtimeclasses", [runtime_class()])
    await _create(kube, CLASSES, storage_classes())
    seed = first_seed
    while result.cases < cases:
        await _one(kube, extender, seed, generate(seed, min(PER_WORLD, cases - result.cases)), result)
        seed += 1
    result.seconds = time.monotonic() - begun
    return result


async def _one(kube: KubeClient, extender: Extender, seed: int, world: World, result: Result) -> None:
    spaces = [space["metadata"]["name"] for space in world.namespaces]
    before = result.refused
    try:
        await _create(kube, "/api/v1/namespaces", world.namespaces)
        await _create(kube, writes.NODES, world.nodes)
        await _create(kube, VOLUMES, world.volumes)
        await _create(kube, CSI_NODES, world.attaching)
        for claim in world.claims:
            await _create(kube, f"/api/v1/namespaces/{claim['metadata']['namespace']}/persistentvolumeclaims", [claim])
        absent = await _create_pods(kube, world.running)
        for (namespace, name), status in world.statuses.items():
            if name in absent:
                continue
            path = writes.pods_path(namespace, name, "status")
            await _ok(kube, "PATCH", path, {"status": status}, content_type=writes.MERGE)
        for namespace, name in world.ending:
            if name in absent:
                continue
            await _ok(kube, "DELETE", writes.pods_path(namespace, name), {"gracePeriodSeconds": 600})
        engine = await _engine(kube, world)
        open_cases = world.asking
        for attempt in range(TRIES):
            found = await _ask(kube, extender, open_cases)
            known = [case for case in open_cases if case["metadata"]["name"] in found]
            result.refused += len(open_cases) - len(known)
            different = [case for case in known if not _agree(engine, found, case, seed, result, attempt)]
            if not different:
                break
            open_cases = [_anew(case, attempt) for case in different]
            result.asked_again += len(open_cases)
            await asyncio.sleep(0.3)
        result.cases += len(world.asking) - (result.refused - before)
        for case in world.asking:
            for name in _features(case):
                result.features[name] = result.features.get(name, 0) + 1
    finally:
        for space in spaces:
            await kube.call("DELETE", writes.pods_path(space), b'{"gracePeriodSeconds":0}', timeout_s=30)
            await kube.call("DELETE", f"/api/v1/namespaces/{space}/persistentvolumeclaims", b"{}", timeout_s=30)
        for path, objects in ((writes.NODES, world.nodes), (VOLUMES, world.volumes), (CSI_NODES, world.attaching)):
            for one in objects:
                await kube.call("DELETE", path + "/" + one["metadata"]["name"])


def _agree(
    engine: PlacementEngine, found: dict[str, _Answer], case: Object, seed: int, result: Result, attempt: int
) -> bool:
    answer = found[case["metadata"]["name"]]
    view = answer.view
    if answer.gated or view.gated:
        same = answer.gated and view.gated
        theirs: frozenset[str] = frozenset()
        ours: frozenset[str] = frozenset()
        result.gated += same
    else:
        theirs = answer.nodes
        ours = frozenset() if view.unsupported else engine.takers(view.to_task())
        same = theirs == ours
        result.placeable += same and bool(theirs)
    if not same and attempt == TRIES - 1:
        why = engine.why(view.to_task())
        if view.unsupported:
            why["unsupported"] = "; ".join(view.unsupported)
        differs = {node: why.get(node, "") for node in sorted(theirs ^ ours)}
        result.differences.append(Difference(seed, case, tuple(sorted(theirs)), tuple(sorted(ours)), differs))
    return same


# --- the scheduler's side -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Answer:
    view: PodView
    nodes: frozenset[str]
    gated: bool


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    reason: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] = msgspec.field(default_factory=list)


class _Judged(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


async def _ask(kube: KubeClient, extender: Extender, cases: list[Object]) -> dict[str, _Answer]:
    """The scheduler's answer for each pod: it has given one when it has written the pod's condition."""
    extender.passed.clear()
    refused = await _create_pods(kube, cases)
    left = {case["metadata"]["name"] for case in cases} - refused.keys()
    found: dict[str, _Answer] = {}
    async with asyncio.timeout(_PATIENCE_S):
        while left:
            for space in {case["metadata"]["namespace"] for case in cases if case["metadata"]["name"] in left}:
                for raw in (await writes.list_all(kube, writes.pods_path(space))).items:
                    view = parse_pod(raw)
                    reason = _reason(raw)
                    if view.name in left and reason:
                        left.discard(view.name)
                        passed = extender.passed.get((view.namespace, view.name), frozenset())
                        found[view.name] = _Answer(view, passed, reason == "SchedulingGated")
            if left:
                await asyncio.sleep(0.05)
    for case in cases:
        meta = case["metadata"]
        await kube.call("DELETE", writes.pods_path(meta["namespace"], meta["name"]), b'{"gracePeriodSeconds":0}')
    return found


def _reason(raw: bytes) -> str:
    for condition in msgspec.json.decode(raw, type=_Judged).status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.reason
    return ""


def _anew(case: Object, attempt: int) -> Object:
    name = f"{case['metadata']['name'].split('.')[0]}.{attempt}"
    return {**case, "metadata": {**case["metadata"], "name": name}}


# --- the engine's side ----------------------------------------------------------------------------------------------


async def _engine(kube: KubeClient, world: World) -> PlacementEngine:
    """An engine that was told what the API server has, by the parsers and in the words that the services use."""
    engine = PlacementEngine()
    nodes = {node.name: node for node in map(parse_node, (await writes.list_all(kube, writes.NODES)).items)}
    here = {node["metadata"]["name"] for node in world.nodes}
    for name in here:
        engine.node_seen(nodes[name])
    for raw in (await writes.list_all(kube, "/api/v1/namespaces")).items:
        meta = namespace_decoder.decode(raw).metadata
        engine.namespace_seen(meta.name, meta.labels or {})
    await _tell_volumes(kube, engine)
    uses: dict[str, NodeUse] = {}
    for raw in (await writes.list_all(kube, writes.pods_path())).items:
        view = parse_pod(raw)
        if not view.holds or view.node not in here:
            continue
        node = nodes[view.node]
        charge = view.charge(node.gpus)
        old = uses.get(view.node) or NodeUse(view.node, 1, gpus=((0, 0),) * len(node.gpus))
        gpus = [list(pair) for pair in old.gpus]
        for grant in charge.gpus:
            gpus[grant.index][0] += grant.milli
            gpus[grant.index][1] += grant.mib
        uses[view.node] = NodeUse(
            view.node, 1, old.cpu + charge.cpu, old.mem + charge.mem, old.pods + 1,
            tuple((milli, mib) for milli, mib in gpus), old.blind + charge.blind,
        )  # fmt: skip
        rules = view.rules
        engine.pod_seen(
            RunningTask(
                view.uid, view.name, view.namespace, view.node, "", "", 0, charge, ours=True,
                terminating=view.terminating, labels=view.labels, extra=view.request.extra,
                ports=rules.ports if rules is not None else (),
                anti_affinity=rules.anti_affinity if rules is not None else (),
                claims=rules.claims if rules is not None else (),
            )
        )  # fmt: skip
    for use in uses.values():
        engine.use_seen(use)
    return engine


async def _tell_volumes(kube: KubeClient, engine: PlacementEngine) -> None:
    volumes = {v.metadata.name: v for v in map(volume_decoder.decode, (await writes.list_all(kube, VOLUMES)).items)}
    classes = {c.metadata.name: c for c in map(class_decoder.decode, (await writes.list_all(kube, CLASSES)).items)}
    for claim in map(claim_decoder.decode, (await writes.list_all(kube, CLAIMS)).items):
        engine.claim_seen(claim_of(claim, volumes.get(claim.spec.volume_name or ""), classes.get(class_of(claim))))
    for limits in map(csi_node_decoder.decode, (await writes.list_all(kube, CSI_NODES)).items):
        engine.volume_limits(limits.metadata.name, limits.limits)


def _features(case: Object) -> Iterable[str]:
    spec = case["spec"]
    affinity = spec.get("affinity", {})
    yield from (name for name in affinity)
    for name in ("topologySpreadConstraints", "nodeSelector", "tolerations", "initContainers", "resources",
                 "runtimeClassName", "hostNetwork", "schedulingGates", "volumes"):  # fmt: skip
        if name in spec:
            yield name
    for container in spec["containers"]:
        if "ports" in container:
            yield "hostPorts"
        yield from container["resources"]["limits"]


# --- small things ---------------------------------------------------------------------------------------------------


async def _create_pods(kube: KubeClient, pods: list[Object]) -> dict[str, str]:
    """What the API server refuses as invalid, by name: such a pod is no case."""
    refused: dict[str, str] = {}

    async def one(pod: Object) -> None:
        path, name = writes.pods_path(pod["metadata"]["namespace"]), pod["metadata"]["name"]
        answer = await kube.call("POST", path, json.dumps(pod).encode(), timeout_s=30)
        if answer.status == 422:
            refused[name] = answer.body[:400].decode()
        elif not answer.ok:
            raise DifferentialError(f"POST {path}: {answer.status} {answer.body[:600]!r}")

    async with asyncio.TaskGroup() as creators:
        for pod in pods:
            creators.create_task(one(pod), name=f"create {pod['metadata']['name']}")
    return refused


async def _create(kube: KubeClient, path: str, objects: list[Object]) -> None:
    async with asyncio.TaskGroup() as creators:
        for one in objects:
            creators.create_task(_ok(kube, "POST", path, one), name=f"create {one['metadata']['name']}")


async def _ok(kube: KubeClient, verb: str, path: str, body: Object, **more: Any) -> None:
    answer = await kube.call(verb, path, json.dumps(body).encode(), timeout_s=30, **more)
    if not answer.ok and answer.status != 409:
        raise DifferentialError(f"{verb} {path}: {answer.status} {answer.body[:600]!r}")


class DifferentialError(Exception):
    """The comparison could not be made; says what the API server answered."""
