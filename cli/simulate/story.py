"""`drystone simulate story`: a cluster that stands idle while jobs wait, and what each remedy brings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import CommandError


def story(
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 7,
    jobs: Annotated[
        Path | None, typer.Option(help="Jobs as CSV instead, the columns of `simulate queue`. May be .gz.")
    ] = None,
    nodes: Annotated[int, typer.Option(help="Nodes, with --jobs.", min=1)] = 48,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of each node, with --jobs.", min=1)] = 8,
    fence: Annotated[str, typer.Option(help="With --jobs, each tenant's nodes to begin with: a=16,b=8.")] = "",
    days: Annotated[float, typer.Option(help="Only jobs that come in the first so many days; 0: all.", min=0)] = 0.0,
    services: Annotated[
        bool, typer.Option("--services", help="Also in the services' order, with their engine: takes minutes.")
    ] = False,
    policy: Annotated[
        str, typer.Option(help="Instead of the remedies these policies on one pool, joined by commas.")
    ] = "",
    processes: Annotated[int, typer.Option(help="Runs at once; 0: one per core.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Fenced teams, whole GPUs for small tasks, a line that blocks: the same jobs with each remedy in turn."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from libs.sim.errors import SimulationError
    from libs.sim.queue.figures import figures
    from libs.sim.queue.story import Place, Workload, alone, make, remedies
    from libs.sim.queue.study import parse_fence, simulate_all
    from libs.sim.queue.trace import first_days, read_jobs

    workload = Workload(seed=seed)
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        trace = first_days(make(workload) if jobs is None else read_jobs(jobs), days)
        place = workload.place if jobs is None else Place(nodes, gpus_per_node, parse_fence(fence))
        setups = remedies(place, trace, services) if not policy else alone(place, policy.split(","))
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("", total=len(setups))
            results = simulate_all(setups, trace, processes, lambda _: progress.advance(bar))
    except SimulationError as error:
        raise CommandError(str(error)) from None
    tables = [figures(result) for result in results]
    if as_json:
        sys.stdout.write(json.dumps(tables, indent=2) + "\n")
        return
    for table in tables:
        sys.stdout.write(_line(table, tables[0]) + "\n")
    if jobs is None and not policy:
        sys.stdout.write(_bound(tables) + "\n")


def _line(table: dict[str, Any], base: dict[str, Any]) -> str:
    saved = 100 * (1 - table["mean_wait_s"] / base["mean_wait_s"]) if base["mean_wait_s"] else 0.0
    priorities = table.get("by_priority")
    urgent = f", of urgent jobs {priorities[max(priorities, key=int)]['max_wait_s']:9,.0f}" if priorities else ""
    busy, of_load = table["busy_utilisation_pct"], table["busy_utilisation_of_load_pct"]
    used = (
        "nobody waits" if busy is None else f"utilisation while jobs wait {busy:5.1f} % ({of_load:5.1f} % of the load)"
    )
    return (
        f"{table['policy']:22}  {used}, mean wait {table['mean_wait_s']:11,.0f} s ({-saved:+.1f} %), "
        f"longest {table['max_wait_s']:11,.0f}{urgent}, evictions per job {table['evictions_per_job']:.3f}"
    )


def _bound(tables: list[dict[str, Any]]) -> str:
    from libs.sim.queue.story import OURS, URGENT_WAIT_S

    ours = next(table for table in tables if table["policy"] == OURS)
    longest = ours["by_priority"]["1"]["max_wait_s"]
    kept = "kept" if longest <= URGENT_WAIT_S else "BROKEN"
    return f"urgent jobs wait at most {URGENT_WAIT_S:,.0f} s (ours, longest {longest:,.0f} s): {kept}"
