"""Tasks that come, wait where they do not fit, run, and leave: how much of the cluster lies idle while somebody waits.

Tasks are drawn from a list with their run times and come at random, so fast that their GPU seconds make up a given load
of the cluster (a Poisson process: the list's own times, squeezed and without their rhythm). The cluster starts as it
would be after a long time of that: tasks drawn by how long they run, each with a random part of that left; a list whose
longest tasks run for months would otherwise take months of arrivals to fill it.

The engine of the services places: at once if it can; else a task waits, and whenever something leaves, the first of
those that fit are started, oldest first. Exact: whole milli GPUs and microseconds. Measured from the start to the last
arrival. Everything follows from the seed.
"""

from __future__ import annotations

import gc
import heapq
import math
import statistics
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

from libs.domain.resources import WHOLE, Charge, Request
from libs.domain.usage import NodeUse
from libs.engine.api import EngineConfig, PendingJob
from libs.engine.ask import Ask, ask_key
from libs.engine.core import PlacementEngine
from libs.engine.draw import Draw
from libs.engine.snapshot import Snapshot
from libs.sim.arrivals import capacity, ordered
from libs.sim.errors import SimulationError
from libs.sim.lists import NodeRow, TaskRow, TimedRow, read_nodes, read_timed
from libs.sim.pack import CLASSES, task_class, typical_tasks
from libs.sim.parallel import in_order
from libs.sim.world import node_fact, pending

#: Arrivals of one run.
ARRIVALS: Final = 10_000
_SECOND: Final = 1_000_000
_PARTS: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class DepartureRun:
    """`idle_pct`: unallocated GPU, % of the cluster, in the mean of the time in which a task with GPUs waits, and
    `waiting_pct`: how much of the time that is; `unallocated_pct`: in the mean of all the time. `wait_s`: mean wait by
    class of task, with `tasks` of each; of those that waited at all there are `waited`."""

    policy: str
    seed: int
    load: float
    idle_pct: float
    waiting_pct: float
    unallocated_pct: float
    wait_s: dict[str, float]
    tasks: dict[str, int]
    waited: int


class Coming(NamedTuple):
    """A task that comes at a time and runs so long, microseconds."""

    at: int
    task: TaskRow
    ran: int


def stream(rows: list[TimedRow], gpu_milli: int, load: float, seed: int, arrivals: int) -> list[Coming]:
    """Those that are there at the start (time 0), then so many arrivals. Raises SimulationError."""
    if load <= 0 or arrivals < 1:
        raise SimulationError("a load above 0 and at least one arrival are needed")
    draw = Draw(seed)
    until = list(accumulate(row.ran for row in rows))
    found: list[Coming] = []
    asked, enough = 0, round(gpu_milli * min(load, 1.0))
    while True:
        row = rows[bisect_right(until, draw.below(until[-1]))]
        asked += row.task.gpu_milli
        if asked > enough:
            break
        found.append(Coming(0, row.task, 1 + draw.below(row.ran * _SECOND)))
    gap = sum(row.task.gpu_milli * row.ran for row in rows) / len(rows) / (gpu_milli * load) * _SECOND
    at = 0
    for _ in range(arrivals):
        at += max(1, round(-gap * math.log((1 + draw.below(_PARTS)) / _PARTS)))
        row = rows[draw.below(len(rows))]
        found.append(Coming(at, row.task, row.ran * _SECOND))
    return found


def shortened(rows: list[TimedRow], longest_s: int) -> list[TimedRow]:
    """Longer runs end then; 0: none does."""
    return [row._replace(ran=min(row.ran, longest_s)) for row in rows] if longest_s else rows


