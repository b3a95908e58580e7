"""`drystone simulate story`: a cluster that stands idle while jobs wait, and what each remedy brings."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer


def story(
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 7,
    processes: Annotated[int, typer.Option(help="Runs at once; 0: one per core.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Fenced teams, whole GPUs for small tasks, a line that blocks: the same jobs with each remedy in turn."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from libs.sim.queue.figures import figures
    from libs.sim.queue.story import Workload, make, remedies
    from libs.sim.queue.study import simulate_all

    workload = Workload(seed=seed)
    jobs = make(workload)
    setups = remedies(workload)
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(setups))
        results = simulate_all(setups, jobs, processes, lambda _: progress.advance(bar))
    tables = [figures(result) for result in results]
    if as_json:
        sys.stdout.write(json.dumps(tables, indent=2) + "\n")
        return
    base = tables[0]
    for table in tables:
        saved = 100 * (1 - table["mean_wait_s"] / base["mean_wait_s"])
        urgent = table["by_priority"]["1"]["max_wait_s"]
        sys.stdout.write(
            f"{table['policy']:22}  utilisation while jobs wait {table['busy_utilisation_pct']:5.1f} % "
            f"({table['busy_utilisation_of_load_pct']:5.1f} % of the load), mean wait {table['mean_wait_s']:11,.0f} s "
            f"(-{saved:.1f} %), longest {table['max_wait_s']:11,.0f}, of urgent jobs {urgent:9,.0f}, "
            f"evictions per job {table['evictions_per_job']:.3f}\n"
        )
