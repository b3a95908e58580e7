"""What follows pods and nodes as they come and go says the same as what is built anew; and no decision breaks a rule.

The engine keeps counts, domains and verdicts up to date change by change. Here it lives through a random history, and
after every few steps is asked beside an engine that was only told how things stand.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.domain.jobs import JobHead, Task
from libs.domain.nodes import Node
from libs.domain.resources import Charge
from libs.domain.rules import HostPort, NodeTerm, PodTerm, Requirement, Rules, Selector, Spread
from libs.domain.usage import NodeUse
from libs.domain.volumes import Claim, ClaimState
from libs.engine.api import EngineConfig, PendingJob, RunningTask
from libs.engine.core import PlacementEngine
from libs.testkit.builders import node, task

KEYS = ("zone", "kubernetes.io/hostname")
APPS = ("a", "b", "c")
SPACES = ("team", "other")


class History:
    """Facts as they stand, and an engine that was told of each as it came."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, RunningTask] = {}
        self.spaces: dict[str, dict[str, str]] = {}
        self.claims: dict[tuple[str, str], Claim] = {}
        self.limits: dict[str, dict[str, int]] = {}
        self.engine = PlacementEngine(EngineConfig(weights={"first-fit": 1}))
        self.number = 0
        for _ in range(4):
            self.node_comes()

    def anew(self) -> PlacementEngine:
        engine = PlacementEngine(EngineConfig(weights={"first-fit": 1}))
        self._tell(engine)
        return engine

    def _tell(self, engine: PlacementEngine) -> None:
        for facts in self.nodes.values():
            engine.node_seen(facts)
        for pod in self.pods.values():
            engine.pod_seen(pod)
        for name, labels in self.spaces.items():
            engine.namespace_seen(name, labels)
        for claim in self.claims.values():
            engine.claim_seen(claim)
        for name, limits in self.limits.items():
            engine.volume_limits(name, limits)
        for name in self.nodes:
            here = [p for p in self.pods.values() if p.node == name]
            used = NodeUse(name, 1, sum(p.charge.cpu for p in here), sum(p.charge.mem for p in here), len(here))
            engine.use_seen(used)

    # -- what happens -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        self.rng.choice(
            [
                self.node_comes, self.node_goes, self.node_changes, self.pod_comes, self.pod_comes, self.pod_comes,
                self.pod_goes, self.pod_changes, self.namespace_changes, self.claim_changes, self.limits_change,
            ]
        )()  # fmt: skip

    def node_comes(self) -> None:
        self.number += 1
        self._node(self.rng.choice([f"n{self.rng.randrange(6)}", f"n{self.number}"]))

    def node_changes(self) -> None:
        if self.nodes:
            self._node(self.rng.choice(sorted(self.nodes)))

    def _node(self, name: str) -> None:
        labels = {"zone": self.rng.choice("xy")} if self.rng.random() < 0.8 else {}
        facts = node(
            name,
            gpus=1,
            pods=self.rng.choice([2, 5, 50]),
            labels=labels,
            cordoned=self.rng.random() < 0.1,
            taints=["own=yes:NoSchedule"] if self.rng.random() < 0.2 else [],
            extra={"fpga": 2} if self.rng.random() < 0.5 else {},
        )
        self.nodes[name] = facts
        self.engine.node_seen(facts)

    def node_goes(self) -> None:
        if len(self.nodes) > 1:
            name = self.rng.choice(sorted(self.nodes))
            del self.nodes[name]
            self.engine.node_gone(name)

    def pod_comes(self) -> None:
        self.number += 1
        self._pod(f"uid-{self.number}", self.rng.choice([*sorted(self.nodes), "n-unknown"]))

    def pod_changes(self) -> None:
        if self.pods:
            uid = self.rng.choice(sorted(self.pods))
            self._pod(uid, self.pods[uid].node)

    def _pod(self, uid: str, where: str) -> None:
        rules = self.rules() or Rules()
        pod = RunningTask(
            uid, uid, self.rng.choice(SPACES), where, "", "", 0, Charge(0, 0), ours=False,
            terminating=self.rng.random() < 0.15,
            labels=self.labels(),
            extra=(("fpga", 1),) if self.rng.random() < 0.3 else (),
            ports=rules.ports,
            anti_affinity=rules.anti_affinity if self.rng.random() < 0.4 else (),
            claims=rules.claims,
        )  # fmt: skip
        self.pods[uid] = pod
        self.engine.pod_seen(pod)

    def pod_goes(self) -> None:
        if self.pods:
            uid = self.rng.choice(sorted(self.pods))
            del self.pods[uid]
            self.engine.pod_gone(uid)

    def namespace_changes(self) -> None:
        name = self.rng.choice(SPACES)
        self.spaces[name] = {"tier": self.rng.choice(["1", "2"])}
        self.engine.namespace_seen(name, self.spaces[name])

    def claim_changes(self) -> None:
        place = (self.rng.choice(SPACES), self.rng.choice(["c1", "c2"]))
        claim = Claim(
            *place,
            self.rng.choice([ClaimState.BOUND, ClaimState.BOUND, ClaimState.FIRST_USE, ClaimState.UNBOUND]),
            self.rng.choice([None, None, (NodeTerm((Requirement("zone", "In", ("x",)),)),)]),
            (),
            self.rng.choice(["", "d"]),
            "/".join(place),
            self.rng.random() < 0.2,
        )
        self.claims[place] = claim
        self.engine.claim_seen(claim)

    def limits_change(self) -> None:
        name = self.rng.choice(sorted(self.nodes))
        self.limits[name] = self.rng.choice([{}, {"d": 0}, {"d": 1}])
        self.engine.volume_limits(name, self.limits[name])

    # -- what is asked ------------------------------------------------------------------------------------------------

    def labels(self) -> dict[str, str]:
        return {"app": self.rng.choice(APPS), "index": str(self.rng.randrange(1000))}

    def selector(self) -> Selector | None:
        return self.rng.choice(
            [
                None,
                (),
                *(((Requirement("app", "In", (app,)),)) for app in APPS),
                (Requirement("app", "NotIn", ("a",)),),
                (Requirement("index", "Exists"),),
            ]
        )

    def term(self) -> PodTerm:
        spaces = self.rng.choice([(), ("team",), ("other", "team")])
        chosen = self.rng.choice([None, None, (), (Requirement("tier", "In", ("1",)),)])
        return PodTerm(self.rng.choice(KEYS), self.selector(), spaces, chosen)

    def rules(self) -> Rules | None:
        def maybe(odds: float, made: Any) -> tuple[Any, ...]:
            return (made(),) if self.rng.random() < odds else ()

        def spread() -> Spread:
            draw = self.rng
            return Spread(
                draw.choice(KEYS), draw.choice([1, 2]), self.selector(), draw.choice([1, 3]),
                affinity=draw.random() < 0.5, taints=draw.random() < 0.5,
            )  # fmt: skip

        if self.rng.random() < 0.2:
            return None
        return Rules(
            self.rng.choice([None, None, (NodeTerm((Requirement("zone", "Exists"),)),)]),
            maybe(0.3, self.term),
            maybe(0.3, self.term),
            maybe(0.3, spread),
            maybe(0.2, lambda: HostPort(self.rng.choice([1, 2]))),
            maybe(0.2, lambda: self.rng.choice(["c1", "c2"])),
        )

    def asks(self) -> Task:
        self.number += 1
        extra = {"fpga": self.rng.choice([1, 2])} if self.rng.random() < 0.2 else {}
        return task(
            f"t{self.number}", namespace=self.rng.choice(SPACES), cpu=0, mem=0, labels=self.labels(),
            rules=self.rules(), extra=extra, tolerations=["own:NoSchedule"] if self.rng.random() < 0.4 else [],
        )  # fmt: skip


