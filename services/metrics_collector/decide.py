"""Pure: from measured devices to facts worth telling, nodes that vanished, and memory that leaked."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from libs.contracts.events import GpuFact, GpuFacts, PodFact
from libs.prom.dcgm import Device


@dataclass(frozen=True, slots=True)
class Rules:
    smoothing_s: float = 1.0
    mib_step: int = 1
    util_step: float = 1.0
    refresh_s: float = 60.0
    vanish_s: float = 30.0
    leak_mib: int = 512
    leak_s: float = 60.0


def ours(node: str, shard: int, shards: int) -> bool:
    """Whether this replica serves the node; the same in every process and release."""
    return zlib.crc32(node.encode()) % shards == shard


class Smoother:
    """Exponential smoothing of utilisation by time, not by sample: it does not depend on the interval. It ends: what is
    within half a point of the measured value is the measured value."""

    def __init__(self, constant_s: float) -> None:
        self._constant_s = constant_s
        self._last: dict[tuple[str, int], tuple[float, float]] = {}

    def of(self, node: str, index: int, value: float, now: float) -> float:
        last = self._last.get((node, index))
        if last is not None and self._constant_s > 0:
            before, at = last
            weight = 1.0 - math.exp(-max(0.0, now - at) / self._constant_s)
            smooth = before + weight * (value - before)
            value = value if abs(value - smooth) < 0.5 else smooth
        self._last[node, index] = (value, now)
        return value

    def forget(self, node: str) -> None:
        for key in [key for key in self._last if key[0] == node]:
            del self._last[key]


def facts(devices: Iterable[Device], smoother: Smoother, now: float) -> dict[str, GpuFacts]:
    """Facts by node."""
    by_node: dict[str, list[GpuFact]] = {}
    at: dict[str, float] = {}
    for d in devices:
        util = None if d.util_pct is None else round(smoother.of(d.node, d.index, d.util_pct, now), 1)
        by_node.setdefault(d.node, []).append(
            GpuFact(d.index, d.uuid, d.model, d.total_mib or 0, d.used_mib or 0, util)
        )
        at[d.node] = max(at.get(d.node, 0.0), d.at)
    return {
        node: GpuFacts(node, tuple(sorted(gpus, key=lambda g: g.index)), at[node]) for node, gpus in by_node.items()
    }


class Told:
    """What the topic has, as far as the broker acknowledged it, and what must be told next."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._told: dict[str, tuple[GpuFacts, float]] = {}
        self._seen_at: dict[str, float] = {}

    def found(self, node: str, told: GpuFacts, now: float) -> None:
        """Read back from the topic at start: an earlier life told this."""
        self._told.setdefault(node, (told, -math.inf))
        self._seen_at.setdefault(node, now)

    def changed(self, present: Mapping[str, GpuFacts], now: float) -> list[GpuFacts]:
        news = []
        for node, new in present.items():
            self._seen_at[node] = now
            old = self._told.get(node)
            if old is None or now - old[1] >= self._rules.refresh_s or self._differs(old[0], new):
                news.append(new)
        return news

    def vanished(self, now: float) -> list[str]:
        """Nodes that were told and have not been seen for too long. Ask only after a query that succeeded."""
        return [node for node in self._told if now - self._seen_at.get(node, -math.inf) >= self._rules.vanish_s]

    def acknowledged(self, news: Iterable[GpuFacts], gone: Iterable[str], now: float) -> None:
        for new in news:
            self._told[new.node] = (new, now)
        for node in gone:
            self._told.pop(node, None)
            self._seen_at.pop(node, None)

    def _differs(self, old: GpuFacts, new: GpuFacts) -> bool:
        if len(old.gpus) != len(new.gpus):
            return True
        for a, b in zip(old.gpus, new.gpus, strict=True):
            if (a.index, a.uuid, a.model, a.mib_total) != (b.index, b.uuid, b.model, b.mib_total):
                return True
            if abs(a.mib_used - b.mib_used) >= self._rules.mib_step:
                return True
            if (a.util_pct is None) != (b.util_pct is None):
                return True
            if a.util_pct is not None and b.util_pct is not None:
                apart = abs(a.util_pct - b.util_pct)
                # The end of a slope is told, however small its last step: a device that fell idle is idle.
                if apart >= self._rules.util_step or (apart and b.util_pct in (0.0, 100.0)):
                    return True
        return False


class Charged:
    """Which devices bound pods are charged for, from `drystone.cluster`."""

    def __init__(self) -> None:
        self._pods: dict[str, PodFact] = {}
        self._by_node: dict[str, set[str]] = {}

    def apply(self, uid: str, pod: PodFact | None) -> None:
        old = self._pods.pop(uid, None)
        if old is not None:
            self._by_node[old.node].discard(uid)
        if pod is not None:
            self._pods[uid] = pod
            self._by_node.setdefault(pod.node, set()).add(uid)

    def on(self, node: str) -> tuple[frozenset[int], bool]:
        """(indices charged, whether a pod there holds devices that we do not know)."""
        pods = [self._pods[uid] for uid in self._by_node.get(node, ())]
        return frozenset(g.index for pod in pods for g in pod.charge.gpus), any(pod.charge.blind for pod in pods)


@dataclass(frozen=True, slots=True)
class Leak:
    node: str
    index: int
    mib: int


class LeakGuard:
    """Memory in use on a device that no bound pod is charged for, for longer than a pod needs to go."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._since: dict[tuple[str, int], float] = {}
        self._told: set[tuple[str, int]] = set()

    def look(
        self, present: Mapping[str, GpuFacts], charged: Charged, now: float
    ) -> tuple[list[Leak], list[Leak], list[tuple[str, int]]]:
        """(leaks now, those of them that are new, devices that leak no more)."""
        leaks: list[Leak] = []
        suspects: set[tuple[str, int]] = set()
        for node, told in present.items():
            indices, blind = charged.on(node)
            if blind:
                continue
            for gpu in told.gpus:
                if gpu.mib_used < self._rules.leak_mib or gpu.index in indices:
                    continue
                key = (node, gpu.index)
                suspects.add(key)
                if now - self._since.setdefault(key, now) >= self._rules.leak_s:
                    leaks.append(Leak(node, gpu.index, gpu.mib_used))
        for key in [key for key in self._since if key not in suspects]:
            del self._since[key]
        leaking = {(leak.node, leak.index) for leak in leaks}
        new = [leak for leak in leaks if (leak.node, leak.index) not in self._told]
        ended = sorted(self._told - leaking)
        self._told = leaking
        return leaks, new, ended
