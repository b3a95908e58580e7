"""`drystone simulate table`: every list and policy, into the page that shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import CommandError
from cli.simulate.progress import with_progress

_BEGIN, _END = "<!-- table: begin -->", "<!-- table: end -->"


def table(
    data: Annotated[Path, typer.Option(help="Folder with openb_node_list_gpu_node.csv and openb_pod_list_*.csv[.gz].")],
    page: Annotated[Path, typer.Option(help="Page whose table is written anew.")] = Path("docs/packing.md"),
    results: Annotated[
        Path, typer.Option(help="Where results are kept; what is there, and made by these sources, is not run again.")
    ] = Path("var/packing.json"),
    processes: Annotated[int, typer.Option(help="Runs at once; 0: one per core.", min=0)] = 0,
) -> None:
    """Run all lists, policies and node orders, and write the tables of docs/packing.md."""
    from libs.sim.errors import SimulationError
    from libs.sim.lists import read_nodes, read_tasks
    from libs.sim.study import Study, parse_seeds, summary
    from libs.sim.table import THEN, bound_key, bound_of, cells, digest, lists_in, published, write

    lists = lists_in(data)
    if not lists:
        raise CommandError(f"{data}: no openb_pod_list_*.csv")
    known: dict[str, dict[str, Any]] = json.loads(results.read_text()) if results.exists() else {}
    results.parent.mkdir(parents=True, exist_ok=True)
    try:
        nodes = data / "openb_node_list_gpu_node.csv"
        for name, path in lists.items():
            if bound_key(name) not in known:
                known[bound_key(name)] = bound_of(read_nodes(nodes), read_tasks(path))
                results.write_text(json.dumps(known))
        sources = digest()
        for cell in cells(list(lists)):
            if known.get(cell.key, {}).get("sources") == sources:
                continue
            first, _, second = cell.tasks.partition(THEN)
            then = lists[second] if second else None
            study = Study(nodes, lists[first], (cell.policy,), parse_seeds(cell.seeds), 130, cell.order, then)
            found = summary(cell.policy, with_progress(study, processes, cell.key)[cell.policy])
            known[cell.key] = {**found, "sources": sources}
            results.write_text(json.dumps(known))
    except SimulationError as error:
        raise CommandError(str(error)) from None
    text = page.read_text()
    if _BEGIN not in text or _END not in text:
        raise CommandError(f"{page}: no place for the table ({_BEGIN} ... {_END})")
    before, rest = text.split(_BEGIN, 1)
    after = rest.split(_END, 1)[1]
    page.write_text(f"{before}{_BEGIN}\n\n{write(known, list(lists), published(data))}\n{_END}{after}")
