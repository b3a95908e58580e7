"""Which waiting jobs an event can help. Nobody is woken whom it cannot help, and alike jobs are woken one by one.

Jobs that look alike to the engine (same queue, priority, wishes, size) form a group that shares one verdict. An event
wakes the first of each group that its verdict says it can help. Where that one is placed, the next two follow, then
four: room for a thousand is used in ten passes, and room for none costs one decision, however many wait. A newcomer
that looks like a waiting group joins it without being decided. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field

from libs.domain.queues import ancestors
from libs.domain.verdicts import Kind, Verdict, Wake
from services.placement.jobs import Job, Order

#: What voids a Never, whatever it says itself: capacity or the job's own specification changed.
_VOIDS_NEVER = (Wake.NODE_ADDED, Wake.NODE_CHANGED, Wake.SPEC_CHANGED)


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
    members: list[Order] = field(default_factory=list)
    burst: int = 1
    trying: set[str] = field(default_factory=set)


class Waiting:
    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}
        self._of: dict[str, Hashable] = {}

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
        order = job.order
        return sum(1 for other in set(self._groups[signature].members) if other < order and other[2] in self._of)

    def hold(self, job: Job, signature: Hashable, verdict: Verdict) -> None:
        """The job waits, and the verdict holds for everybody who looks like it. The group's next burst is one again."""
        key = job.head.key
        if self._of.get(key) != signature:
            self.leave(key)
        group = self._groups.get(signature)
        if group is None:
            group = self._groups[signature] = _Group(verdict=verdict, queue=job.head.queue)
        group.verdict = verdict
        group.burst = 1
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
        heapq.heappush(group.members, job.order)

    def leave(self, key: str) -> None:
        """The job waits no more: placed, gone, or its partition was lost."""
        signature = self._of.pop(key, None)
        if signature is None:
            return
        group = self._groups[signature]
        group.trying.discard(key)
        self._prune(signature, group)

    def placed(self, key: str) -> list[str]:
        """A member of a group found room: it leaves, and the next ones of its group are to be decided."""
        signature = self._of.get(key)
        if signature is None:
            return []
        group = self._groups[signature]
        self.leave(key)
        if group.trying:
            return []  # the rest of this burst is still being decided
        group.burst = min(group.burst * 2, 1024)
        return self._first(group, group.burst)

    def trying(self, key: str) -> bool:
        """Whether the job was woken and its own verdict is awaited, so that it must be decided, not joined."""
        signature = self._of.get(key)
        return signature is not None and key in self._groups[signature].trying

    def wake(self, news: News) -> list[str]:
        """First members of all groups that the news can help."""
        woken: list[str] = []
        if not news:
            return woken
        for group in self._groups.values():
            if group.trying or not _helped(group, news):
                continue
            group.burst = 1
            woken += self._first(group, 1)
        return woken

    def wake_one(self, key: str) -> bool:
        """This job is to be decided itself (its own timer or its own task changed). False where it does not wait."""
        signature = self._of.get(key)
        if signature is None:
            return False
        self._groups[signature].trying.add(key)
        return True

    def _first(self, group: _Group, count: int) -> list[str]:
        """The first `count` members in order that are not being tried. All stay members until they are placed."""
        popped: list[Order] = []
        found: list[str] = []
        seen: set[str] = set()
        while group.members and len(found) < count:
            order = heapq.heappop(group.members)
            key = order[2]
            signature = self._of.get(key)
            if key in seen or signature is None or self._groups.get(signature) is not group:
                continue  # it left, or left and came back: one entry is enough
            seen.add(key)
            popped.append(order)
            if key not in group.trying:
                group.trying.add(key)
                found.append(key)
        for order in popped:
            heapq.heappush(group.members, order)
        return found

    def _prune(self, signature: Hashable, group: _Group) -> None:
        """Drop entries of members that left, and the group with its last member."""
        members = group.members
        while members and self._of.get(members[0][2]) != signature:
            heapq.heappop(members)
        if not members:
            self._groups.pop(signature, None)


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
