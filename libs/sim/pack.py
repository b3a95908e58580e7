"""One run of arrivals without departures, as in the FGD paper: each task is placed when it comes or dropped.

The engine places; this module only keeps the books, in whole milli GPUs, and derives the published measures from them:
arrived % (GPU asked by all arrivals so far), allocated %, and the fragment measure F, each as % of the cluster's GPU. A
curve's value at load L is the mean over the arrivals whose arrived % rounds to L.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from libs.domain.resources import Request
from libs.engine.api import EngineConfig
from libs.engine.core import PlacementEngine
from libs.sim.arrivals import arrivals, capacity, ordered
from libs.sim.fragment import Fragments
from libs.sim.lists import NodeRow, TaskRow
from libs.sim.world import node_fact, pending

CLASSES: Final = ("cpu-only", "shared", "1", "2", "4", "8")
#: Jobs given to the engine at once. It sees them one after the other all the same.
_BATCH: Final = 512


@dataclass(frozen=True, slots=True)
class PackRun:
    """What one run came to. `curve` is load % -> (allocated %, F %); `placed` and `arrived` count tasks by class;
    `seconds` is the CPU time that the engine took, learning the nodes included. `placements` is the node of each task
    in order of arrival, empty where it was dropped."""

    seed: int
    curve: dict[int, tuple[float, float]]
    placed: dict[str, int]
    arrived: dict[str, int]
    seconds: float
    placements: tuple[str, ...]


def task_class(request: Request) -> str:
    gpu = request.gpu
    if not gpu.count:
        return "cpu-only"
    return "shared" if gpu.shared else str(gpu.count)


def typical_tasks(tasks: list[TaskRow]) -> tuple[tuple[Request, int], ...]:
    """How often each request stands in a list: what FGD, and only FGD, is told beforehand."""
    return tuple(sorted(Counter(task.request for task in tasks).items(), key=lambda item: (-item[1], repr(item[0]))))


def run_pack(
    nodes: list[NodeRow],
    tasks: list[TaskRow],
    policy: str,
    seed: int,
    load_percent: int = 130,
    node_order: str = "random",
    progress: Callable[[float], None] | None = None,
) -> PackRun:
    stream = arrivals(tasks, capacity(nodes), load_percent, seed)
    return run_stream(nodes, stream, tasks, policy, seed, node_order, progress)


def run_stream(
    nodes: list[NodeRow],
    stream: list[TaskRow],
    tasks: list[TaskRow],
    policy: str,
    seed: int,
    node_order: str = "random",
    progress: Callable[[float], None] | None = None,
) -> PackRun:
    """Place `stream` in its order. F is measured by the mix of `tasks`, whatever the policy knows."""
    typical = typical_tasks(tasks)
    listed = ordered(nodes, node_order, seed)
    facts = [node_fact(row, at) for at, row in enumerate(listed)]
    jobs = [pending(row, at) for at, row in enumerate(stream)]
    config = EngineConfig(weights={policy: 1}, seed=seed, explain=False, typical=typical if policy == "fgd" else ())
    total = capacity(nodes)
    books = _Books(total, Fragments(facts, typical))
    gc.collect()
    gc.freeze()  # what was read is not the engine's to look through
    seconds = 0.0
    started = time.process_time()
    engine = PlacementEngine(config)
    for fact in facts:
        engine.node_seen(fact)
    seconds += time.process_time() - started
    for at in range(0, len(jobs), _BATCH):
        batch = jobs[at : at + _BATCH]
        started = time.process_time()
        decisions = engine.decide(batch)
        seconds += time.process_time() - started
        for job, decision in zip(batch, decisions, strict=True):
            placement = decision.placements[0] if decision.placements else None
            books.arrived(job.tasks[0].request)
            if placement is not None:
                books.placed(job.tasks[0].request, placement.node)
                books.fragments.take(placement.node, placement.charge)
            books.mark(placement.node if placement is not None else "")
        if progress is not None:
            progress((at + len(batch)) / len(jobs))
    gc.unfreeze()
    return PackRun(seed, books.curve(), dict(books.took), dict(books.came), seconds, tuple(books.nodes))


class _Books:
    def __init__(self, total: int, fragments: Fragments) -> None:
        self._total = total
        self._asked = self._allocated = 0
        self._sums: dict[int, list[float]] = {}
        self.fragments = fragments
        self.came: Counter[str] = Counter()
        self.took: Counter[str] = Counter()
        self.nodes: list[str] = []

    def arrived(self, request: Request) -> None:
        self.came[task_class(request)] += 1
        self._asked += request.gpu_milli

    def placed(self, request: Request, node: str) -> None:  # noqa: ARG002
        self.took[task_class(request)] += 1
        self._allocated += request.gpu_milli

    def mark(self, node: str) -> None:
        self.nodes.append(node)
        load = (200 * self._asked + self._total) // (2 * self._total)
        at = self._sums.setdefault(load, [0, 0, 0])
        at[0] += 1
        at[1] += self._allocated
        at[2] += self.fragments.total

    def curve(self) -> dict[int, tuple[float, float]]:
        return {
            load: (100 * allocated / count / self._total, 100 * fragments / count / self._total / self.fragments.one)
            for load, (count, allocated, fragments) in sorted(self._sums.items())
        }
