"""What holds of precision on any cluster: it bars what is known to lack it, and changes nothing for who is silent."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.domain.precision import PRECISIONS
from libs.domain.verdicts import Kind, Reason
from libs.engine.api import EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.engine.precision.table import default_table
from libs.testkit.builders import ClusterBuilder, cluster, pod
from libs.testkit.scored import alone

laws = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

MODELS = ["NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "Tesla-V100-SXM2-16GB", "Tesla-T4", "G2", ""]


@st.composite
def clusters(draw: st.DrawFn) -> ClusterBuilder:
    facts = cluster()
    for i in range(draw(st.integers(1, 6))):
        gpus = draw(st.sampled_from([1, 2, 4]))
        facts.node(f"n{i}", gpus=gpus, mib=1000, model=draw(st.sampled_from(MODELS)), cpu=8000)
        if draw(st.booleans()):
            facts.running(f"run{i}", gpus=draw(st.integers(0, gpus)), on=f"n{i}", priority=9)
    return facts


shapes = st.sampled_from([{"gpus": 1}, {"gpus": 2}, {"share": 300}, {"mib": 400}, {"gpus": 1, "models": MODELS[1:3]}])
kinds = st.sampled_from(PRECISIONS)


@laws
@given(clusters(), shapes, kinds)
def test_what_is_required_is_given_by_every_node_that_may_have_it_and_by_no_other(
    facts: ClusterBuilder, shape: dict[str, Any], kind: str
) -> None:
    engine = facts.into(PlacementEngine())
    job = pod("p", precision=kind, required=True, **shape)
    silent = pod("p", **shape)
    table = default_table()
    may = {n.name for n in facts.nodes.values() if table.supports(n.gpus[0].model, kind) is not False}
    assert engine.takers(job.tasks[0]) == engine.takers(silent.tasks[0]) & may
    assert engine.takers(pod("p", precision=kind, **shape).tasks[0]) == engine.takers(silent.tasks[0])
    (decision,) = engine.decide([job])
    verdict = decision.verdict
    if not may and "models" not in shape:
        assert verdict.kind is Kind.NEVER
        assert verdict.reason is Reason.PRECISION or Reason.GPU_TOTAL in verdict.nodes


@laws
@given(clusters(), st.lists(st.tuples(shapes, st.sampled_from(["", *PRECISIONS])), min_size=1, max_size=8))
def test_one_node_and_many_are_scored_alike_after_any_jobs(
    facts: ClusterBuilder, asked: list[tuple[dict[str, Any], str]]
) -> None:
    engine = facts.into(PlacementEngine(EngineConfig(weights={"precision": 3, "drystone": 1})))
    jobs = [pod(f"p{n}", precision=kind, created=float(n), **shape) for n, (shape, kind) in enumerate(asked)]
    engine.decide(jobs)
    for job in jobs:
        view = engine._session.feasible(job.tasks[0])
        rows = range(len(facts.nodes))
        assert view.keys[: len(rows)].tolist() == alone(view)
        view._rebuild()
        assert view.keys[: len(rows)].tolist() == alone(view)


@laws
@given(clusters(), st.lists(shapes, min_size=1, max_size=8))
def test_who_declares_nothing_is_placed_as_ever(facts: ClusterBuilder, asked: list[dict[str, Any]]) -> None:
    jobs: list[PendingJob] = [pod(f"p{n}", created=float(n), **shape) for n, shape in enumerate(asked)]
    ever = facts.into(PlacementEngine(EngineConfig(weights={"drystone": 1}))).decide(jobs)
    assert facts.into(PlacementEngine()).decide(jobs) == ever
