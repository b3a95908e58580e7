"""Our policy: what it holds dear, and what it must not look at."""

from __future__ import annotations

import pytest

from libs.domain.resources import Charge, GpuGrant
from libs.domain.usage import NodeUse
from libs.engine.api import EngineConfig, PendingJob, RunningTask
from libs.engine.core import PlacementEngine
from libs.engine.mix import TypicalMix
from libs.engine.policies.drystone import whole_nodes
from libs.engine.snapshot import Snapshot
from libs.testkit.builders import ClusterBuilder, cluster, gang, node, pod


def engine_of(facts: ClusterBuilder, *before: PendingJob) -> PlacementEngine:
    """An engine that knows of jobs decided elsewhere."""
    mix = TypicalMix()
    for job in before:
        mix.learn(job)
    engine = facts.into(PlacementEngine(EngineConfig(weights={"drystone": 1})))
    if before:
        engine.recall(mix.state())
    return engine


def placed_on(engine: PlacementEngine, *jobs: PendingJob) -> list[str]:
    decisions = engine.decide(list(jobs))
    return [decision.placements[0].node if decision.placements else "" for decision in decisions]


NAMED = [pod(f"past{i}", gpus=1, models=["T4"]) for i in range(60)]


@pytest.mark.parametrize(("rare", "common"), [("a", "b"), ("b", "a")])
def test_models_that_tasks_name_are_kept_for_them_without_being_told_so(rare: str, common: str) -> None:
    facts = cluster().node(rare, gpus=8, model="T4").node(common, gpus=8, model="A100")
    anywhere = [pod(f"any{i}", gpus=1, created=float(i)) for i in range(8)]
    named = [pod(f"named{i}", gpus=1, models=["T4"], created=100.0 + i) for i in range(8)]
    assert placed_on(engine_of(facts, *NAMED), *anywhere, *named) == [common] * 8 + [rare] * 8


def test_a_task_that_only_the_rare_node_can_take_is_placed_there_at_once() -> None:
    facts = cluster().node("a", gpus=8, model="T4").node("b", gpus=0)
    assert placed_on(engine_of(facts, *NAMED), pod("p", share=100)) == ["a"]


def test_whole_nodes_are_not_broken_up_while_another_place_is_as_good() -> None:
    facts = cluster().node("a", gpus=8).node("b", gpus=8).running("base", gpus=4, cpu=48_000, on="b")
    assert placed_on(engine_of(facts), pod("p", gpus=1, cpu=12_000)) == ["b"]


def test_workers_of_an_unknown_kind_share_a_node_while_the_mix_is_young() -> None:
    facts = cluster()
    for name in "abcd":
        facts.node(name, gpus=8, cpu=96_000)
    workers = [pod(f"w{i}", gpus=1, cpu=4_000, created=float(i)) for i in range(4)]
    assert len(set(placed_on(engine_of(facts), *workers))) == 1
    together = engine_of(facts).decide([gang("g", 4, gpus=1, cpu=4_000)])
    assert len({placement.node for placement in together[0].placements}) == 1


def test_small_tasks_leave_the_last_place_of_a_large_kind_alone() -> None:
    """Half of one node and a whole one are left; tasks with four GPUs have come now and then among many small ones."""
    past = [pod(f"s{i}", gpus=1, cpu=4_000) for i in range(58)] + [pod(f"l{i}", gpus=4, cpu=16_000) for i in range(2)]
    facts = cluster().node("a", gpus=4, cpu=48_000).node("b", gpus=4, cpu=48_000)
    facts.running("held", gpus=1, cpu=12_000, on="b")
    small = [pod(f"p{i}", gpus=1, cpu=4_000, created=float(i)) for i in range(3)]
    large = pod("large", gpus=4, cpu=16_000, created=9.0)
    assert placed_on(engine_of(facts, *past), *small, large) == ["b", "b", "b", "a"]


def test_a_task_without_gpu_goes_where_no_gpu_can_be_stranded() -> None:
    facts = cluster().node("a", gpus=8).node("b", gpus=0)
    assert placed_on(engine_of(facts), pod("p", cpu=48_000)) == ["b"]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_names_do_not_decide(names: tuple[str, str]) -> None:
    rich, poor = names
    facts = cluster().node(rich, gpus=4, cpu=96_000).node(poor, gpus=4, cpu=16_000)
    assert placed_on(engine_of(facts), pod("p", gpus=1, cpu=4_000)) == [poor]


def test_nodes_that_differ_by_a_little_cpu_are_one_kind_of_whole_node() -> None:
    snapshot = Snapshot()
    for i in range(40):
        snapshot.node_seen(node(f"n{i}", gpus=8, cpu=95_000 + 10 * i))
    snapshot.node_seen(node("small", gpus=1))
    (share,) = whole_nodes(snapshot.columns(), snapshot.model_names())
    assert (share.shape.gpus, share.shape.models) == (8, ("A100",))
    assert share.shape.cpu <= 95_000


