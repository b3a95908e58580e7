"""One read of a live system from both sides, the API server's and the ledger's: what the laws are asked of.

Times are the API server's, never of the machine that reads, whose clock may be another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from libs.domain.nodes import Node
from libs.domain.queues import Queue
from libs.domain.usage import NodeUse, QueueUse
from libs.kube import objects, trainingjobs
from libs.kube.errors import ReadFailed
from libs.kube.nodes import parse_node
from libs.kube.pods import PodView, parse_pod
from libs.kube.port import Kube
from libs.kube.queues import tree
from libs.kube.trainingjobs import TrainingJobView
from libs.kube.writes import NODES, QUEUES, TRAINING_JOBS, list_all, pods_path
from libs.store.pages import all_holders, all_use
from libs.store.port import Holder, Ledger

_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
#: Bindings that `k8s/exclusive` adds.
_EXCLUSIVE: Final = ("drystone-exclusive-pods", "drystone-exclusive-bindings")


@dataclass(frozen=True, slots=True)
class Seen:
    """`queues` by path; `limited_since`: when a queue's spec was last written, by path, seconds since the epoch.
    `bound_at`: when pods were bound, by uid, where that is known; `resized`: uids of pods that were resized in place.
    `jobs`: job objects by key."""

    nodes: dict[str, Node]
    pods: list[PodView]
    holders: list[Holder]
    node_use: dict[str, NodeUse]
    queue_use: dict[str, QueueUse]
    queues: Mapping[str, Queue] = field(default_factory=dict)
    limited_since: Mapping[str, float] = field(default_factory=dict)
    bound_at: Mapping[str, float] = field(default_factory=dict)
    resized: frozenset[str] = frozenset()
    jobs: Mapping[str, TrainingJobView] = field(default_factory=dict)


async def look(kube: Kube, ledger: Ledger) -> Seen:
    """One read of both sides, pages and all. The ledger first: what it holds of something that comes to be meanwhile
    would look like nobody's."""
    holders = await all_holders(ledger)
    node_use, queue_use = await all_use(ledger)
    nodes = {n.name: n for n in map(parse_node, (await list_all(kube, NODES)).items)}
    raws = (await list_all(kube, pods_path())).items
    times = [_pod_decoder.decode(raw) for raw in raws]
    pods = [parse_pod(raw) for raw in raws]
    queues, since = _queues(await _if_installed(kube, QUEUES))
    jobs = map(trainingjobs.parse, await _if_installed(kube, TRAINING_JOBS))
    return Seen(
        nodes,
        pods,
        holders,
        node_use,
        queue_use,
        queues,
        since,
        {pod.uid: at for pod, said in zip(pods, times, strict=True) if (at := _bound_at(pod, said))},
        frozenset(pod.uid for pod, said in zip(pods, times, strict=True) if said.metadata.resized),
        {job.key: job for job in jobs},
    )


async def exclusive(kube: Kube) -> str:
    """Whether GPUs are given out by Drystone alone, as a word: "on", "off", "in part" (for some namespaces or objects
    only), or "unknown" where the caller may not read it."""
    try:
        raws = (await list_all(kube, _POLICIES)).items
    except ReadFailed:
        return "unknown"
    found = {
        binding.spec.policy_name: binding.spec.match_resources is None
        for binding in map(_binding_decoder.decode, raws)
        if "Deny" in binding.spec.validation_actions
    }
    if not all(name in found for name in _EXCLUSIVE):
        return "off"
    return "on" if all(found[name] for name in _EXCLUSIVE) else "in part"


class _Managed(msgspec.Struct, rename="camel"):
    time: datetime | None = None
    subresource: str = ""
    fields_v1: dict[str, object] = msgspec.field(default_factory=dict, name="fieldsV1")


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    creation_timestamp: datetime | None = None
    managed_fields: list[_Managed] = msgspec.field(default_factory=list)

    @property
    def resized(self) -> bool:
        return any(entry.subresource == "resize" for entry in self.managed_fields)

    @property
    def spec_written(self) -> float:
        """When the spec was last written, as the server notes it (to the second)."""
        times = [entry.time for entry in self.managed_fields if entry.time and "f:spec" in entry.fields_v1]
        return max((at.timestamp() for at in (*times, self.creation_timestamp) if at), default=0.0)


class _Condition(msgspec.Struct, rename="camel"):
    type: str = ""
    status: str = ""
    last_transition_time: datetime | None = None


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Pod(msgspec.Struct):
    metadata: _Meta
    status: _Status = msgspec.field(default_factory=_Status)


class _Object(msgspec.Struct):
    metadata: _Meta


class _BindingSpec(msgspec.Struct, rename="camel"):
    policy_name: str = ""
    validation_actions: tuple[str, ...] = ()
    match_resources: dict[str, object] | None = None


class _Binding(msgspec.Struct):
    spec: _BindingSpec


_pod_decoder: Final = msgspec.json.Decoder(_Pod)
_object_decoder: Final = msgspec.json.Decoder(_Object)
_binding_decoder: Final = msgspec.json.Decoder(_Binding)


def _bound_at(pod: PodView, said: _Pod) -> float:
    """0 where it is not known. What was created for a job object was created bound."""
    if not pod.node:
        return 0.0
    if pod.training_job is not None:
        return pod.created
    conditions = said.status.conditions or ()
    times = [c.last_transition_time for c in conditions if c.type == "PodScheduled" and c.status == "True"]
    return max((at.timestamp() for at in times if at), default=0.0)


def _queues(raws: Iterable[bytes]) -> tuple[dict[str, Queue], dict[str, float]]:
    specs = {}
    written = {}
    for raw in raws:
        seen = objects.queue_decoder.decode(raw)
        specs[seen.metadata.name] = (seen.spec, seen.metadata.resource_version)
        written[seen.metadata.name] = _object_decoder.decode(raw).metadata.spec_written
    placed = tree(specs)
    return (
        {place.queue.path: place.queue for place in placed.values()},
        {place.queue.path: written[name] for name, place in placed.items()},
    )


async def _if_installed(kube: Kube, path: str) -> tuple[bytes, ...]:
    try:
        return tuple((await list_all(kube, path)).items)
    except ReadFailed as failed:
        if failed.answer.status != 404:
            raise
        return ()
