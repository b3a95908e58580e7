"""How soon a loop goes round again that costs about the same however much it takes along.

The first rounds after a lull go at once, so that little work is done without delay. In a burst, rounds are apart by a
multiple of what the shortest of the last few took: the loop then spends a fixed part of its time on what rounds cost by
themselves, the slower the machine the larger the rounds, and never waits longer than a limit. One round that took long,
because a list was due or a neighbour had the machine, says nothing of what the next will cost: by the last one alone,
whoever came after it waited for the limit. All times are seconds of one clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

#: Without work for so long, a burst is over.
_LULL_S: Final = 0.05
#: Rounds of a burst that nothing delays.
_FREE: Final = 4
#: Of so many rounds the shortest says what one costs.
_LAST: Final = 3


@dataclass(slots=True)
class Pace:
    """`pause` is asked when there is something to do; `began` and `ended` frame the round. `times`: how many times what
    a round takes lies between two of a burst; `most_s`: the most."""

    times: float = 4.0
    most_s: float = 0.1
    _rounds: int = 0
    _began: float = field(default=float("-inf"))
    _ended: float = field(default=float("-inf"))
    _took: deque[float] = field(default_factory=lambda: deque(maxlen=_LAST))

    def pause(self, now: float) -> float:
        """Before the next round; 0: none."""
        if now - self._ended > _LULL_S:
            self._rounds = 0
        if self._rounds < _FREE:
            return 0.0
        apart = min(self.times * min(self._took), self.most_s)
        return max(0.0, self._ended + apart - now)

    def began(self, now: float) -> None:
        self._began = now
        self._rounds += 1

    def ended(self, now: float) -> None:
        self._ended = now
        self._took.append(now - self._began)
