"""What of a run is not saved yet: by its start, or by what it said itself."""

from __future__ import annotations

import pytest

from libs.domain.saving import unsaved

NOW = 1_800_000_000.0
START = NOW - 10_000


@pytest.mark.parametrize(
    ("saved", "every", "lost"),
    [
        (0.0, 0, 10_000),
        (0.0, 1800, 1000),
        (START + 60, 1800, 940),  # a restart of a minute stands before the work
        (NOW - 50, 1800, 50),
        (NOW - 50, 0, 50),  # it does not say how often
        (NOW - 3700, 1800, 100),  # its last two words were lost
        (START - 500, 1800, 1000),  # said by the pod before
        (NOW + 500, 1800, 0),  # its clock is ahead
    ],
)
def test_work_is_lost_since_it_was_saved_last(saved: float, every: float, lost: float) -> None:
    assert unsaved(NOW, START, saved, every) == lost


def test_a_pod_that_has_not_started_has_nothing_to_lose() -> None:
    assert unsaved(NOW, NOW + 5, 0.0, 1800) == 0
