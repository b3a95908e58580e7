"""Who waits in the partitions of other replicas, told in a few dozen entries."""

from __future__ import annotations

import msgspec
import pytest

from libs.contracts.events import LearnedMix, QueueLine, Stander
from libs.engine.fair import Amounts, Place
from services.placement.lines import HEADS, Heard, ranks, told_of

ASK: tuple[Amounts, tuple[str, ...]] = ((8000, 100, 1), ("H100",))


def place(number: int, partition: int = 0) -> Place:
    return 1, 0, float(number), f"pod/d/{partition}-{number}"


def line(count: int, partition: int = 0) -> QueueLine:
    places = [place(number, partition) for number in range(count)]
    return told_of("research/vision", places, lambda _: ASK, (8000 * count, 100 * count, count))


def heard(*counts: int) -> Heard:
    found = Heard()
    for partition, count in enumerate(counts):
        found.take(partition, (line(count, partition),))
    return found


def test_the_first_are_told_one_by_one_and_those_far_back_ever_more_rarely() -> None:
    assert ranks(0) == []
    assert ranks(3) == [1, 2, 3]
    assert ranks(100) == [*range(1, HEADS + 1), 24, 36, 54, 81, 100]
    assert len(ranks(100_000)) < 50


@pytest.mark.parametrize("number", [0, 1, 7, 14])
def test_places_among_the_first_are_exact(number: int) -> None:
    elsewhere = heard(5000, 3000).elsewhere(())
    assert elsewhere.before("research/vision", (1, 0, number + 0.5, "pod/d/mine")) == 2 * (number + 1)


@pytest.mark.parametrize("number", [20, 99, 731, 2998, 4400])
def test_places_further_back_are_right_to_a_quarter(number: int) -> None:
    elsewhere = heard(5000, 3000).elsewhere(())
    true = min(number + 1, 5000) + min(number + 1, 3000)
    assert elsewhere.before("research/vision", (1, 0, number + 0.5, "pod/d/mine")) == pytest.approx(true, rel=0.25)


def test_what_others_ask_for_counts_in_the_queue_and_above_and_ours_not_twice() -> None:
    everybody = heard(40, 30)
    elsewhere = everybody.elsewhere({1})
    assert elsewhere.waiting == {"research/vision": 40}
    assert elsewhere.demand == {"research/vision": (320_000, 4000, 40), "research": (320_000, 4000, 40)}
    assert len(elsewhere.heads["research/vision"]) == HEADS
    assert everybody.elsewhere({0, 1}).before("research/vision", place(99)) == 0


def test_who_is_known_to_stand_right_before_is_named() -> None:
    elsewhere = heard(5, 5).elsewhere(())
    names = [one[3] for one in elsewhere.just_before("research/vision", (1, 0, 2.5, ""), 3)]
    assert names == ["pod/d/1-1", "pod/d/0-2", "pod/d/1-2"]
    assert elsewhere.just_before("research/vision", (0, 0, 0.0, ""), 3) == []


def test_a_partition_in_which_nobody_waits_any_more_is_told_as_that() -> None:
    found = heard(5)
    found.take(0, ())
    assert found.elsewhere(()).waiting == {}


def test_the_release_before_reads_the_record_as_it_did() -> None:
    class Before(msgspec.Struct, frozen=True):
        partition: int
        seen: int

    record = msgspec.json.encode(LearnedMix(3, 10, lines=(line(5000),)))
    assert msgspec.json.decode(record, type=Before) == Before(3, 10)
    assert msgspec.json.decode(record, type=LearnedMix).lines == (line(5000),)
    assert len(record) < 4000


def test_a_record_of_the_release_before_leaves_the_models_open() -> None:
    record = msgspec.json.encode(("pod/a/x", 1, 0, 5.0, 1, (8000, 100, 1)))
    assert msgspec.json.decode(record, type=Stander) == Stander("pod/a/x", 1, 0, 5.0, 1, (8000, 100, 1))
    now = msgspec.json.encode(Stander("pod/a/x", 1, 0, 5.0, 1, (8000, 100, 1), ("H100",)))

    class Before(msgspec.Struct, frozen=True, array_like=True):
        job: str
        aged: int
        by_priority: int
        created: float
        rank: int
        ask: tuple[int, int, int]

    assert msgspec.json.decode(now, type=Before).ask == (8000, 100, 1)