def test_the_verdict_names_the_mix_that_decided_and_replicas_name_the_same_one_alike() -> None:
    def names(engine: PlacementEngine, *gpus: int) -> list[str]:
        return [engine.decide([pod(f"p{at}", gpus=n)])[0].verdict.policy for at, n in enumerate(gpus)]

    def fresh() -> PlacementEngine:
        return cluster().node("n").into(PlacementEngine(EngineConfig(weights={"drystone": 1})))

    engine = fresh()
    first, second, third = names(engine, 1, 2, 1)
    assert first == "drystone", "nothing was learned by then"
    assert second.startswith("drystone@")
    assert second != third, "the mix is another one"
    assert names(fresh(), 1, 2, 1) == [first, second, third]
    assert names(fresh(), 2, 1, 1)[2] == third, "the same tasks in another order are the same mix"
    assert names(fresh(), 4, 1, 1)[2] not in (second, third)
    engine.decide([pod("q", gpus=1)])
    restarted = fresh()
    restarted.recall(engine.learned())
    (told,) = names(restarted, 1)
    assert told == engine.decide([pod("r", gpus=1)])[0].verdict.policy, "its counter starts anew, the name does not"


def test_what_was_learned_outlives_the_process() -> None:
    engine = engine_of(cluster().node("n"), *NAMED)
    engine.decide([pod("p", gpus=1)])
    after = engine_of(cluster().node("n"))
    after.recall(engine.learned())
    assert after.learned() == engine.learned()
    assert after.learned().seen == 61


@pytest.mark.parametrize(("rare", "common"), [("a", "b"), ("b", "a")])
def test_a_backlog_is_placed_by_what_is_scarce_when_room_came_free(rare: str, common: str) -> None:
    """All was full when those who wait were decided for the first time; then a large job left."""
    facts = cluster().node(rare, gpus=4, model="T4").node(common, gpus=4, model="A100")
    engine = engine_of(facts, *NAMED)
    mib = {name: facts.nodes[name].gpus[0].mib for name in (rare, common)}
    for name in (rare, common):
        engine.use_seen(NodeUse(name, 2, gpus=((1000, mib[name]),) * 4))
    anywhere = [pod(f"any{i}", gpus=1, created=float(i)) for i in range(4)]
    named = [pod(f"named{i}", gpus=1, models=["T4"], created=100.0 + i) for i in range(4)]
    assert placed_on(engine, *anywhere, *named) == [""] * 8
    engine.settle()
    for name in (rare, common):
        engine.use_seen(NodeUse(name, 3, gpus=((0, 0),) * 4))
    assert placed_on(engine, *anywhere, *named) == [common] * 4 + [rare] * 4


def test_prices_follow_those_who_wait_although_nobody_new_comes() -> None:
    """Half as much again came free: the same ten jobs are decided again, and none is new."""
    engine = engine_of(cluster().node("n", gpus=8, cpu=96_000), *NAMED)
    ((policy, _),) = engine._session.policies
    mib = 40_960
    engine.use_seen(NodeUse("n", 2, gpus=((1000, mib),) * 6 + ((0, 0),) * 2))
    waiting = [pod(f"large{i}", gpus=4, created=float(i)) for i in range(10)]
    assert placed_on(engine, *waiting) == [""] * 10
    before = policy.epoch()
    engine.settle()
    engine.use_seen(NodeUse("n", 3, gpus=((1000, mib),) * 5 + ((0, 0),) * 3))
    assert policy.epoch() == before, "one change of room is no reason yet"
    assert placed_on(engine, *waiting) == [""] * 10
    assert policy.epoch() == before + 1


def test_a_victim_that_has_left_in_the_ledger_already_gives_its_room_back_once() -> None:
    """One of a gang has left its node: the ledger knows, the facts about pods do not yet. Evicting the gang makes that
    node look free twice over for a moment."""
    engine = engine_of(cluster().node("left", gpus=8, cpu=96_000).node("held", gpus=8, cpu=96_000))
    whole = tuple(GpuGrant(index, 1000, 40_960) for index in range(8))
    engine.use_seen(NodeUse("left", 99, cpu=96_000, gpus=((0, 0),) * 8))
    engine.use_seen(NodeUse("held", 99, cpu=96_000, gpus=((1000, 40_960),) * 8))
    for name in ("left", "held"):
        charge = Charge(96_000, 1024, whole)
        engine.pod_seen(
            RunningTask(name, name, "ns", name, "gang/ns/low", "default", -10, charge, ours=True, gang_min=2)
        )
    (decision,) = engine.decide([pod("urgent", gpus=8, cpu=1_000, priority=10)])
    assert {victim.uid for victim in decision.victims} == {"left", "held"}
    assert [placement.node for placement in decision.placements] == ["held"]
