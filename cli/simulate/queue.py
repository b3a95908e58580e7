"""`drystone simulate queue`: jobs with run times wait, run, yield and end; policies side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import CommandError
from cli.out import say, show, write


def queue(
    jobs: Annotated[
        Path,
        typer.Option(
            help="Jobs as CSV: submit_s, duration_s, num_gpus[, job_id, vc, priority, gpu_milli]. May be .gz."
        ),
    ],
    nodes: Annotated[int, typer.Option(help="Nodes.", min=1)] = 48,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of each node.", min=1)] = 8,
    policy: Annotated[str, typer.Option(help="One or more, joined by commas; drystone where none is named.")] = "",
    tenants: Annotated[str, typer.Option(help="pooled | fenced: each on its own nodes.")] = "pooled",
    fence: Annotated[str, typer.Option(help="Nodes per tenant: a=16,b=8; pooled, their guaranteed shares.")] = "",
    restart_s: Annotated[float, typer.Option(help="Seconds that a restart after an eviction costs.", min=0)] = 60.0,
    checkpoint_s: Annotated[float, typer.Option(help="Seconds of run between checkpoints.", min=0)] = 1800.0,
    frontier: Annotated[
        bool,
        typer.Option(
            "--frontier",
            help="The policies named, or without any all families and Drystone's order with each parameter halved and "
            "doubled, as a table of mean wait, longest wait and evictions.",
        ),
    ] = False,
    fairness: Annotated[
        str, typer.Option(help="Drystone's order with its knob at each of these, 0 (efficiency) to 100: 0,50,100.")
    ] = "",
    days: Annotated[float, typer.Option(help="Only jobs that come in the first so many days; 0: all.", min=0)] = 0.0,
    processes: Annotated[int, typer.Option(help="Runs at once; 0: one per core.", min=0)] = 0,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report with plots here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Jobs of a trace arrive, wait, run, are evicted and end, in virtual time."""
    from libs.sim.errors import SimulationError
    from libs.sim.queue.figures import figures
    from libs.sim.queue.frontier import frontier as spread
    from libs.sim.queue.frontier import knob, told
    from libs.sim.queue.loop import Costs
    from libs.sim.queue.study import Setup, parse_fence
    from libs.sim.queue.trace import first_days, read_jobs

    if tenants not in ("pooled", "fenced"):
        raise CommandError(f"tenants are pooled or fenced, not {tenants!r}")
    try:
        trace = first_days(read_jobs(jobs), days)
        shares = parse_fence(fence)
        costs = Costs(restart_s, checkpoint_s)
        setups = [
            Setup(nodes, gpus_per_node, name.strip(), costs, tenants == "fenced", shares)
            for name in (policy or "drystone").split(",")
        ]
        if fairness:
            setups = knob(setups[0], _settings(fairness))
        elif frontier and not policy:
            setups = spread(setups[0])
        results = _run(setups, trace, processes)
    except SimulationError as error:
        raise CommandError(str(error)) from None
    tables = [figures(result) for result in results]
    if frontier and not fairness:
        tables = told(setups, tables)
    if as_json:
        show(tables[0] if len(tables) == 1 and not frontier else tables)
    elif frontier and not fairness:
        _frontier(tables)
    else:
        for table in tables:
            say(_line(table))
            for demand in table.get("by_demand_of_share", ()):
                say(_of_demand(demand))
    if report is not None:
        from libs.sim.queue.report import render

        write(report, render(jobs.name, results))


def _settings(text: str) -> list[int]:
    settings = [int(part) if part.strip().isdecimal() else -1 for part in text.split(",")]
    if not all(0 <= at <= 100 for at in settings):
        raise CommandError(f"fairness is 0 to 100, one or more joined by commas, not {text!r}")
    return settings


def _run(setups: list[Any], trace: list[Any], processes: int) -> list[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from libs.sim.queue.study import simulate, simulate_all

    one = len(setups) == 1
    columns = (TextColumn("jobs" if one else "runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(trace) if one else len(setups))
        if one:
            return [simulate(setups[0], trace, done=lambda ended: progress.update(bar, completed=ended))]
        return simulate_all(setups, trace, processes, lambda _: progress.advance(bar))


def _frontier(tables: list[dict[str, Any]]) -> None:
    """By mean wait; `*`: nobody else is as good in all three and better in one."""
    lines = [("POLICY", "MEAN WAIT S", "LONGEST S", "EVICTIONS PER JOB", "LOST %", "")]
    for table in tables:
        mark = "knows run times" if table["knows"] else "*" if table["frontier"] else ""
        waits = f"{table['mean_wait_s']:,.0f}", f"{table['max_wait_s']:,.0f}"
        lost = f"{table['gpu_time_lost_pct']:.2f}"
        lines.append((table["policy"], *waits, f"{table['evictions_per_job']:.3f}", lost, mark))
    widths = [max(len(line[n]) for line in lines) for n in range(5)]
    for line in lines:
        cells = [line[0].ljust(widths[0]), *(line[n].rjust(widths[n]) for n in range(1, 5)), line[5]]
        say("  ".join(cells).rstrip())


def _of_demand(table: dict[str, Any]) -> str:
    most = table["demand_of_share_up_to"]
    demand = f"at most {most:g} times its share" if most else "more"
    return (
        f"  jobs while whose queue asked for {demand}: {table['jobs']:,}, wait mean {table['mean_wait_s']:,.0f} s, "
        f"p99 {table['p99_wait_s']:,.0f}, longest {table['max_wait_s']:,.0f}"
    )


def _line(table: dict[str, Any]) -> str:
    return (
        f"{table['policy']}: wait mean {table['mean_wait_s']:,.0f} s, p99 {table['p99_wait_s']:,.0f}, "
        f"longest {table['max_wait_s']:,.0f}; completion mean {table['mean_jct_s']:,.0f}, "
        f"p99 {table['p99_jct_s']:,.0f}; utilisation {table['utilisation_pct']:.1f} % of load "
        f"{table['offered_load']:.2f}; evictions per job {table['evictions_per_job']:.3f}, "
        f"GPU time lost {table['gpu_time_lost_pct']:.2f} %"
    )
