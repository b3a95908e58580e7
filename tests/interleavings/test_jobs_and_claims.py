"""Jobs from Kafka, and claims: entries 1 to 6 of docs/interleavings.md."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import msgspec
import pytest

from libs.bus.memory import MemoryFullReader
from libs.bus.positions import Positions
from libs.kube import boundpods, trainingjobs, writes
from libs.kube.port import Answer
from libs.store.redis import RedisLedger
from services.binder.tenure import Tenure
from services.placement.jobs import Pending
from services.placement.ownership import Ownership
from services.watcher import lead as watcher_lead
from tests.interleavings.incident import both, incident, lua, python
from tests.interleavings.laws import law
from tests.interleavings.world import World

# -- rules taken out --------------------------------------------------------------------------------------------------


def _due_as_soon_as_read(self: Positions) -> dict[tuple[str, int], int]:
    return {place: line[-1].offset + 1 for place, line in self._lines.items() if line}


_manifest = boundpods.pod_manifest


def _without_owner(*arguments: Any) -> bytes:
    pod = msgspec.json.decode(_manifest(*arguments))
    del pod["metadata"]["ownerReferences"]
    return msgspec.json.encode(pod)


async def _yes(*_: Any) -> bool:
    return True


async def _nothing(*_: Any) -> None:
    return None


_bind = writes.binding_body


def _any_version(namespace: str, pod: str, uid: str, _version: str, node: str, notes: Any) -> bytes:
    return _bind(namespace, pod, uid, "", node, notes)


async def _only_read(kube: Any, namespace: str, name: str, _uid: str, _mark: str, *, timeout_s: float = 5.0) -> Answer:
    return await writes.get_pod(kube, namespace, name, timeout_s=timeout_s)


_take = RedisLedger.take


async def _take_no_outbox(self: RedisLedger, partition: int) -> Any:
    return msgspec.structs.replace(await _take(self, partition), planned=())


_assign = MemoryFullReader.assign


def _follow_others(self: MemoryFullReader, partitions: Any, *, at_end: bool) -> None:
    others = {(topic, p) for topic, _ in partitions for p in range(12)} - set(partitions)
    _assign(self, others, at_end=at_end)


def _never_wait(patch: pytest.MonkeyPatch) -> None:
    begin = watcher_lead.Leadership._before

    async def before(self: watcher_lead.Leadership) -> None:
        self._settings = self._settings.model_copy(update={"longest_write_s": 0.0})
        await begin(self)

    patch.setattr(watcher_lead.Leadership, "_before", before)


# -- 1, 2: jobs -------------------------------------------------------------------------------------------------------


@incident(offset_after_the_object=python(Positions, "due", _due_as_soon_as_read))
async def test_01_the_process_dies_between_an_event_and_its_object(world: World) -> None:
    first = await world.start("watcher", "-1")
    creating = world.pauses.hold("watcher-1", "POST trainingjobs")
    await world.event("train")
    await creating.reached()
    await world.rest(1.0)
    await first.kill()
    await world.start("watcher", "-2", wait=False)
    await world.until(lambda: world.jobs() == ["train"], "an event that was sent becomes a job")


@incident(name_from_the_id=python(trainingjobs, "object_name", lambda *_: f"train-{uuid.uuid4()}"))
async def test_01_an_event_whose_answer_was_lost_comes_again_and_is_one_job(world: World) -> None:
    await world.start("watcher")
    answered = world.pauses.hold("watcher", "POST trainingjobs", after=True)
    await world.event("train")
    await answered.reached()
    answered.lose()
    await world.event("train")
    await world.rest(10.0)
    law(world.jobs() == ["train"], "an id of a tenant is one job, however often it is sent")


@incident(
    ended_tasks_are_remembered=both(
        python(Tenure, "still_ours", _yes), lua(("(tombs[a[2]] and 'tombstone' or 'unknown')", "'unknown'"))
    )
)
async def test_02_pods_that_ended_and_were_cleaned_up_are_not_created_again_by_a_redelivery(world: World) -> None:
    world.node("n1", 3)
    _, placement, binder = await world.spine("placement", "binder")
    unsaid = world.pauses.hold("binder", "done drystone.plans")
    world.job("train", 3)
    await world.until(lambda: len(world.bound()) == 3, "the job's pods are created")
    await unsaid.reached()
    await placement.kill()
    await binder.kill()
    for n in range(2):
        world.end(f"train-worker-{n}-0")
        world.delete(f"train-worker-{n}-0")
    await world.rest(1.0)
    await world.start("binder", "-2")
    await world.rest(3.0)
    created = [name for name, _, _ in world.seen.bindings]
    law(len(created) == len(set(created)), f"a task of an attempt is created once: {created}")


@incident(owner_reference=python(boundpods, "pod_manifest", _without_owner))
async def test_02_a_cancel_overtakes_the_creation_of_the_jobs_pods(world: World) -> None:
    world.node("n1", 2)
    await world.spine()
    creating = world.pauses.hold("binder", "POST pods")
    world.job("train", 2)
    await creating.reached()
    world.delete_job("train")
    await world.rest(1.0)
    creating.go()
    await world.rest(15.0)
    law(world.pods() == [], "a cancelled job has no pods in the end")
    await world.nothing_left()


# -- 3: the late write ------------------------------------------------------------------------------------------------


@incident(
    fence=python(writes, "fence_pod", _only_read),
    version_in_the_binding=python(writes, "binding_body", _any_version),
    time_frees_planned_only=lua(("if o.s == 'p' then", "if true then")),
)
async def test_03_a_binder_pauses_before_its_binding_and_its_claim_expires(world: World) -> None:
    world.node("n1", 1)
    await world.start("watcher")
    await world.start("placement", placement_condition_s=60.0)
    sleeper = await world.start("binder", "-1")
    asleep = world.pauses.hold("binder-1", "POST binding")
    world.pod("x")
    await asleep.reached()
    sleeper.freeze()
    world.forget_plans()  # no redelivery: only the claim's deadline tells
    world.pod("y", priority="high")
    await world.start("binder", "-2")
    await world.until(lambda: "y" in world.bound(), "what a binder that stopped had in hand is free again", 40.0)
    asleep.go()
    sleeper.thaw()
    await world.rest(5.0)
    law(world.bound() == {"y": "n1"}, "the late binding is refused")


# -- 4: another data set ----------------------------------------------------------------------------------------------


@incident(wait_out_the_longest_write=_never_wait)
async def test_04_redis_is_emptied_while_a_binding_is_in_flight_that_the_list_does_not_show(world: World) -> None:
    world.node("n1", 1)
    await world.start("watcher", slow_pass_s=2.0)
    await world.start("placement")
    world.pauses.hold("placement", "PATCH status")  # a condition on x would change its version by chance
    dying = await world.start("binder", "-1")
    sent = world.pauses.hold("binder-1", "POST binding")
    world.pod("x")
    asking = world.pauses.hold("binder-1", "GET pods")
    await sent.reached()
    sent.late()
    await asking.reached()
    await dying.kill()
    world.empty_redis()
    world.pod("y", priority="high")
    await world.start("binder", "-2")

    async def begun() -> bool:
        return (await world.ledger.state()).generation > 0

    await world.until_asked(begun, "the ledger is rebuilt", 60.0)
    await world.rest(3.0)
    sent.go()  # within the longest time that a write may take
    await world.rest(10.0)


@incident(generation=lua(("if plan.generation ~= u.gen then return 'generation' end", "")))
async def test_04_a_plan_of_the_data_set_before_is_dead(world: World) -> None:
    """Its binder is about to begin it when the ledger is rebuilt; by then the claim's room is another's."""
    world.node("n1", 1)
    await world.start("watcher")
    await world.start("placement")
    committing = world.pauses.hold("placement", "ledger commit")
    world.pod("x")
    await committing.reached()
    before = await world.ledger.state()
    await world.ledger.begin_rebuild(before.term)

    async def rebuilt() -> bool:
        state = await world.ledger.state()
        return state.whole and state.generation != before.generation

    await world.until_asked(rebuilt, "the ledger is rebuilt", 60.0)
    committing.go()
    await world.rest(0.2)
    (first,) = world.seen.commits[0][1]
    law(not first.taken, "nothing that was decided against another data set is taken")


# -- 5, 6: owners -----------------------------------------------------------------------------------------------------


@incident(outbox=python(RedisLedger, "take", _take_no_outbox))
async def test_05_placement_dies_between_its_commit_and_its_publication(world: World) -> None:
    world.node("n1", 1)
    await world.start("watcher")
    first = await world.start("placement", "-1")
    await world.start("binder")
    publishing = world.pauses.hold("placement-1", "send drystone.plans")
    world.pod("x")
    await publishing.reached()
    (committed,) = [claim for _, answers in world.seen.commits for a in answers for claim in a.taken]
    await first.kill()
    await world.start("placement", "-2")
    await world.until(lambda: world.seen.bindings, "a plan that was committed is carried out", 5.0)
    law(
        world.seen.bindings == [("x", "n1", committed)],
        "it is published again unchanged, neither skipped nor made anew",
    )


@incident(epoch=lua(("if plan.epoch ~= ", "if false and plan.epoch ~= ")))
async def test_05_an_owner_that_lost_its_partition_wakes_up_and_commits(world: World) -> None:
    world.node("n1", 1)
    await world.start("watcher")
    first = await world.start("placement", "-1")
    late = world.pauses.hold("placement-1", "ledger commit", most=1)
    second = world.pauses.hold("placement-2", "ledger commit", most=1)
    world.pod("x")
    await late.reached()
    first.freeze()
    await world.start("placement", "-2")
    await second.reached()
    late.go()
    first.thaw()
    await world.rest(0.1)
    second.go()
    await world.start("binder")
    await world.until(lambda: world.seen.bindings, "the pod is bound")
    owners = {actor for actor, answers in world.seen.commits if any(a.taken for a in answers)}
    law(owners == {"placement-2"}, f"after a take only its owner's plans are taken: {owners}")


@incident(owner_reads_its_outcomes=python(MemoryFullReader, "assign", _follow_others))
async def test_06_an_outcome_reaches_the_replica_that_owns_the_job(world: World) -> None:
    world.node("n1", 1)
    await world.start("watcher")
    await world.start("placement", "-1")
    await world.start("placement", "-2")
    await world.start("binder")
    refusing = world.pauses.hold("binder", "POST binding", most=1)
    world.pod("x")
    await refusing.reached()
    refusing.answer(Answer(422, b'{"reason":"Invalid","message":"not now"}'))
    await world.until(lambda: "x" in world.bound(), "what the binder reports is decided again by the owner", 5.0)


@incident(claims_past_their_time_are_read_from_the_ledger=python(Ownership, "_check_claims", _nothing))
async def test_06_an_outcome_is_lost_with_its_binder(world: World) -> None:
    world.node("n1", 1)
    await world.start("watcher")
    await world.start("placement")
    dying = await world.start("binder", "-1")
    refusing = world.pauses.hold("binder", "POST binding", most=1)
    silent = world.pauses.hold("binder-1", "send drystone.outcomes")
    world.pod("x")
    await refusing.reached()
    refusing.answer(Answer(422, b'{"reason":"Invalid","message":"not now"}'))
    await silent.reached()
    await dying.kill()
    world.forget_plans()
    await world.start("binder", "-2")
    await world.until(lambda: "x" in world.bound(), "a claim of which nobody reports is found ended", 90.0)


@incident(what_moved_since_the_list_began_is_not_missing=python(Pending, "moved_since", lambda *_: {}))
async def test_a_task_is_bound_while_a_list_without_it_is_on_its_way(world: World) -> None:
    """Its pod is created after the list was read and before it is heard of: to who only compares, the task seems lost,
    and is done a second time beside the first."""
    world.node("n1", 4)
    await world.start("watcher")
    await world.start("placement", placement_slow_pass_s=2.0)
    await world.start("binder")
    creating = world.pauses.hold("binder", "POST pods")
    world.job("train", 1)
    await creating.reached()
    listing = world.pauses.hold("placement", "GET trainingjobs")
    await listing.reached()
    pods = world.pauses.hold("placement", "GET pods", after=True)
    listing.go()
    await pods.reached()
    creating.go()
    await world.until(lambda: world.bound(), "it runs")
    await world.rest(0.5)
    pods.go()
    await world.rest(10.0)
    law(len(world.bound()) == 1, f"a task runs once: {world.bound()}")


@incident(what_moved_since_the_list_began_is_not_missing=python(Pending, "moved_since", lambda *_: {}))
async def test_a_task_is_bound_while_the_next_owner_lists(world: World) -> None:
    """Who takes a partition knows of open claims by the ledger alone; the job itself comes with the list."""
    world.node("n1", 4)
    _, placement, _ = await world.spine("placement", "binder")
    creating = world.pauses.hold("binder", "POST pods")
    world.job("train", 1)
    await creating.reached()
    await placement.kill()
    listing = world.pauses.hold("placement-2", "GET trainingjobs")
    starting = asyncio.create_task(world.start("placement", "-2"))
    await listing.reached()
    pods = world.pauses.hold("placement-2", "GET pods", after=True)
    listing.go()
    await pods.reached()
    creating.go()
    await world.until(lambda: world.bound(), "it runs")
    await world.rest(0.5)
    pods.go()
    await starting
    await world.rest(10.0)
    law(len(world.bound()) == 1, f"a task runs once: {world.bound()}")
