"""Amounts as large as any that are let in: what the ledger sums of them comes back to the last digit."""

from __future__ import annotations

from libs.domain.bounds import MOST_ASKED, MOST_DEVICES, MOST_OFFERED, MOST_QUOTA
from libs.domain.nodes import Gpu, Node
from libs.domain.queues import Queue
from libs.domain.resources import WHOLE, Charge, GpuGrant
from libs.store.embedded import embedded_ledger
from libs.store.pages import all_holders, all_use
from libs.store.port import TaskSeen
from libs.store.redis import RedisLedger

#: Sums of more than these are past what fourteen digits can say.
PODS = 100_003
PER_CALL = 4096
LARGEST = Charge(cpu=MOST_ASKED, mem=MOST_ASKED, gpus=(GpuGrant(0, WHOLE, MOST_ASKED), GpuGrant(1, 1, MOST_ASKED - 1)))


async def sums_come_back_exact(ledger: RedisLedger, pods: int) -> None:
    await ledger.open()
    await ledger.begin_rebuild(1)
    gpus = tuple(Gpu(i, MOST_ASKED, "A") for i in range(2))
    node = Node("n1", "u", "1", "s", cpu=MOST_OFFERED, mem=MOST_OFFERED, pods=MOST_OFFERED, gpus=gpus)
    await ledger.nodes_seen([node], 1)
    limits = Queue("r/a", version="1", gpu_milli=MOST_QUOTA, cpu=MOST_QUOTA, mem=MOST_QUOTA, models={"A": MOST_QUOTA})
    await ledger.queues_seen([limits], [], 1)
    await ledger.whole(1)
    position = (await ledger.dump()).position
    seen = [TaskSeen(f"pod-{n}", "1", "n1", LARGEST, queue="r/a") for n in range(pods)]
    for at in range(0, pods, PER_CALL):
        await ledger.tasks_seen(seen[at : at + PER_CALL], 1)
    foreign = Charge(cpu=MOST_ASKED, blind=MOST_DEVICES)
    await ledger.tasks_seen([TaskSeen("foreign", "1", "n1", foreign)], 1)

    nodes, queues = await all_use(ledger)

    use = nodes["n1"]
    assert (use.cpu, use.mem, use.pods) == ((pods + 1) * MOST_ASKED, pods * MOST_ASKED, pods + 1)
    assert use.gpus == ((pods * WHOLE, pods * MOST_ASKED), (pods, pods * (MOST_ASKED - 1)))
    assert (use.blind, use.disputed) == (MOST_DEVICES, (0, 1))
    for path in ("r", "r/a"):
        used = queues[path]
        assert (used.cpu, used.mem) == (pods * MOST_ASKED, pods * MOST_ASKED)
        assert (used.gpu_milli, used.models) == (pods * (WHOLE + 1), {"A": pods * (WHOLE + 1)})
    while not (batch := await ledger.tail(position)).lost and batch.nodes:
        position, told = batch.position, batch.nodes[-1]
    assert batch.lost or told == use
    if pods < PER_CALL:
        assert sum(holder.charge.cpu for holder in await all_holders(ledger)) == use.cpu

    for at in range(0, pods, PER_CALL):
        await ledger.tasks_gone([one.uid for one in seen[at : at + PER_CALL]], 1)
    await ledger.tasks_gone(["foreign"], 1)
    nodes, queues = await all_use(ledger)
    use = nodes["n1"]
    assert (use.cpu, use.mem, use.pods, use.blind, use.gpus) == (0, 0, 0, 0, ((0, 0), (0, 0)))
    assert all((q.cpu, q.mem, q.gpu_milli, q.models) == (0, 0, 0, {}) for q in queues.values())


async def test_the_largest_charges_on_one_node_and_in_one_queue() -> None:
    await sums_come_back_exact(embedded_ledger(), 300)
