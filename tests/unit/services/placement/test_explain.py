"""What is said of a place in line, and that people and `drystone why` read the same."""

from __future__ import annotations

import pytest

from cli.jobview import place_of
from libs.domain.line import Turn
from services.placement.explain import _rounded, sentence

TURN = Turn(
    queue="research/vision", position=3, waiting=40, overall=7, behind=("pod/team/a", "pod/team/b"), why="older",
    start=1.8e9, start_low=1.8e9 - 600, start_high=1.8e9 + 1200, basis="predicted from earlier runs",
    bound_s=1860, bound_basis="a reservation and the run times of what runs", kept_on=("n5",),
)  # fmt: skip


def test_the_place_in_line_is_said_in_one_sentence() -> None:
    assert sentence(TURN) == (
        "3rd of 40 waiting in queue research/vision (7th of all), behind pod/team/a (older); room is kept for it on n5"
        "; expected to start at 2027-01-15T08:00Z, between 2027-01-15T07:50Z and 2027-01-15T08:20Z"
        " (predicted from earlier runs); waits at most 1860 s more while its queue stays within its part"
        " (a reservation and the run times of what runs)"
    )


def test_the_command_reads_back_what_was_said() -> None:
    place = place_of(f"0/5 nodes fit: 5 not enough free GPUs. would help: 8 idle GPUs. {sentence(TURN)}")
    assert place is not None
    assert (place.queue, place.position, place.waiting, place.overall) == ("research/vision", 3, 40, 7)
    assert (place.behind, place.bound_s, place.basis) == ("pod/team/a", 1860, "predicted from earlier runs")
    assert (place.start, place.start_high) == ("2027-01-15T08:00Z", "2027-01-15T08:20Z")
    assert place.text == sentence(TURN)
    assert place_of("0/5 nodes fit") is None


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    text = sentence(Turn(queue="q", position=1, waiting=1, basis="unknown run times", bound_basis="nobody knows"))
    assert (
        text == "1st of 1 waiting in queue q; expected start: unknown run times; no bound on its waiting: nobody knows"
    )
    place = place_of(text)
    assert place is not None and (place.position, place.bound_s, place.start) == (1, 0, "")


def test_who_leaves_for_it_is_named_with_the_rule() -> None:
    turn = Turn(queue="q", position=1, waiting=1, evicts=("team/x",), rule="reclaim")
    assert "team/x leaves for it (rule: reclaim)" in sentence(turn)


@pytest.mark.parametrize(("exact", "said"), [(1, 1), (10, 10), (11, 11), (47, 45), (412, 400), (4312, 4500)])
def test_far_positions_are_rounded_so_that_words_stay_true(exact: int, said: int) -> None:
    assert _rounded(exact) == said
