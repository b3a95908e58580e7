"""What one more GPU of each model would be worth: shadow prices of the best division of idle GPUs among the demand.

A transport problem, solved exactly by successive shortest paths over the models: kinds of tasks demand GPUs, models
supply them, each pairing has a gain. The price of a model is what the whole gains by one more GPU of it; a model of
which some are left over costs nothing. Whole numbers throughout, so the result is the same on every CPU.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from libs.engine.columns import Ints

_FAR: Final = np.int64(1 << 60)


def prices(gain: Ints, demand: Ints, supply: Ints) -> Ints:
    """`gain`: (kinds, models), not negative. `demand` per kind and `supply` per model in one unit. Per model, in the
    unit of the gains."""
    kinds, models = gain.shape
    flow = np.zeros((kinds, models), np.int64)
    left = supply.copy()
    for kind in range(kinds):
        wanted = int(demand[kind])
        while wanted > 0 and left.any():
            wanted -= _assign(kind, wanted, gain, flow, left)
    cost = _moves(gain, flow)
    for via in range(models):
        cost = np.minimum(cost, cost[:, via : via + 1] + cost[via : via + 1, :])
    found: Ints = np.maximum(-cost.min(axis=0), 0)
    return found


def _moves(gain: Ints, flow: Ints) -> Ints:
    """(models, models): the least that is lost by moving one unit that is there from one model to another; nothing by
    leaving it."""
    lost = np.where((flow > 0)[:, :, None], gain[:, :, None] - gain[:, None, :], _FAR)
    moves: Ints = lost.min(axis=0)
    np.fill_diagonal(moves, 0)
    return np.minimum(moves, _FAR >> 4)


def _assign(kind: int, wanted: int, gain: Ints, flow: Ints, left: Ints) -> int:
    """Place some of a kind's demand where it gains most, others making way; how much."""
    models = len(left)
    moves = _moves(gain, flow)
    cost = -gain[kind]
    before = np.full(models, -1, np.int64)
    for _ in range(models):
        reach = cost[:, None] + moves
        via = reach.argmin(axis=0)
        better = reach[via, np.arange(models)] < cost
        if not better.any():
            break
        before[better] = via[better]
        cost = np.where(better, reach[via, np.arange(models)], cost)
    end = int(np.where(left > 0, cost, _FAR).argmin())
    path = [end]
    while before[path[-1]] >= 0:
        path.append(int(before[path[-1]]))
    path.reverse()
    hops = []
    amount = min(wanted, int(left[end]))
    for here, there in pairwise(path):
        lost = np.where(flow[:, here] > 0, gain[:, here] - gain[:, there], _FAR)
        mover = int(lost.argmin())
        hops.append((mover, here, there))
        amount = min(amount, int(flow[mover, here]))
    flow[kind, path[0]] += amount
    for mover, here, there in hops:
        flow[mover, here] -= amount
        flow[mover, there] += amount
    left[end] -= amount
    return amount
