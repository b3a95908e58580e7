"""A queue of pending writes that merges: at most one per key, the newer one carrying what the older one meant.

Why: a job whose state changes five times while the API server is slow needs one write, not five; and two writes to
one object that are under way together may land in the wrong order. So a key that is in hand is not handed out again
before `done`; what arrives for it meanwhile waits, merged.

Bounded: at `limit` keys a new key is refused (`Put.FULL`), the caller's slow pass brings it back later. Keys leave in
the order in which they first came.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Put(enum.Enum):
    QUEUED = "queued"
    MERGED = "merged"  # joined with one that was waiting
    SKIPPED = "skipped"  # merging left nothing to write
    FULL = "full"


def newest(_old: V, new: V) -> V | None:
    """The plain way to merge: the newer write stands for both."""
    return new


class MergeQueue(Generic[K, V]):
    def __init__(self, limit: int = 10_000, merge: Callable[[V, V], V | None] = newest) -> None:
        self._limit = limit
        self._merge = merge
        self._waiting: dict[K, V] = {}
        self._in_hand: set[K] = set()
        #: Waiting keys that are not in hand, in order of arrival.
        self._ready: dict[K, None] = {}
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_hand)

    def put(self, key: K, value: V) -> Put:
        old = self._waiting.get(key)
        if old is not None:
            merged = self._merge(old, value)
            if merged is None:
                self._drop(key)
                return Put.SKIPPED
            self._waiting[key] = merged
            return Put.MERGED
        if len(self._waiting) >= self._limit:
            return Put.FULL
        self._waiting[key] = value
        if key not in self._in_hand:
            self._ready[key] = None
            self._arrived.set()
        return Put.QUEUED

    def discard(self, key: K) -> None:
        """Forget what waits for `key` (its object is gone). What is in hand goes on."""
        self._drop(key)

    async def take(self, limit: int = 1) -> list[tuple[K, V]]:
        """Up to `limit` pending writes, now in hand until `done(key)`; waits until there is at least one."""
        while not self._ready:
            self._arrived.clear()
            await self._arrived.wait()
        return self.take_ready(limit)

    def take_ready(self, limit: int = 1) -> list[tuple[K, V]]:
        """As `take`, without waiting; may be empty."""
        taken: list[tuple[K, V]] = []
        for key in list(self._ready)[:limit] if limit < len(self._ready) else list(self._ready):
            del self._ready[key]
            self._in_hand.add(key)
            taken.append((key, self._waiting.pop(key)))
        return taken

    def done(self, key: K) -> None:
        """The write of `key` is over, one way or the other; what came meanwhile may be taken."""
        self._in_hand.discard(key)
        if key in self._waiting and key not in self._ready:
            self._ready[key] = None
            self._arrived.set()

    def _drop(self, key: K) -> None:
        self._waiting.pop(key, None)
        self._ready.pop(key, None)
