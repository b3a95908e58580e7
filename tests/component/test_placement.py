"""Placement as a whole, between an in-process bus, the embedded API server and the ledger; the real binder writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from libs.bus.port import Incoming, Outgoing
from libs.contracts.events import EventType, JobChanged, Landed
from libs.domain import keys
from libs.domain.jobs import Phase, partition_of
from libs.domain.queues import Queue
from libs.kube import trainingjobs, writes
from libs.kube.grouping import job_of
from libs.kube.pods import PodView
from services.placement.app import Placement
from tests.component.placement_scene import NS, PARTITIONS, Scene, binder, fact, placement, running, scene, seen


async def test_a_single_pod_is_bound_with_its_device_and_told_running() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        async with running(placement(s), binder(s)):
            pod = s.pod("p1")
            await s.hint(pod)
            await s.until(lambda: s.bound() == {"p1": "n1"})
            await s.until(lambda: [t.phase for t in s.told(f"pod/{NS}/p1")] == [Phase.RUNNING])
        (seen,) = s.read_pods()
        assert seen.annotations[keys.GPUS] in {str(i) for i in range(8)}
        assert s.kube.writes.get("PATCH pods/status", 0) == 0, "a pod that is placed at once gets no condition"


async def test_nothing_is_claimed_before_outcomes_are_followed_so_a_refusal_at_the_start_is_heard() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        service = placement(s)
        follow = slow_follow(service)
        async with running(service):
            pod = s.pod("p1")
            await s.hint(pod)
            await asyncio.sleep(0.2)
            await s.pump()
            assert s.plans == [], "its outcome could come before we listen"
            follow.set()
            await s.until(lambda: s.plans)
            await s.outcome(s.plans[0], Landed.REPLAN)
            key = s.plans[0].job
            await s.until(lambda: not service.state.pending.jobs[key].claims)


def slow_follow(service: Placement) -> asyncio.Event:
    """The broker tells where its outcomes end only when the event is set."""
    told = asyncio.Event()
    reader = service._outcomes
    batch = reader.batch

    class Late:
        caught_up = property(lambda _: told.is_set() and reader.caught_up)
        assign = staticmethod(reader.assign)

        async def batch(self, limit: int = 1000, wait_s: float = 0.5) -> Sequence[Incoming]:
            await told.wait()
            return await batch(limit, wait_s)

    service._outcomes = Late()
    return told


async def test_of_two_gangs_that_fill_the_cluster_one_runs_and_one_holds_nothing() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"), s.node("n2"))
        async with running(placement(s), binder(s)):
            gangs = {g: [s.pod(f"{g}-{i}", gang=g, gang_min=16) for i in range(16)] for g in ("a", "b")}
            for pods in gangs.values():
                await s.hint(*pods)
            await s.until(lambda: len(s.bound()) == 16)
            winner = {name[0] for name in s.bound()}
            assert len(winner) == 1
            (loser,) = {"a", "b"} - winner
            await s.until(lambda: s.condition(f"{loser}-0") is not None)
            assert {name[0] for name in s.bound()} == winner


async def test_a_gang_beyond_its_queue_limit_holds_nothing_and_hears_of_the_quota() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"), queues=(Queue(path="default", gpu_milli=4000, version="1"),))
        async with running(placement(s), binder(s)):
            pods = [s.pod(f"g-{i}", gang="g", gang_min=6) for i in range(6)]
            await s.hint(*pods)
            await s.until(lambda: s.condition("g-5") is not None)
            condition = s.condition("g-0")
            assert condition is not None and condition["reason"] == "QuotaExceeded", condition
            assert s.bound() == {}
            assert s.told(f"gang/{NS}/g")[0].phase is Phase.PENDING


async def test_what_fits_no_node_of_the_cluster_is_told_never_within_half_a_second() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        async with running(placement(s), binder(s)):
            warm = s.pod("warm")
            await s.hint(warm)
            await s.until(lambda: s.bound())
            pod = s.pod("huge", gpus=16)
            await s.hint(pod)
            took = await s.until(lambda: s.condition("huge") and s.told(f"pod/{NS}/huge"))
            assert took <= 0.5
            (status,) = s.told(f"pod/{NS}/huge")
            assert status.verdict is not None and status.verdict.kind == "Never"
            condition = s.condition("huge")
            assert condition is not None and condition["reason"] != "Unschedulable"


async def test_never_waits_for_a_view_as_new_as_the_event() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        async with running(placement(s, placement_never_wait_s=30), binder(s)):
            big = s.node("big", gpus=16)
            pod = s.pod("huge", gpus=16)
            await s.hint(pod, seen=big.version)  # the event outran its node
            await asyncio.sleep(0.4)
            await s.pump()
            assert s.told(f"pod/{NS}/huge") == []
            await s.facts(big)
            await s.until(lambda: s.bound() == {"huge": "big"})
            assert all(t.verdict is None for t in s.told(f"pod/{NS}/huge"))


async def test_a_lost_hint_is_found_by_the_slow_pass() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        async with running(placement(s, placement_slow_pass_s=0.3), binder(s)):
            s.pod("p1")
            await s.until(lambda: s.bound() == {"p1": "n1"})


async def test_waiting_pods_are_placed_as_room_is_freed_and_nobody_else_is_decided() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=2))
        service = placement(s)
        async with running(service, binder(s)):
            pods = [s.pod(f"p{i}") for i in range(5)]
            for pod in pods:
                await s.hint(pod)
            await s.until(lambda: len(s.bound()) == 2)
            await s.until(lambda: len(service.state.waiting) == 3)
            assert service.state.waiting.groups == 1
            gone = next(p for p in s.read_pods() if p.node)
            s.kube.call_now("DELETE", writes.pods_path(NS, gone.name), b'{"gracePeriodSeconds":0}')
            await s.ledger.tasks_gone([gone.uid], 1)
            await s.until(lambda: len(s.bound()) == 2 and gone.name not in s.bound())


async def test_two_replicas_divide_the_partitions_and_lose_no_pod() -> None:
    async with scene() as s:
        await s.facts(*(s.node(f"n{i}") for i in range(4)))
        one, two = placement(s), placement(s)
        async with running(one, two, binder(s)):
            await s.until(lambda: len(one.state.active) == 6 and len(two.state.active) == 6)
            assert not one.state.active & two.state.active
            for i in range(32):
                await s.hint(s.pod(f"p{i}"))
            await s.until(lambda: len(s.bound()) == 32)
            used = [(p.node, p.annotations[keys.GPUS]) for p in s.read_pods()]
            assert len(set(used)) == 32, "no device is given out twice"


async def test_the_next_owner_publishes_the_open_plan_again_unchanged() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        first = placement(s)
        async with running(first):  # no binder: the claim stays planned
            await s.hint(s.pod("p1"))
            await s.until(lambda: len(s.plans) == 1)
        async with running(placement(s)):
            await s.until(lambda: len(s.plans) == 2)
            await asyncio.sleep(0.2)
            await s.pump()
        assert s.plans[0] == s.plans[1]
        assert len(s.plans) == 2, "the claimed task is not planned anew"


async def test_a_task_that_could_not_be_written_is_planned_again_under_a_new_claim() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        async with running(placement(s)):
            await s.hint(s.pod("p1"))
            await s.until(lambda: len(s.plans) == 1)
            (plan,) = s.plans
            await s.ledger.begin([plan])
            await s.ledger.release([a.claim for a in plan.assignments], plan.generation)
            await s.outcome(plan, Landed.REPLAN)
            await s.until(lambda: len(s.plans) == 2)
            assert s.plans[1].assignments[0].task == plan.assignments[0].task
            assert s.plans[1].assignments[0].claim != plan.assignments[0].claim


async def test_a_job_that_simply_starts_costs_one_write_per_task_and_one_status() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"), s.node("n2"))
        async with running(placement(s), binder(s)):
            await asyncio.sleep(0.1)
            before = sum(s.kube.writes.values())
            view = s.job("train", replicas=10)
            await s.hint_job(view)
            await s.until(lambda: s.read_job("train").status.phase is Phase.RUNNING)
            await asyncio.sleep(0.3)
            assert len(s.bound()) == 10
            assert sum(s.kube.writes.values()) - before == 12  # object, 10 pods, status
            assert s.read_job("train").status.bound == 10


async def test_a_job_succeeds_when_all_its_tasks_did() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        async with running(placement(s), binder(s)):
            view = s.job("train", replicas=2)
            await s.hint_job(view)
            await s.until(lambda: s.read_job("train").status.phase is Phase.RUNNING)
            for pod in s.read_pods():
                s.end_pod(pod.name, "Succeeded")
            await s.change(JobChanged(head=trainingjobs.head_of(view, 0), gone=tuple(p.task_id for p in s.read_pods())))
            await s.until(lambda: s.read_job("train").status.phase is Phase.SUCCEEDED)
            await s.until(lambda: s.told(view.key)[-1].phase is Phase.SUCCEEDED)


async def test_a_failed_task_begins_a_new_attempt_until_the_limit() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        async with running(placement(s), binder(s)):
            view = s.job("train", replicas=2, backoffLimit=1)
            await s.hint_job(view)
            await s.until(lambda: s.read_job("train").status.phase is Phase.RUNNING)
            await fail_one(s, view, "train-worker-0-0")
            await s.until(lambda: {"train-worker-0-1", "train-worker-1-1"} <= s.bound().keys())
            await s.until(lambda: s.read_job("train").status.attempt == 1)
            await s.until(lambda: s.read_job("train").status.phase is Phase.RUNNING)
            assert s.read_job("train").status.failed == 1, "one failure is counted once"
            await fail_one(s, view, "train-worker-1-1")
            await s.until(lambda: s.read_job("train").status.phase is Phase.FAILED)
            await s.until(lambda: s.told(view.key)[-1].phase is Phase.FAILED)


async def fail_one(s: Scene, view: trainingjobs.TrainingJobView, name: str) -> None:
    s.end_pod(name, "Failed")
    gone = next(p for p in s.read_pods() if p.name == name)
    await s.ledger.tasks_gone([gone.uid], 1)
    await s.change(JobChanged(head=trainingjobs.head_of(view, gone.attempt), gone=(gone.task_id,)))


async def test_a_cancelled_job_gives_its_claims_back() -> None:
    async with scene() as s:
        await s.facts(s.node("n1"))
        async with running(placement(s)):  # no binder: the claims stay planned
            view = s.job("train", replicas=4)
            await s.hint_job(view)
            await s.until(lambda: len(s.plans) == 1)
            _, held = await s.ledger.holders()
            assert len(held) == 4
            s.kube.call_now("DELETE", trainingjobs.path(NS, "train"))
            await s.change(JobChanged(head=trainingjobs.head_of(view, 0), deleted=True))
            await s.until(lambda: any(t.phase is Phase.CANCELLED for t in s.told(view.key)))
            await asyncio.sleep(0.3)  # from the cancel to the drop there is one turn of the controller
            assert list((await s.ledger.holders())[1]) == []


async def test_a_higher_priority_evicts_and_then_starts_on_the_room_kept_for_it() -> None:
    async with scene() as s:
        await s.facts(s.node("n1", gpus=2))
        evictions = s.bus.follow(["drystone.evictions"], from_start=True)
        async with running(placement(s), binder(s)):
            low = [s.pod(f"low{i}") for i in range(2)]
            for pod in low:
                await s.hint(pod)
            await s.until(lambda: len(s.bound()) == 2)
            for pod in s.read_pods():
                await s.ledger.tasks_seen([seen(pod)], 1)
                await s.publish_facts(fact(pod))
            await asyncio.sleep(0.1)
            await s.hint(s.pod("high", priority="high"))
            records = await evictions.batch(10, 3.0)
            assert len(records) == 1 and records[0].value is not None
            (plan,) = msgspec.json.decode(records[0].value)["items"]
            (victim,) = plan["victims"]
            s.kube.call_now("DELETE", writes.pods_path(NS, victim["name"]), b'{"gracePeriodSeconds":0}')
            await s.ledger.tasks_gone([victim["uid"]], 1)
            await s.bus.publish([Outgoing("drystone.cluster", "pod/" + victim["uid"], None, EventType.CLUSTER)])
            await s.until(lambda: "high" in s.bound())
            assert len(await evictions.batch(10, 0.1)) == 0, "one victim is enough"


async def test_after_a_rebuild_the_dead_claim_is_decided_again_in_the_new_generation() -> None:
    async with scene() as s:
        node = s.node("n1")
        await s.facts(node)
        async with running(placement(s)):  # no binder: the claim stays planned
            await s.hint(s.pod("p1"))
            await s.until(lambda: len(s.plans) == 1)
            await s.ledger.begin_rebuild(2)
            await s.ledger.nodes_seen([node], 2)
            await s.ledger.whole(2)
            await s.hint(s.pod("p2"))  # its commit meets the new generation
            await s.until(lambda: len({p.job for p in s.plans if p.generation > s.plans[0].generation}) == 2, 15.0)


async def test_who_was_told_no_because_of_a_plan_that_came_to_nothing_is_placed_without_further_news() -> None:
    """The pod of that plan is bound already, and nobody has said so yet: a second plan for it is refused as held."""
    async with scene() as s:
        await s.facts(s.node("n1", gpus=2))
        service = placement(s)
        async with running(service, binder(s)):
            await s.until(lambda: len(service.state.active) == PARTITIONS)
            bound = s.pod("bound", priority="high")
            grant = {keys.GPUS: "0", keys.GPU_MIB: "40960", keys.GPU_MILLI: "1000"}
            assert (await writes.bind(s.kube, NS, "bound", bound.uid, "", "n1", grant)).ok
            await s.ledger.tasks_seen([seen(pod) for pod in s.read_pods()], 1)
            await s.until(lambda: any(milli == 0 for milli, _ in service.state.view.engine.free_room()["n1"][3]))
            waits = s.pod(same_partition(bound))
            changes = [JobChanged(head=job_of(pod), tasks=(pod.to_task(),), cause="test") for pod in (bound, waits)]
            await s.change_at_once(*changes)
            await s.until(lambda: waits.name in s.bound())


def same_partition(pod: PodView) -> str:
    """A name whose pod is said in the same record: both are decided in one pass."""
    wanted = partition_of(job_of(pod).key, PARTITIONS)
    return next(n for n in (f"waits-{i}" for i in range(1000)) if partition_of(f"pod/{NS}/{n}", PARTITIONS) == wanted)
