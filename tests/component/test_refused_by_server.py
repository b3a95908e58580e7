"""Pods that the API server does not take, or does not let be bound: the job says so, and ends where no time helps."""

from __future__ import annotations

import msgspec
import pytest

from libs.bus.pack import ALONE, RECORD_BYTES, packed
from libs.contracts.events import EvictionOutcome, Landed, PlansBatch, TaskOutcome
from libs.domain.jobs import Phase
from libs.domain.plans import Assignment, Plan
from libs.domain.resources import Charge, GpuGrant
from libs.host.parts import Parts
from libs.kube.port import Answer
from libs.testkit.faults import FaultyKube, answers, binding, creation
from services.binder.app import Binder
from services.binder.decide import lasting
from services.binder.emit import outcome_records
from services.binder.hand import PlanInHand
from services.binder.settings import BinderSettings
from services.placement.emit import Emitter
from services.preemptor.emit import outcome_records as eviction_records
from tests.component.placement_scene import NS, Scene, placement, running, scene

ENCODE = msgspec.json.encode
INVALID = ENCODE(
    {"kind": "Status", "reason": "Invalid", "code": 422, "message": 'Pod "train-0" is invalid: spec.containers[0].name'}
)
QUOTA = ENCODE(
    {"kind": "Status", "reason": "Forbidden", "code": 403, "message": 'pods "train-0" is forbidden: exceeded quota: q'}
)


def strict_binder(s: Scene, kube: FaultyKube) -> Binder:
    return Binder(BinderSettings(), Parts(bus=s.bus, ledger=s.ledger, kube=kube))


async def test_a_job_whose_template_the_api_server_refuses_fails_at_once_and_says_why() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        kube = FaultyKube(s.kube, answers(creation, 422, INVALID, times=10**6))
        async with running(placement(s), strict_binder(s, kube)):
            view = s.job("train", 2)
            await s.hint_job(view)
            await s.until(lambda: s.read_job("train").status.phase is Phase.FAILED)
            status = s.read_job("train").status
            assert status.reason == "RefusedByServer"
            assert "the API server refused pod train-worker-" in status.message
            assert "spec.containers[0].name" in status.message
            assert "would help: a pod template that the API server takes" in status.message
            await s.until(lambda: [t.phase for t in s.told(view.key)][-1:] == [Phase.FAILED])
            assert s.told(view.key)[-1].reason == "RefusedByServer"
            assert await s.ledger.dump() is not None
        assert kube.faults[0].seen == 2, "each task once, and never again"


async def test_each_attempt_that_is_refused_counts_against_the_backoff_limit() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        kube = FaultyKube(s.kube, answers(creation, 422, INVALID, times=10**6))
        async with running(placement(s), strict_binder(s, kube)):
            view = s.job("train", 3, backoffLimit=1)
            await s.hint_job(view)
            await s.until(lambda: s.read_job("train").status.phase is Phase.FAILED)
            status = s.read_job("train").status
            assert (status.failed, status.reason) == (2, "RefusedByServer")
            await s.until(lambda: "Restarting" in [t.reason for t in s.told(view.key)])
        assert kube.faults[0].seen == 6


async def test_a_job_over_a_quota_is_told_so_and_starts_when_there_is_room() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        kube = FaultyKube(s.kube, answers(creation, 403, QUOTA, times=2))
        async with running(placement(s), strict_binder(s, kube)):
            view = s.job("train", 1)
            await s.hint_job(view)
            await s.until(lambda: "RefusedByServer" in [t.reason for t in s.told(view.key)])
            word = next(t for t in s.told(view.key) if t.reason == "RefusedByServer")
            assert word.phase is Phase.PENDING
            assert "exceeded quota" in word.message
            assert "would help: a change of what the API server names" in word.message
            await s.until(lambda: s.read_job("train").status.phase is Phase.RUNNING)
        assert s.read_job("train").status.failed == 0


async def test_a_pod_whose_binding_is_refused_says_so_itself_and_is_bound_when_it_may() -> None:
    denied = ENCODE(
        {"kind": "Status", "reason": "Forbidden", "code": 403, "message": 'admission webhook "w" denied the request'}
    )
    async with scene() as s:
        await s.facts(s.node("n1"))
        kube = FaultyKube(s.kube, answers(binding, 403, denied, times=2))
        async with running(placement(s, placement_condition_s=0.1), strict_binder(s, kube)):
            pod = s.pod("p1")
            await s.hint(pod)
            await s.until(lambda: (s.condition("p1") or {}).get("reason") == "RefusedByServer")
            assert 'webhook "w" denied' in (s.condition("p1") or {})["message"]
            await s.until(lambda: "RefusedByServer" in [t.reason for t in s.told(f"pod/{NS}/p1")])
            await s.until(lambda: s.bound() == {"p1": "n1"})


