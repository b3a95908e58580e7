"""The exact arithmetic of one node."""

from __future__ import annotations

import pytest

from libs.domain.resources import Charge, GpuGrant
from libs.domain.usage import NodeUse
from libs.engine.ask import Ask, ask_key
from libs.engine.devices import NodeState
from libs.testkit.builders import node, task


def ask(**more: object) -> Ask:
    return Ask(ask_key(task("t", **more)))


def test_taking_and_giving_back_are_exact_inverses_even_below_zero() -> None:
    state = NodeState(0, node("n", gpus=1, cpu=100), None)
    before = (state.cpu, state.mem, state.pods, list(state.milli), list(state.mib), state.idle, state.gpu_free)
    charge = Charge(1000, 7, (GpuGrant(0, 1000, 81920),))
    state.take(charge)
    assert (state.cpu, state.idle) == (-900, 0)
    state.give(charge)
    assert (state.cpu, state.mem, state.pods, list(state.milli), list(state.mib), state.idle, state.gpu_free) == before


def test_a_node_overfilled_in_cpu_still_takes_what_asks_for_none() -> None:
    state = NodeState(0, node("n", gpus=1, cpu=100), NodeUse("n", 1, cpu=5000))
    assert state.charge(ask(cpu=0, gpus=1)) is not None
    assert state.charge(ask(cpu=1, gpus=1)) is None


def test_a_share_takes_the_tightest_device_that_fits_and_not_the_first() -> None:
    used = NodeUse("n", 1, gpus=((0, 0), (300, 24576), (700, 57344), (900, 73728)))
    state = NodeState(0, node("n", gpus=4), used)
    assert state.choose(ask(share=300)) == (GpuGrant(2, 300, 24576),)
    assert state.choose(ask(share=500)) == (GpuGrant(1, 500, 40960),)


def test_shares_of_two_devices_are_on_two_devices() -> None:
    state = NodeState(0, node("n", gpus=2), None)
    grants = state.choose(ask(share=500, gpus=2))
    assert grants is not None
    assert [g.index for g in grants] == [0, 1]


def test_devices_may_be_numbered_with_gaps() -> None:
    facts = node("n", gpus=3)
    gap = type(facts)(name="n", uid="u", version="1", spec="s", cpu=9000, mem=9000, gpus=(facts.gpus[0], facts.gpus[2]))
    state = NodeState(0, gap, None)
    grants = state.choose(ask(gpus=2))
    assert grants is not None
    assert [g.index for g in grants] == [0, 2]


def test_a_device_of_unknown_memory_is_given_out_by_share_and_not_by_memory() -> None:
    state = NodeState(0, node("n", gpus=1, mib=0), None)
    assert state.choose(ask(share=500)) == (GpuGrant(0, 500, 0),)
    assert state.choose(ask(mib=100)) is None


@pytest.mark.parametrize(("share", "per_device"), [(500, 2), (334, 2), (333, 3), (1, 1000)])
def test_how_many_shares_an_empty_device_serves(share: int, per_device: int) -> None:
    assert ask(share=share).per_device(81920) == per_device


def test_a_device_that_two_pods_overfill_takes_nothing_from_what_is_free_beside_it() -> None:
    state = NodeState(0, node("n", gpus=2), NodeUse("n", 1, gpus=((2000, 163840), (0, 0)), disputed=(0,)))
    assert state.gpu_free == 1000
    assert state.choose(ask(gpus=1)) == (GpuGrant(1, 1000, 81920),)
    second = Charge(0, 0, (GpuGrant(0, 1000, 81920),))
    state.give(second)
    assert state.gpu_free == 1000
    state.take(second)
    assert state.gpu_free == 1000