laws = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@laws
@given(st.integers(0, 2**32))
def test_after_any_history_the_engine_says_what_one_built_anew_says(seed: int) -> None:
    history = History(seed)
    asked = [history.asks() for _ in range(6)]
    for _ in range(12):
        for _ in range(history.rng.randint(1, 4)):
            history.step()
        # Room is told anew each time, as the ledger would.
        for name in history.nodes:
            count = sum(1 for p in history.pods.values() if p.node == name)
            history.number += 1
            history.engine.use_seen(NodeUse(name, history.number, 0, 0, count))
        fresh = history.anew()
        for each in [*asked, history.asks()]:
            assert history.engine.takers(each) == fresh.takers(each), (each, fresh.why(each))


@laws
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_no_decision_breaks_a_rule_and_what_is_rolled_back_leaves_no_trace(seed: int, size: int) -> None:
    history = History(seed)
    for _ in range(10):
        history.step()
    model = history.anew()
    engine = history.anew()
    probes = [history.asks() for _ in range(4)]
    before = [engine.takers(probe) for probe in probes]
    there: dict[str, int] = {}
    jobs = []
    for number in range(3):
        like = history.asks()
        tasks = tuple(
            msgspec.structs.replace(like, id=f"j{number}-{i}", name=f"j{number}-{i}", labels=history.labels())
            for i in range(size)
        )
        least = history.rng.randint(1, size)
        head = JobHead(f"gang/team/j{number}", "team", like.namespace, gang_min=least, created=float(number))
        jobs.append(PendingJob(head, tasks))
    for job, decision in zip(jobs, engine.decide(jobs), strict=True):
        placed = decision.placements
        assert not placed or len(placed) >= job.head.gang_min
        for placement in placed:  # in the order in which they were placed, each beside those before it
            assert placement.node in model.takers(placement.task), model.why(placement.task)
            rules = placement.task.rules or Rules()
            model.pod_seen(
                RunningTask(
                    placement.task.id, "", placement.task.namespace, placement.node, "", "", 0, Charge(0, 0), ours=True,
                    labels=placement.task.labels, extra=placement.task.request.extra, ports=rules.ports,
                    anti_affinity=rules.anti_affinity, claims=rules.claims,
                )
            )  # fmt: skip
            there[placement.node] = there.get(placement.node, 0) + 1
            here = sum(1 for p in history.pods.values() if p.node == placement.node)
            model.use_seen(NodeUse(placement.node, 1 + there[placement.node], 0, 0, here + there[placement.node]))
    engine.settle()
    assert [engine.takers(probe) for probe in probes] == before


