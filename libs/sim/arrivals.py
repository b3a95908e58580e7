"""One run's input: which tasks arrive in which order, and in which order the nodes stand.

As in the FGD paper: the list is shuffled; then tasks drawn from it with replacement are appended until the requested
load; a list that asks for more is thinned by deleting tasks drawn at random. Everything follows from the seed.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeVar

from libs.domain.resources import WHOLE
from libs.engine.draw import Draw
from libs.sim.lists import NodeRow, TaskRow

T = TypeVar("T")

NODE_ORDERS: Final = ("random", "listed", "model", "gpus", "cpu-per-gpu")
#: Draws for tasks and for nodes are independent, so that node orders are compared on the same arrivals.
_NODES: Final = 0x6E6F646573


def capacity(nodes: list[NodeRow]) -> int:
    """Milli GPU of all nodes."""
    return WHOLE * sum(node.gpus for node in nodes)


def arrivals(tasks: list[TaskRow], gpu_milli: int, load_percent: int, seed: int) -> list[TaskRow]:
    """Tasks in order of arrival, asking for about `load_percent` of `gpu_milli` in all."""
    draw = Draw(seed)
    order = list(tasks)
    shuffle(order, draw)
    target = gpu_milli * load_percent // 100
    asked = sum(task.gpu_milli for task in order)
    if asked <= target:
        while True:
            task = tasks[draw.below(len(tasks))]
            if asked + task.gpu_milli > target:
                return order
            asked += task.gpu_milli
            order.append(task)
    gone: set[int] = set()
    while asked > target:
        at = draw.below(len(order))
        if at not in gone:
            gone.add(at)
            asked -= order[at].gpu_milli
    return [task for at, task in enumerate(order) if at not in gone]


def ordered(nodes: list[NodeRow], order: str, seed: int) -> list[NodeRow]:
    """The nodes as `order` says: shuffled by the seed, as listed, the most common model first, most GPUs first, or
    fewest CPUs per GPU first (each with the list's order within)."""
    if order == "random":
        shuffled = list(nodes)
        shuffle(shuffled, Draw(seed ^ _NODES))
        return shuffled
    if order == "model":
        common = Counter(node.model for node in nodes)
        return sorted(nodes, key=lambda node: (-common[node.model], node.model))
    if order == "gpus":
        return sorted(nodes, key=lambda node: -node.gpus)
    if order == "cpu-per-gpu":
        return sorted(nodes, key=lambda node: (node.cpu // node.gpus if node.gpus else node.cpu, -node.gpus))
    if order == "listed":
        return list(nodes)
    raise ValueError(f"no node order {order!r}")


def shuffle(items: list[T], draw: Draw) -> None:
    """Fisher and Yates, in place."""
    for at in range(len(items) - 1, 0, -1):
        other = draw.below(at + 1)
        items[at], items[other] = items[other], items[at]
