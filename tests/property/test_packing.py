"""Laws of a simulated run, for any list: no look ahead, the same result every time, work conserved."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.domain.resources import WHOLE, GpuRequest, Request
from libs.engine.policies import POLICIES
from libs.sim.lists import NodeRow, TaskRow
from libs.sim.pack import run_stream

laws = settings(max_examples=40, deadline=None)

nodes = st.lists(
    st.tuples(st.sampled_from([8_000, 32_000, 96_000]), st.sampled_from([1, 2, 4, 8]), st.sampled_from(["T4", "G2"])),
    min_size=1,
    max_size=8,
).map(lambda rows: [NodeRow(f"n{i}", cpu, 100_000, gpus, model) for i, (cpu, gpus, model) in enumerate(rows)])
gpu = st.one_of(
    st.just(GpuRequest()),
    st.builds(lambda m, s: GpuRequest(1, m, models=s), st.integers(1, 999), st.sampled_from([(), ("T4",)])),
    st.builds(lambda c, s: GpuRequest(c, models=s), st.sampled_from([1, 2, 4, 8]), st.sampled_from([(), ("G2", "T4")])),
)
task_lists = st.lists(st.tuples(st.integers(0, 12_000), gpu), min_size=1, max_size=40).map(
    lambda rows: [TaskRow(f"t{i}", Request(cpu, 1, gpu)) for i, (cpu, gpu) in enumerate(rows)]
)
policies = st.sampled_from(sorted(set(POLICIES) - {"fgd"}))


@laws
@given(nodes, task_lists, task_lists, policies)
def test_what_comes_later_does_not_change_what_was_placed_before(
    cluster: list[NodeRow], first: list[TaskRow], later: list[TaskRow], policy: str
) -> None:
    cut = run_stream(cluster, first, first, policy, 1).placements
    for rest in (later, later[::-1]):
        assert run_stream(cluster, first + rest, first + rest, policy, 1).placements[: len(first)] == cut


@laws
@given(nodes, task_lists, policies)
def test_a_run_repeats_to_the_letter(cluster: list[NodeRow], tasks: list[TaskRow], policy: str) -> None:
    left, right = (run_stream(cluster, tasks, tasks, policy, 3) for _ in range(2))
    assert (left.curve, left.placed, left.placements) == (right.curve, right.placed, right.placements)


@laws
@given(nodes, task_lists, st.sampled_from(sorted(POLICIES)))
def test_a_task_is_dropped_only_where_no_node_can_take_it(
    cluster: list[NodeRow], tasks: list[TaskRow], policy: str
) -> None:
    """By a plain count of CPU and GPU per node: where all whole devices of a node are idle and its CPU suffices, a
    task for whole devices is never dropped; and nothing is ever placed beyond a node's capacity."""
    used_cpu = {node.name: 0 for node in cluster}
    used_gpu = {node.name: 0 for node in cluster}
    rows = {node.name: node for node in cluster}
    for task, place in zip(tasks, run_stream(cluster, tasks, tasks, policy, 1).placements, strict=True):
        request = task.request
        if place:
            name = place.split("-", 1)[1]
            used_cpu[name] += request.cpu
            used_gpu[name] += request.gpu_milli
            assert used_cpu[name] <= rows[name].cpu
            assert used_gpu[name] <= rows[name].gpus * WHOLE
            assert not request.gpu.models or rows[name].model in request.gpu.models
            continue
        for name, node in rows.items():
            right_model = not request.gpu.models or node.model in request.gpu.models
            untouched = not used_gpu[name] and node.gpus >= request.gpu.count
            assert not (untouched and right_model and used_cpu[name] + request.cpu <= node.cpu)
