"""Many runs side by side, one process each, put together into one result per policy."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from libs.sim.arrivals import arrivals, capacity
from libs.sim.errors import SimulationError
from libs.sim.lists import NodeRow, TaskRow, read_nodes, read_tasks
from libs.sim.pack import CLASSES, PackRun, run_pack, run_stream
from libs.sim.parallel import in_order

#: Loads at which fragmentation is told.
_LOADS: Final = (50, 80, 90, 100, 110, 120, 130)


@dataclass(frozen=True, slots=True)
class Study:
    """What is run: one list of nodes, one of tasks, some policies, some seeds. With `then`, tasks of that list make up
    the second half of the load: a mix that changes midway."""

    nodes: Path
    tasks: Path
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    load_percent: int = 130
    node_order: str = "random"
    then: Path | None = None


def parse_seeds(text: str) -> tuple[int, ...]:
    """ "42-51", "1,5,9" or a mixture. Raises SimulationError."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise SimulationError(f"seeds are numbers and ranges such as 42-51, not {text!r}")
        seeds.extend(range(int(first), int(last) + 1) if dash else [int(first)])
    if not seeds or len(seeds) > 10_000:
        raise SimulationError(f"{text!r} names {len(seeds)} seeds; 1 to 10,000 can be run")
    if len(set(seeds)) < len(seeds):
        raise SimulationError(f"{text!r} names a seed twice")
    return tuple(seeds)


Lists = tuple[list[NodeRow], list[TaskRow], list[TaskRow]]
_lists: dict[tuple[Path, Path, Path | None], Lists] = {}


def _read(study: Study) -> Lists:
    key = (study.nodes, study.tasks, study.then)
    if key not in _lists:
        _lists.clear()
        then = read_tasks(study.then) if study.then is not None else []
        _lists[key] = (read_nodes(study.nodes), read_tasks(study.tasks), then)
    return _lists[key]


def _one(study: Study, policy: str, seed: int) -> PackRun:
    nodes, tasks, then = _read(study)
    if not then:
        return run_pack(nodes, tasks, policy, seed, study.load_percent, study.node_order)
    total, half = capacity(nodes), study.load_percent // 2
    stream = arrivals(tasks, total, half, seed) + arrivals(then, total, study.load_percent - half, seed)
    return run_stream(nodes, stream, tasks + then, policy, seed, study.node_order)


def run_study(study: Study, processes: int = 0, done: Callable[[], None] | None = None) -> dict[str, list[PackRun]]:
    """Runs per policy, in the order of the seeds; `done` is called after each. Results do not depend on `processes`.
    Raises SimulationError before anything runs where the lists are wrong."""
    _read(study)
    work = [(policy, seed) for policy in study.policies for seed in study.seeds]
    told = None if done is None else lambda _: done()
    runs = dict(zip(work, in_order(partial(_one, study), work, processes, told), strict=True))
    return {policy: [runs[policy, seed] for seed in study.seeds] for policy in study.policies}


def summary(policy: str, runs: list[PackRun]) -> dict[str, Any]:
    """The figures of one policy over its runs. Percentages are of the cluster's GPU, classes of arrived tasks."""
    at_100 = [unallocated(run, 100) for run in runs]
    known = [value for value in at_100 if value is not None]
    last = max((max(run.curve) for run in runs), default=0)
    return {
        "policy": policy,
        "seeds": [run.seed for run in runs],
        "unallocated_pct_at_100": _rounded(statistics.fmean(known)) if known else None,
        "sd": _rounded(statistics.stdev(known)) if len(known) > 1 else 0.0,
        "unallocated_pct_by_seed": [None if value is None else _rounded(value) for value in at_100],
        "allocated_pct_at_130": _mean(run.curve[130][0] for run in runs if 130 in run.curve),
        "allocated_pct_at_end": _mean(run.curve[max(run.curve)][0] for run in runs),
        "load_pct_at_end": last,
        "frag_pct_of_total_at": {
            str(load): _mean(run.curve[load][1] for run in runs if load in run.curve)
            for load in _LOADS
            if any(load in run.curve for run in runs)
        },
        "placed_pct_by_class": placed_percent(runs),
        "seconds_per_run": round(statistics.fmean(run.seconds for run in runs), 3),
    }


def unallocated(run: PackRun, load: int) -> float | None:
    return 100 - run.curve[load][0] if load in run.curve else None


def placed_percent(runs: list[PackRun]) -> dict[str, float]:
    """Placed of arrived, by class, over all runs."""
    names = [*CLASSES, *sorted({name for run in runs for name in run.arrived} - set(CLASSES), key=int)]
    arrived = {name: sum(run.arrived.get(name, 0) for run in runs) for name in names}
    return {
        name: _rounded(100 * sum(run.placed.get(name, 0) for run in runs) / arrived[name])
        for name in names
        if arrived[name]
    }


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return _rounded(statistics.fmean(found)) if found else None


def _rounded(value: float) -> float:
    return round(value, 4)
