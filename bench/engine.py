"""How fast the engine decides: `drystone bench engine --json`. One process, one core, no I/O.

Times are CPU time, the median of several runs on a fresh engine; `cold` includes making the class of tasks ready for
all nodes, `warm` is the next pass on the same engine. Nothing is compiled, so no compile time is left out.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from libs.domain.jobs import Wishes
from libs.domain.resources import GpuRequest, Request
from libs.engine.api import EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.sim.lists import read_nodes, read_tasks
from libs.sim.pack import run_pack
from libs.testkit.builders import ClusterBuilder, cluster, gang, pod

#: MiB of a node of a cluster whose kubelets all reserve some MiB more or less.
_MIB, _MIB_APART = 1_031_000, 4_099


def _filled(nodes: int, *, unlike: bool = False) -> ClusterBuilder:
    facts = cluster()
    for i in range(nodes):
        if unlike:
            facts.node(f"n{i:05}", mem=_MIB - 31 * i % _MIB_APART)
        else:
            facts.node(f"n{i:05}")
    return facts


def _engine(facts: ClusterBuilder, **config: Any) -> PlacementEngine:
    return facts.into(PlacementEngine(EngineConfig(**config)))


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = action()
    return (time.process_time() - start) * 1000, result


def _decide(facts: ClusterBuilder, jobs: list[PendingJob], runs: int, expected: int, **config: Any) -> dict[str, float]:
    cold: list[float] = []
    warm: list[float] = []
    for _ in range(runs):
        engine = _engine(facts, **config)
        for into in (cold, warm):
            gc.collect()
            took, decisions = _timed(lambda engine=engine: engine.decide(jobs))  # type: ignore[misc]
            placed = sum(len(d.placements) for d in decisions)
            if placed != expected:
                raise SystemExit(f"placed {placed} of {expected} tasks: the figure would mean nothing")
            into.append(took)
            engine.settle()
    both = {"cold_ms": statistics.median(cold), "warm_ms": statistics.median(warm)}
    return {**both, "placements": expected, "placements_per_s": expected / both["cold_ms"] * 1000}


def _mixed(count: int, classes: int) -> list[PendingJob]:
    """Pods of many classes, in turn: the worst order for anything that is kept per class."""
    return [
        pod(f"m{i:06}", gpus=1, cpu=1000 + 10 * (i % classes), created=float(i))
        if i % 2
        else pod(f"m{i:06}", share=100 + 5 * (i % classes), cpu=500, created=float(i))
        for i in range(count)
    ]


def default_list(policy: str, runs: int) -> dict[str, float]:
    """The openb default list to load 130, seed 42: seconds of the engine, learning the nodes included."""
    folder = Path(__file__).parent / "data"
    nodes, tasks = read_nodes(folder / "openb_nodes.csv.gz"), read_tasks(folder / "openb_tasks_default.csv.gz")
    found = [run_pack(nodes, tasks, policy, 42) for _ in range(runs)]
    arrived = sum(found[0].arrived.values())
    seconds = statistics.median(run.seconds for run in found)
    return {
        "seconds": seconds,
        "best_seconds": min(run.seconds for run in found),
        "tasks": arrived,
        "nodes": len(nodes),
        "us_per_decision": 1e6 * seconds / arrived,
        "unallocated_pct_at_100": 100 - found[0].curve[100][0],
    }


def growth(runs: int) -> dict[str, float]:
    """Microseconds per decision of 2,000 pods of ten classes, second pass, by how many nodes there are."""
    figures: dict[str, float] = {}
    jobs = _mixed(2000, 10)
    for nodes in (1_000, 5_000, 10_000, 20_000):
        took: list[float] = []
        engine = _engine(_filled(nodes))
        engine.decide(jobs)
        engine.settle()
        for _ in range(runs):
            gc.collect()
            took.append(_timed(partial(engine.decide, jobs))[0])
            engine.settle()
        figures[f"{nodes}_nodes_us"] = 1000 * statistics.median(took) / len(jobs)
    return figures


def moving(runs: int) -> dict[str, float]:
    """A gang of 100 tasks with 8 GPUs each on 500 nodes of 8, each half full of tasks with one GPU in 300 sizes of CPU:
    the plan that moves 400 of them."""
    facts = _filled(500)
    for at in range(2000):
        cpu = 1000 + 10 * (at % 300)
        wishes = Wishes(Request(cpu, 1024, GpuRequest(1)))
        facts.running(f"r{at}", gpus=1, on=f"n{at % 500:05}", cpu=cpu, wishes=wishes, started=float(at))
    took: list[float] = []
    for _ in range(runs):
        engine = _engine(facts, consolidate=True)
        gc.collect()
        ms, decisions = _timed(lambda engine=engine: engine.decide([gang("g", 100, gpus=8)], 1e6))  # type: ignore[misc]
        if len(decisions[0].victims) != 400:
            raise SystemExit(f"{len(decisions[0].victims)} moves instead of 400: the figure would mean nothing")
        took.append(ms)
    return {"ms": statistics.median(took), "moves": 400}


def asking(runs: int) -> dict[str, float]:
    """What would help a gang of 40 tasks with 8 GPUs each on the same cluster, in all ways."""
    facts = _filled(500)
    facts.running("r", gpus=5, count=500, started=1.0)
    took: list[float] = []
    for _ in range(runs):
        engine = _engine(facts)
        gc.collect()
        ms, answer = _timed(lambda engine=engine: engine.what_if(gang("g", 40, gpus=8), 1e6))  # type: ignore[misc]
        if answer.fits or not answer.nodes or not answer.request:
            raise SystemExit("no answer: the figure would mean nothing")
        took.append(ms)
    return {"ms": statistics.median(took)}


def memory(nodes: int, waiting: int = 0) -> dict[str, float]:
    """Peak resident MiB of a process that holds so many nodes and has decided 2,000 pods of fifty classes, and after
    that one pod of each of so many classes that find no room and are told why, over and over."""
    command = [sys.executable, "-m", "bench.engine", "--memory", str(nodes), "--waiting", str(waiting)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"peak_mib": float(done.stdout)}


def _peak_mib(nodes: int, waiting: int) -> float:
    facts = _filled(nodes, unlike=True)
    if waiting:
        facts.running("r", gpus=5, count=nodes, started=1.0)
    engine = _engine(facts)
    engine.decide(_mixed(2000, 50))
    for _ in range(3 if waiting else 0):
        if any(d.placements for d in engine.decide([pod(f"w{i}", gpus=4, cpu=1000 + i) for i in range(waiting)])):
            raise SystemExit("one of those who wait was placed: the figure would mean nothing")
        engine.settle()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(runs: int) -> dict[str, Any]:
    small, large = _filled(1000), _filled(10_000)
    singles = [pod(f"p{i:05}", gpus=1) for i in range(2000)]
    figures: dict[str, Any] = {}
    for policy in ("drystone", "fgd", "first-fit"):
        figures[f"default_list_to_load_130_{policy}"] = default_list(policy, runs)
    figures["compile_s"] = {"seconds": 0.0}
    figures["2000_pods_on_1000_nodes"] = _decide(small, singles, runs, 2000)
    figures["2000_pods_on_1000_nodes_8_candidates"] = _decide(small, singles, runs, 2000, candidates=8)
    figures["2000_pods_on_1000_nodes_first_fit"] = _decide(small, singles, runs, 2000, weights={"first-fit": 1})
    figures["gang_of_1000_on_10000_nodes"] = _decide(large, [gang("g", 1000, gpus=1)], runs, 1000)
    figures["gang_of_1000_whole_nodes_on_10000_nodes"] = _decide(large, [gang("g", 1000, gpus=8)], runs, 1000)
    figures["5000_pods_on_10000_nodes"] = _decide(large, [pod(f"p{i}", gpus=1) for i in range(5000)], runs, 5000)
    figures["2000_pods_of_50_classes_on_10000_nodes"] = _decide(large, _mixed(2000, 50), runs, 2000)
    unlike = _filled(10_000, unlike=True)
    figures["2000_pods_of_50_classes_on_10000_nodes_unlike_in_mib"] = _decide(unlike, _mixed(2000, 50), runs, 2000)
    del unlike

    full = _filled(1000)
    full.running("low", gpus=8, count=1000, priority=-100)
    preempting = [pod(f"h{i}", gpus=8, priority=100) for i in range(200)]
    took: list[float] = []
    for _ in range(runs):
        engine = _engine(full)
        gc.collect()
        ms, decisions = _timed(lambda engine=engine: engine.decide(preempting))  # type: ignore[misc]
        if sum(len(d.victims) for d in decisions) != 200:
            raise SystemExit("not every job found its victim: the figure would mean nothing")
        took.append(ms)
    figures["200_preemptions_on_1000_full_nodes"] = {"cold_ms": statistics.median(took), "victims": 200}

    low = [pod(f"p{i:05}", gpus=1, priority=-100) for i in range(2000)]
    refused: list[float] = []
    for _ in range(runs):
        engine = _engine(full)
        gc.collect()
        refused.append(_timed(lambda engine=engine: engine.decide(low))[0])  # type: ignore[misc]
    figures["2000_refusals_on_1000_full_nodes"] = {"cold_ms": statistics.median(refused)}

    figures["gang_by_400_moves_on_500_nodes"] = moving(runs)
    figures["what_would_help_on_500_nodes"] = asking(runs)
    loads = [_timed(lambda: _engine(large))[0] for _ in range(runs)]
    figures["10000_nodes_told"] = {"ms": statistics.median(loads), "us_per_node": statistics.median(loads) / 10}
    figures["per_decision"] = growth(runs)
    figures["memory_20000_nodes"] = memory(20_000)
    figures["memory_20000_nodes_512_classes_waiting"] = memory(20_000, 512)
    return figures


def report(runs: int) -> dict[str, Any]:
    """Figures of `measure`, with what they were measured on."""
    return {"cpus": os.cpu_count(), "python": sys.version.split()[0], "runs": runs, "figures": measure(runs)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--memory", type=int, default=0, metavar="NODES", help="only the peak MiB with so many nodes")
    parser.add_argument("--waiting", type=int, default=0, metavar="CLASSES", help="with --memory: so many wait")
    args = parser.parse_args(argv)
    if args.memory:
        sys.stdout.write(f"{_peak_mib(args.memory, args.waiting)}\n")
        return 0
    told = report(args.runs)
    if args.json:
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return 0
    for name, values in told["figures"].items():
        sys.stdout.write(f"{name}: " + ", ".join(f"{k} {v:,.1f}" for k, v in values.items()) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
