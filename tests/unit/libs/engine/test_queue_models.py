"""Limits of queues by GPU model: what is left of one model bounds nothing else."""

from __future__ import annotations

from libs.domain.queues import Queue
from libs.domain.usage import QueueUse
from libs.domain.verdicts import Kind, Reason, Wake
from libs.engine.api import EngineConfig
from libs.engine.core import PlacementEngine
from libs.testkit.builders import cluster, gang, node, pod


def engine(models: dict[str, int], used: dict[str, int] | None = None) -> PlacementEngine:
    made = PlacementEngine(EngineConfig(weights={"weighted-best-fit": 1}))
    cluster().into(made)
    made.node_seen(node("a-0", gpus=8, model="A100"))
    made.node_seen(node("h-0", gpus=8, model="H100"))
    made.queue_seen(Queue("org", models=models))
    if used:
        made.queue_use_seen(QueueUse("org", 1, sum(used.values()), models=used))
    return made


def test_a_task_goes_to_the_model_of_which_something_is_left() -> None:
    (first, second, third) = engine({"H100": 2000}, {"H100": 1000}).decide(
        [pod(f"p{n}", gpus=1, models=("H100",) if n == 0 else (), queue="org/team", created=n) for n in range(3)]
    )
    assert [p.node for p in first.placements] == ["h-0"]
    assert [p.node for d in (second, third) for p in d.placements] == ["a-0", "a-0"]


def test_what_is_left_of_one_model_is_said_and_waited_for() -> None:
    (decision,) = engine({"H100": 2000}, {"H100": 1500}).decide([pod("p", gpus=1, models=("H100",), queue="org")])
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NOT_NOW, Reason.QUOTA)
    assert decision.verdict.wakes_on == (Wake.QUOTA_FREED,)
    assert "queue org: 1.5 of 2 GPU H100 used, 1 more asked" in decision.verdict.message


def test_a_gang_above_the_limit_of_the_only_models_that_will_do_never_starts() -> None:
    limited = engine({"H100": 2000, "A100": 1000})
    (decision,) = limited.decide([gang("g", 4, gpus=1, models=("A100", "H100"), queue="org")])
    assert (decision.verdict.kind, decision.verdict.reason) == (Kind.NEVER, Reason.QUOTA_NEVER)
    limited.settle()
    (decision,) = limited.decide([gang("g", 3, gpus=1, models=("A100", "H100"), queue="org")])
    assert sorted(p.node for p in decision.placements) == ["a-0", "h-0", "h-0"]


def test_what_a_pass_took_is_forgotten_with_it() -> None:
    limited = engine({"H100": 1000})
    for _ in range(2):
        (decision,) = limited.decide([pod("p", gpus=1, models=("H100",), queue="org")])
        assert [p.node for p in decision.placements] == ["h-0"]
        limited.settle()
    taken, refused = limited.decide([pod(name, gpus=1, models=("H100",), queue="org") for name in ("p", "q")])
    assert taken.placements and not refused.placements
