"""Any history of commits, binds, evictions and departures against a plain model: the books agree after every step.

The same machine runs on the embedded ledger and, marked `real`, on a redis-server of its own; there also with amounts
so large that their sums have more digits than Redis' cjson writes.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import tempfile
import time
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from libs.domain.nodes import Gpu, Node
from libs.domain.plans import Assignment, EvictionPlan, Plan, Victim
from libs.domain.queues import Queue, ancestors
from libs.domain.resources import Charge, GpuGrant
from libs.domain.usage import NodeUse, QueueUse
from libs.store.embedded import embedded_ledger
from libs.store.pages import all_holders, all_use
from libs.store.port import Holder, TaskSeen
from libs.store.redis import RedisLedger

NODES = ("n1", "n2")
QUEUES = ("r/a", "r/b")
#: Low enough to be met: the two nodes have 4,000, and 12 of CPU and memory.
LIMITS = (1500, 2500, 3500)
LOW = (2, 4, 8)
MODELS = (("A", "A"), ("B", "B"), ("A", "B"), ("A", ""))
CPU = 6
#: Of which what a node has can be told in fourteen digits, and what a queue may hold cannot.
LARGE = 16_000_000_000_007

charges = st.builds(
    lambda cpu, index, milli: Charge(
        cpu=cpu, mem=cpu, gpus=tuple(GpuGrant(i, milli, milli * 8) for i in sorted(index))
    ),
    st.integers(0, 3),
    st.sets(st.integers(0, 1), max_size=2),
    st.sampled_from((250, 500, 1000)),
)
works = st.lists(st.tuples(st.sampled_from(NODES), charges), min_size=1, max_size=3)
picks = st.integers(0, 10**6)


def amounts_of(holder: Holder) -> dict[str, int]:
    """What counts of it under a limit: "" for all GPUs, by model, CPU and memory."""
    charge = holder.charge
    return {"": charge.gpu_milli, "cpu": charge.cpu, "mem": charge.mem, **holder.models}


class Books(RuleBasedStateMachine):
    """Model: which claim, task or earmark is open. Reality (`tasks_seen`) enters only by claims, so nothing may ever
    be over capacity."""

    make: Any = staticmethod(lambda: embedded_ledger(slack_s=0.0))
    #: What one of CPU and memory stands for.
    unit = 1

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.ledger: RedisLedger = type(self).make()
        self.n = 0
        self.claims: dict[str, tuple[Plan, Assignment, str]] = {}  # claim -> plan, assignment, planned | writing
        self.bound: dict[str, tuple[str, Charge, str]] = {}  # uid -> node, charge, queue
        self.evictions: dict[str, EvictionPlan] = {}
        self.marked: dict[str, str] = {}  # uid -> eviction plan
        self.gatherers: dict[str, str] = {}  # queue -> eviction plan that gathers for it
        self.version = 1
        #: What a queue may hold at the most, by (queue, "" for all GPUs, a model, "cpu" or "mem"): its limit, or what
        #: it held above that when the limit was lowered, as far as it still does.
        self.limits: dict[tuple[str, str], int] = {}
        self.ceilings: dict[tuple[str, str], int] = {}
        self.run(self.ledger.open())
        self.generation = self.run(self.ledger.begin_rebuild(1)).generation
        for name, models in zip(NODES, MODELS, strict=False):
            self.labels(name, models)
        self.limits_change("r", 2500, {"A": 1500}, 8, None)
        self.limits_change("r/a", None, {"A": 1000, "B": 500}, None, 2)
        self.run(self.ledger.whole(1))
        self.epoch = self.run(self.ledger.take(0)).epoch

    def run(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(awaitable)

    @rule(name=st.sampled_from(NODES), models=st.sampled_from(MODELS))
    def labels(self, name: str, models: tuple[str, str]) -> None:
        """A node tells what its devices are, at first or anew: what is charged already stays charged as it was."""
        self.version += 1
        gpus = tuple(Gpu(i, 8000, model) for i, model in enumerate(models))
        node = Node(name, "u", str(self.version), "s", cpu=CPU * self.unit, mem=CPU * self.unit, pods=5, gpus=gpus)
        self.run(self.ledger.nodes_seen([node], 1))

    @rule(
        path=st.sampled_from(("r", *QUEUES)),
        limit=st.none() | st.sampled_from(LIMITS),
        models=st.dictionaries(st.sampled_from("AB"), st.sampled_from((0, 500, 1000, 1500)), max_size=2),
        cpu=st.none() | st.sampled_from(LOW),
        mem=st.none() | st.sampled_from(LOW),
    )
    def limits_change(
        self, path: str, limit: int | None, models: dict[str, int], cpu: int | None, mem: int | None
    ) -> None:
        self.version += 1
        cpu, mem = (None if one is None else one * self.unit for one in (cpu, mem))
        queue = Queue(path=path, gpu_milli=limit, cpu=cpu, mem=mem, models=models, version=str(self.version))
        self.run(self.ledger.queues_seen([queue], [], 1))
        for what in [what for what in self.limits if what[0] == path]:
            del self.limits[what]
            del self.ceilings[what]  # what stands there when a limit comes may stay
        for model, amount in {**models, "": limit, "cpu": cpu, "mem": mem}.items():
            if amount is not None:
                self.limits[path, model] = amount
                self.ceilings.setdefault((path, model), 10**18)

    @precondition(lambda self: self.bound)
    @rule(pick=picks, top=st.sampled_from(("r/", "s/", "")))
    def queue_moves(self, pick: int, top: str) -> None:
        """The task's queue stands elsewhere in the tree now: its charge goes along, fitting or not."""
        uid = sorted(self.bound)[pick % len(self.bound)]
        node, charge, old = self.bound[uid]
        queue = top + old.rsplit("/", 1)[-1]
        self.run(self.ledger.tasks_seen([TaskSeen(uid, "9", node, charge, queue=queue)], 1))
        self.bound[uid] = (node, charge, queue)
        for path, model in self.ceilings:
            if path in ancestors(queue):
                self.ceilings[path, model] = 10**18

    def teardown(self) -> None:
        try:
            self.run(self.everything_leaves())
        finally:
            self.run(self.ledger.close())
            self.loop.close()

    async def everything_leaves(self) -> None:
        for plan, a, _ in list(self.claims.values()):
            await self.ledger.release([a.claim], plan.generation)
        for e in self.evictions.values():
            await self.ledger.drop(e.job, [a.claim for a in e.assignments], e.generation)
        await self.ledger.tasks_gone(list(self.bound), 1)
        nodes, queues = await self.uses()
        assert await self.held() == []
        assert all((n.cpu, n.mem, n.pods, n.blind) == (0, 0, 0, 0) for n in nodes.values()), nodes
        assert all(d == (0, 0) for n in nodes.values() for d in n.gpus)
        assert all((q.gpu_milli, q.cpu, q.mem) == (0, 0, 0) for q in queues.values()), queues
        again = await self.ledger.take(0)
        assert (again.planned, again.writing, again.evictions) == ((), (), ())

    async def held(self) -> list[Holder]:
        return await all_holders(self.ledger)

    async def uses(self) -> tuple[dict[str, NodeUse], dict[str, QueueUse]]:
        return await all_use(self.ledger)

    def sized(self, work: list[tuple[str, Charge]]) -> list[tuple[str, Charge]]:
        return [(n, msgspec.structs.replace(c, cpu=c.cpu * self.unit, mem=c.mem * self.unit)) for n, c in work]

    def plan(self, work: list[tuple[str, Charge]], queue: str, gang: bool, job: str = "") -> Plan:
        """A new one, or with `job` one of its work as it is."""
        self.n += 1
        name = f"p{self.n}"
        return Plan(
            id=name, job=job or "j" + name, job_uid="", namespace="d", queue=queue, partition=0, epoch=self.epoch,
            generation=self.generation, gang=gang,
            assignments=tuple(
                Assignment(f"{name}.{i}", f"t{self.n}-{i}", "x", node, "s", charge)
                for i, (node, charge) in enumerate(work if job else self.sized(work))
            ),
        )  # fmt: skip

    @rule(
        work=works,
        queue=st.sampled_from(QUEUES),
        gang=st.booleans(),
        twice=st.booleans(),
        ends=st.sampled_from((0, 100, 400)),
        yields=st.booleans(),
    )
    def commit(
        self, work: list[tuple[str, Charge]], queue: str, gang: bool, twice: bool, ends: int, yields: bool
    ) -> None:
        plan = msgspec.structs.replace(self.plan(work, queue, gang), ends_s=ends, yields=yields)
        (answer,) = self.run(self.ledger.commit([plan]))
        if gang:
            assert len(answer.taken) in (0, len(plan.assignments))
        if twice and answer.taken:
            (again,) = self.run(self.ledger.commit([plan]))
            assert set(answer.taken) <= set(again.taken)
            answer = again
        for a in plan.assignments:
            if a.claim in answer.taken:
                self.claims[a.claim] = (plan, a, "planned")

    def some(self, state: str, pick: int) -> tuple[Plan, Assignment] | None:
        have = [(p, a) for p, a, s in self.claims.values() if s == state]
        return have[pick % len(have)] if have else None

    @rule(pick=picks)
    def begin(self, pick: int) -> None:
        if found := self.some("planned", pick):
            (refused,) = self.run(self.ledger.begin([found[0]]))
            for a in found[0].assignments:
                if a.claim in self.claims and a.claim not in refused:
                    self.claims[a.claim] = (found[0], a, "writing")

    @rule(pick=picks, seen_first=st.booleans())
    def lands(self, pick: int, seen_first: bool) -> None:
        if found := self.some("writing", pick):
            plan, a = found
            seen = TaskSeen(a.task, "9", a.node, a.charge, queue=plan.queue, job=plan.job, claim=a.claim)
            steps = [
                lambda: self.ledger.confirm({a.claim: a.task}, self.generation),
                lambda: self.ledger.tasks_seen([seen], 1),
            ]
            for step in reversed(steps) if seen_first else steps:
                self.run(step())
            del self.claims[a.claim]
            self.bound[a.task] = (a.node, a.charge, plan.queue)

    @rule(pick=picks)
    def releases(self, pick: int) -> None:
        if found := self.some("writing", pick):
            self.run(self.ledger.release([found[1].claim], self.generation))
            del self.claims[found[1].claim]

    @rule(pick=picks)
    def cancels(self, pick: int) -> None:
        if found := self.some("planned", pick):
            self.run(self.ledger.drop(found[0].job, [found[1].claim], self.generation))
            del self.claims[found[1].claim]

    @precondition(lambda self: self.bound)
    @rule(pick=picks, late=st.booleans())
    def leaves(self, pick: int, late: bool) -> None:
        uid = sorted(self.bound)[pick % len(self.bound)]
        self.run(self.ledger.tasks_gone([uid], 1))
        if late:
            node, charge, queue = self.bound[uid]
            self.run(self.ledger.tasks_seen([TaskSeen(uid, "9", node, charge, queue=queue)], 1))
        del self.bound[uid]
        self.marked.pop(uid, None)

    @precondition(lambda self: self.bound)
    @rule(pick=picks, queue=st.sampled_from(QUEUES))
    def evicts(self, pick: int, queue: str) -> None:
        uid = sorted(self.bound)[pick % len(self.bound)]
        node, charge, _ = self.bound[uid]
        p = self.plan([(node, charge)], queue, True)
        plan = EvictionPlan(
            p.id, p.job, "", "d", queue, 0, self.epoch, self.generation, 1,
            victims=(Victim(uid, "v", "d", node, "low", 0),), assignments=p.assignments,
        )  # fmt: skip
        (answer,) = self.run(self.ledger.commit_evictions([plan]))
        if uid in self.marked and self.marked[uid] in self.evictions:
            assert not answer.taken
        if answer.taken:
            self.evictions[plan.id] = plan
            self.marked[uid] = plan.id

    @precondition(lambda self: self.bound and self.gatherers)
    @rule(pick=picks)
    def calls_back(self, pick: int) -> None:
        """An eviction without assignments: the room of the victim goes to whom it gathers for."""
        gatherer = self.evictions.get(self.gatherers[sorted(self.gatherers)[pick % len(self.gatherers)]])
        uid = sorted(self.bound)[pick % len(self.bound)]
        if gatherer is None:
            return
        self.n += 1
        plan = msgspec.structs.replace(
            gatherer, id=f"p{self.n}", gather_s=0, assignments=(), rule="lent",
            victims=(Victim(uid, "v", "d", self.bound[uid][0], "low", 0),),
        )  # fmt: skip
        (answer,) = self.run(self.ledger.commit_evictions([plan]))
        assert not answer.taken
        assert uid not in self.marked or answer.refused or self.marked[uid] not in self.evictions
        if not answer.refused:
            self.evictions[plan.id] = plan
            self.marked[uid] = plan.id

    @rule(work=works, queue=st.sampled_from(QUEUES), age=st.integers(0, 3), start=st.sampled_from((0, 300)))
    def gathers(self, work: list[tuple[str, Charge]], queue: str, age: int, start: int) -> None:
        """One gatherer per queue: the one of the lesser place, which another of its queue ends. One that tells when it
        starts lends what it holds."""
        p = self.plan(work, queue, True)
        plan = EvictionPlan(
            p.id, p.job, "", "d", queue, 0, self.epoch, self.generation, 1, victims=(), assignments=p.assignments,
            gather_s=600, start_s=start, place=(1, 0, float(age), p.job),
        )  # fmt: skip
        (answer,) = self.run(self.ledger.commit_evictions([plan]))
        known = self.evictions.get(self.gatherers.get(queue, ""))
        if not answer.taken:
            return
        if known is not None:
            assert plan.place < known.place
            del self.evictions[known.id]
        self.evictions[plan.id] = plan
        self.gatherers[queue] = plan.id

    @precondition(lambda self: self.evictions)
    @rule(pick=picks, how=st.sampled_from(("commit", "drop", "unmark")))
    def eviction_ends(self, pick: int, how: str) -> None:
        e = self.evictions[sorted(self.evictions)[pick % len(self.evictions)]]
        if how == "commit":
            p = self.plan([(a.node, a.charge) for a in e.assignments], e.queue, True, e.job)
            (answer,) = self.run(self.ledger.commit([p]))
            if answer.taken:
                self.claims |= {a.claim: (p, a, "planned") for a in p.assignments}
                del self.evictions[e.id]
        elif how == "drop":
            self.run(self.ledger.drop(e.job, [a.claim for a in e.assignments], self.generation))
            del self.evictions[e.id]
        else:
            self.run(self.ledger.unmark(e.id, [v.uid for v in e.victims], self.generation))
            for v in e.victims:
                self.marked.pop(v.uid, None)

    @invariant()
    def books_agree(self) -> None:
        self.run(self.check())

    async def check(self) -> None:
        holders = await self.held()
        nodes, queues = await self.uses()
        assert {h.id for h in holders if h.state == "bound"} == set(self.bound)
        assert {(h.id, h.state) for h in holders if h.state in ("planned", "writing")} == {
            (c, s) for c, (_, _, s) in self.claims.items()
        }
        for name in NODES:
            on = [h.charge for h in holders if h.node == name]
            use = nodes[name]
            gpus: Counter[tuple[int, str]] = Counter()
            for c in on:
                for g in c.gpus:
                    gpus[g.index, "milli"] += g.milli
                    gpus[g.index, "mib"] += g.mib
            assert use.cpu == sum(c.cpu for c in on) <= CPU * self.unit
            assert use.mem == sum(c.mem for c in on) <= CPU * self.unit
            assert use.pods <= 5
            for i, (milli, mib) in enumerate(use.gpus):
                assert milli == gpus[i, "milli"] <= 1000
                assert mib == gpus[i, "mib"] <= 8000
        milli: Counter[tuple[str, str]] = Counter()
        leaving: Counter[tuple[str, str]] = Counter()
        for h in holders:
            for path in ancestors(h.queue):
                for model, amount in amounts_of(h).items():
                    milli[path, model] += amount
                    if self.marked.get(h.id) in self.evictions:
                        leaving[path, model] += amount
        told = {
            (p, m): n
            for p, q in queues.items()
            for m, n in {"": q.gpu_milli, "cpu": q.cpu, "mem": q.mem, **q.models}.items()
        }
        assert +Counter(told) == +milli
        # What gatherers aim at counts as used at once, whatever the limit.
        for plan in (self.evictions[e] for e in self.gatherers.values() if e in self.evictions):
            for path in ancestors(plan.queue):
                for h in holders:
                    if h.state in ("earmark", "pending") and h.job == plan.job:
                        for model, amount in amounts_of(h).items():
                            leaving[path, model] += amount
        # Marked victims' parts are credited to who they yield to; nothing else may stand over a limit.
        for (path, model), limit in self.limits.items():
            held = milli[path, model]
            ceiling = self.ceilings[path, model]
            assert held <= max(ceiling, limit) + leaving[path, model], (path, model)
            self.ceilings[path, model] = max(limit, min(ceiling, held))


FEW = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


def test_books_agree_after_any_history() -> None:
    run_state_machine_as_test(Books, settings=FEW)


def test_books_agree_where_sums_are_large() -> None:
    class Large(Books):
        unit = LARGE

    run_state_machine_as_test(Large, settings=settings(FEW, max_examples=5))


@pytest.mark.real
@pytest.mark.parametrize("size", [1, LARGE])
def test_books_agree_after_any_history_on_a_real_redis(size: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        try:
            for _ in range(100):
                with socket.socket() as s:
                    if s.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)

            class Real(Books):
                runs = 0
                unit = size

                @staticmethod
                def make() -> RedisLedger:
                    Real.runs += 1
                    return RedisLedger(f"redis://127.0.0.1:{port}", prefix=f"{{t{Real.runs}}}", slack_s=0.0)

            run_state_machine_as_test(Real, settings=FEW)
        finally:
            server.terminate()
            server.wait(10)
