"""The table of all lists and policies: what is run for it, and how it is written down.

Results are kept by what was run, so that a table can be completed bit by bit and a run is never made twice.
"""

from __future__ import annotations

import csv
import hashlib
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from libs.sim.bound import bound_at
from libs.sim.lists import NodeRow, TaskRow
from libs.sim.study import parse_seeds

OURS: Final = "drystone"
PUBLISHED: Final = {
    "fgd": "FGD",
    "best-fit": "BestFit",
    "packing": "Packing",
    "clustering": "Clustering",
    "dot-product": "DotProd",
    "random": "Random",
}
BASELINES: Final = (*PUBLISHED, "first-fit")
#: Of the others that the command knows there are no published figures; `precision` scores tasks that declare one only.
OTHERS: Final = (
    "first-fit-hash",
    "lexicographic-best-fit",
    "weighted-best-fit",
    "most-allocated",
    "requested-to-capacity-ratio",
    "spread",
)
#: The lists on which our parameters were chosen, with seeds 42 to 51.
TUNED_ON: Final = ("default", "gpushare40", "gpuspec10")
ORDER_LISTS: Final = ("default", "gpuspec25", "multigpu40")
ORDERS: Final = ("random", "listed", "model", "gpus", "cpu-per-gpu")
SEEDS: Final = "42-51"
UNSEEN: Final = "100-109"
#: Two unlike lists, one after the other.
JOINED: Final = (("default", "gpushare80"), ("cpu200", "gpuspec25"))
THEN: Final = ", then "
_PREFIX: Final = "openb_pod_list_"


class Cell(NamedTuple):
    """One result: a list, a node order, a policy, seeds."""

    tasks: str
    order: str
    policy: str
    seeds: str

    @property
    def key(self) -> str:
        return "/".join(self)


def lists_in(folder: Path) -> dict[str, Path]:
    """Name -> file of the task lists in a folder, those that parameters were chosen on first."""
    found = {path.name.removeprefix(_PREFIX).split(".")[0]: path for path in folder.glob(f"{_PREFIX}*.csv*")}
    return {name: found[name] for name in sorted(found, key=lambda name: (name not in TUNED_ON, name))}


def cells(lists: list[str]) -> Iterator[Cell]:
    for seeds in (SEEDS, UNSEEN):
        for tasks in lists:
            for policy in (OURS, *BASELINES):
                yield Cell(tasks, "random", policy, seeds)
    for pair in JOINED:
        if set(pair) <= set(lists):
            for policy in (OURS, *BASELINES):
                yield Cell(THEN.join(pair), "random", policy, SEEDS)
    for tasks in ORDER_LISTS:
        if tasks in lists:
            for order in ORDERS:
                for policy in (OURS, "fgd", "first-fit"):
                    yield Cell(tasks, order, policy, SEEDS)
    for tasks in lists:
        for policy in OTHERS:
            yield Cell(tasks, "random", policy, SEEDS)


def published(folder: Path) -> dict[tuple[str, str], float]:
    """(list, policy) -> published unallocated % at load 100, where the file is there."""
    path = folder / "published_fgd_results.csv"
    if not path.exists():
        return {}
    names = {told: ours for ours, told in PUBLISHED.items()}
    with path.open(newline="") as file:
        return {
            (row["workload"], names[row["policy"]]): 100 - float(row["alloc_pct_mean"])
            for row in csv.DictReader(file)
            if row["arrived_load_pct"] == "100" and row["policy"] in names
        }


#: What decides where a task of these lists goes, and what is counted of it. All of the engine: which of its modules
#: have no say is nothing that anybody would keep up to date.
_DECIDING: Final = (
    "engine",
    "sim/arrivals.py",
    "sim/lists.py",
    "sim/pack.py",
    "sim/study.py",
    "sim/world.py",
)


def digest() -> str:
    """Of the sources that decide: a result that was made by others is made anew."""
    root = Path(__file__).parent.parent
    found = hashlib.sha256()
    for name in _DECIDING:
        path = root / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()[:16]


Results = dict[str, dict[str, Any]]


def bound_key(tasks: str) -> str:
    return Cell(tasks, "bound", "", SEEDS).key


def bound_of(nodes: list[NodeRow], tasks: list[TaskRow]) -> dict[str, Any]:
    """The least unallocated % at load 100 that is possible, mean over the seeds."""
    found = [bound_at(nodes, tasks, seed) for seed in parse_seeds(SEEDS)]
    return {"unallocated_pct_at_100": statistics.fmean(one.unallocated_pct for one in found)}


