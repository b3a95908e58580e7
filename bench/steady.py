"""Single pods at a steady rate on a real API server: made, bound by whoever schedules, ended and deleted soon after.

Whoever makes them tries again under the same name until the API server has said yes, so that no outage loses a pod.
Noted of every pod: when the API server accepted it and when it was seen bound, in monotonic seconds. Pods that were
made together may be deleted together: one call for many costs the API server less than a call for each.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import msgspec

from libs.domain import keys
from libs.kube import writes
from libs.kube.errors import ReadFailed
from libs.kube.port import Kube, WatchBroken, WatchGone
from tools.load import pod_object

NAMESPACE: Final = "default"
_PARALLEL: Final = 64
_RETRY_S: Final = 0.1
#: Without any event for so long the watch is taken for broken, and begun anew.
_SILENCE_S: Final = 5.0
_NOW: Final = b'{"gracePeriodSeconds":0}'
#: Deleting many takes the server a while.
_DELETE_S: Final = 30.0
#: Stand for what differs from pod to pod in a body that is encoded once.
_NAME: Final = "name-of-the-pod"
_CROWD: Final = "crowd-of-the-pod"


@dataclass(slots=True)
class Seen:
    """Accepted at, bound at (0: not yet)."""

    accepted: float
    bound: float = 0.0
    gone: bool = False

    @property
    def wait(self) -> float:
        return self.bound - self.accepted


@dataclass(slots=True)
class Crowd:
    """Pods that are deleted by one call: those made before `until`."""

    until: float
    #: Made, and not seen bound.
    unbound: int = 0
    #: When the last of them was seen bound.
    bound: float = 0.0


@dataclass(slots=True)
class Steady:
    """`run()` until cancelled. `rate` pods a second, each deleted `life_s` after it was seen bound; with `together_s`
    by one call with all that were made within so many seconds, `life_s` after the last of them was seen bound. While
    more than `most` of those that were made are not bound none is made (0: always made)."""

    kube: Kube
    rate: float
    life_s: float = 1.0
    name: str = "steady"
    annotations: dict[str, str] = field(default_factory=dict)
    most: int = 0
    together_s: float = 0.0
    #: Every pod by name; forgotten by `forget`.
    pods: dict[str, Seen] = field(default_factory=dict)
    made: int = 0
    bound: int = 0
    #: Ticks at which no pod was made because `most` were unbound already.
    held_back: int = 0
    #: No more are made; what there is comes to its end.
    stopping: bool = False
    #: What went wrong with them.
    failed: list[str] = field(default_factory=list)
    owners: Owners = field(default_factory=lambda: Owners())
    _leaving: deque[tuple[float, str]] = field(default_factory=deque)
    _crowds: dict[str, Crowd] = field(default_factory=dict)
    _crowd_of: dict[str, str] = field(default_factory=dict)
    #: Of their own: creations that wait must not hold up deletions, which make room.
    _creates: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PARALLEL))
    _deletes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PARALLEL))
    _unbound: int = 0
    _ended: int = 0
    _body: bytes = b""
    _tasks: asyncio.TaskGroup = field(init=False)

    async def run(self) -> None:
        labels = {"run": self.name, **({"crowd": _CROWD} if self.together_s else {})}
        self._body = json.dumps(pod_object(_NAME, labels=labels, annotations=self.annotations)).encode()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(follow(self.kube, f"run={self.name}", self._look, self._gone), name="bindings")
            tasks.create_task(self._remove(), name="remove")
            tasks.create_task(self._make(), name="make")

    @property
    def unbound(self) -> int:
        """Accepted and not seen bound."""
        return self._unbound

    @property
    def left(self) -> int:
        """Made and not seen gone."""
        return self.made - self._ended

    def forget(self, before: float) -> None:
        """Forget those that are gone and were bound before this time."""
        self.pods = {name: pod for name, pod in self.pods.items() if not (pod.gone and pod.bound < before)}

    async def quiet(self, for_s: float, late_s: float, limit_s: float) -> bool:
        """Wait until for so long no pod has been unbound for longer than `late_s`; False after the limit."""
        end = time.monotonic() + limit_s
        since = time.monotonic()
        while True:
            now = time.monotonic()
            if any(not p.bound and now - p.accepted > late_s for p in self.pods.values()):
                since = now
            elif now - since >= for_s:
                return True
            if now > end:
                return False
            await asyncio.sleep(0.05)

    # -- making and removing ------------------------------------------------------------------------------------------

    async def _make(self) -> None:
        due = time.monotonic()
        while not self.stopping:
            now = time.monotonic()
            while due <= now:
                due += 1 / self.rate
                if self.most and self.made - self.bound >= self.most:
                    self.held_back += 1
                    continue
                self.made += 1
                name = f"{self.name}-{self.made}"
                crowd = self._join(name, now) if self.together_s else ""
                self._tasks.create_task(self._create(name, crowd), name=f"create {name}")
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def _join(self, name: str, now: float) -> str:
        number = int(now / self.together_s)
        crowd = str(number)
        self._crowds.setdefault(crowd, Crowd((number + 1) * self.together_s)).unbound += 1
        self._crowd_of[name] = crowd
        return crowd

    async def _create(self, name: str, crowd: str) -> None:
        body = self._body.replace(_NAME.encode(), name.encode()).replace(_CROWD.encode(), crowd.encode())
        while True:
            async with self._creates:
                answer = await self.kube.call("POST", writes.pods_path(NAMESPACE), body)
            if answer.ok or answer.status == 409:
                break
            await asyncio.sleep(_RETRY_S)
        self._accepted(name)

    def _accepted(self, name: str) -> Seen:
        """By the API server's answer or by the watch, whichever comes first."""
        pod = self.pods.get(name)
        if pod is None:
            pod = self.pods[name] = Seen(time.monotonic())
            self._unbound += 1
        return pod

    async def _remove(self) -> None:
        while True:
            while self._leaving and self._leaving[0][0] <= time.monotonic():
                name = self._leaving.popleft()[1]
                self._tasks.create_task(self._delete(name), name=f"delete {name}")
            now = time.monotonic()
            for name, crowd in list(self._crowds.items()):
                if not crowd.unbound and crowd.until <= now and crowd.bound + self.life_s <= now:
                    del self._crowds[name]
                    self._tasks.create_task(self._delete_crowd(name), name=f"delete crowd {name}")
            await asyncio.sleep(0.05)

    async def _delete(self, name: str) -> None:
        while True:
            async with self._deletes:
                answer = await self.kube.call("DELETE", writes.pods_path(NAMESPACE, name), _NOW)
            if answer.ok or answer.status == 404:
                return
            await asyncio.sleep(_RETRY_S)

    async def _delete_crowd(self, crowd: str) -> None:
        selector = f"run={self.name},crowd={crowd}"
        while True:
            async with self._deletes:
                answer = await self.kube.call(
                    "DELETE",
                    writes.pods_path(NAMESPACE),
                    _NOW,
                    params={"labelSelector": selector},
                    timeout_s=_DELETE_S,
                )
            if answer.ok:
                return
            await asyncio.sleep(_RETRY_S)

    # -- watching -----------------------------------------------------------------------------------------------------

    def _look(self, pod: Pod) -> None:
        seen = self._accepted(pod.metadata.name)
        if pod.spec.nodeName and not seen.bound:
            seen.bound = time.monotonic()
            self._unbound -= 1
            self.bound += 1
            crowd = self._crowds.get(self._crowd_of.pop(pod.metadata.name, ""))
            if crowd is None:
                self._leaving.append((seen.bound + self.life_s, pod.metadata.name))
            else:
                crowd.unbound -= 1
                crowd.bound = seen.bound
            self.owners.promised(pod)

    def _gone(self, name: str) -> None:
        self.owners.gone(name)
        pod = self.pods.get(name)
        if pod is not None and not pod.gone:
            pod.gone = True
            self._ended += 1


