"""The queue simulator's lean cluster against the placement engine: the same room, the same answers.

And its own laws: nothing over capacity, whatever is taken and given back comes out even.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.domain.resources import WHOLE, Charge, GpuGrant
from libs.domain.verdicts import Kind
from libs.engine.core import PlacementEngine
from libs.sim.queue.cluster import Cluster, Parts
from libs.testkit.builders import cluster as facts_of
from libs.testkit.builders import gang, pod

MIB = 80_000
moves = st.lists(st.tuples(st.sampled_from(["place", "place", "free"]), st.integers(0, 10**6)), max_size=30)
asks = (100, 250, 500, 700, 1000, 2000, 3000, 4000, 8000, 16000)


def played(size: int, width: int, history: list[tuple[str, int]]) -> tuple[Cluster, list[Parts]]:
    lean = Cluster(size, width)
    held: list[Parts] = []
    for move, pick in history:
        if move == "free" and held:
            lean.give(held.pop(pick % len(held)))
        elif move == "place":
            parts = lean.find(asks[pick % len(asks)])
            if parts is not None:
                lean.take(parts)
                held.append(parts)
    return lean, held


def told(lean: Cluster) -> PlacementEngine:
    facts = facts_of()
    for number in range(lean.size):
        name = f"n{number}"
        facts.node(name, gpus=lean.width, mib=MIB)
        shares = sorted(free for (node, _), free in lean.shared.items() if node == number)
        grants = [GpuGrant(i, WHOLE - free, (WHOLE - free) * MIB // WHOLE) for i, free in enumerate(shares)]
        busy = lean.width - lean.free[number]
        grants += [GpuGrant(i, WHOLE, MIB) for i in range(len(shares), busy)]
        for grant in grants:
            facts.used(name, Charge(100, 100, (grant,)))
    return facts.into(PlacementEngine())


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 4), width=st.sampled_from([1, 2, 4, 8]), history=moves)
def test_what_fits_in_the_lean_cluster_fits_for_the_engine_and_nothing_else(
    size: int, width: int, history: list[tuple[str, int]]
) -> None:
    lean, _ = played(size, width, history)
    engine = told(lean)
    for milli in asks:
        gpus = milli // WHOLE
        if gpus > width and gpus % width:
            continue  # where the rest of such a gang may go is the simulator's own rule
        if milli < WHOLE:
            job = pod("p", share=milli)
        elif gpus <= width:
            job = pod("p", gpus=gpus)
        else:
            job = gang("g", gpus // width, gpus=width)
        decision = engine.decide([job])[0]
        engine.settle()
        assert (lean.find(milli) is not None) == (decision.verdict.kind is Kind.FITS), (milli, decision.verdict)


@settings(max_examples=200, deadline=None)
@given(size=st.integers(1, 5), width=st.sampled_from([1, 2, 8]), history=moves)
def test_room_comes_out_even(size: int, width: int, history: list[tuple[str, int]]) -> None:
    lean, held = played(size, width, history)
    use = [0] * size
    for parts in held:
        for part in parts:
            use[part[0]] += part[1] * WHOLE if part[1] else part[3]
    assert lean.used_milli == sum(use)
    assert all(0 <= used <= width * WHOLE for used in use)
    assert all(0 <= free < WHOLE for free in lean.shared.values())
    for parts in held:
        lean.give(parts)
    fresh = Cluster(size, width)
    assert (lean.free, lean.by_free, lean.idle, lean.shared) == (fresh.free, fresh.by_free, fresh.idle, fresh.shared)
