"""Nodes that go and come back while pods are on them: registered anew, lost with their pods, replaced by others.

A node object that is deleted takes no pod with it: kubelet goes on with what it runs, and where the machine is lost the
control plane's pod garbage collector takes its pods after 40 to 80 s, unless a machine of that name is there by then,
which starts the pods that are bound to it. A node that comes back has another uid.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.chaos.kubelet import HonestKubelets
from libs.kube import writes
from libs.kube.nodes import parse_node
from libs.kube.port import Kube
from libs.kube.writes import list_all
from tools.load import node_object

#: Of each node's devices: MiB.
DEVICE_MIB: Final = 81_920
#: A node in so many does not declare what its devices have: their sizes are what is measured.
_BARE: Final = 4
#: The pod garbage collector looks every 20 s and waits 40 s until it believes that a node is gone.
COLLECTED_S: Final = 120.0


class Machines:
    """The nodes of a run. `names` are those that are to be there; faults of one machine exclude each other."""

    def __init__(self, kube: Kube, kubelets: HonestKubelets, count: int) -> None:
        self._kube = kube
        self._kubelets = kubelets
        self._busy: set[str] = set()
        self._made = 0
        self.names: list[str] = []
        self._count = count
        #: What a fault found broken, in words.
        self.broken: list[str] = []
        self.changes = {"registered anew": 0, "lost": 0}

    async def make(self) -> None:
        """Raises RuntimeError where the API server refuses a node."""
        for _ in range(self._count):
            await self._join(self._new_name())

    def _new_name(self) -> str:
        name = f"node-{self._made:05d}"
        self._made += 1
        return name

    def bare(self, name: str) -> bool:
        """Whether the node says nothing of its devices but their number."""
        return int(name.rpartition("-")[2]) % _BARE == _BARE - 1

    # -- what happens to them -----------------------------------------------------------------------------------------

    async def register_anew(self, rng: random.Random, most_s: float) -> None:
        """The object is deleted and after up to `most_s` made anew by the kubelet, which has gone on all the time."""
        with self._one(rng) as name:
            if name:
                self.changes["registered anew"] += 1
                await self._drop(name)
                await asyncio.sleep(rng.uniform(0.0, most_s))
                await self._join(name)

    async def reboot(self, rng: random.Random) -> None:
        """The machine dies, its object is deleted, and a machine of that name takes up what is bound to it."""
        with self._one(rng) as name:
            if name:
                self.changes["lost"] += 1
                self._kubelets.stop_machine(name)
                await self._drop(name)
                await asyncio.sleep(rng.uniform(3.0, 20.0))
                self._kubelets.start_machine(name)
                await self._join(name)

    async def lose(self, rng: random.Random) -> None:
        """The machine dies for good. When its pods have been taken, another comes, by the same name or another."""
        with self._one(rng) as name:
            if not name:
                return
            self.changes["lost"] += 1
            self._kubelets.stop_machine(name)
            self.names.remove(name)
            await self._drop(name)
            await self._collected(name)
            self._kubelets.start_machine(name)
            await self._join(name if rng.random() < 0.5 else self._new_name())

    async def _collected(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + COLLECTED_S
        while there := [p for p in self._kubelets.pods.values() if p.node == name]:
            if loop.time() > until:
                said = ", ".join(sorted(f"{p.name} ({p.phase})" for p in there))
                self.broken.append(f"still bound to {name}, {COLLECTED_S:.0f} s after it was deleted: {said}")
                return
            await asyncio.sleep(0.25)

    @contextmanager
    def _one(self, rng: random.Random) -> Iterator[str]:
        """One that nothing else happens to; empty where only half of them are left."""
        free = [name for name in self.names if name not in self._busy]
        name = rng.choice(free) if len(free) > self._count // 2 else ""
        if name:
            self._busy.add(name)
        try:
            yield name
        finally:
            self._busy.discard(name)

    # -- what is there ------------------------------------------------------------------------------------------------

    async def astray(self, charged: set[str]) -> list[str]:
        """Differences between the nodes that are to be, those that the API server has, and those that the ledger has
        room of (`charged`), in words."""
        listed = {node.name for node in map(parse_node, (await list_all(self._kube, writes.NODES)).items)}
        found = [f"node {name} is not there" for name in sorted(set(self.names) - listed)]
        found += [f"node {name} should be gone" for name in sorted(listed - set(self.names))]
        found += [f"the ledger does not know node {name}" for name in sorted(listed - charged)]
        found += [f"the ledger has node {name}, which is gone" for name in sorted(charged - listed)]
        return found

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _join(self, name: str) -> None:
        made = node_object(name, gpu_mib=DEVICE_MIB)
        if self.bare(name):
            made["metadata"] = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        await self._surely("POST", writes.NODES, json.dumps(made).encode())
        if name not in self.names:
            self.names.append(name)

    async def _drop(self, name: str) -> None:
        await self._surely("DELETE", f"{writes.NODES}/{name}", b"{}")

    async def _surely(self, method: str, path: str, body: bytes) -> None:
        for _ in range(400):
            answer = await self._kube.call(method, path, body, timeout_s=10.0)
            if answer.ok or answer.status in (404, 409):
                return
            await asyncio.sleep(0.25)
        raise RuntimeError(f"{method} {path}: {answer.status} {answer.body[:200]!r}")