class Owners:
    """Whole devices, each with one owner from the moment it is bound until it is gone."""

    def __init__(self) -> None:
        #: What was promised to two pods at once: the device, and who they are.
        self.twice: list[str] = []
        self._owner: dict[tuple[str, str], str] = {}
        self._owned: dict[str, list[tuple[str, str]]] = {}

    def promised(self, pod: Pod) -> None:
        name = pod.metadata.name
        if name in self._owned:
            return
        for index in filter(None, pod.metadata.annotations.get(keys.GPUS, "").split(",")):
            device = (pod.spec.nodeName, index)
            other = self._owner.setdefault(device, name)
            if other != name:
                self.twice.append(f"device promised twice: {device[0]}/{index}, {other} and {name}")
            else:
                self._owned.setdefault(name, []).append(device)

    def gone(self, name: str) -> None:
        for device in self._owned.pop(name, ()):
            del self._owner[device]


class Meta(msgspec.Struct):
    name: str = ""
    resourceVersion: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Spec(msgspec.Struct):
    nodeName: str = ""


class Status(msgspec.Struct):
    phase: str = ""


class Pod(msgspec.Struct):
    metadata: Meta
    spec: Spec
    status: Status = msgspec.field(default_factory=Status)


_decode: Final = msgspec.json.Decoder(Pod).decode