def write(results: Results, lists: list[str], told: dict[tuple[str, str], float]) -> str:
    """The tables in Markdown, from whatever results there are."""
    parts = [
        "### Seeds 42 to 51, random node order\n\n"
        + _main(results, lists + [THEN.join(pair) for pair in JOINED], SEEDS, told),
        "### Seeds 100 to 109, random node order\n\n" + _main(results, lists, UNSEEN, {}),
        "### Other policies, seeds 42 to 51, random node order\n\n" + _others(results, lists),
        "### Node orders\n\n" + _orders(results),
        "### Placed % by class, ours less FGD's\n\n" + _classes(results, lists),
    ]
    return "\n".join(parts)


def _main(results: Results, lists: list[str], seeds: str, told: dict[tuple[str, str], float]) -> str:
    rows = [
        "| list | bound | ours | " + " | ".join(BASELINES) + " | ours - best | sd |",
        "|" + " --- |" * (len(BASELINES) + 5),
    ]
    means: list[float] = []
    for tasks in lists:
        found = {p: results.get(Cell(tasks, "random", p, seeds).key) for p in (OURS, *BASELINES)}
        ours = found[OURS]
        others = {p: r for p, r in found.items() if r is not None and p != OURS}
        if ours is None or not others:
            continue
        best = min(others.values(), key=lambda r: float(r["unallocated_pct_at_100"]))
        paired = [a - b for a, b in zip(ours["unallocated_pct_by_seed"], best["unallocated_pct_by_seed"], strict=True)]
        means.append(statistics.fmean(paired))
        columns = [_with(others.get(policy), told.get((tasks, policy))) for policy in BASELINES]
        floor = results.get(bound_key(tasks)) if seeds == SEEDS else None
        spread = statistics.stdev(paired) if len(paired) > 1 else 0.0
        rows.append(
            f"| {tasks}{' *' if tasks in TUNED_ON else ''} | {_with(floor, None)} "
            f"| **{ours['unallocated_pct_at_100']:.2f}** | "
            + " | ".join(columns)
            + f" | {means[-1]:+.2f} | {spread:.2f} |"
        )
    if means:
        rows.append(f"| mean | | | {' | ' * (len(BASELINES) - 1)} | {statistics.fmean(means):+.2f} | |")
    return "\n".join(rows) + "\n"


def _others(results: Results, lists: list[str]) -> str:
    rows = ["| list | ours | " + " | ".join(OTHERS) + " |", "|" + " --- |" * (len(OTHERS) + 2)]
    for tasks in lists:
        found = [results.get(Cell(tasks, "random", policy, SEEDS).key) for policy in (OURS, *OTHERS)]
        if any(one is not None for one in found[1:]):
            rows.append(f"| {tasks} | " + " | ".join(_with(one, None) for one in found) + " |")
    return "\n".join(rows) + "\n"


def _with(result: dict[str, Any] | None, told: float | None) -> str:
    if result is None:
        return ""
    return f"{result['unallocated_pct_at_100']:.2f}" + (f" ({told:.2f})" if told is not None else "")


def _orders(results: Results) -> str:
    rows = ["| list | policy | " + " | ".join(ORDERS) + " | spread |", "|" + " --- |" * (len(ORDERS) + 3)]
    for tasks in ORDER_LISTS:
        for policy in (OURS, "fgd", "first-fit"):
            found = [results.get(Cell(tasks, order, policy, SEEDS).key) for order in ORDERS]
            values = [r["unallocated_pct_at_100"] for r in found if r is not None]
            if len(values) == len(ORDERS):
                told = " | ".join(f"{value:.2f}" for value in values)
                rows.append(f"| {tasks} | {policy} | {told} | {max(values) - min(values):.2f} |")
    return "\n".join(rows) + "\n"


def _classes(results: Results, lists: list[str]) -> str:
    names = ("cpu-only", "shared", "1", "2", "4", "8")
    rows = ["| list | " + " | ".join(names) + " |", "|" + " --- |" * (len(names) + 1)]
    for tasks in lists:
        ours, fgd = (results.get(Cell(tasks, "random", policy, SEEDS).key) for policy in (OURS, "fgd"))
        if ours is None or fgd is None:
            continue
        mine, theirs = ours["placed_pct_by_class"], fgd["placed_pct_by_class"]
        rows.append(
            f"| {tasks} | "
            + " | ".join(f"{mine[n] - theirs[n]:+.1f}" if n in mine and n in theirs else "" for n in names)
            + " |"
        )
    return "\n".join(rows) + "\n"
