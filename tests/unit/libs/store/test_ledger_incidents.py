"""Interleavings that broke other schedulers, forced on the embedded ledger: each must end with the books right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import fakeredis
import msgspec
import pytest

from libs.domain.nodes import Gpu, Node
from libs.domain.plans import Assignment, EvictionPlan, Plan, Victim
from libs.domain.queues import Queue
from libs.domain.resources import Charge, GpuGrant
from libs.domain.usage import NodeUse, QueueUse
from libs.store.embedded import embedded_ledger
from libs.store.pages import all_holders, all_use
from libs.store.port import Holder, Refusal, StaleGeneration, TaskSeen
from libs.store.redis import RedisLedger
from libs.store.server import StaleTerm

TERM = 1


def gpus(*index: int) -> Charge:
    return Charge(cpu=1000, mem=100, gpus=tuple(GpuGrant(i, 1000, 8000) for i in index))


def node(name: str = "n1", *, version: str = "10", spec: str = "s", devices: int = 2, pods: int = 110) -> Node:
    return Node(
        name=name, uid="u", version=version, spec=spec, cpu=8000, mem=8000, pods=pods,
        gpus=tuple(Gpu(i, 8000) for i in range(devices)),
    )  # fmt: skip


class Scene:
    def __init__(self, ledger: RedisLedger) -> None:
        self.ledger = ledger
        self.generation = 0
        self.epoch = 0

    async def whole(self) -> None:
        await self.ledger.open()
        self.generation = (await self.ledger.begin_rebuild(TERM)).generation
        await self.ledger.nodes_seen([node()], TERM)
        await self.ledger.whole(TERM)
        self.epoch = (await self.ledger.take(0)).epoch

    def plan(self, name: str, *tasks: tuple[str, int], job: str = "", gang: bool = True, queue: str = "q") -> Plan:
        return Plan(
            id=name, job=job or "job-" + name, job_uid="", namespace="d", queue=queue, partition=0, epoch=self.epoch,
            generation=self.generation, gang=gang,
            assignments=tuple(
                Assignment(claim=f"{name}.{n}", task=task, name=task, node="n1", node_spec="s", charge=gpus(gpu))
                for n, (task, gpu) in enumerate(tasks)
            ),
        )  # fmt: skip

    def eviction(self, name: str, victim: str, task: str, gpu: int, *, job: str = "big") -> EvictionPlan:
        p = self.plan(name, (task, gpu), job=job)
        return EvictionPlan(
            id=p.id, job=p.job, job_uid="", namespace="d", queue="q", partition=0, epoch=p.epoch,
            generation=p.generation, priority=9, assignments=p.assignments,
            victims=(Victim(uid=victim, name=victim, namespace="d", node="n1", job="low", priority=0),),
        )  # fmt: skip

    async def running(self, uid: str, *index: int, claim: str = "", version: str = "5") -> None:
        await self.ledger.tasks_seen(
            [TaskSeen(uid=uid, version=version, node="n1", charge=gpus(*index), queue="q", claim=claim)], TERM
        )

    async def holders(self) -> list[Holder]:
        return await all_holders(self.ledger)

    async def use(self) -> tuple[dict[str, NodeUse], dict[str, QueueUse]]:
        return await all_use(self.ledger)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene(embedded_ledger(slack_s=0.0))
    await made.whole()
    yield made
    await made.ledger.close()


async def test_two_plans_for_one_gpu_and_only_the_first_gets_it(scene: Scene) -> None:
    first, second = await scene.ledger.commit([scene.plan("a", ("t1", 0)), scene.plan("b", ("t2", 0))])
    assert first.taken == ("a.0",)
    assert second.refused == {"b.0": Refusal.CAPACITY}
    assert second.fresh[0].gpus == ((1000, 8000), (0, 0))


async def test_gang_with_one_task_too_many_leaves_no_trace(scene: Scene) -> None:
    (answer,) = await scene.ledger.commit([scene.plan("a", ("t1", 0), ("t2", 1), ("t3", 1))])
    assert answer.taken == () and answer.refused == {"a.2": Refusal.CAPACITY}
    assert await scene.holders() == []
    assert (await scene.use())[0]["n1"].pods == 0


async def test_commit_sent_twice_after_a_timeout_is_taken_once(scene: Scene) -> None:
    plan = scene.plan("a", ("t1", 0))
    await scene.ledger.commit([plan])
    (again,) = await scene.ledger.commit([plan])
    assert again.taken == ("a.0",)
    assert (await scene.use())[0]["n1"].pods == 1


async def test_queue_limit_counts_the_request_itself_at_every_ancestor(scene: Scene) -> None:
    await scene.ledger.queues_seen([Queue(path="org", gpu_milli=1000, version="1")], [], TERM)
    one, two = await scene.ledger.commit(
        [scene.plan("a", ("t1", 0), queue="org/x"), scene.plan("b", ("t2", 1), queue="org/y")]
    )
    assert one.taken == ("a.0",)
    assert two.refused == {"b.0": Refusal.QUOTA} and two.queue == "org"


@pytest.mark.parametrize("limit", [{"mem": 199}, {"cpu": 1999}])
async def test_a_limit_of_memory_or_cpu_counts_the_request_itself_and_another_queue_passes(
    scene: Scene, limit: dict[str, int]
) -> None:
    """Each plan takes 1000 of CPU and 100 of memory."""
    await scene.ledger.queues_seen([Queue(path="org/x", version="1", **limit)], [], TERM)
    one, two = await scene.ledger.commit(
        [scene.plan("a", ("t1", 0), queue="org/x"), scene.plan("b", ("t2", 1), queue="org/x")]
    )
    assert one.taken == ("a.0",)
    assert two.refused == {"b.0": Refusal.QUOTA} and two.queue == "org/x"
    (other,) = await scene.ledger.commit([scene.plan("c", ("t3", 1), queue="org/y")])
    assert other.taken == ("c.0",)
    queues = (await scene.use())[1]
    assert (queues["org/x"].cpu, queues["org/x"].mem, queues["org"].mem) == (1000, 100, 200)


async def test_owner_that_lost_its_partition_is_refused_and_its_plan_is_handed_on(scene: Scene) -> None:
    old = scene.plan("a", ("t1", 0))
    await scene.ledger.commit([old])
    taken = await scene.ledger.take(0)
    assert taken.planned == (old,)
    (late,) = await scene.ledger.commit([scene.plan("b", ("t2", 1))])
    assert late.refused == {"b.0": Refusal.EPOCH}


async def test_node_changed_between_decision_and_commit(scene: Scene) -> None:
    await scene.ledger.nodes_seen([node(version="11", spec="cordoned")], TERM)
    (answer,) = await scene.ledger.commit([scene.plan("a", ("t1", 0))])
    assert answer.refused == {"a.0": Refusal.NODE_CHANGED}


async def test_older_fact_of_a_node_is_dropped_by_length_before_text(scene: Scene) -> None:
    await scene.ledger.nodes_seen([node(version="9", spec="older")], TERM)
    (answer,) = await scene.ledger.commit([scene.plan("a", ("t1", 0))])
    assert answer.taken == ("a.0",)


async def test_a_node_cordoned_after_the_commit_is_not_begun(scene: Scene) -> None:
    """The binder stood still; the plan reached it before the fact on its topic did, but not before the ledger."""
    plan = scene.plan("a", ("t1", 0))
    await scene.ledger.commit([plan])
    await scene.ledger.nodes_seen([node(version="11", spec="cordoned")], TERM)
    assert await scene.ledger.begin([plan]) == [{"a.0": Refusal.NODE_CHANGED}]
    assert [h.state for h in await scene.holders()] == ["planned"], "freed by whoever is told"


async def test_a_claim_that_was_begun_before_the_cordon_is_not_taken_back_by_a_redelivery(scene: Scene) -> None:
    plan = scene.plan("a", ("t1", 0))
    await scene.ledger.commit([plan])
    assert await scene.ledger.begin([plan]) == [{}]
    await scene.ledger.nodes_seen([node(version="11", spec="cordoned")], TERM)
    assert await scene.ledger.begin([plan]) == [{}]


async def test_bound_then_gone_then_a_late_confirm_inserts_nothing(scene: Scene) -> None:
    plan = scene.plan("a", ("t1", 0))
    await scene.ledger.commit([plan])
    assert await scene.ledger.begin([plan]) == [{}]
    await scene.ledger.tasks_gone(["t1"], TERM)
    await scene.ledger.confirm({"a.0": "t1"}, scene.generation)
    assert await scene.holders() == []
    (again,) = await scene.ledger.commit([scene.plan("b", ("t1", 0))])
    assert again.refused == {"b.0": Refusal.TOMBSTONE}


async def test_pod_created_bound_is_not_charged_as_claim_and_as_task(scene: Scene) -> None:
    plan = scene.plan("a", ("job/w/0/0", 0), job="j")
    plan = msgspec.structs.replace(plan, assignments=(msgspec.structs.replace(plan.assignments[0], create=True),))
    await scene.ledger.commit([plan])
    await scene.ledger.begin([plan])
    seen = TaskSeen(uid="pod-1", version="5", node="n1", charge=gpus(0), queue="q", job="j", claim="a.0")
    await scene.ledger.tasks_seen([seen], TERM)
    await scene.ledger.confirm({"a.0": "pod-1"}, scene.generation)
    assert [(h.id, h.state) for h in await scene.holders()] == [("pod-1", "bound")]
    (again,) = await scene.ledger.commit([scene.plan("b", ("job/w/0/0", 1), job="j")])
    assert again.refused == {"b.0": Refusal.HELD}
    await scene.ledger.tasks_gone(["pod-1"], TERM)
    (ended,) = await scene.ledger.commit([scene.plan("c", ("job/w/0/0", 1), job="j")])
    assert ended.refused == {"c.0": Refusal.TOMBSTONE}


async def test_forged_claim_annotation_takes_nobody_elses_claim(scene: Scene) -> None:
    await scene.ledger.commit([scene.plan("a", ("t1", 0))])
    await scene.running("stranger", 1, claim="a.0")
    assert {(h.id, h.state) for h in await scene.holders()} == {("a.0", "planned"), ("stranger", "bound")}


async def test_annotation_edited_after_the_bind_changes_no_charge(scene: Scene) -> None:
    await scene.running("p", 0)
    await scene.running("p", 0, 1, version="6")
    assert (await scene.use())[0]["n1"].gpus == ((1000, 8000), (0, 0))


async def test_two_pods_on_one_device_close_it_until_one_leaves(scene: Scene) -> None:
    await scene.running("p1", 0)
    second = TaskSeen(uid="p2", version="5", node="n1", charge=gpus(0))
    assert await scene.ledger.tasks_seen([second], TERM) == ["p2"]
    assert (await scene.use())[0]["n1"].disputed == (0,)
    (answer,) = await scene.ledger.commit([scene.plan("a", ("t1", 0))])
    assert answer.refused == {"a.0": Refusal.DISPUTED}
    await scene.ledger.tasks_gone(["p2"], TERM)
    assert (await scene.use())[0]["n1"].disputed == ()


async def test_foreign_pod_of_unknown_devices_stops_index_exact_placement(scene: Scene) -> None:
    await scene.ledger.tasks_seen([TaskSeen(uid="f", version="1", node="n1", charge=Charge(blind=1))], TERM)
    (answer,) = await scene.ledger.commit([scene.plan("a", ("t1", 0))])
    assert answer.refused == {"a.0": Refusal.BLIND}


async def test_node_that_registers_again_still_has_its_pods(scene: Scene) -> None:
    await scene.running("p", 0)
    await scene.ledger.nodes_gone(["n1"], TERM)
    use = (await scene.use())[0]["n1"]
    assert use.gone and use.pods == 1
    await scene.ledger.nodes_seen([node(version="20")], TERM)
    (answer,) = await scene.ledger.commit([scene.plan("a", ("t1", 0))])
    assert answer.refused == {"a.0": Refusal.CAPACITY}


async def test_list_older_than_a_bind_does_not_free_it(scene: Scene) -> None:
    await scene.running("old", 0)
    mark = await scene.ledger.mark()
    await scene.running("young", 1)
    assert await scene.ledger.sweep(mark, [], TERM) == ["old"]
    assert [h.id for h in await scene.holders()] == ["young"]


async def test_time_alone_frees_planned_but_never_writing() -> None:
    scene = Scene(embedded_ledger(planned_s=0.0, writing_s=0.0))
    await scene.whole()
    writing, planned = scene.plan("w", ("t1", 0)), scene.plan("p", ("t2", 1))
    await scene.ledger.commit([writing])
    await scene.ledger.begin([writing])
    await scene.ledger.commit([planned])
    due = {d.claim: d.state for d in await scene.ledger.expire()}
    assert due == {"w.0": "writing", "p.0": "planned"}
    assert [(h.id, h.state) for h in await scene.holders()] == [("w.0", "writing")]
    assert await scene.ledger.begin([planned]) == [{"p.0": Refusal.UNKNOWN}]
    assert await scene.ledger.writing(("w.0", "p.0", "gone")) == {"w.0"}
    await scene.ledger.release(["w.0"], scene.generation)
    assert await scene.holders() == []


async def test_gang_with_a_dead_claim_begins_nothing(scene: Scene) -> None:
    plan = scene.plan("a", ("t1", 0), ("t2", 1))
    await scene.ledger.commit([plan])
    await scene.ledger.tasks_gone(["t2"], TERM)
    (refused,) = await scene.ledger.begin([plan])
    # The living one must not be taken for ended: nobody would ever decide for it again.
    assert refused == {"a.0": Refusal.GANG, "a.1": Refusal.TOMBSTONE}
    assert [h.state for h in await scene.holders()] == ["planned"]


async def test_redelivered_gang_goes_on_where_its_binder_died(scene: Scene) -> None:
    plan = scene.plan("a", ("t1", 0), ("t2", 1))
    await scene.ledger.commit([plan])
    await scene.ledger.begin([plan])
    await scene.ledger.confirm({"a.0": "t1"}, scene.generation)
    assert await scene.ledger.begin([plan]) == [{"a.0": Refusal.HELD}]


async def test_room_of_a_victim_is_never_seen_by_anybody_but_its_beneficiary(scene: Scene) -> None:
    await scene.running("v", 0)
    await scene.running("w", 1)
    (answer,) = await scene.ledger.commit_evictions([scene.eviction("e", "v", "big-0", 0)])
    assert answer.taken == ("e.0",)
    (second,) = await scene.ledger.commit_evictions([scene.eviction("f", "v", "other-0", 0, job="other")])
    assert second.refused["v"] == Refusal.VICTIM_MARKED
    await scene.ledger.tasks_gone(["v"], TERM)
    (thief,) = await scene.ledger.commit([scene.plan("x", ("thief", 0))])
    assert thief.refused == {"x.0": Refusal.EARMARKED}
    (owner,) = await scene.ledger.commit([scene.plan("y", ("big-0", 0), job="big")])
    assert owner.taken == ("y.0",)
    assert {(h.id, h.state) for h in await scene.holders()} == {("w", "bound"), ("y.0", "planned")}


async def test_earmark_ends_at_its_deadline_and_unmarks_nobody_twice(scene: Scene) -> None:
    await scene.running("v", 0)
    plan = scene.eviction("e", "v", "big-0", 0)
    await scene.ledger.commit_evictions([plan])
    assert await scene.ledger.begin_evict(plan) == {}
    await scene.ledger.tasks_gone(["v"], TERM)
    assert [d.state for d in await scene.ledger.expire()] == ["earmark"]
    assert await scene.ledger.begin_evict(plan) == {"": Refusal.EXPIRED}
    assert await scene.holders() == []


async def test_refused_eviction_takes_back_mark_and_earmark(scene: Scene) -> None:
    await scene.running("v", 0)
    await scene.ledger.commit_evictions([scene.eviction("e", "v", "big-0", 0)])
    await scene.ledger.unmark("e", ["v"], scene.generation)
    assert [(h.id, h.state) for h in await scene.holders()] == [("v", "bound")]
    (again,) = await scene.ledger.commit_evictions([scene.eviction("f", "v", "big-0", 0)])
    assert again.taken == ("f.0",)


async def test_nobody_of_a_gang_yields_while_others_of_it_are_being_bound(scene: Scene) -> None:
    """Slow writes: one of two is bound and is taken for the whole gang; the other would come up alone."""
    gang = msgspec.structs.replace(scene.plan("a", ("t1", 0), ("t2", 1), job="gang/d/g"), together=True)
    await scene.ledger.commit([gang])
    await scene.ledger.begin([gang])
    await scene.ledger.confirm({"a.0": "t1"}, scene.generation)
    (early,) = await scene.ledger.commit_evictions([scene.eviction("e", "t1", "big-0", 0)])
    assert early.refused == {"t1": Refusal.VICTIM_STARTING}
    await scene.ledger.confirm({"a.1": "t2"}, scene.generation)
    (then,) = await scene.ledger.commit_evictions([scene.eviction("f", "t1", "big-0", 0)])
    assert then.taken == ("f.0",)


async def test_a_gang_whose_last_claim_came_to_nothing_may_yield(scene: Scene) -> None:
    gang = msgspec.structs.replace(scene.plan("a", ("t1", 0), ("t2", 1), job="gang/d/g"), together=True)
    await scene.ledger.commit([gang])
    await scene.ledger.begin([gang])
    await scene.ledger.confirm({"a.0": "t1"}, scene.generation)
    await scene.ledger.release(["a.1"], scene.generation)
    (answer,) = await scene.ledger.commit_evictions([scene.eviction("e", "t1", "big-0", 0)])
    assert answer.taken == ("e.0",)
    await scene.ledger.tasks_gone(["t1"], TERM)
    await scene.ledger.expire()
    assert await scene.holders() == []


async def test_older_generation_is_dead_and_an_older_leader_is_fenced(scene: Scene) -> None:
    old = scene.plan("a", ("t1", 0))
    await scene.ledger.commit([old])
    await scene.ledger.begin_rebuild(TERM + 1)
    (answer,) = await scene.ledger.commit([old])
    assert answer.refused == {"a.0": Refusal.GENERATION}
    with pytest.raises(StaleGeneration):
        await scene.ledger.confirm({"a.0": "t1"}, scene.generation)
    with pytest.raises(StaleTerm):
        await scene.ledger.nodes_seen([node()], TERM)


async def test_a_data_set_that_is_lost_at_once_is_never_taken_for_its_successor(scene: Scene) -> None:
    """Claims of the lost one name its generation: the next must be another, whatever the clock's seconds say."""
    seen = {scene.generation}
    for _ in range(5):
        await asyncio.sleep(0.002)
        await scene.ledger.server.client.flushall()
        state = await scene.ledger.begin_rebuild(TERM)
        assert state.generation not in seen
        assert state.generation > max(seen)
        seen.add(state.generation)


