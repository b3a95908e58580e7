"""Which word about a job is written next, and when: nobody's words are in the way of bindings or of another's.

Words wait merged, one per object. What started or ended goes before what waits, a Never before other first words, and
these before words that only have other figures. Among equals the queues have turns, so that who has one pod waiting
does not stand behind another's five thousand. The pace is bounded: all words together; while anything is being placed,
those about who waits; and new figures always. Pure but for the event that says that something arrived.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

#: First words about who waits that go at the full pace, whatever is being placed.
BURST: Final = 50.0
#: All words together may be as far behind their pace, seconds, and catch up.
_CATCH_UP_S: Final = 0.05


class Haste(enum.IntEnum):
    STARTED = 0  # or ended, or begins anew
    NEVER = 1
    FIRST = 2  # or another reason than was said before
    FIGURES = 3  # the same with other figures


class Letter(Protocol):
    @property
    def haste(self) -> Haste: ...

    @property
    def queue(self) -> str: ...


class Rate:
    """`per_s` on average, `most` at once."""

    def __init__(self, per_s: float, most: float) -> None:
        self._per_s = per_s
        self._most = max(1.0, most)
        self._left = self._most
        self._at = float("-inf")

    def wait(self, now: float) -> float:
        """Seconds until one more may go."""
        left = min(self._most, self._left + max(0.0, now - self._at) * self._per_s)
        return 0.0 if left >= 1.0 - 1e-9 else (1.0 - left) / self._per_s

    def take(self, now: float) -> None:
        """One goes, whether or not it had to wait for this rate."""
        left = min(self._most, self._left + max(0.0, now - self._at) * self._per_s)
        self._left, self._at = max(0.0, left - 1.0), now


class Rates:
    def __init__(self, per_s: float, busy_per_s: float, figures_per_s: float) -> None:
        """`busy_per_s`: words about who waits, while anything is being placed. `figures_per_s`: always."""
        self._all = Rate(per_s, per_s * _CATCH_UP_S)
        self._busy = Rate(min(busy_per_s, per_s), BURST)
        self._figures = Rate(min(figures_per_s, per_s), 1.0)

    def wait(self, haste: Haste, now: float, busy: bool) -> float:
        wait = self._all.wait(now)
        if haste is Haste.FIGURES:
            return max(wait, self._figures.wait(now))
        return max(wait, self._busy.wait(now)) if busy and haste is not Haste.STARTED else wait

    def take(self, haste: Haste, now: float) -> None:
        self._all.take(now)
        if haste is Haste.FIGURES:
            self._figures.take(now)
        elif haste is not Haste.STARTED:
            self._busy.take(now)  # where many go, none are left to go at once when something is placed


V = TypeVar("V", bound=Letter)


class Outbox(Generic[V]):
    """At most one letter waits per object, `merge` of what came; one in hand (`pop` to `done`) is not handed out again,
    so two writes to one object are never under way. Beyond `limit` objects new ones are dropped: a slow pass brings
    them back."""

    def __init__(self, limit: int, merge: Callable[[V, V], V]) -> None:
        self._limit = limit
        self._merge = merge
        self._waiting: dict[str, V] = {}
        self._in_hand: set[str] = set()
        #: By haste and queue, whose turn it is first; of those that are not in hand.
        self._ready: dict[Haste, dict[str, dict[str, None]]] = {haste: {} for haste in Haste}
        self.arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_hand)

    def put(self, key: str, letter: V) -> None:
        old = self._waiting.get(key)
        if old is not None:
            self._out_of_turn(key, old)
            letter = self._merge(old, letter)
        elif len(self._waiting) >= self._limit:
            return
        self._waiting[key] = letter
        if key not in self._in_hand:
            self._in_turn(key, letter)

    def discard(self, key: str) -> None:
        """Forget what waits for the object (it is gone). What is in hand goes on."""
        letter = self._waiting.pop(key, None)
        if letter is not None:
            self._out_of_turn(key, letter)

    def first(self) -> Haste | None:
        """Of what is to go next."""
        return next((haste for haste in Haste if self._ready[haste]), None)

    def pop(self, haste: Haste) -> tuple[str, V]:
        """The next of this haste, in hand until `done`."""
        queues = self._ready[haste]
        queue = next(iter(queues))
        keys = queues.pop(queue)
        key = next(iter(keys))
        del keys[key]
        if keys:
            queues[queue] = keys  # behind the other queues
        self._in_hand.add(key)
        return key, self._waiting.pop(key)

    def done(self, key: str) -> None:
        """The write is over, one way or the other; what came meanwhile may be taken."""
        self._in_hand.discard(key)
        letter = self._waiting.get(key)
        if letter is not None:
            self._in_turn(key, letter)

    def _in_turn(self, key: str, letter: V) -> None:
        self._ready[letter.haste].setdefault(letter.queue, {})[key] = None
        self.arrived.set()

    def _out_of_turn(self, key: str, letter: V) -> None:
        queues = self._ready[letter.haste]
        keys = queues.get(letter.queue)
        if keys is not None and key in keys:
            del keys[key]
            if not keys:
                del queues[letter.queue]
