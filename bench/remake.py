"""What surrounds evictions on a real API server without kubelets: pods that leave end at once, and controllers make
them again. One owner stands behind each pod, so that every one is a workload of its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from libs.kube import writes
from libs.kube.pods import PodView, parse_pod
from libs.kube.port import Kube
from libs.kube.reflector import Reflector

#: The manifest of an owner's pod, by the owner's number and how often it was made.
Manifest = Callable[[int, int], dict[str, object]]

_LABEL = "bench-owner"
_AT_ONCE = 32


def owned(manifest: dict[str, Any], owner: int) -> dict[str, Any]:
    """The manifest as its owner's controller makes it."""
    uid = f"00000000-0000-4000-8000-{owner:012d}"
    manifest["metadata"]["labels"] = {**manifest["metadata"].get("labels", {}), _LABEL: str(owner)}
    manifest["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"owner-{owner}", "uid": uid, "controller": True}
    ]
    return manifest


class Remake:
    """`run()` until cancelled. `made` counts pods made again, `ended` those that left their node."""

    def __init__(self, kube: Kube, manifest: Manifest, namespace: str = "default") -> None:
        self._kube = kube
        self._manifest = manifest
        self._namespace = namespace
        self._times: dict[int, int] = {}
        self._leaving: set[str] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.remaking = True
        self.made = 0
        self.ended = 0
        #: When owners' pods were first seen to be told to go, and to be gone (monotonic seconds).
        self.told_at: list[float] = []
        self.gone_at: list[float] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._group = tasks
            pods = Reflector(
                self._kube, writes.pods_path(self._namespace), on_list=self._listed, on_events=self._events
            )  # fmt: skip
            tasks.create_task(pods.run(), name="pods that leave")

    async def _listed(self, raws: list[bytes], _version: str) -> None:
        for pod in map(parse_pod, raws):
            self._see(pod)

    async def _events(self, events: list[tuple[str, bytes]]) -> None:
        for kind, raw in events:
            pod = parse_pod(raw)
            if kind == "DELETED":
                self._leaving.discard(pod.uid)
                self._again(pod)
            else:
                self._see(pod)

    def _see(self, pod: PodView) -> None:
        if pod.terminating and pod.uid not in self._leaving:
            self._leaving.add(pod.uid)
            if _LABEL in pod.labels:
                self.told_at.append(time.monotonic())
            self._start(lambda: self._end(pod))

    def _again(self, pod: PodView) -> None:
        owner = pod.labels.get(_LABEL)
        if owner is None or not self.remaking:
            return
        self.gone_at.append(time.monotonic())
        number = int(owner)
        self._times[number] = self._times.get(number, 0) + 1
        body = json.dumps(owned(self._manifest(number, self._times[number]), number)).encode()
        self._start(lambda: self._make(body))

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        async def within() -> None:
            async with self._slots:
                await work()

        self._group.create_task(within(), name="kubelet or controller")

    async def _end(self, pod: PodView) -> None:
        await writes.delete_pod(self._kube, pod.namespace, pod.name, pod.uid, grace_s=0)
        self.ended += _LABEL in pod.labels

    async def _make(self, body: bytes) -> None:
        await self._kube.call("POST", writes.pods_path(self._namespace), body, timeout_s=30.0)
        self.made += 1
