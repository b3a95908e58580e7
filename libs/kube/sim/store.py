"""Objects with versions and a history to watch: what etcd and the watch cache are to the API server.

Objects are never changed in place: a write stores a new one, so that history, watchers and readers can share them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

Object = dict[str, Any]
_encode = msgspec.json.encode


class Place(NamedTuple):
    """Where an object is kept: `resource` is "group/plural" ("/pods" for the core group)."""

    resource: str
    namespace: str
    name: str


class Stored(NamedTuple):
    version: int
    object: Object
    raw: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """`old` None: created; `new` None: deleted. `raw` is the new object, or the last one, under the new version."""

    version: int
    place: Place
    old: Object | None
    new: Object | None
    raw: bytes


@dataclass(slots=True, eq=False)
class Store:
    keep: int = 50_000
    version: int = 1000
    #: Changes up to this version are forgotten; a watch from before it is answered 410.
    forgotten: int = 1000
    history: deque[Change] = field(default_factory=deque)
    observers: list[Callable[[Change], None]] = field(default_factory=list)
    _kinds: dict[str, dict[tuple[str, str], Stored]] = field(default_factory=dict)
    _waiters: set[asyncio.Event] = field(default_factory=set)

    def get(self, place: Place) -> Stored | None:
        return self._kinds.get(place.resource, {}).get((place.namespace, place.name))

    def all(self, resource: str, namespace: str = "") -> Iterator[tuple[Place, Stored]]:
        """In key order, as the API server lists."""
        kept = self._kinds.get(resource, {})
        for key in sorted(kept):
            if not namespace or key[0] == namespace:
                yield Place(resource, *key), kept[key]

    def unordered(self, resource: str) -> dict[tuple[str, str], Stored]:
        return self._kinds.get(resource, {})

    def resources(self) -> list[str]:
        return list(self._kinds)

    def put(self, place: Place, item: Object) -> Stored:
        """Create or replace; the new version is written into the metadata of a copy."""
        old = self.get(place)
        self.version += 1
        item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}
        stored = Stored(self.version, item, _encode(item))
        self._kinds.setdefault(place.resource, {})[place.namespace, place.name] = stored
        self._record(Change(self.version, place, old.object if old else None, item, stored.raw))
        return stored

    def remove(self, place: Place) -> Object:
        old = self._kinds[place.resource].pop((place.namespace, place.name)).object
        self.version += 1
        last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
        self._record(Change(self.version, place, old, None, _encode(last)))
        return last

    def compact(self) -> None:
        """Forget all history: every watch that has to resume from before now is answered 410."""
        self.history.clear()
        self.forgotten = self.version

    def since(self, version: int) -> Iterator[Change]:
        """Changes after `version`, oldest first. The caller has checked `forgotten`."""
        newer = []
        for change in reversed(self.history):
            if change.version <= version:
                break
            newer.append(change)
        return reversed(newer)

    def wake_on_change(self, event: asyncio.Event) -> None:
        self._waiters.add(event)

    def no_longer(self, event: asyncio.Event) -> None:
        self._waiters.discard(event)

    def wake_all(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    def _record(self, change: Change) -> None:
        self.history.append(change)
        if len(self.history) > self.keep:
            self.forgotten = self.history.popleft().version
        self.wake_all()
        for observer in self.observers:
            observer(change)
