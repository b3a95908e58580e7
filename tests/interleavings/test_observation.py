"""What is observed, late, twice and out of order: entries 10 to 15 of docs/interleavings.md."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from libs.bus.port import BusUnavailable
from libs.domain import keys
from libs.domain.verdicts import Kind, Verdict
from services.placement import assess, cycle
from services.watcher import emit
from services.watcher.lead import Leadership
from tests.interleavings.incident import incident, lua, python
from tests.interleavings.laws import law
from tests.interleavings.world import World

# -- rules taken out --------------------------------------------------------------------------------------------------


async def _nothing(*_: Any) -> None:
    return None


async def _flush_and_forget(self: emit.Emitter) -> None:
    facts, hints = dict(self._dirty), list(self._hints)
    self._dirty.clear()
    self._hints.clear()
    if facts or hints:
        with suppress(BusUnavailable):
            await self._publisher.publish([*hints, *facts.values()])
        for key, record in facts.items():
            (self.acknowledged.discard if record.value is None else self.acknowledged.add)(key)


def _as_it_is(verdict: Verdict, **_: Any) -> Verdict:
    return verdict


# -- 10: nodes --------------------------------------------------------------------------------------------------------


@incident(
    gone_keeps_its_tasks=lua(
        (
            "      n.spec.gone = true\n",
            "      n.spec.gone = true n.use = {cpu = 0, mem = 0, pods = 0, blind = 0, gpus = {}}\n",
        )
    )
)
async def test_10_a_node_registers_again_under_a_new_uid_while_its_pods_run(world: World) -> None:
    world.node("n1", 1)
    await world.spine()
    world.pod("x")
    await world.until(lambda: "x" in world.bound(), "x runs")
    await world.rest(1.0)
    world.remove_node("n1")
    await world.rest(1.0)
    world.node("n1", 1)
    world.pod("y")
    await world.rest(10.0)
    law("y" not in world.bound(), "a node that came back is as full as it was")
    world.delete("x")
    await world.until(lambda: "y" in world.bound(), "and has room when its pod is gone")


# -- 11: charged once, freed once -------------------------------------------------------------------------------------


@incident(tombstone_in_confirm=lua(("if tombs[uid] or task(u, uid) then", "if task(u, uid) then")))
async def test_11_bound_deleted_gone_and_then_a_late_confirmation(world: World) -> None:
    world.node("n1", 1)
    _, placement, _ = await world.spine("placement", "binder")
    confirming = world.pauses.hold("binder", "ledger confirm")
    watching = world.pauses.hold("watcher", "watch pods")
    world.job("train", 1)
    await confirming.reached()
    await placement.kill()
    world.delete("train-worker-0-0")
    watching.go()  # it learns of both at a time
    await world.rest(1.0)
    confirming.go()
    await world.rest(1.0)
    law([h for h in await world.holders() if h.state == "bound"] == [], "what is gone is not inserted again")


@incident(
    only_what_was_bound_before_the_mark=lua(
        ("if not s or dec(page[2][i + 1]).s <= limit then", "if true then"),
        ("return t.s <= limit end", "return true end"),
    )
)
async def test_11_a_list_taken_before_a_bind_does_not_free_it(world: World) -> None:
    world.node("n1", 1)
    await world.spine("placement", "binder")
    listing = world.pauses.hold("watcher", "GET pods", after=True)
    await listing.reached()
    watching = world.pauses.hold("watcher", "watch pods")
    world.pod("x")
    await world.until(lambda: "x" in world.bound(), "x is found and bound")
    await world.rest(1.0)
    listing.go()
    await world.rest(1.0)
    watching.go()
    await world.rest(1.0)
    world.pod("y", priority="high")
    await world.rest(10.0)
    law(world.held_by("x"), "x is charged")
    law(world.bound() == {"x": "n1"}, "a list older than the bind frees nothing")


@incident(
    claim_is_converted=lua(("local function claim_of(u, x)\n", "local function claim_of(u, x)\n  do return nil end\n"))
)
async def test_11_a_pod_that_is_created_bound_is_seen_before_it_is_confirmed(world: World) -> None:
    world.node("n1", 2)
    await world.spine("placement", "binder")
    confirming = world.pauses.hold("binder", "ledger confirm")
    world.job("train", 1)
    await confirming.reached()
    await world.rest(1.0)
    confirming.go()
    await world.rest(1.0)
    nodes, _ = await world.use()
    law(sum(milli for milli, _ in nodes["n1"].gpus) == 1000, "it is charged once")


# -- 12: leaders, broker ----------------------------------------------------------------------------------------------


@incident(
    term=lua(
        (
            "if term < u.term then return redis.error_reply('STALETERM term ' .. u.term) end\n  if term > u.term",
            "if term > u.term",
        )
    )
)
async def test_12_a_deposed_leader_wakes_up_and_says_that_a_node_is_gone(world: World) -> None:
    world.node("n1", 1)
    first = await world.start("watcher", "-1")
    late = world.pauses.hold("watcher-1", "ledger nodes_gone")
    await world.start("placement")
    await world.start("binder")
    world.remove_node("n1")
    await late.reached()
    late.late()
    await world.rest(0.0)
    first.freeze()
    world.node("n1", 1)
    second = await world.start("watcher", "-2")
    await world.until(lambda: second.service.health().detail.get("synced") == "True", "the other leads")
    await world.rest(1.0)
    late.go()
    first.thaw()
    await world.rest(1.0)
    world.pod("x")
    await world.until(lambda: "x" in world.bound(), "what a deposed leader says late changes nothing", 15.0)


@incident(dirty_until_acknowledged=python(emit.Emitter, "_flush", _flush_and_forget))
async def test_12_facts_are_sent_while_the_broker_is_away(world: World) -> None:
    await world.spine("placement", "binder")
    lost = [world.pauses.hold("watcher", "send drystone.cluster", most=1) for _ in range(3)]
    world.node("n1", 1)
    await lost[0].reached()
    lost[0].lose()
    world.pod("x")
    for one in lost[1:]:
        with suppress(TimeoutError):
            await one.reached(3.0)
        one.lose()
    await world.until(lambda: "x" in world.bound(), "a fact reaches its readers in the end", 20.0)


@incident(content_is_compared=python(Leadership, "_compare_with_topic", _nothing))
async def test_12_a_node_goes_while_nobody_leads(world: World) -> None:
    world.node("n1", 1)
    world.node("n2", 1)
    first = await world.start("watcher", "-1")
    await first.kill()
    world.remove_node("n2")
    await world.start("watcher", "-2", wait=False)

    async def right() -> bool:
        return await world.topic() == {"node/n1"}

    await world.until_asked(right, "the compacted topic has what there is", 60.0)


# -- 13: order between topics -----------------------------------------------------------------------------------------


@incident(never_only_by_a_view_as_new=python(cycle, "tempered", _as_it_is))
async def test_13_a_task_outruns_its_node_on_another_topic(world: World) -> None:
    world.node("n1", 1)
    await world.spine("placement", "binder")
    reading = world.pauses.hold("placement", "read drystone.cluster")
    world.node("n2", 8)
    world.pod("big", 8)
    await world.rest(2.0)
    reading.go()
    await world.until(lambda: "big" in world.bound(), "it starts when its node is seen")
    said = [s for s in await world.statuses() if s.verdict is not None and s.verdict.kind is Kind.NEVER]
    law(not said, "never is not said of what only has not been seen yet")


@incident(tombstones_outrank_tasks=lua(("if tombs[t] then return 'tombstone' end", "")))
async def test_13_a_pod_is_deleted_between_its_decision_and_its_commit(world: World) -> None:
    world.node("n1", 1)
    await world.spine("placement", "binder")
    committing = world.pauses.hold("placement", "ledger commit")
    world.pod("x")
    await committing.reached()
    world.delete("x")
    await world.rest(1.0)
    committing.go()
    await world.rest(1.0)
    law(not any(a.taken for _, answers in world.seen.commits for a in answers), "what has ended gets no claim")
    await world.nothing_left(5.0)


# -- 14, 15: others ---------------------------------------------------------------------------------------------------


@incident(refused_by_kubelet_is_lost_not_failed=python(assess, "lost", lambda _: False))
async def test_14_another_scheduler_takes_the_device_just_before_our_write(world: World) -> None:
    world.node("n1", 1)
    await world.spine("placement", "binder")
    creating = world.pauses.hold("binder", "POST pods")
    world.job("train", 1)
    await creating.reached()
    world.raced = True  # the one thing that W, the age of our facts, allows
    world.pod("foreign", on="n1", scheduler="default-scheduler")
    await world.rest(0.0)
    creating.go()
    await world.rest(5.0)
    law(world.read_job("train").status.failed == 0, "that kubelet refused it is no failure of the job")
    world.delete("foreign")
    await world.until(lambda: any(n.startswith("train") for n in world.bound()), "and its task is placed again", 90.0)


@incident(
    blind=lua(("if s.x or use.blind > 0 then return 'blind' end", ""), ("if use.blind > 0 then return 'blind' end", ""))
)
async def test_14_a_foreign_pod_of_unknown_devices_comes_between_a_decision_and_its_commit(world: World) -> None:
    world.node("n1", 4)
    await world.spine("placement", "binder")
    committing = world.pauses.hold("placement", "ledger commit")
    world.pod("x")
    await committing.reached()
    world.pod("foreign", 2, on="n1", scheduler="default-scheduler")
    await world.rest(1.0)
    committing.go()
    await world.rest(5.0)
    law("x" not in world.bound(), "no device is given out by index beside a pod whose devices nobody knows")
    world.delete("foreign")
    await world.until(lambda: "x" in world.bound(), "and it is when that pod is gone")


@incident(
    first_value_seen_wins=lua(
        ("if (x.charge.cpu or 0) ~= (t.c.cpu or 0) or (x.charge.mem or 0) ~= (t.c.mem or 0) then", "if true then"),
        ("t.c.mem = x.charge.mem", "t.c.mem = x.charge.mem t.c.gpus = x.charge.gpus"),
    )
)
async def test_15_a_tenant_edits_the_devices_of_a_running_pod(world: World) -> None:
    world.node("n1", 2)
    await world.spine("placement", "binder")
    world.pod("x")
    await world.until(lambda: "x" in world.bound(), "x runs")
    await world.rest(1.0)
    world.annotate("x", **{keys.GPUS: "1"})
    await world.rest(1.0)
    world.pod("y")
    await world.until(lambda: "y" in world.bound(), "y starts beside it")
    await world.rest(1.0)


@incident(disputed_devices_are_listed=lua(("if #disputed > 0 then o.disputed = disputed end", "")))
async def test_15_two_pods_are_found_on_one_device_at_a_rebuild(world: World) -> None:
    world.no_kubelets()
    world.node("n1", 2)
    world.pod("a", on="n1", device="0")
    world.pod("b", on="n1", device="0")
    await world.spine("placement", "binder")
    nodes, _ = await world.use()
    law(nodes["n1"].disputed == (0,), "a device with two pods is disputed")
    world.pod("x")
    world.pod("y", priority="high")
    await world.rest(3.0)
    law(len(world.seen.bindings) == 3, "it is closed to placement, and the other device is not")
    world.delete("a")
    world.delete("b")
    await world.until(lambda: {"x", "y"} <= world.bound().keys(), "and it opens when they are gone")
