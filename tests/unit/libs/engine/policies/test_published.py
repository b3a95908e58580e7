"""The published formulae, on nodes small enough to be worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from libs.domain.resources import Charge, GpuGrant
from libs.engine.ask import Ask, ask_key
from libs.engine.mix import TypicalMix
from libs.engine.policies import Surroundings, chosen
from libs.engine.snapshot import Snapshot
from libs.testkit.builders import node, request, task


class Desk:
    """One node, told what is on it, and a policy that scores tasks there."""

    def __init__(self, policy: str, gpus: int = 8, cpu: int = 96_000, mix: TypicalMix | None = None) -> None:
        self.snapshot = Snapshot()
        self.snapshot.node_seen(node("n", gpus=gpus, cpu=cpu, mib=1000))
        self.charges: list[Charge] = []
        around = Surroundings(self.snapshot, mix or TypicalMix(), lambda row: self.charges)
        ((self.policy, _),) = chosen({policy: 1}, around)

    def running(self, *devices: tuple[int, int], cpu: int = 0) -> Desk:
        charge = Charge(cpu, 0, tuple(GpuGrant(index, milli, milli) for index, milli in devices))
        self.snapshot.take(0, charge)
        self.charges.append(charge)
        return self

    def ask(self, **asked: Any) -> Ask:
        return Ask(ask_key(task("t", **asked)))

    def score(self, **asked: Any) -> int:
        ask, state = self.ask(**asked), self.snapshot.states[0]
        assert state is not None
        self.policy.epoch()
        return self.policy.one(state, ask, state.tight(ask))

    def devices(self, **asked: Any) -> list[int]:
        state = self.snapshot.states[0]
        assert state is not None
        self.policy.epoch()
        found = self.policy.choose(state, self.ask(**asked))
        return [grant.index for grant in found or ()]


def test_best_fit_counts_what_is_left_against_the_largest_node() -> None:
    # 100 x (1 - 0.5 x 84/128 - 0.5 x 7/8) = 23.4
    assert Desk("best-fit").score(gpus=1, cpu=12_000) == 23
    assert Desk("best-fit").running(*((i, 1000) for i in range(7)), cpu=84_000).score(gpus=1, cpu=12_000) == 100


def test_dot_product_prefers_nodes_that_have_little_of_what_is_asked() -> None:
    # 100 x (1 - (96/128 x 12/128 + 8/8 x 1/8) / 2) = 90.2
    assert Desk("dot-product").score(gpus=1, cpu=12_000) == 90
    assert Desk("dot-product").running((0, 1000), cpu=96_000).score(gpus=1, cpu=0) == 94


@pytest.mark.parametrize(
    ("running", "asked", "score"),
    [
        ([], {"gpus": 1}, 25),
        ([(0, 1000)], {"gpus": 4}, 46),
        ([(0, 500)], {"share": 300}, 95),
        ([(0, 900)], {"share": 300}, 49),
        ([(0, 900)], {"cpu": 1000}, 0),
    ],
    ids=["idle node", "four idle devices taken", "device in use, half free", "a device broken", "no GPU asked"],
)
def test_packing_ranks_devices_in_use_before_idle_ones(
    running: list[tuple[int, int]], asked: dict[str, int], score: int
) -> None:
    desk = Desk("packing")
    for device in running:
        desk.running(device)
    assert desk.score(**asked) == score


def test_clustering_keeps_kinds_together() -> None:
    assert Desk("clustering").score(gpus=1) == 25
    alone = Desk("clustering").running((0, 1000))
    assert alone.score(gpus=1) == 25 * 1000 // 8000 + 75
    assert alone.score(gpus=2) == 3
    assert alone.score(share=300) == 3
    assert alone.running((1, 300)).score(gpus=1) == 25 * 1300 // 8000 + 50


def test_fgd_scores_what_becomes_unusable() -> None:
    halves = TypicalMix([(request(share=500, cpu=0), 1), (request(gpus=1, cpu=0), 1)])
    idle = Desk("fgd", gpus=1, mix=halves)
    # 300 of an idle device: 700 stay usable for halves (700/2) of 1000 before, so D = 300 - (1000 - 350) = -350.
    assert idle.score(share=300) == 41
    # The device that leaves most usable: 200 of a device with 700 keeps a half possible, of one with 500 it does not.
    assert Desk("fgd", gpus=2, mix=halves).running((0, 500), (1, 300)).devices(share=200) == [1]


def test_first_fit_takes_the_first_device_and_best_fit_the_tightest() -> None:
    assert Desk("first-fit").running((1, 700)).devices(share=300) == [0]
    assert Desk("best-fit").running((1, 700)).devices(share=300) == [1]
    assert Desk("spread").running((0, 100)).devices(share=300) == [1]


def test_most_allocated_leaves_out_what_a_node_has_none_of() -> None:
    assert Desk("most-allocated", gpus=0, cpu=1000).score(cpu=500, mem=500_000) == 50
    ratio = Desk("requested-to-capacity-ratio", gpus=4, cpu=1000)
    assert ratio.score(cpu=500, mem=0, gpus=1) == 38  # (50 + 25) / 2, the resource at 0 left out, rounded up
