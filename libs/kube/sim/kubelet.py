"""Kubelets of the embedded cluster: honest at the door, quick at work.

Admission sums the requests of all pods on the node that have not ended, Terminating ones included, and every GPU index
once; a pod that does not fit is Failed with kubelet's own reason (`OutOfcpu`, `OutOfnvidia.com/gpu`, ...) and kept in
`refusals`: with a correct scheduler that list stays empty. Admitted pods run for the seconds in their annotation
`drystone.dev/simulated-seconds` divided by `speed`, then succeed (or fail, with `drystone.dev/simulated-end: Failed`).
Without the annotation they run until they are deleted. Terminating pods stay for a part of their grace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from libs.domain.nodes import Node
from libs.kube.embedded import EmbeddedCluster
from libs.kube.nodes import parse_node
from libs.kube.pods import PodView, parse_pod
from libs.kube.sim.admission import Admission, Refused
from libs.kube.sim.podrules import PODS
from libs.kube.sim.store import Change, Object, Place

SECONDS: Final = "drystone.dev/simulated-seconds"
END: Final = "drystone.dev/simulated-end"
NODES: Final = "/nodes"


class SimulatedKubelets:
    """One object for the kubelets of all nodes. Made inside a running loop; works until `stop`."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        *,
        speed: float = 1.0,
        start_s: float = 0.0,
        leave_s: float = 0.2,
    ) -> None:
        """`start_s`: from bound to running; `leave_s`: the most that a terminating pod stays. Both are divided by
        `speed`, as all times are."""
        if speed <= 0:
            raise ValueError("speed must be positive")
        self.refusals: list[Refused] = []
        self.succeeded = 0
        self._cluster = cluster
        self._store = cluster.store
        self._loop = asyncio.get_running_loop()
        self._speed, self._start_s, self._leave_s = speed, start_s, leave_s
        self._admission = Admission()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._todo: list[Place] = []
        self._due = self._stopped = False
        self._nodes: dict[str, tuple[str, Node]] = {}
        for place, _ in self._store.all(PODS):
            self._todo.append(place)
        if self._todo:
            self._soon()
        self._store.observers.append(self._changed)

    def stop(self) -> None:
        self._stopped = True
        self._store.observers.remove(self._changed)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # --- what happens -----------------------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        if change.place.resource != PODS:
            return
        if change.new is None:
            if change.old is not None:
                self._release(change.old["metadata"]["uid"])
            return
        if change.new["spec"].get("nodeName"):
            if change.new["status"].get("phase") in ("Succeeded", "Failed"):
                self._release(change.new["metadata"]["uid"])
            self._todo.append(change.place)
            self._soon()

    def _soon(self) -> None:
        if not self._due and not self._stopped:
            self._due = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        """In order of the changes, so that who was bound first is admitted first."""
        todo, self._todo = self._todo, []
        for place in dict.fromkeys(todo):
            found = self._store.get(place)
            if found is not None:
                self._sync(place, found.object, found.raw)
        self._due = False
        if self._todo:
            self._soon()

    def _sync(self, place: Place, pod: Object, raw: bytes) -> None:
        uid, phase, node = pod["metadata"]["uid"], pod["status"].get("phase"), pod["spec"].get("nodeName")
        if not node:
            return
        if pod["metadata"].get("deletionTimestamp"):
            if f"leave/{uid}" not in self._timers:
                grace = float(pod["metadata"].get("deletionGracePeriodSeconds", 0))
                self._later(f"leave/{uid}", min(grace, self._leave_s), lambda: self._leave(place, uid))
            return
        if phase == "Pending" and uid not in self._admission:
            self._admit(place, pod, parse_pod(raw))

    def _admit(self, place: Place, pod: Object, view: PodView) -> None:
        node = self._node(view.node)
        if node is None:
            return  # no kubelet there: the pod stays Pending, as on a real cluster
        reason, message = self._admission.admit(node, view.uid, view.charge(node.gpus))
        if reason:
            self.refusals.append(Refused(f"{place.namespace}/{place.name}", node.name, reason, message))
            self._status(place, pod, phase="Failed", reason=reason, message=message)
            return
        if self._start_s:
            self._later(f"start/{view.uid}", self._start_s, lambda: self._start(place, view.uid))
        else:
            self._start(place, view.uid)

    def _start(self, place: Place, uid: str) -> None:
        pod = self._alive(place, uid)
        if pod is None or pod["metadata"].get("deletionTimestamp"):
            return
        self._status(place, pod, phase="Running", startTime=self._cluster.stamp())
        seconds = _seconds((pod["metadata"].get("annotations") or {}).get(SECONDS))
        if seconds is not None:
            self._later(f"end/{uid}", seconds, lambda: self._end(place, uid))

    def _end(self, place: Place, uid: str) -> None:
        pod = self._alive(place, uid)
        if pod is None:
            return
        failed = (pod["metadata"].get("annotations") or {}).get(END) == "Failed"
        self.succeeded += not failed
        self._status(place, pod, phase="Failed" if failed else "Succeeded")

    def _leave(self, place: Place, uid: str) -> None:
        if self._alive(place, uid) is not None:
            self._cluster.end(place, 0)

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _alive(self, place: Place, uid: str) -> Object | None:
        """The pod, if it is still that one and has not ended."""
        found = self._store.get(place)
        if found is None or found.object["metadata"]["uid"] != uid:
            return None
        ended = found.object["status"].get("phase") in ("Succeeded", "Failed")
        return None if ended and not found.object["metadata"].get("deletionTimestamp") else found.object

    def _status(self, place: Place, pod: Object, **fields: str) -> None:
        running = "True" if fields["phase"] == "Running" else "False"
        others = [c for c in pod["status"].get("conditions") or () if c.get("type") != "Ready"]
        conditions = [*others, {"type": "Ready", "status": running, "lastTransitionTime": self._cluster.stamp()}]
        self._store.put(place, {**pod, "status": {**pod["status"], **fields, "conditions": conditions}})

    def _later(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        def fire() -> None:
            self._timers.pop(name, None)
            if not self._stopped:
                act()

        self._timers[name] = self._loop.call_later(seconds / self._speed, fire)

    def _release(self, uid: str) -> None:
        for kind in ("start", "end", "leave"):
            timer = self._timers.pop(f"{kind}/{uid}", None)
            if timer is not None:
                timer.cancel()
        self._admission.release(uid)

    def _node(self, name: str) -> Node | None:
        found = self._store.get(Place(NODES, "", name))
        if found is None:
            return None
        known = self._nodes.get(name)
        version = found.object["metadata"]["resourceVersion"]
        if known is None or known[0] != version:
            try:
                known = (version, parse_node(found.raw))
            except msgspec.MsgspecError:
                return None
            self._nodes[name] = known
        return known[1]


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    return value if value is not None and 0 <= value < 1e9 else None