async def follow(
    kube: Kube,
    selector: str,
    look: Callable[[Pod], None],
    gone: Callable[[str], None] = lambda _name: None,
    path: str = writes.pods_path(NAMESPACE),
) -> NoReturn:
    """List and watch pods, or what else there is under the path, for ever; `look` sees every state of each but its end,
    `gone` is told its name. After an outage it is back at once, not after a growing pause as services are: what it sees
    is what is measured."""
    there = set[str]()
    while True:
        try:
            listed = await writes.list_all(kube, path, label_selector=selector)
            pods = list(map(_decode, listed.items))
            for name in there - {pod.metadata.name for pod in pods}:
                gone(name)
            there = {pod.metadata.name for pod in pods}
            for pod in pods:
                look(pod)
            version = listed.version
            while True:
                params = {"labelSelector": selector, "resourceVersion": version, "timeoutSeconds": "600"}
                async for kind, raw in kube.watch(path, params=params, silence_s=_SILENCE_S):
                    pod = _decode(raw)
                    version = pod.metadata.resourceVersion
                    if kind == "DELETED":
                        there.discard(pod.metadata.name)
                        gone(pod.metadata.name)
                    else:
                        there.add(pod.metadata.name)
                        look(pod)
        except (ReadFailed, WatchBroken, WatchGone):
            await asyncio.sleep(_RETRY_S)


@dataclass(frozen=True, slots=True)
class Recovery:
    """How binding went on after a fault, in seconds after it. `first_s`: until a pod made after the fault was bound.
    `healed_s`: until the last pod that waited too long was bound, 0 where none did. `gap_s`: the longest time without
    any binding. `wait_s`: the longest that one pod waited. `lost`: pods that were never bound."""

    first_s: float
    healed_s: float
    gap_s: float
    wait_s: float
    lost: int

    def summary(self) -> dict[str, Any]:
        return {name: round(getattr(self, name), 2) for name in ("first_s", "healed_s", "gap_s", "wait_s")} | {
            "lost": self.lost
        }


def recovery(pods: Sequence[Seen], fault: float, until: float, late_s: float) -> Recovery:
    """What the pods that were bound between `fault` and `until` tell. A pod is late that waited more than `late_s`."""
    after = [p for p in pods if fault < p.bound <= until]
    last = max((p.bound for p in pods if 0 < p.bound <= fault), default=fault)
    times = sorted((last, *(p.bound for p in after)))
    return Recovery(
        first_s=min((p.bound - fault for p in after if p.accepted > fault), default=float("inf")),
        healed_s=max((p.bound - fault for p in after if p.wait > late_s), default=0.0),
        gap_s=max((b - a for a, b in itertools.pairwise(times)), default=until - fault),
        wait_s=max((p.wait for p in after), default=0.0),
        lost=sum(not p.bound for p in pods if until - p.accepted > late_s),
    )


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and worst."""
    return {"median": round(statistics.median(values), 2), "worst": round(max(values), 2)}
