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


PAIRS = ((0, 1), (2, 3), (4, 5, 6, 7))


def taken(state: NodeState, **more: object) -> list[int]:
    charge = state.charge(ask(cpu=0, mem=0, **more))
    assert charge is not None
    state.take(charge)
    return [grant.index for grant in charge.gpus]


def test_several_gpus_share_nvlink_and_the_smallest_group_that_is_enough_is_broken() -> None:
    state = NodeState(0, node("n", nvlink=PAIRS), None)
    assert taken(state, gpus=1) == [0]
    assert taken(state, gpus=1) == [1], "what is broken is used up first"
    assert taken(state, gpus=4) == [4, 5, 6, 7]
    assert taken(state, gpus=2) == [2, 3]


def test_more_gpus_than_any_group_has_come_from_few_groups() -> None:
    state = NodeState(0, node("n", nvlink=PAIRS), None)
    assert taken(state, gpus=5) == [0, 4, 5, 6, 7]
    assert taken(state, gpus=3) == [1, 2, 3], "groups never bar what fits"


def test_a_node_that_does_not_say_its_groups_gives_the_first_devices() -> None:
    state = NodeState(0, node("n"), None)
    assert (taken(state, gpus=1), taken(state, gpus=3)) == ([0], [1, 2, 3])


def test_devices_that_no_group_names_share_nvlink_with_nobody() -> None:
    state = NodeState(0, node("n", gpus=6, nvlink=((4, 5),)), None)
    assert taken(state, gpus=2) == [4, 5]
    assert taken(state, gpus=2) == [0, 1]


def test_shares_of_several_devices_keep_to_one_group_and_to_the_model_asked_for() -> None:
    used = NodeUse("n", 1, gpus=((0, 0), (600, 49152), (0, 0), (600, 49152)))
    state = NodeState(0, node("n", gpus=4, nvlink=((0, 1), (2, 3))), used)
    assert taken(state, gpus=2, share=400) == [0, 1], "not the two tightest ones, which are apart"
    assert NodeState(0, node("n", gpus=4, nvlink=((0, 1), (2, 3))), used).charge(ask(gpus=2, models=["B"])) is None


@pytest.mark.parametrize(
    ("share", "one", "three"),
    [(0.0, (0,), (0, 1, 2)), (0.25, (2,), (2, 3, 4)), (0.3, (2,), (2, 3, 4)), (0.75, (6,), (0, 6, 7))],
)
def test_whole_devices_are_given_out_from_where_one_begins(share: float, one: object, three: object) -> None:
    state = NodeState(0, node("n", gpus=8), None)
    state.begin_at(share)
    assert tuple(g.index for g in state.choose(ask(gpus=1)) or ()) == one
    assert tuple(g.index for g in state.choose(ask(gpus=3)) or ()) == three
    assert len(state.choose(ask(gpus=8)) or ()) == 8
    assert state.choose(ask(gpus=9)) is None
