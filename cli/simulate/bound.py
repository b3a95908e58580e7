"""`drystone simulate bound`: what no policy can exceed on a list."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import typer

from cli.errors import CommandError
from cli.out import say, show


def bound(
    nodes: Annotated[Path, typer.Option(help="Nodes as for `simulate pack`.")],
    tasks: Annotated[Path, typer.Option(help="Tasks as for `simulate pack`.")],
    seeds: Annotated[str, typer.Option(help="Such as 42-51 or 1,2,3.")] = "42-51",
    load: Annotated[int, typer.Option(help="Arrived load at which allocation is bounded, %.", min=1, max=130)] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """The most GPU that could be allocated, arrivals known beforehand: a cutting-stock programme over single GPUs."""
    from libs.sim.bound import bound_at
    from libs.sim.errors import SimulationError
    from libs.sim.lists import read_nodes, read_tasks
    from libs.sim.study import parse_seeds

    try:
        chosen, node_rows, task_rows = parse_seeds(seeds), read_nodes(nodes), read_tasks(tasks)
        found = [bound_at(node_rows, task_rows, seed, load) for seed in chosen]
    except SimulationError as error:
        raise CommandError(str(error)) from None
    least = [round(one.unallocated_pct, 4) for one in found]
    result = {
        "method": "cutting stock over single GPUs, linear relaxation by column generation, proven by its dual prices",
        "status": "optimal" if all(one.status == "optimal" for one in found) else "stopped",
        "seeds": list(chosen),
        f"unallocated_pct_at_{load}_at_least": round(statistics.fmean(least), 4),
        "by_seed": least,
        "columns": max(one.columns for one in found),
    }
    if as_json:
        show(result)
        return
    say(
        f"unallocated at load {load}: at least {statistics.fmean(least):.2f} % ({result['method']}: {result['status']})"
    )
