"""What a class of tasks has kept of what nodes look like is what it would work out anew, whatever came in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.domain.resources import WHOLE, Charge, GpuGrant
from libs.domain.usage import NodeUse
from libs.engine import feasible, looks
from libs.engine.api import EngineConfig
from libs.engine.ask import Ask, ask_key
from libs.engine.feasible import Feasibility
from libs.engine.policies import POLICIES, chosen
from libs.engine.policies.base import Surroundings
from libs.engine.session import Session
from libs.engine.snapshot import Snapshot
from libs.testkit.builders import node, pod

laws = settings(max_examples=25, deadline=None)

NAMES = [f"n{i}" for i in range(12)]
ASKS: list[dict[str, Any]] = [
    {"cpu": 1000},
    {"gpus": 1, "cpu": 4000},
    {"gpus": 1, "cpu": 4000, "mem": 9000},
    {"gpus": 1, "cpu": 4000, "selector": {"zone": "2"}, "tolerations": ("spot=yes:PreferNoSchedule",)},
    {"gpus": 2, "cpu": 4000, "mem": 4096},
    {"share": 300, "cpu": 1000},
    {"share": 300, "cpu": 1000, "mem": 3000, "models": ["A"]},
    {"share": 500, "cpu": 2000, "models": ["A"], "selector": {"zone": "1"}},
    {"mib": 4000, "cpu": 500},
]
CHARGES = [
    Charge(1000, 1024),
    Charge(4000, 1024, (GpuGrant(0, WHOLE, 8192),)),
    Charge(1000, 0, (GpuGrant(1, 300, 2457),)),
    Charge(0, 0, (GpuGrant(1, 500, 8192),)),
    Charge(0, 0, (GpuGrant(0, WHOLE, 8192), GpuGrant(1, WHOLE, 8192))),
]

specs = st.fixed_dictionaries(
    {
        "gpus": st.sampled_from([0, 2, 2, 4]),
        "model": st.sampled_from(["A", "B"]),
        "cpu": st.sampled_from([8000, 16_000]),
        "mem": st.sampled_from([8192, 8195, 9000, 65_536]),
        "pods": st.sampled_from([2, 110]),
        "labels": st.sampled_from([{"zone": "1"}, {"zone": "2"}]),
        "taints": st.sampled_from([(), (), ("own=yes:NoSchedule",), ("spot=yes:PreferNoSchedule",)]),
        "cordoned": st.integers(0, 9).map(lambda n: n == 0),
    }
)


class World:
    """A cluster that changes, and classes of tasks that follow it."""

    def __init__(self, policies: tuple[str, ...]) -> None:
        self.session = Session(EngineConfig(weights=dict.fromkeys(policies, 1)))
        self.snapshot, self.mix = self.session.snapshot, self.session.mix
        self.tasks = [pod("p", **ask).tasks[0] for ask in ASKS]
        self.seen = 0

    def is_kept_well(self) -> None:
        for task in self.tasks:
            view = self.session.feasible(task)
            anew = Feasibility(self.snapshot, view.ask, self.session.policies)
            anew.refresh()
            assert view.keys.tolist() == anew.keys.tolist()

    def step(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(NAMES))
        kinds: list[Callable[[str, st.DataObject], None]] = [
            self.take, self.take, self.take, self.give, self.node, self.use, self.gone, self.learn, self.trim,
        ]  # fmt: skip
        data.draw(st.sampled_from(kinds))(name, data)

    def row(self, name: str) -> int | None:
        row = self.snapshot.rows.get(name)
        state = None if row is None else self.snapshot.states[row]
        return row if state is not None and len(state.milli) > 1 else None

    def take(self, name: str, data: st.DataObject) -> None:
        """Whether it fits or not: after a node has shrunk, free room is below nothing."""
        row, charge = self.row(name), data.draw(st.sampled_from(CHARGES))
        if row is not None:
            self.snapshot.take(row, charge)

    def give(self, name: str, data: st.DataObject) -> None:
        row, charge = self.row(name), data.draw(st.sampled_from(CHARGES))
        if row is not None:
            self.snapshot.give(row, charge)

    def node(self, name: str, data: st.DataObject) -> None:
        self.snapshot.node_seen(node(name, mib=8192, **data.draw(specs)))

    def use(self, name: str, data: st.DataObject) -> None:
        self.seen += 1
        gpus = tuple(data.draw(st.lists(st.sampled_from([(0, 0), (300, 2457), (WHOLE, 8192)]), max_size=4)))
        disputed = data.draw(st.sampled_from([(), (), (0,)]))
        blind, gone = data.draw(st.sampled_from([0, 0, 1])), data.draw(st.integers(0, 9)) == 0
        pods = data.draw(st.integers(0, 2))
        self.snapshot.use_seen(
            NodeUse(name, self.seen, cpu=1000, pods=pods, gpus=gpus, disputed=disputed, blind=blind, gone=gone)
        )

    def gone(self, name: str, data: st.DataObject) -> None:
        self.snapshot.node_gone(name)

    def learn(self, name: str, data: st.DataObject) -> None:
        self.seen += 1
        self.mix.learn(pod(f"p{self.seen}", **data.draw(st.sampled_from(ASKS))))

    def trim(self, name: str, data: st.DataObject) -> None:
        self.snapshot.trim()


@pytest.mark.parametrize("few", [0, 1000], ids=["together", "one by one"])
@pytest.mark.parametrize("policies", [("drystone",), ("fgd",), ("drystone", "weighted-best-fit"), ("first-fit-hash",)])
@laws
@given(start=st.lists(specs, min_size=1, max_size=len(NAMES)), steps=st.integers(1, 25), data=st.data())
def test_what_is_kept_by_look_is_what_would_be_worked_out_anew(
    policies: tuple[str, ...], few: int, start: list[dict[str, Any]], steps: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feasible, "FEW", few)
        patch.setattr(feasible, "MANY", 3 if not few else 1000)
        patch.setattr(looks, "REMEMBERED", -20)  # numbered anew at almost every trim
        world = World(policies)
        for name, spec in zip(NAMES, start, strict=False):
            world.snapshot.node_seen(node(name, mib=8192, **spec))
        for _ in range(steps):
            world.step(data)
            if data.draw(st.booleans()):
                world.is_kept_well()
        world.is_kept_well()


def test_classes_that_differ_in_memory_and_selectors_only_share_their_scores() -> None:
    def scores(policy: str, **asked: Any) -> object:
        return sessions[policy].feasible(pod("p", **asked).tasks[0]).scores

    sessions = {policy: Session(EngineConfig(weights={policy: 1})) for policy in ("drystone", "weighted-best-fit")}
    one = scores("drystone", gpus=1, cpu=4000)
    assert scores("drystone", gpus=1, cpu=4000, mem=9000, selector={"zone": "2"}) is one
    assert scores("drystone", gpus=1, cpu=4001) is not one
    assert scores("drystone", gpus=1, cpu=4000, models=["A"]) is not one
    # What is left of memory makes a difference there.
    assert scores("weighted-best-fit", gpus=1, mem=1000) is not scores("weighted-best-fit", gpus=1, mem=2000)


def test_nodes_whose_kubelets_reserve_some_mib_more_look_alike_unless_a_policy_scores_by_memory() -> None:
    def looks_of(**weights: int) -> set[int]:
        session = Session(EngineConfig(weights={name.replace("_", "-"): weight for name, weight in weights.items()}))
        for at in range(5):
            session.snapshot.node_seen(node(f"n{at}", gpus=2, mem=65_536 - at))
        return set(session.snapshot.looks())

    assert len(looks_of(drystone=1)) == 1
    assert len(looks_of(fgd=1, best_fit=1)) == 1
    assert len(looks_of(drystone=1, spread=1)) == 5


def test_a_task_goes_where_memory_suffices_among_nodes_that_look_alike() -> None:
    session = Session(EngineConfig(weights={"drystone": 1}))
    for at in range(5):
        session.snapshot.node_seen(node(f"n{at}", gpus=2, cpu=8000, mem=8000 + at))
    view = session.feasible(pod("p", gpus=1, mem=8003).tasks[0])
    assert (view.keys[:5] >= 0).tolist() == [False, False, False, True, True]
    session.snapshot.take(4, Charge(0, 2))
    view.refresh()
    assert (view.keys[:5] >= 0).tolist() == [False, False, False, True, False]
    alone = Feasibility(session.snapshot, view.ask, session.policies)
    alone.refresh()
    assert alone.keys.tolist() == view.keys.tolist()


def test_nodes_look_alike_by_capacity_and_room_and_by_nothing_else() -> None:
    snapshot = Snapshot()
    for name in ("a", "b", "c"):
        snapshot.node_seen(
            node(name, gpus=2, mib=8192, cpu=8000, labels={"rack": name}, taints=(f"own={name}:NoSchedule",))
        )
    snapshot.node_seen(node("other", gpus=2, mib=8192, cpu=16_000))
    a, b, c, other = snapshot.looks()
    assert a == b == c != other
    charge = Charge(1000, 0, (GpuGrant(0, 300, 2457),))
    snapshot.take(0, charge)
    snapshot.take(1, charge)
    assert snapshot.looks()[0] == snapshot.looks()[1] != c
    snapshot.give(0, charge)
    assert snapshot.looks()[0] == c  # an earlier look comes back under its number
    snapshot.take(1, Charge(0, 0), pods=110)
    snapshot.take(2, Charge(0, 0), pods=110)
    assert snapshot.looks()[1:3] == [looks.FULL, looks.FULL]
    snapshot.node_gone("other")
    assert snapshot.looks()[3] == looks.FULL


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_who_counts_nodes_of_a_look_as_alike_scores_them_alike(policy: str) -> None:
    snapshot = Snapshot()
    for at in range(6):
        snapshot.node_seen(node(f"n{at}", gpus=4, mib=8192, cpu=16_000, mem=65_536 - 20_000 * (at % 2)))
    charges: dict[int, list[Charge]] = {0: [CHARGES[1]], 1: [CHARGES[2], CHARGES[3]], 2: [CHARGES[1]]}
    for row, held in charges.items():
        for charge in held:
            snapshot.take(row, charge)
    ((scores, _),) = chosen({policy: 1}, Surroundings(snapshot, charges=lambda row: charges.get(row, [])))
    scores.epoch()
    for asked in ASKS[:5]:
        ask, found = Ask(ask_key(pod("p", **asked).tasks[0])), {}
        for state, look in zip(snapshot.states, snapshot.looks(), strict=True):
            assert state is not None
            found.setdefault(look, set()).add(scores.one(state, ask, state.tight(ask)))
        if scores.by_look:
            assert all(len(of_look) == 1 for of_look in found.values())
