"""The tally of hostile job events: what counts as answered, and how long a partition stood still."""

import json

import pytest

from bench.answers import Tally, longest_gap
from bench.hostile import Generator, Hostile, headers_of
from libs.bus import envelope


def event(id: str, partition: int = 0) -> Hostile:
    return Hostile(id, "good", None, b"{}", headers_of(id), partition)


@pytest.mark.parametrize(
    ("line", "gap"),
    [
        pytest.param([], 0.0, id="nothing was sent"),
        pytest.param([(0.0, 0.5)], 0.5, id="the wait of one"),
        pytest.param([(0.0, 0.1), (5.0, 5.2)], 0.2, id="idle is no stall"),
        pytest.param([(0.0, 3.0), (0.1, 1.0), (0.2, 2.0)], 1.0, id="one waits while others pass"),
        pytest.param([(0.0, 0.1), (0.05, 2.0), (0.2, 2.1)], 1.9, id="from the last answer to the next"),
        pytest.param([(1.0, 0.9)], 0.1, id="answered before the broker's acknowledgement was seen"),
    ],
)
def test_the_longest_stall_of_a_partition(line: list[tuple[float, float]], gap: float) -> None:
    assert longest_gap(line) == pytest.approx(gap)


def test_an_answer_that_outruns_the_acknowledgement_is_not_lost() -> None:
    tally = Tally()
    tally.answer("a", "accepted", 1.0)
    tally.answer((0, 7), "dead_letters", 1.1)
    tally.took(event("a"), (0, 6), 2.0)
    tally.took(event("b"), (0, 7), 2.0)
    assert tally.counts() == {"accepted": 1, "duplicates": 0, "cancelled": 0, "dead_letters": 1}
    assert not tally.unanswered
    assert not tally.early


def test_an_event_without_an_answer_and_one_with_two_are_both_seen() -> None:
    tally = Tally()
    for offset, id in enumerate("ab"):
        tally.took(event(id), (0, offset), 1.0)
    for what in ("accepted", "duplicates"):
        tally.answer("b", what, 2.0)
    assert [one.event.id for one in tally.unanswered] == ["a"]
    assert [len(one.answers) for one in tally.sent.values()] == [0, 2]


def test_the_same_seed_sends_the_same_and_another_seed_does_not() -> None:
    def made(seed: int) -> list[Hostile]:
        generator = Generator("f", seed, 12)
        return [generator.next() for _ in range(300)]

    assert made(1) == made(1)
    assert made(1) != made(2)


def test_events_are_of_every_kind_and_within_what_the_topic_takes() -> None:
    generator = Generator("f", 3, 12)
    events = [generator.next() for _ in range(1000)]
    assert {e.kind for e in events} == {
        "good", "the same again", "id of another job", "cancel", "field", "number", "huge gang", "pod template",
        "of others", "headers", "structured", "bytes", "huge key", "wide labels", "grows", "refused by the server",
        "extreme",
    }  # fmt: skip
    assert len({e.id for e in events}) == len(events)
    assert all(0 <= e.partition < 12 for e in events)
    assert max(len(e.value or b"") + len(e.key or b"") for e in events) < 1 << 20
    good = [json.loads(e.value or b"") for e in events if e.kind == "good"]
    again = [json.loads(e.value or b"") for e in events if e.kind == "the same again"]
    assert all(body in good for body in again)


def test_an_event_whose_id_can_be_read_has_the_id_that_its_answer_is_known_by() -> None:
    generator = Generator("f", 5, 12)
    for n in range(2000):
        e = generator.next()
        read = envelope.read("drystone.jobs", e.partition, n, e.key, e.value, e.headers)
        assert read.fault or read.id == e.id, e
