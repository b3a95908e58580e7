"""An honest kubelet for all nodes of a real API server: admits as a real one does, runs pods for their seconds.

A fake that admits anything hides overcommit. This one sums what has not ended, Terminating pods included, and each GPU
once; what does not fit is Failed with kubelet's reason and noted in `refusals`. It watches past the proxy and keeps
working whatever is broken between the services. A machine may die: its pods stand as they were seen last, and one that
comes in its place starts from the beginning what is bound to it and has not ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from libs.domain import keys
from libs.domain.nodes import Node
from libs.domain.resources import WHOLE
from libs.kube import writes
from libs.kube.grouping import job_key
from libs.kube.nodes import parse_node
from libs.kube.pods import PodView, parse_pod
from libs.kube.port import Kube
from libs.kube.reflector import Reflector
from libs.kube.sim.admission import Admission, Refused

SECONDS: Final = "drystone.dev/simulated-seconds"
_LEAVE_S: Final = 0.2


class HonestKubelets:
    """`run()` until cancelled; it ends by itself where a kubelet is not let do its work. `pods` are those that exist,
    by uid; `refusals` come with the key of the job; `journal` has what was seen of each job's pods, with wall times.
    One that `only_looks` judges who was bound and leaves the rest to others, who may admit anything."""

    def __init__(self, kube: Kube, *, only_looks: bool = False) -> None:
        self._kube = kube
        self._only_looks = only_looks
        self._admission = Admission()
        self._nodes: dict[str, Node] = {}
        self._busy: set[str] = set()
        self._down: set[str] = set()
        #: How often a machine of a node's name has died.
        self._deaths: dict[str, int] = {}
        self.pods: dict[str, PodView] = {}
        self.refusals: list[tuple[str, Refused]] = []
        self.journal: dict[str, list[tuple[float, str]]] = {}
        #: Called with the last version of a pod that is no more.
        self.on_gone: Callable[[PodView], None] = lambda _pod: None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._group = tasks
            nodes = Reflector(self._kube, writes.NODES, on_list=self._nodes_listed, on_events=self._node_events)
            tasks.create_task(nodes.run(), name="kubelet nodes")
            pods = Reflector(self._kube, writes.pods_path(), on_list=self._pods_listed, on_events=self._pod_events)
            tasks.create_task(pods.run(), name="kubelet pods")

    def stop_machine(self, node: str) -> None:
        """It dies with all that runs on it, and says nothing any more."""
        self._down.add(node)
        self._deaths[node] = self._deaths.get(node, 0) + 1
        for pod in self.pods.values():
            if pod.node == node:
                self._admission.release(pod.uid)

    def start_machine(self, node: str) -> None:
        """One is there again under that name."""
        self._down.discard(node)
        for pod in list(self.pods.values()):
            if pod.node == node:
                self._sync(pod)

    def used_mib(self, node: Node) -> dict[int, int] | None:
        """Memory in use by the index of each device, by pods that run; None where no machine says anything."""
        if node.name in self._down:
            return None
        used = dict.fromkeys((gpu.index for gpu in node.gpus), 0)
        for pod in self.pods.values():
            if pod.node == node.name and pod.phase == "Running":
                for grant in pod.charge(node.gpus).gpus:
                    used[grant.index] = used.get(grant.index, 0) + (grant.mib or 1024)
        return used

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes.values())

    # -- what is seen -------------------------------------------------------------------------------------------------

    async def _nodes_listed(self, raws: list[bytes], _version: str) -> None:
        self._nodes = {node.name: node for node in map(parse_node, raws)}

    async def _node_events(self, events: list[tuple[str, bytes]]) -> None:
        for kind, raw in events:
            node = parse_node(raw)
            if kind == "DELETED":
                self._nodes.pop(node.name, None)
            else:
                self._nodes[node.name] = node
        for pod in list(self.pods.values()):
            self._sync(pod)

    async def _pods_listed(self, raws: list[bytes], _version: str) -> None:
        listed = {pod.uid: pod for pod in map(parse_pod, raws)}
        for uid in self.pods.keys() - listed.keys():
            self._gone(uid)
        for pod in listed.values():
            self._note(pod)
        self.pods = listed
        for pod in listed.values():
            self._sync(pod)

    async def _pod_events(self, events: list[tuple[str, bytes]]) -> None:
        for kind, raw in events:
            pod = parse_pod(raw)
            if kind == "DELETED":
                self._gone(pod.uid)
            else:
                self._note(pod)
                self.pods[pod.uid] = pod
                self._sync(pod)

    # -- what is done -------------------------------------------------------------------------------------------------

    def _gone(self, uid: str) -> None:
        pod = self.pods.pop(uid, None)
        self._admission.release(uid)
        if pod is not None:
            self._write_down(pod, "is gone")
            self.on_gone(pod)

    def _note(self, pod: PodView) -> None:
        """Before `pods` has this version: what is new about it goes into the journal."""
        before, now = (_looks(p) if p is not None else "" for p in (self.pods.get(pod.uid), pod))
        if before != now:
            self._write_down(pod, now)

    def _write_down(self, pod: PodView, what: str) -> None:
        self.journal.setdefault(job_key(pod), []).append((time.time(), f"pod {pod.name} {what}"))

    def _sync(self, pod: PodView) -> None:
        if not pod.node:
            if pod.terminating:
                self._begin(pod, self._leave(pod))
            return
        if pod.ended:
            self._admission.release(pod.uid)
        if pod.node in self._down:
            return
        if pod.terminating:
            self._begin(pod, self._leave(pod))
        elif pod.uid not in self._admission and not pod.ended and (pod.phase == "Pending" or self._takes_up(pod)):
            self._admit(pod)

    def _takes_up(self, pod: PodView) -> bool:
        """Whether a pod may run that this kubelet did not start."""
        return self._only_looks or pod.node in self._deaths

    def _admit(self, pod: PodView) -> None:
        node = self._nodes.get(pod.node)
        if node is None:
            return  # no kubelet there: it stays Pending, as on a real cluster
        reason, message = self._admission.admit(node, pod.uid, pod.charge(node.gpus))
        if reason:
            self.refusals.append((job_key(pod), Refused(f"{pod.namespace}/{pod.name}", pod.node, reason, message)))
            self._begin(pod, self._status(pod, {"phase": "Failed", "reason": reason, "message": message}))
            return
        self._begin(pod, self._live(pod))

    def _begin(self, pod: PodView, work: Coroutine[Any, Any, None]) -> None:
        if self._only_looks:
            work.close()
            return
        self._group.create_task(work, name=f"kubelet {pod.name}")

    async def _live(self, pod: PodView) -> None:
        deaths = self._deaths.get(pod.node, 0)
        await self._status(pod, {"phase": "Running"})
        try:
            seconds = float(pod.annotations.get(SECONDS, "3"))
        except ValueError:
            seconds = 3.0
        # A gang computes only as a whole: a member that waits for the others does not end.
        while pod.gang_min > 1 and pod.uid in self.pods and not self._whole(pod):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await asyncio.sleep(seconds)
        if deaths != self._deaths.get(pod.node, 0):
            return  # it died with its machine
        if pod.uid in self.pods and not self.pods[pod.uid].terminating:
            await self._status(pod, {"phase": "Succeeded"})

    def _whole(self, pod: PodView) -> bool:
        key = job_key(pod)
        up = sum(1 for p in self.pods.values() if p.phase in ("Running", "Succeeded") and job_key(p) == key)
        return up >= pod.gang_min

    async def _leave(self, pod: PodView) -> None:
        if pod.uid in self._busy:
            return
        self._busy.add(pod.uid)
        try:
            await asyncio.sleep(_LEAVE_S)
            if pod.node in self._down:
                return
            body = msgspec.json.encode({"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}})
            await self._surely("DELETE", writes.pods_path(pod.namespace, pod.name), body, "application/json")
        finally:
            self._busy.discard(pod.uid)

    async def _status(self, pod: PodView, status: dict[str, str]) -> None:
        body = msgspec.json.encode({"metadata": {"uid": pod.uid}, "status": status})
        await self._surely("PATCH", writes.pods_path(pod.namespace, pod.name, "status"), body, writes.MERGE)

    async def _surely(self, method: str, path: str, body: bytes, content_type: str) -> None:
        for _ in range(200):
            answer = await self._kube.call(method, path, body, content_type=content_type)
            if answer.ok or answer.status == 404:
                return
            if answer.status == 409:
                return  # another pod of that name
            if 400 <= answer.status < 500 and answer.status != 429:
                raise RuntimeError(f"kubelet may not {method} {path}: {answer.status} {answer.body[:300]!r}")
            await asyncio.sleep(0.3)
        raise RuntimeError(f"kubelet could not {method} {path}: {answer.status} {answer.body[:300]!r}")


def _looks(pod: PodView) -> str:
    where = f" on {pod.node}, GPUs {pod.annotations.get(keys.GPUS, '')}, claim {pod.claim}" if pod.node else " unbound"
    return pod.phase + (f" ({pod.status_reason})" if pod.status_reason else "") + where + ", leaving" * pod.terminating


def held_twice(pods: list[PodView]) -> dict[str, list[PodView]]:
    """Devices that more is promised of than there is, by the annotations of pods that hold room, and those pods."""
    milli: dict[tuple[str, int], int] = {}
    there: dict[tuple[str, int], list[PodView]] = {}
    for pod in pods:
        if pod.holds and pod.annotations.get(keys.GPUS):
            for grant in pod.charge().gpus:
                place = (pod.node, grant.index)
                milli[place] = milli.get(place, 0) + grant.milli
                there.setdefault(place, []).append(pod)
    return {f"{node}/{index}": there[node, index] for (node, index), used in milli.items() if used > WHOLE}


def done_twice(pods: list[PodView]) -> dict[str, list[PodView]]:
    """Tasks of job objects that run, or have run to their end, more than once at a time, and their pods."""
    there: dict[str, list[PodView]] = {}
    for pod in pods:
        owner = pod.training_job
        if owner is not None and not pod.terminating and (pod.holds or pod.phase == "Succeeded"):
            there.setdefault(f"{owner.uid}/{pod.role}/{pod.index}", []).append(pod)
    return {task: same for task, same in there.items() if len(same) > 1}
