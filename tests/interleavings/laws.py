"""What must hold at every moment, and an observer that never blinks.

It sees every change of a pod and every effect on the ledger, at the moment itself: no device is promised twice, nothing
holds more than there is, and what is used is the sum of its holders. What it finds is in `broken`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import fakeredis
import msgspec

from libs.kube.pods import parse_pod
from libs.testkit.pauses import Point


class BrokenLaw(AssertionError):
    pass


def law(holds: object, text: str) -> None:
    if not holds:
        raise BrokenLaw(text)


class Observer:
    """`redis` leads to the ledger past everybody."""

    def __init__(self, redis: fakeredis.FakeRedis) -> None:
        self._redis = redis
        #: Pods as they were bound: uid -> (name, node, devices), first seen; what they do with them later is theirs.
        self.granted: dict[str, tuple[str, str, dict[int, int]]] = {}
        #: Tasks of job objects that run or have run to their end: "<job uid>/<role>/<index>" -> the pod's (uid, name).
        self.done: dict[str, tuple[str, str]] = {}
        self.bindings: list[tuple[str, str, str]] = []  # (name, node, claim), in order
        self.broken: list[str] = []
        self.refused: list[tuple[str, str]] = []  # (actor, refusal) of commits
        self.commits: list[tuple[str, Any]] = []  # (actor, answers)
        self.limits: dict[str, int] = {}

    def pod_changed(self, change: Any) -> None:
        """Every change of a pod, at once: what is bound to whom."""
        if change.place.resource != "/pods":
            return
        new = change.new
        self._task_changed(change)
        if new is None or new["status"].get("phase") in ("Succeeded", "Failed"):
            self.granted.pop((new or change.old)["metadata"]["uid"], None)
            return
        if not new["spec"].get("nodeName") or new["metadata"]["uid"] in self.granted:
            return
        pod = parse_pod(change.raw)
        if change.old is not None and change.old["spec"].get("nodeName"):
            return
        self.bindings.append((pod.name, pod.node, pod.claim))
        devices = {g.index: g.milli for g in pod.charge().gpus} if pod.ours else {}
        for name, node, held in self.granted.values():
            twice = {i for i, milli in devices.items() if node == pod.node and held.get(i, 0) + milli > 1000}
            if twice and pod.claim:
                self.broken.append(f"a device is given once: {pod.name} and {name} have GPU {twice} of {node}")
        self.granted[pod.uid] = (pod.name, pod.node, devices)

    def _task_changed(self, change: Any) -> None:
        """A task runs beside no other attempt of it, and beside no result of it."""
        pod = parse_pod(change.raw) if change.new is not None else None
        uid = (change.new or change.old)["metadata"]["uid"]
        if pod is None or pod.terminating or pod.phase == "Failed":
            for slot in [slot for slot, (held, _) in self.done.items() if held == uid]:
                del self.done[slot]
        elif pod.training_job is not None and (pod.holds or pod.phase == "Succeeded"):
            slot = f"{pod.training_job.uid}/{pod.role}/{pod.index}"
            before = self.done.setdefault(slot, (uid, pod.name))
            if before[0] != uid:
                self.broken.append(f"a task is done once: {pod.name} beside {before[1]}")

    def after(self, point: Point, answer: Any) -> None:
        if point.act in ("ledger commit", "ledger commit_evictions"):
            self.commits.append((point.actor, answer))
            self.refused += [(point.actor, str(why)) for a in answer for why in a.refused.values()]
        if point.act in _CHARGING:
            self._audit(point)

    def _audit(self, point: Point) -> None:
        """The books themselves, read past everybody: no device over its capacity, no queue over its limit, and what is
        used is the sum of what is held."""
        held: defaultdict[tuple[str, int], int] = defaultdict(int)
        for hash_, prefix in (("work", b"c:"), ("work", b"e:"), ("tasks", b"")):
            for key, raw in self._redis.hgetall("{drystone}:" + hash_).items():
                if key.startswith(prefix) and (prefix or hash_ == "tasks"):
                    entry = msgspec.json.decode(raw)
                    for index, milli, _ in (entry.get("H") or entry.get("c") or {}).get("gpus") or ():
                        held[entry["n"], index] += milli
        for (node, index), milli in held.items():
            if milli > 1000 and not self._disputed(node, index):
                self.broken.append(f"a device is promised once: GPU {index} of {node} has {milli} milli after {point}")
        for key, raw in self._redis.hgetall("{drystone}:nodes").items():
            kind, _, name = key.decode().partition(":")
            if kind == "u":
                use = msgspec.json.decode(raw)
                sums = [milli for milli, _ in use.get("gpus") or ()]
                said = {i: milli for i, milli in enumerate(sums) if milli}
                if said != {i: milli for (node, i), milli in held.items() if node == name and milli}:
                    self.broken.append(f"use is the sum of its holders: {name} says {said}, held {dict(held)}, {point}")
            elif kind == "q" and name in self.limits:
                used = msgspec.json.decode(raw).get("gpu_milli", 0)
                if used > self.limits[name]:
                    self.broken.append(f"no queue goes over its limit: {name} has {used} of {self.limits[name]}")

    def _disputed(self, node: str, index: int) -> bool:
        """Two pods that reality put there: not the ledger's doing."""
        return sum(1 for _, where, has in self.granted.values() if where == node and index in has) > 1


_CHARGING = frozenset(
    f"ledger {name}"
    for name in ("commit", "commit_evictions", "begin", "confirm", "release", "drop", "expire", "tasks_seen",
                 "tasks_gone", "sweep", "unmark", "whole")
)  # fmt: skip
