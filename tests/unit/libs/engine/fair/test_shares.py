"""Where queues stand: by what they deserve, with the next request counted in."""

from __future__ import annotations

import pytest

from libs.domain.queues import Queue, QueueHistory, Quota, Weights
from libs.engine.fair import Amounts, Shares

GPU = 1000


def shares(used: dict[str, int], *queues: Queue, total: int = 8, **knobs: int) -> Shares:
    found = Shares(lambda path: (used.get(path, 0) * GPU, 0, 0), **knobs)
    found.total_seen((total * GPU, 0, 0))
    for queue in queues:
        found.queue_seen(queue)
    return found


def deserves(path: str, gpus: int, weight: int = 1) -> Queue:
    return Queue(path, deserved=Quota(gpu_milli=gpus * GPU), weights=Weights(gpu=weight))


def ask(gpus: int) -> Amounts:
    return gpus * GPU, 0, 0


def test_a_queue_that_was_just_emptied_does_not_come_before_one_whose_request_stays_within_its_share() -> None:
    found = shares({"a": 0, "b": 1}, deserves("a", 3), deserves("b", 5))
    assert found.standing("b", ask(4)) < found.standing("a", ask(4))


def test_who_is_below_its_share_goes_before_who_is_above_whatever_their_requests() -> None:
    found = shares({"a": 2, "b": 6}, deserves("a", 3), deserves("b", 5))
    assert found.standing("a", ask(6)) < found.standing("b", ask(1))


def test_what_is_over_is_divided_by_weight() -> None:
    found = shares({"a": 3, "b": 2}, deserves("a", 0, weight=2), deserves("b", 0, weight=1))
    assert found.standing("a", ask(1)) < found.standing("b", ask(1))  # 4 of 2 parts, 3 of one


def test_weight_nought_takes_no_part_in_what_is_over() -> None:
    found = shares({"a": 0, "b": 7}, deserves("a", 0, weight=0), deserves("b", 0))
    assert found.standing("b", ask(1)) < found.standing("a", ask(1))


def test_the_dominant_resource_decides() -> None:
    used = {"a": (1000, 50_000, 0), "b": (2000, 1_000, 0)}
    found = Shares(used.__getitem__)
    found.total_seen((8000, 64_000, 0))
    found.queue_seen(deserves("a", 0))
    found.queue_seen(deserves("b", 0))
    assert found.standing("b", (1000, 1000, 0)) < found.standing("a", (1000, 1000, 0))


def test_what_was_used_lately_counts_by_the_knob_but_takes_no_queue_out_of_its_share() -> None:
    past = QueueHistory("a", at=1000.0, half_life_s=3600, gpu_milli_s=6 * GPU * 3600)
    for knob, behind in ((0, False), (100, True)):
        found = shares({"a": 1, "b": 2}, deserves("a", 0), deserves("b", 0), history=knob)
        found.history_seen(past)
        found.now = 1000.0
        assert (found.standing("b", ask(1)) < found.standing("a", ask(1))) is behind
    within = shares({"a": 1, "b": 2}, deserves("a", 3), deserves("b", 1), history=100)
    within.history_seen(past)
    assert within.standing("a", ask(1)) < within.standing("b", ask(1))


def test_the_past_fades() -> None:
    found = shares({"a": 0, "b": 1}, deserves("a", 0), deserves("b", 0), history=50)
    found.history_seen(QueueHistory("a", at=1000.0, half_life_s=3600, gpu_milli_s=6 * GPU * 3600))
    found.now = 1000.0
    assert found.standing("b", ask(1)) < found.standing("a", ask(1))
    found.now = 1000.0 + 10 * 3600
    assert found.standing("a", ask(1)) < found.standing("b", ask(1))


def test_at_fairness_nought_differences_above_the_share_do_not_count_and_the_share_still_does() -> None:
    found = shares({"a": 1, "b": 6, "c": 1}, deserves("a", 0), deserves("b", 0), deserves("c", 2), fairness=0)
    assert found.standing("a", ask(1))[:2] == found.standing("b", ask(1))[:2]
    assert found.standing("c", ask(1)) < found.standing("a", ask(1))


def test_one_queue_with_nothing_said_is_entitled_to_all_and_siblings_divide_what_nobody_deserves() -> None:
    alone = shares({})
    assert alone.part("default")[0] == 8 * GPU
    found = shares({}, deserves("a", 2, weight=1), deserves("b", 0, weight=3), deserves("a/x", 1))
    assert found.part("a")[0] == 2 * GPU + 1.5 * GPU
    assert found.part("b")[0] == 4.5 * GPU
    assert found.part("a/x")[0] == found.part("a")[0], "an only child has all that its parent has"
    assert found.entitled("b", ask(4)) and not found.entitled("b", ask(5))


def test_who_stands_above_its_part_may_not_have_room_kept() -> None:
    used = {"a": 2, "b": 0}
    found = shares(used, deserves("a", 2, weight=0), deserves("b", 6))
    assert found.entitled("a", ask(2)), "its own tasks hold its part, and will end"
    used["a"] = 3
    assert not found.entitled("a", ask(2))


def test_knobs_go_from_0_to_100() -> None:
    with pytest.raises(ValueError, match="0 to 100"):
        Shares(lambda _: (0, 0, 0), fairness=101)
