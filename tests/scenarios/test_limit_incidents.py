"""Incidents of limits, against the engine and against the ledger: the check left out the very request it was for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from libs.domain.plans import Assignment, Plan
from libs.domain.queues import Queue
from libs.domain.resources import WHOLE, Charge, GpuGrant
from libs.domain.verdicts import Kind, Reason
from libs.engine.api import EngineConfig
from libs.engine.core import PlacementEngine
from libs.store.embedded import embedded_ledger
from libs.store.pages import all_use
from libs.store.port import Refusal
from libs.store.redis import RedisLedger
from libs.testkit.builders import cluster, gang, node, pod

SIDES = [("gpus", 1), ("cpu", 1000), ("mem", 1024)]


@pytest.mark.parametrize(("side", "unit"), SIDES)
def test_nine_of_ten_were_used_and_a_job_that_asks_for_ten_was_let_in(side: str, unit: int) -> None:
    facts = cluster().node("a", gpus=10, cpu=64_000).node("b", gpus=10, cpu=64_000).queue("q", **{side: 10 * unit})
    small: dict[str, Any] = {"gpus": 0, "cpu": 0, "mem": 0}
    facts.running("old", on="a", queue="q", **{**small, side: 9 * unit})

    def decided(amount: int, *, tasks: int = 1) -> tuple[Kind, Reason | None, int]:
        ask = {**small, side: amount * unit}
        job = pod("new", queue="q", **ask) if tasks == 1 else gang("new", tasks, queue="q", **ask)
        (decision,) = facts.into(PlacementEngine(EngineConfig())).decide([job])
        return decision.verdict.kind, decision.verdict.reason, len(decision.placements)

    assert decided(10) == (Kind.NOT_NOW, Reason.QUOTA, 0)
    assert decided(1, tasks=10) == (Kind.NOT_NOW, Reason.QUOTA, 0)
    assert decided(2) == (Kind.NOT_NOW, Reason.QUOTA, 0)
    assert decided(1) == (Kind.FITS, None, 1)
    assert decided(11)[0] is Kind.NEVER


@pytest.fixture
async def ledger() -> AsyncIterator[RedisLedger]:
    made = embedded_ledger()
    await made.open()
    await made.begin_rebuild(1)
    await made.nodes_seen([node("a", gpus=10), node("b", gpus=10)], 1)
    await made.whole(1)
    yield made
    await made.close()


@pytest.mark.parametrize(("side", "unit"), SIDES)
async def test_a_replica_that_has_not_heard_of_the_nine_is_stopped_by_the_commit(
    ledger: RedisLedger, side: str, unit: int
) -> None:
    limit = {"gpus": "gpu_milli", "cpu": "cpu", "mem": "mem"}[side]
    amount = WHOLE if side == "gpus" else unit
    await ledger.queues_seen([Queue(path="q", version="1", **{limit: 10 * amount})], [], 1)
    generation, epoch = (await ledger.state()).generation, (await ledger.take(0)).epoch

    def plan(name: str, on: str, first: int, count: int) -> Plan:
        gpus = tuple(GpuGrant(i, WHOLE, 8) for i in range(first, first + count)) if side == "gpus" else ()
        charge = Charge(cpu=count * unit if side == "cpu" else 0, mem=count * unit if side == "mem" else 0, gpus=gpus)
        claim = Assignment(claim=name, task=name, name=name, node=on, node_spec=node(on, gpus=10).spec, charge=charge)
        return Plan(
            id=name, job="j" + name, job_uid="", namespace="d", queue="q", partition=0, epoch=epoch,
            generation=generation, gang=True, assignments=(claim,),
        )  # fmt: skip

    old, new = await ledger.commit([plan("old", "a", 0, 9), plan("new", "b", 0, 10)])
    assert old.taken == ("old",)
    assert new.refused == {"new": Refusal.QUOTA} and new.queue == "q"
    (last,) = await ledger.commit([plan("last", "b", 0, 1)])
    assert last.taken == ("last",)
    used = (await all_use(ledger))[1]["q"]
    assert getattr(used, limit) == 10 * amount