async def test_stream_says_when_it_was_trimmed_or_rebuilt(scene: Scene) -> None:
    position = (await scene.ledger.dump()).position
    await scene.ledger.commit([scene.plan("a", ("t1", 0))])
    batch = await scene.ledger.tail(position, 0.01)
    assert not batch.lost and batch.nodes[-1].pods == 1 and int(batch.position) == int(position) + 1
    assert (await scene.ledger.tail(batch.position, 0.01)).nodes == ()
    await scene.ledger.begin_rebuild(TERM)
    assert (await scene.ledger.tail(batch.position, 0.01)).lost


async def test_fresh_redis_is_not_whole_and_takes_nothing() -> None:
    ledger = embedded_ledger(server=fakeredis.FakeServer(version=(7,)))
    state = await ledger.open()
    assert (state.generation, state.whole) == (0, False)
    with pytest.raises(StaleGeneration):
        await ledger.take(0)
    await ledger.close()


def modelled(*models: str, version: str) -> Node:
    return msgspec.structs.replace(
        node(version=version), gpus=tuple(Gpu(i, 8000, model) for i, model in enumerate(models))
    )


async def test_a_limit_of_one_model_is_held_in_the_commit_and_lets_other_models_pass(scene: Scene) -> None:
    await scene.ledger.nodes_seen([modelled("A100", "H100", version="11")], TERM)
    await scene.ledger.queues_seen([Queue(path="org", models={"H100": 500}, version="1")], [], TERM)
    h100 = scene.plan("h", ("t1", 1), queue="org/team")
    a100 = scene.plan("a", ("t2", 0), queue="org/team")
    refused, taken = await scene.ledger.commit([h100, a100])
    assert refused.refused == {"h.0": Refusal.QUOTA}
    assert refused.queue == "org"
    assert taken.taken == ("a.0",)
    queues = (await scene.use())[1]
    assert queues["org"].models == queues["org/team"].models == {"A100": 1000}

    await scene.ledger.queues_seen([Queue(path="org", models={"H100": 1000}, version="2")], [], TERM)
    (answer,) = await scene.ledger.commit([msgspec.structs.replace(h100, id="h2")])
    assert answer.taken == ("h.0",)


