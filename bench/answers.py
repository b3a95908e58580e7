"""What became of each event that was sent, and for how long nobody had an answer."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from bench.hostile import Hostile

#: (partition, offset)
Place = tuple[int, int]


@dataclass(slots=True)
class Sent:
    """One event that the broker took, and what it was answered. Times are those of the records, seconds."""

    event: Hostile
    partition: int
    sent_at: float
    answers: list[tuple[str, float]] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """All events of a run by id and by place, and what was said about them."""

    sent: dict[Place, Sent] = field(default_factory=dict)
    by_id: dict[str, Place] = field(default_factory=dict)
    #: Answers that came before the producer had told us where its event stands.
    early: list[tuple[str | Place, str, float]] = field(default_factory=list)
    refused_by_broker: int = 0
    rejections: int = 0
    #: Dead letters for a fault of our own.
    ours: list[str] = field(default_factory=list)
    heard_at: float = 0.0

    def took(self, event: Hostile, place: Place, at: float) -> None:
        self.sent[place] = Sent(event, place[0], at)
        self.by_id[event.id] = place
        early, self.early = self.early, []
        for about, what, then in early:
            self.answer(about, what, then)

    def answer(self, about: str | Place, what: str, at: float) -> None:
        """`about` is an event's id, or the place that a dead letter names."""
        place = self.by_id.get(about) if isinstance(about, str) else about
        one = self.sent.get(place) if place is not None else None
        if one is None:
            self.early.append((about, what, at))
        else:
            one.answers.append((what, at))
            self.heard_at = time.monotonic()

    @property
    def unanswered(self) -> list[Sent]:
        return [one for one in self.sent.values() if not one.answers]

    def counts(self) -> dict[str, int]:
        found = Counter(one.answers[0][0] for one in self.sent.values() if one.answers)
        return {name: found[name] for name in ("accepted", "duplicates", "cancelled", "dead_letters")}

    def by_kind(self) -> dict[str, dict[str, int]]:
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for one in self.sent.values():
            found[one.event.kind][one.answers[0][0] if one.answers else "unanswered"] += 1
        return {kind: dict(sorted(count.items())) for kind, count in sorted(found.items())}

    def stalls(self) -> tuple[float, float]:
        """The longest stall in seconds, and the longest of a single partition."""
        lines: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        for one in self.sent.values():
            if one.answers:
                lines[one.partition].append((one.sent_at, one.answers[0][1]))
        everything = [pair for line in lines.values() for pair in line]
        return longest_gap(everything), max(map(longest_gap, lines.values()), default=0.0)


def longest_gap(line: Iterable[tuple[float, float]]) -> float:
    """Of (sent at, answered at), the longest time in which something was unanswered and nothing got an answer."""
    changes = sorted(
        change for sent, answered in line for change in ((min(sent, answered), 1), (max(sent, answered), -1))
    )
    longest, waiting, since = 0.0, 0, 0.0
    for at, change in changes:
        if waiting and change < 0:
            longest = max(longest, at - since)
        if change < 0 or not waiting:
            since = at
        waiting += change
    return longest
