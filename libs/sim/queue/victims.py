"""Whom to evict so that an item fits: the set that loses the fewest GPU seconds, none of it superfluous.

Victims leave whole: a gang over several nodes frees all of them. Up to one node's worth of GPUs, each node is tried by
itself; for a larger gang, the nodes that cost least to clear are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from libs.engine.order.base import Item, Order
from libs.sim.queue.cluster import WHOLE, Cluster, Parts


@dataclass(slots=True, eq=False)
class Run:
    """An item that holds room, and what its eviction would lose in GPU seconds as things stand."""

    item: Item
    parts: Parts
    milli: int
    cost: float = 0.0


ByNode = list[dict[int, Run]]


def choose(
    cluster: Cluster, offered: ByNode, held: ByNode, milli: int, to: Item, order: Order, now: float, looked: ByNode
) -> list[Run] | None:
    """The victims, no more than the order allows, or None where no set will do. `offered` and `held`: runs by node,
    those that may be evicted at all, and everybody. Nodes with none in `looked` are not looked at."""
    gpus = max(1, milli // WHOLE)
    allowed: dict[int, bool] = {}

    def may(run: Run) -> bool:
        key = run.item.key
        answer = allowed.get(key)
        if answer is None:
            answer = allowed[key] = order.yields(run.item, to, now)
        return answer

    if gpus > cluster.width:
        found = _clear(cluster, offered, held, cluster.nodes_for(gpus), may)
        return found if found is not None and len(found) <= order.most(to, now) else None
    most = order.most(to, now)
    best: list[Run] | None = None
    best_cost = (0.0, 0)
    for node, runs in enumerate(offered):
        if not looked[node]:
            continue
        found = _on(cluster, runs, node, gpus, may) if most > 1 else _one(cluster, runs, node, gpus, may)
        if found is not None and len(found) <= most:
            cost = (sum(run.cost for run in found), len(found))
            if best is None or cost < best_cost:
                best, best_cost = found, cost
    return best


def _on(cluster: Cluster, runs: dict[int, Run], node: int, gpus: int, may: Callable[[Run], bool]) -> list[Run] | None:
    short = gpus - cluster.free[node]
    offers = [(run, _whole(run, node)) for run in runs.values() if may(run)]
    if sum(held for _, held in offers) < short:
        return None
    offers.sort(key=lambda offer: (offer[0].cost / offer[1], -offer[1], offer[0].item.key))
    taken: list[tuple[Run, int]] = []
    for offer in offers:
        taken.append(offer)
        short -= offer[1]
        if short <= 0:
            break
    for offer in sorted(taken[:-1], key=lambda offer: -offer[0].cost):
        if short + offer[1] <= 0:
            taken.remove(offer)
            short += offer[1]
    return [run for run, _ in taken]


def _one(cluster: Cluster, runs: dict[int, Run], node: int, gpus: int, may: Callable[[Run], bool]) -> list[Run] | None:
    short = gpus - cluster.free[node]
    enough = [run for run in runs.values() if _whole(run, node) >= short and may(run)]
    return [min(enough, key=lambda run: (run.cost, run.item.key))] if enough else None


def _whole(run: Run, node: int) -> int:
    for part in run.parts:
        if part[0] == node:
            return part[1]
    return 0


def _clear(cluster: Cluster, offered: ByNode, held: ByNode, count: int, may: Callable[[Run], bool]) -> list[Run] | None:
    prices: list[tuple[float, int]] = []
    for node in range(cluster.size):
        runs = offered[node]
        if len(runs) == len(held[node]) and all(may(run) for run in runs.values()):
            prices.append((sum(run.cost for run in runs.values()), node))
    if len(prices) < count:
        return None
    prices.sort()
    victims: dict[int, Run] = {}
    for _, node in prices[:count]:
        victims.update(offered[node])
    return list(victims.values())
