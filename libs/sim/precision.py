"""What it is worth to place jobs by the precision they compute in, on a cluster of several models of GPU.

Two runs on the same arrivals. **Filling**: tasks arrive and stay, as in `pack`; measured is how fast the GPUs that are
taken compute what they were given, and what is left unallocated. **Running**: tasks come, wait where they do not fit,
run, and leave; a task on a faster GPU leaves sooner; measured is from coming to leaving.

Lists do not say precisions, so each task with a GPU is given one by a seeded draw from a stated mix. Speed is relative
to the most common model of the cluster, by the table that the policy uses, for the part of a task's time that is bound
by arithmetic; the rest of its time is the same everywhere. Run times are drawn evenly on a logarithmic scale from 10
minutes to 10 hours on the most common model. Everything follows from the seed.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from libs.domain.precision import is_precision
from libs.domain.resources import WHOLE, Charge, Request
from libs.domain.usage import NodeUse
from libs.engine.api import EngineConfig, PendingJob
from libs.engine.ask import Ask, ask_key
from libs.engine.core import PlacementEngine
from libs.engine.draw import Draw
from libs.engine.precision.table import GpuTable, default_table
from libs.engine.snapshot import Snapshot
from libs.sim.arrivals import arrivals, capacity, ordered
from libs.sim.errors import SimulationError
from libs.sim.lists import NodeRow, TaskRow
from libs.sim.parallel import in_order
from libs.sim.world import node_fact, pending

_PARTS: Final = 1 << 32
_SHORTEST_S: Final = 600.0
_LONGEST_S: Final = 36_000.0
#: Loads at which filling is looked at, % of the cluster's GPU asked.
LOADS: Final = (50, 80, 100)

#: (precision, required) -> parts of 1,000; what is missing to 1,000 declares nothing.
Mix = tuple[tuple[str, bool, int], ...]


@dataclass(frozen=True, slots=True)
class Filling:
    """By load: unallocated GPU in % of the cluster, and the mean speed of the GPU given to tasks that declare a
    precision. `refused`: tasks that named a precision as required and found no room, of so many that came."""

    unallocated_pct: dict[int, float]
    speed: dict[int, float]
    refused: int
    demanding: int


@dataclass(frozen=True, slots=True)
class Running:
    """Of tasks that declare a precision, in the second half of the arrivals: mean seconds from coming to leaving, mean
    wait, and the mean speed of the GPU they ran on. `others_wait_s`: mean wait of those that declare none."""

    turnaround_s: float
    wait_s: float
    speed: float
    others_wait_s: float


def parse_mix(text: str) -> Mix:
    """ "bf16=300,fp8!=20": parts of 1,000; with "!" the precision is required. Raises SimulationError."""
    found: list[tuple[str, bool, int]] = []
    for part in text.split(","):
        name, equals, amount = part.strip().partition("=")
        kind, required = name.removesuffix("!"), name.endswith("!")
        if not equals or not amount.isdecimal() or not is_precision(kind):
            raise SimulationError(f"{part.strip()!r} is not like bf16=300 or fp8!=20")
        found.append((kind, required, int(amount)))
    if sum(amount for _, _, amount in found) > 1000:
        raise SimulationError("the parts of the mix sum to more than 1,000")
    return tuple(found)


def renamed(nodes: list[NodeRow], models: Mapping[str, str]) -> list[NodeRow]:
    """The nodes with other models of GPU in the place of those that a list does not disclose."""
    return [row._replace(model=models.get(row.model, row.model)) for row in nodes]


def declared(tasks: list[TaskRow], mix: Mix, seed: int) -> list[TaskRow]:
    """The tasks, each with a GPU with a precision drawn from the mix."""
    draw = Draw(seed ^ 0x70726563)
    found: list[TaskRow] = []
    for task in tasks:
        at = draw.below(1000)
        request = task.request
        for kind, required, amount in mix if request.gpu.count else ():
            if at < amount:
                gpu = msgspec.structs.replace(request.gpu, precision=kind, precision_required=required)
                request = msgspec.structs.replace(request, gpu=gpu)
                break
            at -= amount
        found.append(task._replace(request=request))
    return found


class Speeds:
    """How fast each model computes, as against the most common one of the cluster."""

    def __init__(self, nodes: list[NodeRow], bound: float, table: GpuTable | None = None) -> None:
        self._table = table or default_table()
        counts: Counter[str] = Counter()
        for row in nodes:
            counts[row.model] += row.gpus
        self._common = counts.most_common(1)[0][0]
        self._bound = bound
        self._known: dict[tuple[str, str], float] = {}

    def of(self, model: str, precision: str) -> float:
        """1.0 on the most common model, on models that the table does not know, and of tasks that declare nothing."""
        found = self._known.get((model, precision))
        if found is None:
            here, there = self._table.gflops(model, precision), self._table.gflops(self._common, precision)
            ratio = here / there if precision and here and there else 1.0
            found = self._known[model, precision] = 1.0 / ((1.0 - self._bound) + self._bound / ratio)
        return found


def fill(
    nodes: list[NodeRow], tasks: list[TaskRow], mix: Mix, weights: dict[str, int], seed: int, bound: float
) -> Filling:
    speeds, total = Speeds(nodes, bound), capacity(nodes)
    engine = PlacementEngine(EngineConfig(weights, seed=seed, explain=False))
    model = {}
    for at, row in enumerate(ordered(nodes, "random", seed)):
        fact = node_fact(row, at)
        engine.node_seen(fact)
        model[fact.name] = row.model
    stream = declared(arrivals(tasks, total, max(LOADS), seed), mix, seed)
    asked = allocated = refused = demanding = 0
    done = milli = 0.0
    free: dict[int, float] = {}
    speed: dict[int, float] = {}
    for at, row_ in enumerate(stream):
        gpu = row_.request.gpu
        asked += row_.gpu_milli
        demanding += gpu.precision_required
        (decision,) = engine.decide([pending(row_, at)])
        if decision.placements:
            allocated += row_.gpu_milli
            if gpu.precision:
                milli += row_.gpu_milli
                done += row_.gpu_milli * speeds.of(model[decision.placements[0].node], gpu.precision)
        else:
            refused += gpu.precision_required
        for load in LOADS:
            if load not in free and (100 * asked >= load * total or at == len(stream) - 1):
                free[load] = 100 * (total - allocated) / total
                speed[load] = done / milli if milli else 1.0
    return Filling(free, speed, refused, demanding)


@dataclass(slots=True)
class _Held:
    revision: int = 0
    charges: dict[int, Charge] = field(default_factory=dict)


class _World:
    """Tasks that wait stand by request, oldest first; whenever something leaves a node, the oldest of those that fit
    there now are started."""

    def __init__(self, nodes: list[NodeRow], weights: dict[str, int], seed: int, speeds: Speeds) -> None:
        self._engine = PlacementEngine(EngineConfig(weights, seed=seed, explain=False))
        self._speeds = speeds
        self._mirror = Snapshot()
        self._model: dict[str, str] = {}
        self._held: dict[str, _Held] = {}
        for at, row in enumerate(ordered(nodes, "random", seed)):
            fact = node_fact(row, at)
            self._engine.node_seen(fact)
            self._mirror.node_seen(fact)
            self._model[fact.name], self._held[fact.name] = row.model, _Held()
        self._waiting: dict[Request, deque[tuple[int, PendingJob]]] = {}
        self._asks: dict[Request, Ask] = {}
        self._leaving: list[tuple[float, int, str]] = []
        self._length: list[float] = []
        self.started: dict[int, tuple[float, float, float]] = {}  # task -> (start, end, speed)

    def run(self, coming: list[tuple[float, TaskRow, float]]) -> None:
        self._length = [length for _, _, length in coming]
        at = 0
        while at < len(coming):
            if self._leaving and self._leaving[0][0] <= coming[at][0]:
                self._leave()
                continue
            now, row, _ = coming[at]
            job = pending(row, at)
            queue = self._waiting.setdefault(row.request, deque())
            if queue or not self._start(at, job, now):
                self._asks.setdefault(row.request, Ask(ask_key(job.tasks[0])))
                queue.append((at, job))
            at += 1
        while self._leaving:
            self._leave()

    def _start(self, at: int, job: PendingJob, now: float) -> bool:
        (decision,) = self._engine.decide([job])
        if not decision.placements:
            return False
        placement = decision.placements[0]
        self._held[placement.node].charges[at] = placement.charge
        self._mirror.take(self._mirror.rows[placement.node], placement.charge)
        self._tell(placement.node)
        speed = self._speeds.of(self._model[placement.node], job.tasks[0].request.gpu.precision)
        end = now + self._length[at] / speed
        self.started[at] = (now, end, speed)
        heapq.heappush(self._leaving, (end, at, placement.node))
        return True

    def _leave(self) -> None:
        now, gone, node = heapq.heappop(self._leaving)
        row = self._mirror.rows[node]
        self._mirror.give(row, self._held[node].charges.pop(gone))
        self._tell(node)
        tried: set[Request] = set()
        state = self._mirror.states[row]
        while state is not None:
            fitting = [
                (queue[0][0], request)
                for request, queue in self._waiting.items()
                if queue and request not in tried and state.tight(self._asks[request]) >= 0
            ]
            if not fitting:
                return
            _, request = min(fitting, key=lambda item: item[0])
            at, job = self._waiting[request][0]
            if self._start(at, job, now):
                self._waiting[request].popleft()
            else:
                tried.add(request)  # the model of this node will not do

    def _tell(self, node: str) -> None:
        held, state = self._held[node], self._mirror.state(node)
        if state is None:
            raise LookupError(node)
        held.revision += 1
        gpus = tuple(
            (WHOLE * exists - milli, size - mib)
            for exists, milli, size, mib in zip(state.exists, state.milli, state.dev_mib, state.mib, strict=True)
        )
        self._engine.use_seen(
            NodeUse(
                node,
                held.revision,
                cpu=state.cap_cpu - state.cpu,
                mem=state.cap_mem - state.mem,
                pods=state.cap_pods - state.pods,
                gpus=gpus,
            )
        )
        self._engine.settle()


def run(
    nodes: list[NodeRow],
    tasks: list[TaskRow],
    mix: Mix,
    weights: dict[str, int],
    seed: int,
    bound: float,
    load: float,
    count: int,
) -> Running:
    """`load`: GPU seconds that tasks ask for on the most common model, as a part of those that there are."""
    draw = Draw(seed)

    def part() -> float:
        return (1 + draw.below(_PARTS)) / _PARTS

    rows = declared([tasks[draw.below(len(tasks))] for _ in range(count)], mix, seed)
    lengths = [_SHORTEST_S * (_LONGEST_S / _SHORTEST_S) ** part() for _ in rows]
    work = sum(row.gpu_milli * length for row, length in zip(rows, lengths, strict=True))
    gap = work / count / (capacity(nodes) * load)
    coming: list[tuple[float, TaskRow, float]] = []
    now = 0.0
    for row, length in zip(rows, lengths, strict=True):
        now -= gap * math.log(part())
        coming.append((now, row, length))
    world = _World(nodes, weights, seed, Speeds(nodes, bound))
    world.run(coming)
    turnaround, wait, speed, others = [], [], [], []
    for at in range(count // 2, count):
        came, row, _ = coming[at]
        if at not in world.started or not row.request.gpu.count:
            continue
        start, end, fast = world.started[at]
        if row.request.gpu.precision:
            turnaround.append(end - came)
            wait.append(start - came)
            speed.append(fast)
        else:
            others.append(start - came)
    return Running(*(statistics.fmean(values) if values else 0.0 for values in (turnaround, wait, speed, others)))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run: filling with every weight of the policy and every seed, and running at every load beside."""

    nodes: tuple[NodeRow, ...]
    tasks: tuple[TaskRow, ...]
    mix: Mix
    bound: float
    weights: tuple[int, ...]
    loads: tuple[float, ...]
    arrivals: int
    seeds: tuple[int, ...]


