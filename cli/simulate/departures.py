"""`drystone simulate departures`: tasks come, wait, run and leave; policies side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import CommandError
from cli.out import say, show
from cli.simulate.choices import node_order_of, policies_of


def departures(
    nodes: Annotated[Path, typer.Option(help="Nodes as for `simulate pack`.")],
    tasks: Annotated[Path, typer.Option(help="Tasks with creation_time, scheduled_time, deletion_time. May be .gz.")],
    policy: Annotated[str, typer.Option(help="One or more, joined by commas.")] = "drystone",
    loads: Annotated[str, typer.Option(help="GPU seconds asked, as parts of what there is.")] = "0.85,0.95,1.05",
    seeds: Annotated[str, typer.Option(help="Such as 42-46 or 1,2,3.")] = "42-46",
    arrivals: Annotated[int, typer.Option(help="Tasks that come in one run.", min=1)] = 10_000,
    longest_s: Annotated[int, typer.Option(help="Longer runs end then, seconds; 0: none does.", min=0)] = 86_400,
    node_order: Annotated[str, typer.Option(help="random | listed | model | gpus | cpu-per-gpu")] = "random",
    processes: Annotated[int, typer.Option(help="Runs at once; 0: one per core.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """GPU that lies idle while somebody waits, and how long each class of tasks waits."""
    from libs.sim.departures import Plan, run_all, summary
    from libs.sim.errors import SimulationError
    from libs.sim.study import parse_seeds

    policies, node_order = policies_of(policy), node_order_of(node_order)
    try:
        asked = tuple(float(load) for load in loads.split(","))
    except ValueError:
        raise CommandError(f"{loads!r} names no loads such as 0.85,0.95") from None
    try:
        plan = Plan(nodes, tasks, policies, asked, parse_seeds(seeds), arrivals, longest_s, node_order)
        results = [summary(runs) for runs in run_all(plan, processes)]
    except SimulationError as error:
        raise CommandError(str(error)) from None
    if as_json:
        show(results)
        return
    for result in results:
        say(_line(result))


def _line(result: dict[str, Any]) -> str:
    idle = result["unallocated_pct_while_waiting"]
    waits = ", ".join(f"{name} {seconds:,.0f}" for name, seconds in result["wait_s"].items())
    told = (
        "nobody waited" if idle is None else f"{idle:.2f} % idle in the {result['waiting_pct_of_time']:.0f} % of time"
    )
    return f"load {result['load']:g}, {result['policy']}: {told}; mean wait by class, s: {waits}"
