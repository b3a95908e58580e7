"""`drystone simulate precision`: what the policy `precision` is worth on a cluster of several models of GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import CommandError
from cli.out import say, show

_MIX = "bf16=300,fp16=150,mixed=150,fp32=150,tf32=50,fp8=50,fp8!=20,int8=30"


def precision(
    nodes: Annotated[Path, typer.Option(help="Nodes as for `simulate pack`.")],
    tasks: Annotated[Path, typer.Option(help="Tasks as for `simulate pack`.")],
    models: Annotated[str, typer.Option(help="What stands for models of the list: G2=NVIDIA-A100-SXM4-40GB,...")] = "",
    mix: Annotated[str, typer.Option(help="Parts of 1,000 GPU tasks; with ! the precision is required.")] = _MIX,
    bound: Annotated[int, typer.Option(help="Part of run time that arithmetic makes up, %.", min=0, max=100)] = 70,
    weights: Annotated[str, typer.Option(help="Weights of `precision` beside drystone=1, by commas.")] = "0,1",
    loads: Annotated[str, typer.Option(help="Loads of tasks that come and leave; empty: only filling.")] = "0.8,0.95",
    arrivals: Annotated[int, typer.Option(help="Tasks that come in such a run.", min=100)] = 20_000,
    seeds: Annotated[str, typer.Option(help="Such as 42-46 or 1,2,3.")] = "42-46",
    processes: Annotated[int, typer.Option(help="Runs at once; 0: one per core.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Speed of the GPUs that jobs get, what is left unallocated, how long jobs take: with the policy and without."""
    from libs.sim.errors import SimulationError
    from libs.sim.lists import read_nodes, read_tasks
    from libs.sim.precision import Plan, parse_mix, renamed, run_all
    from libs.sim.study import parse_seeds

    try:
        stands_for = dict(pair.split("=", 1) for pair in models.split(",") if pair)
        asked = tuple(float(load) for load in loads.split(",") if load)
        chosen = tuple(int(weight) for weight in weights.split(","))
    except ValueError as error:
        raise CommandError(f"models, loads or weights cannot be read: {error}") from None
    try:
        plan = Plan(
            tuple(renamed(read_nodes(nodes), stands_for)),
            tuple(read_tasks(tasks)),
            parse_mix(mix),
            bound / 100,
            chosen,
            asked,
            arrivals,
            parse_seeds(seeds),
        )
        results = run_all(plan, processes)
    except SimulationError as error:
        raise CommandError(str(error)) from None
    if as_json:
        show(results)
        return
    for result in results:
        say(_line(result))


def _line(result: dict[str, Any]) -> str:
    refused, demanding = result["refused"]
    free, speed = result["unallocated_pct"], result["speed"]
    told = [
        f"precision {result['weight']}: unallocated at load 100 {free['100']:.2f} %",
        "speed at " + ", ".join(f"{load}: {value:.3f}" for load, value in speed.items()),
        f"{refused} of {demanding} that require a precision dropped",
    ]
    for load, run in result["running"].items():
        told.append(
            f"load {load}: turnaround {run['turnaround_s']:,.0f} s, wait {run['wait_s']:,.0f} s "
            f"(others {run['others_wait_s']:,.0f} s), speed {run['speed']:.3f}"
        )
    return "; ".join(told)