def said(code: int, message: str = "") -> Answer:
    return Answer(code, ENCODE({"kind": "Status", "message": message}))


def test_only_what_no_time_cures_counts_as_an_attempt() -> None:
    assert all(lasting(said(code)) for code in (400, 413, 422))
    assert lasting(said(403, 'pods "p" is forbidden: violates PodSecurity "restricted:latest": host namespaces'))
    for message in (
        'pods "p" is forbidden: exceeded quota: q',
        'admission webhook "w" denied the request: not now',
        'User "binder" cannot create resource "pods" in API group ""',
        'pods "p" is forbidden: error looking up service account a/b: serviceaccount "b" not found',
    ):
        assert not lasting(said(403, message))


# --- records that say much ------------------------------------------------------------------------------------------


def huge(tasks: int) -> Plan:
    charge = Charge(8000, 65536, tuple(GpuGrant(index, 1000, 81920) for index in range(8)))
    assignments = tuple(
        Assignment(
            f"1.2.3.4.{n}",
            f"{'u' * 36}/worker/{n}/0",
            f"train-worker-{n}",
            f"node-{n:05}.{'x' * 120}",
            "d" * 16,
            charge,
        )
        for n in range(tasks)
    )
    return Plan("1.2.3.4", "job/team/train", "u" * 36, "team", "team", 2, 1, 1, True, assignments)


class Held:
    """What was to be published."""

    def __init__(self) -> None:
        self.records = []  # type: ignore[var-annotated]

    def put(self, records: object) -> None:
        self.records += records  # type: ignore[operator]


def test_a_plan_that_no_record_takes_is_told_in_parts_of_the_same_name() -> None:
    emitter, held = Emitter(None, (None, None), 12), Held()  # type: ignore[arg-type]
    emitter.urgent = held  # type: ignore[assignment]
    plan = huge(10_000)
    emitter.plans([plan])
    sizes = [len(record.value) for record in held.records]
    assert len(sizes) > 1
    assert max(sizes) <= ALONE + 100
    parts = [p for r in held.records for p in msgspec.json.decode(r.value, type=PlansBatch).items]
    assert tuple(a for part in parts for a in part.assignments) == plan.assignments
    assert {part.id for part in parts} == {plan.id}


async def test_a_gang_whose_plan_comes_in_parts_starts_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.placement.emit.ALONE", 700)
    async with scene() as s:
        await s.facts(s.node("n1"))
        async with running(placement(s), strict_binder(s, FaultyKube(s.kube))):
            await s.hint_job(s.job("train", 6))
            await s.until(lambda: s.read_job("train").status.phase is Phase.RUNNING)
            await s.until(lambda: len(s.bound()) == 6)
            await s.pump()
        assert len(s.plans) > 2
        assert len({plan.id for plan in s.plans}) == 1


def test_many_small_plans_share_records_up_to_what_a_reader_fetches() -> None:
    groups = list(packed([huge(100) for _ in range(50)], lambda plan: (plan,)))
    assert 1 < len(groups) < 50
    assert max(len(value) for _, value in groups) <= RECORD_BYTES


def test_reports_of_many_refusals_are_told_in_parts() -> None:
    plan = huge(5000)
    hand = PlanInHand(plan, None, 0.0)
    hand.outcomes = [TaskOutcome(a.task, Landed.REFUSED, "no " * 200) for a in plan.assignments]
    records = outcome_records([hand])
    assert max(len(r.value or b"") for r in records) <= RECORD_BYTES
    told = [o for r in records for o in msgspec.json.decode(r.value or b"")["items"]]
    assert sum(len(o["tasks"]) for o in told) == 5000
    refused = EvictionOutcome("1", "job/a", 0, ("x",) * 30_000, {f"uid-{n}": "no " * 100 for n in range(9000)})
    records = eviction_records([refused])
    assert max(len(r.value or b"") for r in records) <= RECORD_BYTES
    items = [msgspec.convert(i, EvictionOutcome) for r in records for i in msgspec.json.decode(r.value or b"")["items"]]
    assert sum(len(i.evicted) for i in items) == 30_000
    assert {uid for i in items for uid in i.refused} == refused.refused.keys()
    assert isinstance(items[0], EvictionOutcome)
