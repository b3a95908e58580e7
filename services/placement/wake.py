"""Which waiting jobs an event can help. Nobody is woken whom it cannot help, and alike jobs are woken one by one.

Jobs that look alike to the engine (same queue, priority, wishes, size) form a group that shares one verdict. An event
wakes the first of each group that its verdict says it can help. Where that one is placed, the next two follow, then
four: room for a thousand is used in ten passes, and room for none costs one decision, however many wait. A newcomer
that looks like a waiting group joins it without being decided. Pure.

Each queue has its groups in a ring. An event sends one round along it: the first in line at once, the others as the
queue's attention lasts, each turn beginning where the last one ended. So where thousands of groups wait for room, an
event costs what its queue can pay for, and every group has its turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from libs.domain.queues import ancestors
from libs.domain.verdicts import Kind, Verdict, Wake
from libs.engine.fair import Place
from services.placement.jobs import Job

#: What voids a Never, whatever it says itself: capacity or the job's own specification changed.
_VOIDS_NEVER = (Wake.NODE_ADDED, Wake.NODE_CHANGED, Wake.SPEC_CHANGED)
#: Entries of jobs that have left a group which are not worth looking for.
_LEFT_BEHIND = 64


@dataclass(slots=True)
class News:
    """What happened since the last pass, merged. `queues` are paths whose use fell or whose limit changed."""

    kinds: set[Wake] = field(default_factory=set)
    queues: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.kinds) or bool(self.queues)

    def clear(self) -> None:
        self.kinds.clear()
        self.queues.clear()


@dataclass(slots=True)
class _Group:
    verdict: Verdict
    queue: str
    members: list[Place] = field(default_factory=list)
    burst: int = 1
    trying: set[str] = field(default_factory=set)
    #: Something that may help happened while a member was tried. Its answer covers it, unless it leaves without one.
    owed: bool = False
    #: How many jobs wait here; `members` may hold entries of others that have left.
    size: int = 0


@dataclass(slots=True)
class _Ring:
    """Groups of one queue, the next to be looked at first; how many are left of the round that `news` sent; and all who
    wait, by their place (entries of those who left are void)."""

    groups: dict[Hashable, None] = field(default_factory=dict)
    news: News = field(default_factory=News)
    left: int = 0
    #: The first in line has yet to be tried because of the news.
    head_due: bool = False
    line: list[Place] = field(default_factory=list)
    #: How many jobs wait in these groups.
    size: int = 0


#: Groups that one turn looks at for each that it may wake: looking is much cheaper than deciding.
_LOOKS: Final = 8


class Waiting:
    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}
        self._of: dict[str, Hashable] = {}
        self._rings: dict[str, _Ring] = {}
        #: Where those who wait stand; entries that say otherwise are void.
        self._places: dict[str, Place] = {}
        #: Queues with a round that is not finished.
        self.unfinished: set[str] = set()
        self.place: Callable[[Job], Place] = lambda job: (1, *job.order)

    def __len__(self) -> int:
        return len(self._of)

    def __bool__(self) -> bool:
        return bool(self._of)

    def __contains__(self, key: str) -> bool:
        return key in self._of

    @property
    def groups(self) -> int:
        return len(self._groups)

    def shared(self, signature: Hashable) -> Verdict | None:
        """The verdict of the group that looks like this, if one waits."""
        group = self._groups.get(signature)
        return group.verdict if group is not None else None

    def verdict_of(self, key: str) -> Verdict | None:
        """What holds for a waiting job now: the verdict of its group, as its last decided member got it."""
        signature = self._of.get(key)
        return self._groups[signature].verdict if signature is not None else None

    def ahead(self, job: Job) -> int:
        """How many alike jobs wait before this one."""
        signature = self._of.get(job.head.key)
        if signature is None:
            return 0
        place = self._places[job.head.key]
        return sum(1 for other in set(self._groups[signature].members) if other < place and self._there(other))

    def hold(self, job: Job, signature: Hashable, verdict: Verdict) -> None:
        """The job waits, and the verdict holds for everybody who looks like it. The group's next burst is one again."""
        key = job.head.key
        if self._of.get(key) != signature:
            self.leave(key)
        group = self._groups.get(signature)
        if group is None:
            group = self._groups[signature] = _Group(verdict=verdict, queue=job.head.queue)
            self._rings.setdefault(group.queue, _Ring()).groups[signature] = None
        group.verdict = verdict
        group.burst = 1
        group.owed = False
        group.trying.discard(key)
        self._join(group, signature, job)

    def join(self, job: Job, signature: Hashable) -> None:
        """The job waits beside those that look like it; it was not decided itself."""
        group = self._groups[signature]
        if self._of.get(job.head.key) != signature:
            self.leave(job.head.key)
        group.trying.discard(job.head.key)
        self._join(group, signature, job)

    def _join(self, group: _Group, signature: Hashable, job: Job) -> None:
        if self._of.get(job.head.key) == signature:
            return
        self._of[job.head.key] = signature
        group.size += 1
        self._rings[group.queue].size += 1
        self._line_up(group, job)

    def aged(self, job: Job) -> None:
        """Its place in line may be another one by now."""
        group = self._groups.get(self._of.get(job.head.key))
        if group is not None and self._places[job.head.key] != self.place(job):
            self._line_up(group, job)

    def _there(self, place: Place) -> bool:
        """Whether somebody waits at that place."""
        return self._places.get(place[3]) == place

    def _line_up(self, group: _Group, job: Job) -> None:
        ring = self._rings[group.queue]
        place = self._places[job.head.key] = self.place(job)
        heapq.heappush(group.members, place)
        heapq.heappush(ring.line, place)
        if len(ring.line) > 2 * ring.size + _LEFT_BEHIND:
            ring.line[:] = sorted(set(filter(self._there, ring.line)))  # in order, so a heap

    def first(self, queue: str) -> str | None:
        """Who waits first in the queue's line."""
        ring = self._rings.get(queue)
        while ring is not None and ring.line:
            if self._of_queue(ring.line[0], queue):
                return ring.line[0][3]
            heapq.heappop(ring.line)
        return None

    def firsts(self, queue: str, count: int) -> list[str]:
        """The first `count` who wait in the queue's line."""
        ring = self._rings.get(queue)
        first = heapq.nsmallest(4 * count, ring.line) if ring is not None else ()
        return list(dict.fromkeys(place[3] for place in first if self._of_queue(place, queue)))[:count]

    def _of_queue(self, place: Place, queue: str) -> bool:
        if not self._there(place):
            return False
        group = self._groups.get(self._of.get(place[3]))
        return group is not None and group.queue == queue

    @property
    def queues(self) -> list[str]:
        """Queues in which somebody waits."""
        return list(self._rings)

    def leave(self, key: str) -> None:
        """The job waits no more: placed, gone, or its partition was lost."""
        signature = self._of.pop(key, None)
        if signature is None:
            return
        self._places.pop(key, None)
        group = self._groups[signature]
        group.trying.discard(key)
        group.size -= 1
        self._rings[group.queue].size -= 1
        self._prune(signature, group)
        if group.owed and not group.trying and signature in self._groups:
            # It was cancelled, or looks otherwise now and waits for something else: the news was for the others too.
            group.owed = False
            ring = self._rings[group.queue]
            ring.news.kinds.update(group.verdict.wakes_on)
            ring.left = len(ring.groups)
            self.unfinished.add(group.queue)

    def placed(self, key: str) -> list[str]:
        """A member of a group found room: it leaves, and the next ones of its group are to be decided."""
        signature = self._of.get(key)
        if signature is None:
            return []
        group = self._groups[signature]
        group.owed = group.owed and len(group.trying) > 1  # the next ones are decided anyhow
        self.leave(key)
        if group.trying:
            return []  # the rest of this burst is still being decided
        group.burst = min(group.burst * 2, 1024)
        return self._first(group, group.burst)

    def trying(self, key: str) -> bool:
        """Whether the job was woken and its own verdict is awaited, so that it must be decided, not joined."""
        signature = self._of.get(key)
        return signature is not None and key in self._groups[signature].trying

    def wake(
        self, news: News, most: Callable[[str], int] | None = None, first: Callable[[str], bool] = lambda _: True
    ) -> list[str]:
        """First members of groups that the news can help: of each queue the first in line, as soon as `first` says so,
        and `most` others (None: all of them). Without news the rounds under way go on."""
        woken: list[str] = []
        if news:
            for queue, ring in self._rings.items():
                ring.news.kinds |= news.kinds
                ring.news.queues |= news.queues
                ring.left = len(ring.groups)
                ring.head_due = True
                self.unfinished.add(queue)
        for queue in list(self.unfinished):
            ring = self._rings[queue]
            if ring.head_due and first(queue):
                ring.head_due = False
                head = self.first(queue)
                if head is not None:
                    woken += self._try(self._groups[self._of[head]], ring.news)
            woken += self._round(queue, ring, len(self._of) if most is None else most(queue))
        return woken

    def head_due(self, queue: str) -> bool:
        """Whether something happened since the first in line was tried."""
        ring = self._rings.get(queue)
        return ring is not None and ring.head_due

    def _round(self, queue: str, ring: _Ring, most: int) -> list[str]:
        woken: list[str] = []
        looks = _LOOKS * most
        while ring.left > 0 and looks > 0 and len(woken) < most:
            signature = next(iter(ring.groups))
            del ring.groups[signature]
            ring.groups[signature] = None  # to the end of the ring
            ring.left -= 1
            looks -= 1
            woken += self._try(self._groups[signature], ring.news)
        if ring.left <= 0 and not ring.head_due:
            ring.news.clear()
            self.unfinished.discard(queue)
        return woken

    def _try(self, group: _Group, news: News) -> list[str]:
        if not _helped(group, news):
            return []
        if group.trying:
            group.owed = True
            return []
        group.burst = 1
        return self._first(group, 1)

    def wake_one(self, key: str) -> bool:
        """This job is to be decided itself (its own timer or its own task changed). False where it does not wait."""
        signature = self._of.get(key)
        if signature is None:
            return False
        self._groups[signature].trying.add(key)
        return True

    def _first(self, group: _Group, count: int) -> list[str]:
        """The first `count` members in order that are not being tried. All stay members until they are placed."""
        popped: list[Place] = []
        found: list[str] = []
        seen: set[str] = set()
        while group.members and len(found) < count:
            place = heapq.heappop(group.members)
            key = place[3]
            signature = self._of.get(key)
            if key in seen or signature is None or self._groups.get(signature) is not group or not self._there(place):
                continue  # it left, or left and came back: one entry is enough
            seen.add(key)
            popped.append(place)
            if key not in group.trying:
                group.trying.add(key)
                found.append(key)
        for place in popped:
            heapq.heappush(group.members, place)
        return found

    def _prune(self, signature: Hashable, group: _Group) -> None:
        """Drop entries of members that left, and the group with its last member. Behind a head that waits for long they
        cannot be reached one by one: when they are most, all are looked at."""
        members = group.members
        if len(members) > 2 * group.size + _LEFT_BEHIND:
            members[:] = {place for place in members if self._of.get(place[3]) == signature and self._there(place)}
            members.sort()
        while members and not (self._of.get(members[0][3]) == signature and self._there(members[0])):
            heapq.heappop(members)
        if not members and self._groups.pop(signature, None) is not None:
            ring = self._rings[group.queue]
            del ring.groups[signature]
            ring.left = min(ring.left, len(ring.groups))
            if not ring.groups:
                del self._rings[group.queue]
                self.unfinished.discard(group.queue)


def _helped(group: _Group, news: News) -> bool:
    verdict = group.verdict
    kinds = verdict.wakes_on
    if verdict.kind is Kind.NEVER:
        kinds = (*kinds, *_VOIDS_NEVER)
    if any(kind in news.kinds for kind in kinds):
        return True
    if not news.queues or (Wake.QUOTA_FREED not in kinds and verdict.kind is not Kind.NEVER):
        return False
    return any(path in news.queues for path in ancestors(group.queue))
