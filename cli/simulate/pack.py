"""`drystone simulate pack`: arrivals without departures, policies side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import CommandError
from cli.out import say, show, write
from cli.simulate.choices import node_order_of, policies_of
from cli.simulate.progress import with_progress


def pack(
    nodes: Annotated[Path, typer.Option(help="Nodes as CSV: sn, cpu_milli, memory_mib, gpu, model. May be .gz.")],
    tasks: Annotated[
        Path,
        typer.Option(help="Tasks as CSV: name, cpu_milli, memory_mib, num_gpu, gpu_milli[, gpu_spec]. May be .gz."),
    ],
    then: Annotated[Path | None, typer.Option(help="Tasks of this list make up the second half of the load.")] = None,
    policy: Annotated[str, typer.Option(help="One or more, joined by commas.")] = "drystone",
    load: Annotated[int, typer.Option(help="GPU asked by all arrivals, % of the cluster's.", min=1, max=1000)] = 130,
    seeds: Annotated[str, typer.Option(help="Such as 42-51 or 1,2,3.")] = "42-51",
    node_order: Annotated[str, typer.Option(help="random | listed | model | gpus | cpu-per-gpu")] = "random",
    processes: Annotated[int, typer.Option(help="Runs at once; 0: one per core.", min=0)] = 0,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report with plots to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Tasks of a list arrive in random order and are placed at once or dropped, as in the FGD paper."""
    from libs.sim.errors import SimulationError
    from libs.sim.study import Study, parse_seeds, summary

    policies, node_order = policies_of(policy), node_order_of(node_order)
    try:
        study = Study(nodes, tasks, policies, parse_seeds(seeds), load, node_order, then)
        runs = with_progress(study, processes)
    except SimulationError as error:
        raise CommandError(str(error)) from None
    results = [summary(name, runs[name]) for name in policies]
    if as_json:
        show(results[0] if len(results) == 1 else results)
    else:
        for result in results:
            say(_line(result))
    if report is not None:
        from libs.sim.report import report as rendered

        write(report, rendered(study, runs))


def _line(result: dict[str, Any]) -> str:
    at_100 = result["unallocated_pct_at_100"]
    reached = f"{at_100:.2f} % (sd {result['sd']:.2f})" if at_100 is not None else "not reached"
    classes = ", ".join(f"{name} {percent:.1f}" for name, percent in result["placed_pct_by_class"].items())
    return (
        f"{result['policy']}: unallocated at load 100: {reached}; allocated at load {result['load_pct_at_end']}: "
        f"{result['allocated_pct_at_end']:.2f} %; placed % by class: {classes}; "
        f"{result['seconds_per_run']:.2f} s per run"
    )