def run_all(plan: Plan, processes: int = 0) -> list[dict[str, Any]]:
    """One result per weight, means over the seeds. Results do not depend on `processes`."""
    work = [(weight, load, seed) for weight in plan.weights for load in (None, *plan.loads) for seed in plan.seeds]
    found = in_order(partial(_one, plan), work, processes)
    by_work = dict(zip(work, found, strict=True))
    return [_told(plan, weight, by_work) for weight in plan.weights]


def _one(plan: Plan, weight: int, load: float | None, seed: int) -> Filling | Running:
    weights = {"drystone": 1, **({"precision": weight} if weight else {})}
    nodes, tasks = list(plan.nodes), list(plan.tasks)
    if load is None:
        return fill(nodes, tasks, plan.mix, weights, seed, plan.bound)
    return run(nodes, tasks, plan.mix, weights, seed, plan.bound, load, plan.arrivals)


def _told(
    plan: Plan, weight: int, results: Mapping[tuple[int, float | None, int], Filling | Running]
) -> dict[str, Any]:
    def mean(values: list[float]) -> float:
        return round(statistics.fmean(values), 4)

    fills = [f for seed in plan.seeds if isinstance(f := results[weight, None, seed], Filling)]
    told: dict[str, Any] = {
        "weight": weight,
        "seeds": list(plan.seeds),
        "unallocated_pct": {str(load): mean([f.unallocated_pct[load] for f in fills]) for load in LOADS},
        "speed": {str(load): mean([f.speed[load] for f in fills]) for load in LOADS},
        "refused": [sum(f.refused for f in fills), sum(f.demanding for f in fills)],
        "running": {},
    }
    for load in plan.loads:
        runs = [r for seed in plan.seeds if isinstance(r := results[weight, load, seed], Running)]
        told["running"][str(load)] = {
            name: mean([getattr(r, name) for r in runs])
            for name in ("turnaround_s", "wait_s", "speed", "others_wait_s")
        }
    return told