@laws
@given(st.integers(0, 2**32))
def test_who_yields_makes_room_by_the_rules_too_and_nobody_yields_for_nothing(seed: int) -> None:
    history = History(seed)
    for _ in range(14):
        history.step()
    for uid, pod in history.pods.items():
        history.pods[uid] = msgspec.structs.replace(pod, ours=True, terminating=False, started=float(len(uid)))
    engine = history.anew()
    asked = history.asks()
    head = JobHead("pod/team/p", "team", asked.namespace, priority=5)
    probes = [history.asks() for _ in range(3)]
    before = [engine.takers(probe) for probe in probes]
    [decision] = engine.decide([PendingJob(head, (asked,))])
    if decision.victims:
        gone = {victim.uid for victim in decision.victims}
        [placement] = decision.placements
        assert placement.node not in history.anew().takers(asked)
        kept = dict(history.pods)
        for uid in gone:
            del history.pods[uid]
        assert placement.node in history.anew().takers(asked), "the room that the victims leave is room"
        for uid in gone:
            history.pods[uid] = kept[uid]
            assert placement.node not in history.anew().takers(asked), f"{uid} yields for nothing"
            del history.pods[uid]
        history.pods = kept
    engine.settle()
    assert [engine.takers(probe) for probe in probes] == before


@pytest.mark.parametrize("seed", range(3))
def test_histories_are_not_idle(seed: int) -> None:
    """The histories above place some and refuse some: otherwise they would prove nothing."""
    history = History(seed)
    for _ in range(25):
        history.step()
    counts = [len(history.engine.takers(history.asks())) for _ in range(60)]
    assert any(counts)
    assert not all(counts)