def summary(runs: list[DepartureRun]) -> dict[str, Any]:
    """The figures of one policy at one load over its seeds; waits are means over all tasks of a class."""
    tasks: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    for run in runs:
        tasks.update(run.tasks)
        waits.update({name: round(wait * run.tasks[name], 3) for name, wait in run.wait_s.items()})
    waiting = sum(run.waiting_pct for run in runs)
    return {
        "policy": runs[0].policy,
        "load": runs[0].load,
        "seeds": [run.seed for run in runs],
        "unallocated_pct_while_waiting": round(sum(r.idle_pct * r.waiting_pct for r in runs) / waiting, 4)
        if waiting
        else None,
        "by_seed": [round(run.idle_pct, 4) for run in runs],
        "unallocated_pct": round(statistics.fmean(run.unallocated_pct for run in runs), 4),
        "waiting_pct_of_time": round(waiting / len(runs), 4),
        "lost_pct": round(sum(r.idle_pct * r.waiting_pct for r in runs) / 100 / len(runs), 4),
        "wait_s": {name: round(waits[name] / tasks[name], 1) for name in CLASSES if tasks[name]},
        "waited": sum(run.waited for run in runs),
        "tasks": dict(sorted(tasks.items())),
    }


def run_departures(
    nodes: list[NodeRow],
    rows: list[TimedRow],
    policy: str,
    seed: int,
    load: float,
    arrivals: int = ARRIVALS,
    node_order: str = "random",
    progress: Callable[[float], None] | None = None,
) -> DepartureRun:
    gc.collect()
    gc.freeze()
    try:
        coming = stream(rows, capacity(nodes), load, seed, arrivals)
        return _World(nodes, coming, typical_tasks([row.task for row in rows]), policy, seed, load, node_order).run(
            progress
        )
    finally:
        gc.unfreeze()


@dataclass(slots=True)
class _Held:
    """What one node's tasks take of it."""

    revision: int = 0
    charges: dict[str, Charge] = field(default_factory=dict)


