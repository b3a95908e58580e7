"""How fast the engine decides: `python -m bench.engine --json`. One process, one core, no I/O.

Every figure is the median of several runs on a fresh engine; `cold` includes making the class of tasks ready for all
nodes, `warm` is the next pass on the same engine.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from libs.engine.api import EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.testkit.builders import ClusterBuilder, cluster, gang, pod


def _filled(nodes: int) -> ClusterBuilder:
    facts = cluster()
    for i in range(nodes):
        facts.node(f"n{i:05}")
    return facts


def _engine(facts: ClusterBuilder, **config: Any) -> PlacementEngine:
    return facts.into(PlacementEngine(EngineConfig(**config)))


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return (time.perf_counter() - start) * 1000, result


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


def measure(runs: int) -> dict[str, Any]:
    small, large = _filled(1000), _filled(10_000)
    singles = [pod(f"p{i:05}", gpus=1) for i in range(2000)]
    figures: dict[str, Any] = {}
    figures["2000_pods_on_1000_nodes"] = _decide(small, singles, runs, 2000)
    figures["2000_pods_on_1000_nodes_8_candidates"] = _decide(small, singles, runs, 2000, candidates=8)
    figures["2000_pods_on_1000_nodes_first_fit"] = _decide(small, singles, runs, 2000, weights={"first-fit": 1})
    figures["gang_of_1000_on_10000_nodes"] = _decide(large, [gang("g", 1000, gpus=1)], runs, 1000)
    figures["gang_of_1000_whole_nodes_on_10000_nodes"] = _decide(large, [gang("g", 1000, gpus=8)], runs, 1000)
    figures["5000_pods_on_10000_nodes"] = _decide(large, [pod(f"p{i}", gpus=1) for i in range(5000)], runs, 5000)
    figures["2000_pods_of_50_classes_on_10000_nodes"] = _decide(large, _mixed(2000, 50), runs, 2000)

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

    loads = [_timed(lambda: _engine(large))[0] for _ in range(runs)]
    figures["10000_nodes_told"] = {"ms": statistics.median(loads), "us_per_node": statistics.median(loads) / 10}
    return figures


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args(argv)
    figures = measure(args.runs)
    if args.json:
        report = {"cpus": os.cpu_count(), "python": sys.version.split()[0], "runs": args.runs, "figures": figures}
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return 0
    for name, values in figures.items():
        sys.stdout.write(f"{name}: " + ", ".join(f"{k} {v:,.1f}" for k, v in values.items()) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
