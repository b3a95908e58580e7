"""The typical mix: what counts, how often, and how much one owner may count."""

from __future__ import annotations

import pytest
from msgspec import structs

from libs.engine.api import PendingJob
from libs.engine.mix import FADE, ONE, TypicalMix, shape_of
from libs.testkit.builders import pod, request


def job(name: str, tenant: str = "team", **asked: int) -> PendingJob:
    found = pod(name, **asked)
    return structs.replace(found, head=structs.replace(found.head, tenant=tenant))


def weights(mix: TypicalMix) -> dict[int, float]:
    """GPUs asked -> part of the mix."""
    return {share.shape.gpus: round(share.weight / ONE, 3) for share in mix.shares()}


def test_a_job_counts_once_however_often_it_is_tried() -> None:
    mix = TypicalMix()
    for _ in range(50):
        mix.learn(job("stuck", gpus=8))
    mix.learn(job("other", gpus=1))
    assert weights(mix) == {1: 0.5, 8: 0.5}


def test_a_crash_loop_moves_the_mix_by_its_owners_part_and_no_more() -> None:
    mix = TypicalMix()
    for i in range(40):
        mix.learn(job(f"j{i}", tenant=f"team{i % 4}", gpus=1))
    for i in range(5000):
        mix.learn(job(f"crash{i}", tenant="looping", gpus=8))
    assert weights(mix)[8] <= 0.25


@pytest.mark.parametrize("others", range(7))
@pytest.mark.parametrize("tasks", [[1], [3], [1, 7, 2], [40, 1]])
def test_of_two_owners_nobody_is_more_than_half_of_three_a_third_of_more_a_quarter(
    others: int, tasks: list[int]
) -> None:
    mix = TypicalMix()
    for owner in range(others):
        for i in range(tasks[owner % len(tasks)]):
            mix.learn(job(f"{owner}-{i}", tenant=f"team{owner}", gpus=1))
    for i in range(2000):
        mix.learn(job(f"loop{i}", tenant="looping", gpus=8))
    part = 1 / min(others + 1, 4)
    assert part - 0.006 < weights(mix)[8] <= part + 0.001


def test_owners_in_their_bounds_count_in_full() -> None:
    mix = TypicalMix()
    for tenant in range(5):
        for i in range(10):
            mix.learn(job(f"{tenant}-{i}", tenant=f"team{tenant}", gpus=1 if tenant else 8))
    assert weights(mix) == {1: 0.8, 8: 0.2}


def test_an_old_mix_fades() -> None:
    mix = TypicalMix()
    for i in range(FADE // 2):
        mix.learn(job(f"old{i}", gpus=1))
    for i in range(2 * FADE):
        mix.learn(job(f"new{i}", gpus=8))
    assert weights(mix)[8] > 0.85


def test_versions_come_often_at_first_and_seldom_later() -> None:
    mix = TypicalMix()
    at: list[int] = []
    for i in range(1000):
        before = mix.version
        mix.learn(job(f"j{i}", gpus=1))
        if mix.version != before:
            at.append(mix.seen)
    assert at[:6] == [1, 2, 3, 4, 6, 9]
    assert len(at) < 20


def test_a_mix_survives_a_restart() -> None:
    mix = TypicalMix()
    for i in range(100):
        mix.learn(job(f"j{i}", tenant=f"t{i % 3}", gpus=1 + i % 2))
    other = TypicalMix()
    other.restore(mix.state())
    assert other.shares() == mix.shares()
    assert other.seen == mix.seen


def test_a_fixed_mix_learns_nothing() -> None:
    mix = TypicalMix([(request(gpus=1), 3), (request(gpus=2), 1)])
    mix.learn(job("j", gpus=8))
    assert weights(mix) == {1: 0.75, 2: 0.25}


def test_memory_and_the_order_of_models_make_no_other_shape() -> None:
    assert shape_of(request(gpus=1, mem=1, models=["b", "a"])) == shape_of(request(gpus=1, mem=2, models=["a", "b"]))