class _World:
    def __init__(
        self,
        nodes: list[NodeRow],
        coming: list[Coming],
        mix: tuple[tuple[Request, int], ...],
        policy: str,
        seed: int,
        load: float,
        node_order: str,
    ) -> None:
        typical = mix if policy == "fgd" else ()
        self._policy, self._seed, self._load = policy, seed, load
        self._total = capacity(nodes)
        self._coming = coming
        self._engine = PlacementEngine(EngineConfig({policy: 1}, seed=seed, explain=False, typical=typical))
        self._mirror = Snapshot()
        self._held: dict[str, _Held] = {}
        for at, row in enumerate(ordered(nodes, node_order, seed)):
            fact = node_fact(row, at)
            self._engine.node_seen(fact)
            self._mirror.node_seen(fact)
            self._held[fact.name] = _Held()
        #: Tasks of one request that wait, oldest first, with the time they came at.
        self._waiting: dict[Request, deque[tuple[int, int, PendingJob]]] = {}
        self._asks: dict[Request, Ask] = {}
        self._leaving: list[tuple[int, str, str]] = []  # (time, task, node)
        self._allocated = 0
        self._gpu_waiting = 0
        self._waits: Counter[str] = Counter()
        self._tasks: Counter[str] = Counter()
        self._waited = 0

    def run(self, progress: Callable[[float], None] | None) -> DepartureRun:
        idle = waiting = all_idle = 0
        last = self._coming[-1].at
        at = now = 0
        while at < len(self._coming) or any(self._waiting.values()):
            arrival = self._coming[at].at if at < len(self._coming) else None
            departure = self._leaving[0][0] if self._leaving else None
            after = min((t for t in (arrival, departure) if t is not None), default=None)
            if after is None:
                raise SimulationError("a task fits on no node, even alone")
            if now < last:
                step = min(after, last) - now
                all_idle += step * (self._total - self._allocated)
                if self._gpu_waiting:
                    waiting += step
                    idle += step * (self._total - self._allocated)
            now = after
            if departure == now:
                self._leave(now)
            else:
                self._arrive(at, now)
                at += 1
                if progress is not None and at % 256 == 0:
                    progress(at / len(self._coming))
        classes = sorted(self._tasks)
        return DepartureRun(
            self._policy,
            self._seed,
            self._load,
            100 * idle / (waiting * self._total) if waiting else 0.0,
            100 * waiting / last if last else 0.0,
            100 * all_idle / (last * self._total) if last else 0.0,
            {name: self._waits[name] / self._tasks[name] / _SECOND for name in classes},
            dict(self._tasks),
            self._waited,
        )

    def _arrive(self, at: int, now: int) -> None:
        job = pending(self._coming[at].task, at)
        request = job.tasks[0].request
        self._tasks[task_class(request)] += 1
        queue = self._waiting.get(request)
        if queue or not self._start(job, str(at), now):
            if queue is None:
                queue = self._waiting[request] = deque()
                self._asks[request] = Ask(ask_key(job.tasks[0]))
            queue.append((now, at, job))
            self._gpu_waiting += request.gpu.count > 0
            self._waited += 1

    def _start(self, job: PendingJob, name: str, now: int) -> bool:
        decision = self._engine.decide([job])[0]
        if not decision.placements:
            return False
        placement = decision.placements[0]
        self._held[placement.node].charges[name] = placement.charge
        self._mirror.take(self._mirror.rows[placement.node], placement.charge)
        self._allocated += job.tasks[0].request.gpu_milli
        self._tell(placement.node)
        heapq.heappush(self._leaving, (now + self._coming[int(name)].ran, name, placement.node))
        return True

    def _leave(self, now: int) -> None:
        _, name, node = heapq.heappop(self._leaving)
        charge = self._held[node].charges.pop(name)
        row = self._mirror.rows[node]
        self._mirror.give(row, charge)
        self._allocated -= charge.gpu_milli
        self._tell(node)
        # Whoever waits fits nowhere else: only this node has more room than before.
        state = self._mirror.states[row]
        while state is not None:
            fitting = [
                (queue[0], request)
                for request, queue in self._waiting.items()
                if queue and state.tight(self._asks[request]) >= 0
            ]
            if not fitting:
                return
            (came, at, job), request = min(fitting, key=lambda item: item[0][:2])
            if not self._start(job, str(at), now):
                raise AssertionError(f"{node} has room for a task that the engine does not place")
            self._waiting[request].popleft()
            self._gpu_waiting -= request.gpu.count > 0
            self._waits[task_class(request)] += now - came

    def _tell(self, node: str) -> None:
        """The ledger's truth about the node."""
        held = self._held[node]
        held.revision += 1
        state = self._mirror.state(node)
        if state is None:
            raise LookupError(node)
        use = NodeUse(
            node,
            held.revision,
            cpu=state.cap_cpu - state.cpu,
            mem=state.cap_mem - state.mem,
            pods=state.cap_pods - state.pods,
            gpus=tuple(
                (WHOLE * exists - milli, size - mib)
                for exists, milli, size, mib in zip(state.exists, state.milli, state.dev_mib, state.mib, strict=True)
            ),
        )
        self._engine.use_seen(use)
        self._engine.settle()


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run: every policy at every load with every seed."""

    nodes: Path
    tasks: Path
    policies: tuple[str, ...]
    loads: tuple[float, ...]
    seeds: tuple[int, ...]
    arrivals: int = ARRIVALS
    longest_s: int = 0
    node_order: str = "random"


def run_all(plan: Plan, processes: int = 0) -> list[list[DepartureRun]]:
    """Runs by (load, policy), each in the order of the seeds. Results do not depend on `processes`. Raises
    SimulationError."""
    read_nodes(plan.nodes)
    read_timed(plan.tasks)
    work = [(policy, load, seed) for load in plan.loads for policy in plan.policies for seed in plan.seeds]
    found = in_order(partial(_one, plan), work, processes)
    many = len(plan.seeds)
    return [found[at : at + many] for at in range(0, len(found), many)]


def _one(plan: Plan, policy: str, load: float, seed: int) -> DepartureRun:
    rows = shortened(read_timed(plan.tasks), plan.longest_s)
    return run_departures(read_nodes(plan.nodes), rows, policy, seed, load, plan.arrivals, plan.node_order)