async def test_a_node_that_is_named_anew_leaves_nothing_behind_in_the_books(scene: Scene) -> None:
    await scene.ledger.nodes_seen([modelled("A100", "A100", version="11")], TERM)
    await scene.running("t1", 0)
    await scene.ledger.nodes_seen([modelled("H100", "H100", version="12")], TERM)
    await scene.running("t2", 1)
    assert (await scene.use())[1]["q"].models == {"A100": 1000, "H100": 1000}
    await scene.ledger.tasks_gone(["t1"], TERM)
    assert (await scene.use())[1]["q"].models == {"H100": 1000}


async def test_an_earmark_that_relied_on_a_victims_part_of_the_limit_ends_with_the_mark(scene: Scene) -> None:
    """The victim's device has room beside it, so the earmark lacks nothing when the eviction is finally refused; only
    the victim's part of the queue's limit was to come free, and now does not."""
    half = Charge(cpu=100, mem=10, gpus=(GpuGrant(0, 500, 4000),))
    await scene.ledger.queues_seen([Queue(path="q", gpu_milli=500, version="1")], [], TERM)
    await scene.ledger.tasks_seen([TaskSeen("low", "5", "n1", half, queue="q")], TERM)
    plan = scene.eviction("e", "low", "t1", 0)
    plan = msgspec.structs.replace(plan, assignments=(msgspec.structs.replace(plan.assignments[0], charge=half),))
    (answer,) = await scene.ledger.commit_evictions([plan])
    assert answer.taken == ("e.0",)
    assert (await scene.use())[1]["q"].gpu_milli == 1000
    await scene.ledger.unmark("e", ["low"], scene.generation)
    assert (await scene.use())[1]["q"].gpu_milli == 500


