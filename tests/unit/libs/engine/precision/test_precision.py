"""Which GPU computes what, and where jobs that say what they compute in are placed."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from libs.domain.precision import PRECISIONS, Precision
from libs.domain.verdicts import Kind, Reason
from libs.engine.api import Decision, EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.engine.precision.demand import PrecisionDemand
from libs.engine.precision.prices import prices
from libs.engine.precision.table import GpuModel, GpuTable, checked, default_table
from libs.testkit.builders import ClusterBuilder, cluster, pod
from libs.testkit.scored import alone

H100, A100, V100, T4 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "Tesla-V100-SXM2-16GB", "Tesla-T4"


def mixed(**counts: int) -> ClusterBuilder:
    """So many 8-GPU nodes of each model, in the order of their names."""
    facts = cluster()
    models = {"h100": H100, "a100": A100, "v100": V100, "t4": T4, "strange": "G2"}
    for name, count in counts.items():
        for i in range(count):
            facts.node(f"{name}-{i}", model=models[name])
    return facts


def decide(facts: ClusterBuilder, *jobs: PendingJob, **config: object) -> list[Decision]:
    return facts.into(PlacementEngine(EngineConfig(**config))).decide(list(jobs))  # type: ignore[arg-type]


def where(decision: Decision) -> str:
    return decision.placements[0].node.split("-")[0] if decision.placements else ""


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_entry_of_the_table_makes_sense_and_says_where_it_is_from() -> None:
    models = default_table().models
    checked(models)
    names = [name.casefold() for model in models for name in model.names]
    assert len(set(names)) == len(names), "two entries have one name"
    for model in models:
        capability = tuple(map(int, model.capability.split(".")))
        assert model.source
        assert model.title
        assert model.memory_mib
        assert model.form in ("SXM", "PCIe")
        assert bool(model.checked) == model.against.startswith("https://"), "what was checked says against what"
        for precision, least in (("bf16", (8, 0)), ("tf32", (8, 0)), ("fp8", (8, 9))):
            assert (precision in model.tflops) == (capability >= least), (model.title, precision)


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        (H100, "fp8", 1979),
        (H100, "bf16", 989.5),
        ("nvidia-h100-pcie", "bf16", 756.5),
        (A100, "fp8", 312),  # in 16 bits instead
        (A100, "tf32", 156),
        (V100, "bf16", 15.7),  # in 32 bits instead
        (V100, "mixed", 125),
        ("V100M32", "fp16", 125),
        (T4, "int8", 130),
        ("P100", "int8", 18.7),
        ("NVIDIA-A10-SHARED", "bf16", 125),
    ],
)
def test_how_fast_a_model_computes_what_it_has_or_what_stands_in_for_it(
    name: str, precision: str, tflops: float
) -> None:
    assert default_table().gflops(name, precision) == round(1000 * tflops)


def test_a_model_that_nobody_knows_is_unknown_and_not_unsupported() -> None:
    table = default_table()
    assert (table.supports("G2", "fp8"), table.gflops("G2", "fp8")) == (None, None)
    assert (table.supports(A100, "fp8"), table.supports(H100, "fp8")) == (False, True)


def test_an_operators_entry_stands_before_ours() -> None:
    table = default_table().extended([GpuModel(("G2", "T4"), {"fp32": 10.0, "fp8": 20.0}, title="Ours")])
    assert table.gflops("G2", "fp8") == table.gflops("t4", "fp8") == 20_000
    assert table.gflops("Tesla-T4", "fp16") == 65_000


# -- required ----------------------------------------------------------------------------------------------------------


def test_what_is_required_and_no_model_here_supports_is_never_and_says_which_would_do() -> None:
    (decision,) = decide(mixed(v100=1, t4=1), pod("p", gpus=1, precision="fp8", required=True))
    verdict = decision.verdict
    assert (verdict.kind, verdict.reason) == (Kind.NEVER, Reason.PRECISION)
    assert "nodes with a GPU that computes fp8: L4," in verdict.message
    assert "H100 SXM" in verdict.message
    assert "A100" not in verdict.message
    assert verdict.more_nodes_help, "a node group may have one"


def test_what_is_only_preferred_is_placed_anyway() -> None:
    (decision,) = decide(mixed(v100=1, t4=1), pod("p", gpus=1, precision="fp8"))
    assert decision.placements


def test_a_model_that_nobody_knows_may_do() -> None:
    (decision,) = decide(mixed(v100=1, strange=1), pod("p", gpus=1, precision="fp8", required=True))
    assert where(decision) == "strange"


@pytest.mark.parametrize("share", [0, 500])
def test_required_and_a_named_model_must_both_hold(share: int) -> None:
    facts = mixed(h100=1, a100=1, v100=1)
    ask = {"gpus": 1, "share": share, "precision": "bf16", "required": True}
    assert where(decide(facts, pod("p", models=[A100, V100], **ask))[0]) == "a100"
    (decision,) = decide(facts, pod("p", models=[V100], **ask))
    assert decision.verdict.kind is Kind.NEVER
    assert decision.verdict.nodes == {Reason.GPU_MODEL: 2, Reason.PRECISION: 1}
    (decision,) = decide(facts, pod("p", models=["B300"], **ask))
    assert decision.verdict.reason is Reason.GPU_MODEL


def test_it_waits_while_those_that_would_do_are_taken() -> None:
    facts = mixed(h100=1, a100=1).running("base", gpus=8, on="h100-0")
    (decision,) = decide(facts, pod("p", gpus=1, precision="fp8", required=True))
    assert decision.verdict.kind is Kind.NOT_NOW


def test_a_gpu_that_an_operator_describes_is_used() -> None:
    ours = GpuModel(("G2",), {"fp32": 100.0, "fp8": 5000.0})
    jobs = [pod("p", gpus=1, precision="fp8", required=True)]
    (decision,) = decide(mixed(a100=1, strange=1), *jobs, gpu_models=(ours,))
    assert where(decision) == "strange"


# -- preferred ---------------------------------------------------------------------------------------------------------


def test_each_job_goes_where_it_computes_fastest_for_what_is_scarce() -> None:
    kinds: list[Precision] = ["bf16", "fp32", "fp16", "fp8", "bf16", "bf16", "fp32", "fp8"]
    jobs = [pod(f"p{n:03}", gpus=1, precision=kinds[n % 8], created=float(n)) for n in range(128)]
    facts = mixed(a100=8, h100=4, v100=4)
    places = Counter(
        (job.tasks[0].request.gpu.precision, where(decision))
        for job, decision in zip(jobs, decide(facts, *jobs), strict=True)
    )
    assert places["fp8", "h100"] >= 26, "of 32; the first came before it was known how many would"
    assert places["fp32", "v100"] >= 24, "it gains least by newer ones"
    assert places["bf16", "v100"] == 0, "which have none"


def test_gpus_with_a_rare_feature_are_kept_before_the_first_job_that_needs_it_was_seen() -> None:
    jobs = [pod(f"p{n:03}", gpus=1, precision="bf16", created=float(n)) for n in range(36)]
    last = pod("z", gpus=1, precision="fp8", required=True, created=99.0)
    decisions = decide(mixed(a100=4, h100=1), *jobs, last)
    assert where(decisions[-1]) == "h100"


def test_where_nothing_is_scarce_the_fastest_is_taken() -> None:
    (decision,) = decide(mixed(a100=2, h100=20, t4=2), pod("p", gpus=1, precision="bf16"))
    assert where(decision) == "h100"


def test_a_job_that_declares_nothing_is_placed_as_if_the_policy_were_not_there() -> None:
    jobs = [
        pod(f"p{n:03}", gpus=n % 3, share=0 if n % 3 else 300, created=float(n), queue="q" if n % 2 else "default")
        for n in range(100)
    ]
    facts = mixed(a100=3, h100=2, t4=3)
    assert decide(facts, *jobs) == decide(facts, *jobs, weights={"drystone": 1})


def test_the_order_in_which_nodes_came_changes_nothing() -> None:
    kinds: list[Precision] = ["bf16", "fp8", "fp32", "int8"]
    jobs = [pod(f"p{n:03}", gpus=1, precision=kinds[n % 4], created=float(n)) for n in range(60)]
    facts = mixed(a100=3, h100=2, v100=2, t4=1)
    other = ClusterBuilder()
    other.nodes = dict(reversed(facts.nodes.items()))
    assert decide(facts, *jobs) == decide(other, *jobs)


def test_one_node_and_many_are_scored_alike() -> None:
    facts = mixed(a100=20, h100=10, v100=10).running("x", gpus=3, on="a100-1").running("y", gpus=2, on="h100-2")
    asks = [{"gpus": 2}, {"share": 400}, {"mib": 3000}]
    for precision, ask in product(PRECISIONS[:4], asks):
        engine = facts.into(PlacementEngine())
        job = pod("p", precision=precision, **ask)
        engine.decide([job])
        engine.settle()
        view = engine._session.feasible(job.tasks[0])
        before = view.keys[: len(facts.nodes)].tolist()
        assert alone(view) == before


def test_a_replica_that_takes_over_what_others_learned_goes_by_it_and_counts_no_job_twice() -> None:
    kinds: list[Precision] = ["fp8", "fp8", "fp8", "bf16"]
    past = [pod(f"p{n:03}", gpus=1, precision=kinds[n % 4], created=float(n)) for n in range(40)]
    coming = [pod(f"q{n:03}", gpus=1, precision="bf16", created=100.0 + n) for n in range(16)]
    facts = mixed(a100=4, h100=2)
    config = EngineConfig(mix_slots=4)
    seen = facts.into(PlacementEngine(config))
    seen.decide(past)
    seen.settle()

    told = facts.into(PlacementEngine(config))
    for slot in range(4):
        told.recall(seen.learned(slot), slot)
        told.recall(seen.learned(slot), slot)  # a record may come twice
    assert [told.learned(slot) for slot in range(4)] == [seen.learned(slot) for slot in range(4)]
    told.decide(past)  # its own partitions' jobs, read again from the start
    assert [told.learned(slot).demand for slot in range(4)] == [seen.learned(slot).demand for slot in range(4)]
    told.settle()
    untold = facts.into(PlacementEngine(config))
    took = [Counter(map(where, engine.decide(coming)))["h100"] for engine in (seen, told, untold)]
    assert max(took[:2]) < took[2], "bf16 jobs leave the GPUs to the fp8 jobs that are to be expected"


def test_an_old_demand_fades() -> None:
    demand = PrecisionDemand()
    for n in range(3_000):
        demand.learn(pod(f"a{n}", gpus=1, precision="fp32"))
    for n in range(9_000):
        demand.learn(pod(f"b{n}", gpus=1, precision="fp8"))
    counts = {kind.precision: milli for kind, milli in demand.counts.items()}
    assert counts["fp32"] < counts["fp8"] / 4, "of all that came it was a third as much"
    assert demand.tasks == 12_000


# -- prices ------------------------------------------------------------------------------------------------------------


def test_a_model_that_is_left_over_costs_nothing_and_one_that_is_short_what_it_adds() -> None:
    gain = np.asarray([[100, 30], [100, 90]], np.int64)
    assert prices(gain, np.asarray([5, 5]), np.asarray([10, 10])).tolist() == [0, 0]
    # The first kind fills the first model; one more GPU of it would bring the second kind 10.
    assert prices(gain, np.asarray([5, 5]), np.asarray([5, 10])).tolist() == [10, 0]
    assert prices(gain, np.asarray([6, 5]), np.asarray([5, 10])).tolist() == [70, 0]


@pytest.mark.parametrize("seed", range(30))
def test_prices_are_what_one_more_gpu_brings(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds, models = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    gain = rng.integers(0, 50, (kinds, models))
    demand, supply = rng.integers(0, 6, kinds), rng.integers(0, 6, models)
    if demand.sum() > supply.sum():
        demand[:] = 0

    def most(capacity: np.ndarray) -> int:
        """By trying everything, one unit of demand after the other."""
        units = [kind for kind in range(kinds) for _ in range(int(demand[kind]))]
        best: dict[tuple[int, ...], int] = {tuple(int(c) for c in capacity): 0}
        for kind in units:
            following: dict[tuple[int, ...], int] = {}
            for left, value in best.items():
                for model in range(models):
                    if left[model]:
                        after = (*left[:model], left[model] - 1, *left[model + 1 :])
                        following[after] = max(following.get(after, -1), value + int(gain[kind, model]))
            best = following
        return max(best.values())

    found = prices(gain, demand, supply)
    base = most(supply)
    for model in range(models):
        more = supply.copy()
        more[model] += 1
        assert int(found[model]) == most(more) - base


def test_a_table_without_entries_knows_nothing() -> None:
    assert GpuTable(()).model("A100") is None
