"""What placement rules cost the engine: time per task for gangs with and without rules, on a large cluster.

`python -m tools.differential.cost --nodes 10000`
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from libs.domain.jobs import JobHead, Task
from libs.domain.nodes import Gpu, Node
from libs.domain.resources import Charge, GpuRequest, Request
from libs.domain.rules import PodTerm, Requirement, Rules, Spread
from libs.engine.api import EngineConfig, PendingJob, RunningTask
from libs.engine.core import PlacementEngine

_HOST, _ZONE = "kubernetes.io/hostname", "zone"


def _node(number: int) -> Node:
    name = f"n{number:05}"
    labels = {_HOST: name, _ZONE: f"z{number % 8}"}
    gpus = tuple(Gpu(i, 81920, "A100") for i in range(8))
    return Node(name, "uid-" + name, "1", name, 96_000, 1_000_000, 110, gpus, labels)


def _running(number: int, nodes: int) -> RunningTask:
    return RunningTask(
        f"run-{number}", f"run-{number}", "team", f"n{number % nodes:05}", "", "", 0, Charge(100, 100), ours=False,
        labels={"app": f"a{number % 50}", "pod": str(number)},
    )  # fmt: skip


def _gang(name: str, rules: Rules | None, size: int) -> PendingJob:
    head = JobHead(f"gang/team/{name}", "team", "team", gang_min=size)
    like = Task("", "", "team", request=Request(1000, 1024, GpuRequest(1)), labels={"app": name}, rules=rules)
    return PendingJob(
        head, tuple(msgspec.structs.replace(like, id=f"{name}-{i}", name=f"{name}-{i}") for i in range(size))
    )


def measure(nodes: int, size: int) -> dict[str, Any]:
    engine = PlacementEngine(EngineConfig())
    for number in range(nodes):
        engine.node_seen(_node(number))
    begun = time.perf_counter()
    for number in range(10 * nodes):
        engine.pod_seen(_running(number, nodes))
    seen_us = (time.perf_counter() - begun) / (10 * nodes) * 1e6

    def likes(name: str) -> tuple[Requirement, ...]:
        return (Requirement("app", "In", (name,)),)

    kinds = {
        "plain": None,
        "spread over zones": Rules(spread=(Spread(_ZONE, 1, likes("spread over zones")),)),
        "one on each node": Rules(anti_affinity=(PodTerm(_HOST, likes("one on each node"), ("team",)),)),
        "all in one zone": Rules(affinity=(PodTerm(_ZONE, likes("all in one zone"), ("team",)),)),
    }
    cost: dict[str, float] = {}
    for name, rules in kinds.items():
        for _ in range(2):  # the first time a class is built
            begun = time.perf_counter()
            [decision] = engine.decide([_gang(name, rules, size)])
            cost[name] = (time.perf_counter() - begun) / max(len(decision.placements), 1) * 1e6
            engine.settle()
    return {"nodes": nodes, "tasks": size, "pod_seen_us": round(seen_us, 1),
            "us_per_task": {name: round(us, 1) for name, us in cost.items()}}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.differential.cost", description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--tasks", type=int, default=1_000)
    given = parser.parse_args(arguments)
    sys.stdout.write(json.dumps(measure(given.nodes, given.tasks), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