async def test_what_a_release_without_models_left_behind_sinks_with_the_queue(scene: Scene) -> None:
    """It ended charges of models without taking them off: too much is counted, never above all the queue uses."""
    await scene.ledger.nodes_seen([modelled("A100", "A100", version="11")], TERM)
    await scene.running("t1", 0)
    await scene.running("t2", 1)
    record = (await scene.use())[1]["q"]
    left = msgspec.json.encode({**msgspec.to_builtins(record), "models": {"A100": 5000, "H100": 3000}})
    await scene.ledger.server.client.hset("{drystone}:nodes", "q:q", left)
    await scene.ledger.tasks_gone(["t1"], TERM)
    assert (await scene.use())[1]["q"].models == {"A100": 1000, "H100": 1000}
    await scene.ledger.tasks_gone(["t2"], TERM)
    assert "q" not in (await scene.use())[1]


async def test_a_queue_that_moves_in_the_tree_takes_its_tasks_along(scene: Scene) -> None:
    await scene.ledger.tasks_seen([TaskSeen("t1", "5", "n1", gpus(0), queue="org/team")], TERM)
    await scene.ledger.tasks_seen([TaskSeen("t1", "5", "n1", gpus(0), queue="lab/team")], TERM)
    uses = (await scene.use())[1]
    assert {path: use.gpu_milli for path, use in uses.items() if use.gpu_milli} == {"lab": 1000, "lab/team": 1000}
    # Another name is another queue: an annotation edited later moves nothing.
    await scene.ledger.tasks_seen([TaskSeen("t1", "6", "n1", gpus(0), queue="lab/other")], TERM)
    await scene.ledger.tasks_gone(["t1"], TERM)
    assert not any(use.gpu_milli for use in (await scene.use())[1].values())
