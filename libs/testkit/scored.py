"""What a class of tasks makes of each node by itself, for comparison with what it makes of all of them together."""

from __future__ import annotations

from libs.engine.feasible import Feasibility
from libs.engine.scores import UNKNOWN


def alone(view: Feasibility) -> list[int]:
    """The keys of all nodes, each worked out anew with plain integers."""
    view.scores.values.fill(UNKNOWN)
    rows = range(len(view._snapshot.states))
    for row in rows:
        view._follow([row])
    keys: list[int] = view.keys[: len(rows)].tolist()
    return keys
