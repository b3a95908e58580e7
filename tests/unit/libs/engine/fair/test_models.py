"""Shares, weights and parts by GPU model: each model that siblings speak of is a resource of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.domain.queues import Queue, QueueHistory, Quota, Weights
from libs.domain.usage import QueueUse
from libs.engine.api import EngineConfig
from libs.engine.core import PlacementEngine
from libs.engine.fair import Line, Shares, models_of
from libs.engine.fair.shares import ABOVE, REACHING, UNWEIGHTED, WITHIN
from libs.testkit.builders import cluster, gang, node, pod

GPU = 1000
H100, T4, A100 = ("H100",), ("T4",), ("A100",)
ONE = (GPU, 0, 0)


def shares(
    used: dict[str, dict[str, int]], *queues: Queue, total: dict[str, int] | None = None, **knobs: int
) -> Shares:
    """`used` and `total` in GPUs by model; "" is of a model that nobody names."""

    def use(path: str) -> tuple[int, int, int]:
        return sum(used.get(path, {}).values()) * GPU, 0, 0

    def by_model(path: str) -> dict[str, float]:
        return {model: gpus * GPU for model, gpus in used.get(path, {}).items() if model}

    total = total or {"H100": 32, "T4": 64}
    found = Shares(use, use_of_models=by_model, **knobs)
    found.total_seen((sum(total.values()) * GPU, 0, 0))
    for queue in queues:
        found.queue_seen(queue)
    found.models_seen({model: gpus * GPU for model, gpus in total.items() if model})
    return found


def deserves(path: str, gpus: int | None = None, weights: Weights | None = None, **models: int) -> Queue:
    share = Quota(None if gpus is None else gpus * GPU, models={model: n * GPU for model, n in models.items()})
    return Queue(path, deserved=share, weights=weights or Weights())


class TestShare:
    def test_a_tenant_is_owed_its_t4_though_it_stands_above_in_h100(self) -> None:
        used = {"vision": {"H100": 20, "T4": 8}, "speech": {"T4": 30}}
        found = shares(used, deserves("vision", H100=16, T4=32), deserves("speech", T4=16))
        assert found.standing("vision", ONE, models=T4).tier == WITHIN
        assert found.standing("vision", ONE, models=H100).tier == ABOVE
        assert found.standing("speech", ONE, models=H100).tier == ABOVE, "it deserves none of them"

    def test_who_leaves_the_model_open_stands_by_all_that_it_holds_and_deserves(self) -> None:
        used = {"a": {"H100": 0, "T4": 30}, "b": {"H100": 16, "T4": 31}}
        found = shares(used, deserves("a", H100=16), deserves("b", H100=16, T4=32))
        assert found.standing("a", ONE).tier == ABOVE, "else it would take T4 for ever by what it is owed of H100"
        assert found.standing("b", ONE).tier == WITHIN
        assert found.standing("b", (2 * GPU, 0, 0)).tier == REACHING

    def test_who_can_do_with_two_models_stands_by_both_together(self) -> None:
        used = {"a": {"H100": 15, "T4": 32, "A100": 9}}
        total = {"H100": 32, "T4": 64, "A100": 16}
        found = shares(used, deserves("a", H100=16, T4=32), total=total)
        assert found.standing("a", ONE, models=H100 + T4).tier == WITHIN
        assert found.standing("a", (2 * GPU, 0, 0), models=H100 + T4).tier == REACHING
        assert found.standing("a", ONE, models=H100 + A100).tier == ABOVE, "9 A100 and 15 H100 are more than 16"
        assert found.standing("a", ONE, models=A100).tier == ABOVE

    def test_a_share_of_gpus_includes_that_of_its_models_and_counts_no_gpu_twice(self) -> None:
        used = {"a": {"H100": 4, "T4": 36}, "b": {}}
        found = shares(used, deserves("a", 40, H100=16), deserves("b", 0))
        assert found.standing("a", ONE, models=H100).tier == ABOVE, "below 16 H100, but at its 40 GPUs"
        assert found.standing("a", ONE, models=T4).tier == ABOVE
        assert found.standing("a", ONE, models=T4).share == pytest.approx(1 / 64), "one T4 beyond 40 GPUs, not 37"


class TestWhatIsOver:
    def test_each_model_is_divided_by_its_own_weight(self) -> None:
        weights = {"a": Weights(models={"H100": 4, "T4": 1}), "b": Weights(models={"H100": 1, "T4": 4})}
        used = {"a": {"H100": 8}, "b": {"H100": 4}}
        found = shares(used, *(deserves(path, 0, weight) for path, weight in weights.items()))
        assert found.standing("a", ONE, models=H100).share == pytest.approx(9 / 32 / 4)
        assert found.standing("b", ONE, models=H100).share == pytest.approx(5 / 32)
        assert found.standing("a", ONE, models=H100) < found.standing("b", ONE, models=H100)

    def test_the_scarce_model_is_the_dominant_resource_though_it_is_few_of_all_gpus(self) -> None:
        used = {"a": {"H100": 6}, "b": {"T4": 12}}
        total = {"H100": 8, "T4": 120}
        plain = shares(used, deserves("a", 0), deserves("b", 0), total=total)
        assert plain.standing("a", ONE) < plain.standing("b", ONE), "by GPUs of all models a has less"
        named = shares(used, deserves("a", 0, H100=0), deserves("b", 0), total=total)
        assert named.standing("b", ONE, models=T4) < named.standing("a", ONE, models=T4), "a has most of the H100"

    def test_weight_nought_of_a_model_takes_no_part_in_what_is_over_of_it(self) -> None:
        found = shares({}, deserves("a", 0, Weights(models={"H100": 0})), deserves("b", 0))
        assert found.standing("a", ONE, models=H100).tier == UNWEIGHTED
        assert found.standing("a", ONE, models=T4).tier == ABOVE
        assert found.standing("a", ONE).tier == ABOVE

    def test_a_model_that_is_not_named_weighs_as_gpus_do(self) -> None:
        found = shares({"a": {"T4": 7}}, deserves("a", 0, Weights(gpu=2, models={"H100": 5})))
        assert found.standing("a", ONE, models=T4).share == pytest.approx(8 / 64 / 2)
        assert found.standing("a", ONE, models=H100).share == pytest.approx(7 / 64 / 2), "its T4 are the larger part"

    def test_the_past_counts_by_model(self) -> None:
        used: dict[str, dict[str, int]] = {"a": {}, "b": {"T4": 1}}
        found = shares(used, deserves("a", H100=0), deserves("b", T4=0), history=50)
        hour = 3600
        found.history_seen(QueueHistory("a", 1000.0, hour, 8 * GPU * hour, models={"H100": 8 * GPU * hour}))
        found.now = 1000.0
        mean = 8 * 0.693147 / 2
        assert found.standing("a", ONE, models=T4).share == pytest.approx(mean / 32, rel=1e-3)


class TestPart:
    def test_models_are_divided_apart_and_a_limit_of_one_bounds_only_that(self) -> None:
        vision = Queue("v", models={"H100": 18 * GPU}, deserved=Quota(models={"H100": 16 * GPU, "T4": 32 * GPU}))
        found = shares({}, vision, deserves("s", 0, Weights(models={"T4": 3})))
        part, other = found.part("v"), found.part("s")
        assert part.models == {"H100": 18 * GPU, "T4": 40 * GPU}, "8 of 16 H100 that are over, cut; 8 of 32 T4"
        assert other.models == {"H100": 8 * GPU, "T4": 24 * GPU}
        assert (part.gpu, other.gpu) == (58 * GPU, 32 * GPU)

    def test_room_is_kept_only_within_the_part_of_the_model(self) -> None:
        used = {"v": {"T4": 40}}
        found = shares(used, deserves("v", H100=16, T4=32), deserves("s", H100=16, T4=16))
        assert found.entitled("v", (16 * GPU, 0, 0), H100)
        assert not found.entitled("v", (17 * GPU, 0, 0), H100)
        used["v"]["T4"] = 41
        assert not found.entitled("v", ONE, T4)

    def test_what_is_not_named_below_is_a_part_of_what_is_above(self) -> None:
        found = shares({}, deserves("a", H100=8), deserves("b", 0), deserves("a/x", 6), deserves("a/y", 6))
        assert found.part("a").models["H100"] == (8 + 12) * GPU
        assert found.part("a/x").gpu == found.part("a").gpu / 2
        assert found.part("a/x").models["H100"] == found.part("a").models["H100"] / 2

    @given(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 6), st.integers(0, 6)), max_size=5),
        st.booleans(),
    )
    def test_nothing_is_given_out_twice(self, said: list[tuple[int, int, int, int]], of_all: bool) -> None:
        queues = [
            deserves(f"q{n}", h + t + 2 if of_all else None, Weights(models={"H100": wh, "T4": wt}), H100=h, T4=t)
            for n, (h, t, wh, wt) in enumerate(said)
        ]
        found = shares({}, *queues, total={"H100": 16, "T4": 16, "": 12})
        parts = [found.part(queue.path) for queue in queues]
        for model in ("H100", "T4"):
            assert sum(part.models[model] for part in parts) <= 16 * GPU + 1e-6
        assert sum(part.gpu for part in parts) <= 44 * GPU + 1e-6


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=5),
    st.integers(1, 6),
)
def test_where_the_cluster_has_one_model_its_name_changes_nothing(said: list[tuple[int, int, int]], asked: int) -> None:
    used = {f"q{n}": {"H100": has} for n, (has, _, _) in enumerate(said)}
    plain = shares(
        used, *(deserves(f"q{n}", d, Weights(gpu=w)) for n, (_, d, w) in enumerate(said)), total={"H100": 32}
    )
    named = shares(
        used,
        *(deserves(f"q{n}", None, Weights(models={"H100": w}), H100=d) for n, (_, d, w) in enumerate(said)),
        total={"H100": 32},
    )
    ask = (asked * GPU, 0, 0)
    for path in used:
        for models in ((), H100):
            assert named.standing(path, ask, models=models) == pytest.approx(plain.standing(path, ask), abs=1e-9)
        assert named.part(path).gpu == pytest.approx(plain.part(path).gpu, abs=1e-3)
        assert named.entitled(path, ask, H100) == plain.entitled(path, ask)


def test_the_models_of_a_gang_are_those_that_do_for_any_of_it_and_none_where_one_leaves_it_open() -> None:
    assert models_of(gang("g", 3, gpus=1, models=H100).head, gang("g", 3, gpus=1, models=H100).tasks) == H100
    one, other = pod("a", gpus=1, models=T4), pod("b", gpus=1)
    both = gang("g", 2).head
    assert models_of(both, [one.tasks[0], pod("c", gpus=1, models=H100).tasks[0]]) == ("H100", "T4")
    assert models_of(both, [one.tasks[0], other.tasks[0]]) == ()
    assert models_of(both, [one.tasks[0], pod("d", cpu=1000).tasks[0]]) == T4


def test_what_was_taken_in_a_run_counts_by_its_model() -> None:
    found = shares({}, deserves("a", 0, Weights(models={"H100": 1})), deserves("b", 0))
    line: Line[str] = Line(found)
    for n in range(2):
        line.put(f"a{n}", "a", (n,), (4 * GPU, 0, 0), H100)
        line.put(f"b{n}", "b", (10 + n,), (4 * GPU, 0, 0), T4)
    order = []
    while (entry := line.next()) is not None:
        order.append(entry.key)
        line.charge(entry.path, entry.ask, line.likely(entry.ask, entry.models))
    # 4 of 64 T4 are less than 4 of 32 H100, 8 are as much, and 8 of 32 H100 are more.
    assert order == ["b0", "a0", "b1", "a1"]


class TestEngine:
    def engine(self) -> PlacementEngine:
        made = PlacementEngine(EngineConfig(weights={"weighted-best-fit": 1}))
        cluster().into(made)
        made.node_seen(node("h-0", gpus=2, model="H100"))
        made.node_seen(node("t-0", gpus=8, model="T4"))
        return made

    def test_the_last_h100_goes_to_whom_it_is_owed_and_the_t4_to_the_other(self) -> None:
        made = self.engine()
        made.queue_seen(deserves("old", H100=1, T4=8))
        made.queue_seen(deserves("new", H100=1, T4=0))
        made.queue_use_seen(QueueUse("old", 1, GPU, models={"H100": GPU}))
        decisions = made.decide(
            [
                *(pod(f"o{n}", gpus=1, models=H100, queue="old", created=n) for n in range(2)),
                *(pod(f"n{n}", gpus=1, models=H100, queue="new", created=5 + n) for n in range(1)),
                pod("t", gpus=1, models=T4, queue="old", created=9),
            ]
        )
        made_for = {
            job: [p.node for p in d.placements] for job, d in zip(("o0", "o1", "n0", "t"), decisions, strict=True)
        }
        assert made_for == {"o0": ["h-0"], "o1": [], "n0": ["h-0"], "t": ["t-0"]}

    def test_by_the_weight_of_a_model_the_free_ones_are_shared_out(self) -> None:
        made = self.engine()
        made.queue_seen(deserves("a", 0, Weights(models={"T4": 3})))
        made.queue_seen(deserves("b", 0))
        jobs = [pod(f"{q}{n}", gpus=1, models=T4, queue=q, created=n) for q in "ab" for n in range(8)]
        decisions = made.decide(jobs)
        placed = [job.head.queue for job, decision in zip(jobs, decisions, strict=True) if decision.placements]
        assert (placed.count("a"), placed.count("b")) == (6, 2)

    def test_what_the_cluster_has_of_a_model_follows_its_nodes(self) -> None:
        made = self.engine()
        made.queue_seen(deserves("a", H100=0, T4=0))
        assert made.shares.part("a").models == {"H100": 2 * GPU, "T4": 8 * GPU}
        made.node_seen(node("h-1", gpus=4, model="H100"))
        made.node_gone("t-0")
        assert made.shares.part("a").models == {"H100": 6 * GPU, "T4": 0}
