"""The look-ups of usable GPU against the published definition, worked out plainly; and the caps of owners."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from libs.domain.resources import WHOLE, Charge, GpuGrant, GpuRequest, Request
from libs.engine.ask import Ask, ask_key
from libs.engine.mix import ONE, Shape, Share, TypicalMix
from libs.engine.policies.kinds import SPARE_PARTS, Kinds
from libs.engine.policies.usable import Usable
from libs.engine.snapshot import Snapshot
from libs.testkit.builders import node, pod, task

laws = settings(max_examples=40, deadline=None)

MODELS = ("T4", "G2")
nodes = st.tuples(
    st.sampled_from(MODELS), st.integers(1, 8), st.integers(0, 32_000), st.lists(st.integers(0, WHOLE), max_size=8)
)
shapes = st.builds(
    lambda cpu, many, milli, models: Shape(cpu, many, milli if many == 1 else 0, 0, models),
    st.sampled_from([0, 1_000, 4_000, 16_000]),
    st.sampled_from([0, 1, 1, 1, 2, 4, 8]),
    st.sampled_from([0, 1, 320, 500, 810]),
    st.sampled_from([(), ("T4",), ("G2", "T4"), ("A10",)]),
)
mixes = st.dictionaries(shapes, st.integers(1, 1000), max_size=8)


def snapshot_of(rows: list[tuple[str, int, int, list[int]]]) -> Snapshot:
    """Nodes with so much CPU free and so much in use of each device."""
    snapshot = Snapshot()
    for at, (model, gpus, cpu, used) in enumerate(rows):
        snapshot.node_seen(node(f"n{at}", gpus=gpus, model=model, mib=WHOLE, cpu=32_000))
        grants = tuple(GpuGrant(i, milli, milli) for i, milli in enumerate(used[:gpus]) if milli)
        snapshot.take(at, Charge(32_000 - cpu, 0, grants))
    return snapshot


def defined(shape: Shape, weight: int, model: str, cpu: int, idle: list[int]) -> int:
    """Usable GPU of a node for one shape: idle GPU less the paper's F."""
    if not shape.gpus or (shape.models and model not in shape.models) or cpu < shape.cpu:
        return 0
    least = shape.milli or WHOLE
    enough = [amount for amount in idle if amount >= least]
    return weight * sum(enough) if len(enough) >= shape.gpus else 0


@laws
@given(st.lists(nodes, min_size=1, max_size=6), mixes)
def test_look_ups_give_what_the_definition_gives(
    rows: list[tuple[str, int, int, list[int]]], mix: dict[Shape, int]
) -> None:
    snapshot = snapshot_of(rows)
    kinds = Kinds(snapshot, mix)
    usable = Usable(kinds, [Share(shape, weight) for shape, weight in mix.items()])
    for at, (model, _, cpu, _) in enumerate(rows):
        state = snapshot.states[at]
        assert state is not None
        by_definition = sum(defined(shape, weight, model, cpu, state.milli) for shape, weight in mix.items())
        assert usable.of(state) == by_definition
    _, reach = kinds.reach(snapshot.columns(), [Share(shape, 1) for shape in mix])
    for shape, found in zip(mix, reach, strict=True):
        everywhere = [
            defined(shape, 1, row[0], row[2], state.milli)
            for row, state in zip(rows, snapshot.states, strict=False)
            if state is not None
        ]
        assert found == sum(everywhere)


def side_by_side(shape: Shape, weight: int, model: str, cpu: int, idle: list[int]) -> int:
    """Idle GPU that whole tasks of this shape could take beside each other, a twentieth of the CPU to spare for those
    with one GPU; of tasks with parts of devices, what the definition says."""
    if not shape.gpus or shape.milli:
        return defined(shape, weight, model, cpu, idle)
    if shape.models and model not in shape.models:
        return 0
    each = shape.cpu + (shape.cpu // SPARE_PARTS if shape.gpus == 1 else 0)
    tasks = idle.count(WHOLE) // shape.gpus
    return weight * WHOLE * shape.gpus * (min(tasks, cpu // each) if each else tasks)


@laws
@given(st.lists(nodes, min_size=1, max_size=6), mixes)
def test_counted_by_places_a_node_is_worth_what_fits_side_by_side(
    rows: list[tuple[str, int, int, list[int]]], mix: dict[Shape, int]
) -> None:
    snapshot = snapshot_of(rows)
    kinds = Kinds(snapshot, mix, places=True)
    usable = Usable(kinds, [Share(shape, weight) for shape, weight in mix.items()])
    for at, (model, _, cpu, _) in enumerate(rows):
        state = snapshot.states[at]
        assert state is not None
        worth = sum(side_by_side(shape, weight, model, cpu, state.milli) for shape, weight in mix.items())
        assert usable.of(state) == worth
    _, reach = kinds.reach(snapshot.columns(), [Share(shape, 1) for shape in mix])
    for shape, found in zip(mix, reach, strict=True):
        everywhere = [
            side_by_side(shape, 1, row[0], row[2], state.milli)
            for row, state in zip(rows, snapshot.states, strict=False)
            if state is not None
        ]
        assert found == sum(everywhere)


@laws
@given(
    nodes,
    mixes,
    st.booleans(),
    st.integers(0, 8_000),
    st.sampled_from([(0, 0), (1, 0), (1, 300), (1, 500), (2, 0), (2, 300)]),
)
def test_what_is_lost_is_what_the_best_devices_lose(
    row: tuple[str, int, int, list[int]], mix: dict[Shape, int], places: bool, cpu: int, gpu: tuple[int, int]
) -> None:
    snapshot = snapshot_of([row])
    state = snapshot.states[0]
    assert state is not None
    usable = Usable(Kinds(snapshot, mix, places), [Share(shape, weight) for shape, weight in mix.items()])
    ask = Ask(ask_key(structs.replace(task("t"), request=Request(cpu, 0, GpuRequest(*gpu)))))
    if state.tight(ask) < 0:
        return
    told = usable.of(state) + usable.lost(state, ask)
    assert usable.lost(state, ask) == usable.lost_many(snapshot.columns(), ask)[0]
    chosen = usable.devices(state, ask) if ask.share else [i for i in state.index if state.is_idle(i)][: ask.count]
    values = [chosen]
    if ask.count == 1:
        values += [[i] for i in state.index if state.milli[i] >= (ask.milli or WHOLE)]
    outcomes = []
    for devices in values:
        after = state.copy()
        after.take(Charge(cpu, 0, tuple(GpuGrant(i, *ask.grant(WHOLE)) for i in devices)))
        outcomes.append(usable.of(after))
    assert outcomes[0] == max(outcomes)
    if ask.count <= 1 or not ask.share:
        assert told == outcomes[0]


@laws
@given(st.lists(st.integers(1, 400), min_size=1, max_size=8))
def test_nobody_is_more_than_a_quarter_of_the_mix_where_others_are_there(jobs: list[int]) -> None:
    mix = TypicalMix()
    for owner, count in enumerate(jobs):
        for i in range(count):
            job = pod(f"{owner}-{i}", cpu=owner)
            mix.learn(structs.replace(job, head=structs.replace(job.head, tenant=str(owner))))
    parts = min(4, len(jobs))
    weights = [share.weight for share in mix.shares()]
    assert len(weights) == len(jobs)
    assert abs(sum(weights) - ONE) <= len(jobs)
    # Counts are whole: a cap is met to within one job.
    assert max(weights) <= ONE // parts + 2 * ONE // max(sum(sorted(jobs)[: -parts + 1 or None]), 1) + 1
