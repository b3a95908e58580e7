"""Use over time, of which a half is forgotten every half-life."""

from __future__ import annotations

import math


def left(seconds: float, half_life_s: float) -> float:
    """What is left, after so many seconds, of one that was used before."""
    return math.exp2(-max(seconds, 0.0) / half_life_s)


def span(seconds: float, half_life_s: float) -> float:
    """What a use of one over so many seconds until now comes to."""
    return half_life_s / math.log(2) * (1 - left(seconds, half_life_s))
