"""`drystone simulate whatif`: what would let a job in, on a cluster written down in two lists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.errors import CommandError
from cli.out import say, show


def whatif(
    nodes: Annotated[Path, typer.Option(help="Nodes as for `simulate pack`.")],
    running: Annotated[
        Path,
        typer.Option(
            help="Running tasks as CSV: name, node, cpu_milli, memory_mib, num_gpu, gpu_milli[, job, gang_min, "
            "priority, ran_s, movable]. May be .gz."
        ),
    ],
    gpus: Annotated[int, typer.Option(help="GPUs of one task.", min=0, max=64)] = 1,
    gpu_milli: Annotated[int, typer.Option(help="Of one GPU, thousandths; 1000: whole.", min=1, max=1000)] = 1000,
    cpu_milli: Annotated[int, typer.Option(help="CPU of one task, thousandths of a core.", min=0)] = 1000,
    memory_mib: Annotated[int, typer.Option(help="Memory of one task, MiB.", min=0)] = 1024,
    model: Annotated[str, typer.Option(help="GPU models that will do, joined by commas; empty: any.")] = "",
    tasks: Annotated[int, typer.Option(help="Tasks that must start together.", min=1, max=100_000)] = 1,
    priority: Annotated[int, typer.Option(help="Only tasks of no higher priority are moved.")] = 0,
    after_s: Annotated[float, typer.Option(help="Only tasks that have run this long are moved.", min=0)] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Moves, nodes, or a smaller request: each is tried before it is named."""
    from libs.domain.resources import WHOLE, GpuRequest, Request
    from libs.sim.errors import SimulationError
    from libs.sim.lists import read_nodes
    from libs.sim.whatif import NOW, asked, engine_of, read_running, told

    if gpu_milli < WHOLE and gpus > 1:
        raise CommandError("a share is of one GPU")
    models = tuple(sorted(name.strip() for name in model.split(",") if name.strip()))
    gpu = GpuRequest(gpus, gpu_milli if gpu_milli < WHOLE else 0, models=models) if gpus else GpuRequest()
    try:
        found = read_nodes(nodes)
        engine = engine_of(found, read_running(running), after_s)
    except SimulationError as error:
        raise CommandError(str(error)) from None
    answer = told(engine.what_if(asked(Request(cpu_milli, memory_mib, gpu), tasks, priority), NOW), found)
    if as_json:
        show(answer)
        return
    if answer["fits"]:
        say("it fits as it is")
        return
    say("it does not fit now; would help:" if answer["helps"] else "it does not fit, and nothing that was tried helps")
    for one in answer["helps"]:
        say(f"  {one}")
    for move in (answer["moves"] or {}).get("moves", []):
        say(f"    {move['task']}: {move['from']} -> {move['to']}")
