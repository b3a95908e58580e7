"""The line over the tree of queues: whose turn is next, in O(depth x log siblings).

At each level the sibling that stands best goes; within a queue its jobs go by their own order. Every node of the tree
keeps a heap of its children; what changes below a child, or of what it uses, makes that child stale, and only stale
children are looked at again. What was taken in a run counts as used at once, so that siblings alternate as their
shares say. Equal standings are decided by the order of the jobs, so the line does not depend on who lined up first.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from libs.domain.queues import ancestors
from libs.engine.fair.parts import NO_MODELS, Amounts, Models
from libs.engine.fair.shares import NOTHING, Shares, parent_of, plus

#: The place of a job within its queue; the lesser first, no two alike.
Order = tuple[Any, ...]


K = TypeVar("K", bound=Hashable)


class Entry(Generic[K]):
    __slots__ = ("ask", "key", "models", "order", "path")

    def __init__(self, key: K, path: str, order: Order, ask: Amounts, models: Sequence[str]) -> None:
        self.key = key
        self.path = path
        self.order = order
        self.ask = ask
        self.models = models


class _Node(Generic[K]):
    __slots__ = ("children", "closed", "extra", "extra_of_models", "head", "heap", "jobs", "path", "stale", "stamp")

    def __init__(self, path: str) -> None:
        self.path = path
        self.children: dict[str, _Node[K]] = {}
        self.heap: list[tuple[tuple[float, float, Order], int, _Node[K]]] = []
        self.stale: dict[str, _Node[K]] = {}
        self.stamp = 0
        self.head: Entry[K] | None = None
        self.jobs: list[tuple[Order, int, Entry[K]]] = []
        self.extra = NOTHING
        self.extra_of_models: dict[str, float] = {}
        self.closed = False


class Line(Generic[K]):
    """Jobs by key, each once. A queue's own jobs stand beside the queues below it, as one more child."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._root: _Node[K] = _Node("")
        self._nodes: dict[str, _Node[K]] = {"": self._root}
        self._entries: dict[K, Entry[K]] = {}
        self._charged: set[str] = set()
        self._pushed = 0
        self._version = shares.version

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def follow(self, shares: Shares) -> None:
        """Standings follow from these from now on."""
        if shares is not self._shares:
            self._shares = shares
            self._version = -1

    # -- who stands in it -------------------------------------------------------------------------------------------
    def put(self, key: K, path: str, order: Order, ask: Amounts, models: Sequence[str] = ()) -> None:
        """Line up, or change place. `models`: of GPUs, those that will do; none where any does."""
        entry = self._entries.get(key)
        if entry is not None:
            if entry.path == path and entry.order == order and entry.ask == ask and entry.models == models:
                return
            self.discard(key)
        entry = self._entries[key] = Entry(key, path, order, ask, models)
        leaf = self._node(path)
        self._pushed += 1
        heapq.heappush(leaf.jobs, (order, self._pushed, entry))
        if len(leaf.jobs) > 2 * len(self._entries) + 64:
            leaf.jobs = [one for one in leaf.jobs if self._entries.get(one[2].key) is one[2]]
            heapq.heapify(leaf.jobs)
        if leaf.jobs[0][2] is entry:
            self._stir(path)

    def discard(self, key: K) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None and self._node(entry.path).head is entry:
            self._stir(entry.path)

    def touched(self, paths: Iterable[str]) -> None:
        """What these queues use has changed."""
        for path in paths:
            node = self._nodes.get(path)
            if node is not None and path:
                self._nodes[parent_of(path)].stale[path] = node
                self._stir(parent_of(path))

    def close(self, path: str) -> None:
        """The queue's own jobs are passed over until it is opened."""
        node = self._node(path)
        if not node.closed:
            node.closed = True
            self._stir(path)

    def open(self, path: str) -> None:
        node = self._nodes.get(path)
        if node is not None and node.closed:
            node.closed = False
            self._stir(path)

    # -- whose turn it is -------------------------------------------------------------------------------------------
    def head(self) -> Entry[K] | None:
        """Whose turn it is."""
        if self._version != self._shares.version:
            self._version = self._shares.version
            for path, node in self._nodes.items():
                if path:
                    self._nodes[parent_of(path)].stale[path] = node
        return self._head(self._root)

    def next(self) -> Entry[K] | None:
        """Whose turn it is; it leaves the line."""
        entry = self.head()
        if entry is not None:
            self.discard(entry.key)
        return entry

    def head_of(self, path: str) -> Entry[K] | None:
        """The first of one queue."""
        node = self._nodes.get(path)
        return self._first(node) if node is not None else None

    def charge(self, path: str, amounts: Amounts, of_models: Models = NO_MODELS) -> None:
        """These count as used of the queue, until `settle`; `of_models`: GPUs, as far as they are known by model."""
        if amounts == NOTHING:
            return
        for one in ancestors(path):
            node = self._node(one)
            node.extra = plus(node.extra, amounts)
            for model, milli in of_models.items():
                node.extra_of_models[model] = node.extra_of_models.get(model, 0) + milli
            self._charged.add(one)
        self.touched(ancestors(path))

    def likely(self, amounts: Amounts, models: Sequence[str]) -> Models:
        """What a request for these models is likely to take of each, before it is decided."""
        return self._shares.likely(amounts[0], models)

    def settle(self) -> None:
        """What was charged shows in what is used by now, or was not taken after all."""
        for path in self._charged:
            self._nodes[path].extra = NOTHING
            self._nodes[path].extra_of_models = {}
        self.touched(self._charged)
        self._charged.clear()

    # -- within -----------------------------------------------------------------------------------------------------
    def _node(self, path: str) -> _Node[K]:
        node = self._nodes.get(path)
        if node is None:
            node = self._nodes[path] = _Node(path)
            self._node(parent_of(path)).children[path] = node
        return node

    def _stir(self, path: str) -> None:
        """The head of this queue may be another one: all above look again."""
        while path:
            above = parent_of(path)
            self._nodes[above].stale[path] = self._nodes[path]
            path = above

    def _first(self, node: _Node[K]) -> Entry[K] | None:
        if node.closed:
            return None
        jobs = node.jobs
        while jobs:
            entry = jobs[0][2]
            if self._entries.get(entry.key) is entry:
                return entry
            heapq.heappop(jobs)
        return None

    def _head(self, node: _Node[K]) -> Entry[K] | None:
        if node.stale:
            stale, node.stale = node.stale, {}
            compared = self._shares.compared(node.path)
            for child in stale.values():
                child.stamp += 1
                child.head = self._head(child)
                if child.head is not None:
                    rank = self._rank(child, child.head) if compared else (0.0, 0.0, child.head.order)
                    heapq.heappush(node.heap, (rank, child.stamp, child))
        if len(node.heap) > 2 * len(node.children) + 64:
            node.heap = [entry for entry in node.heap if entry[1] == entry[2].stamp]
            heapq.heapify(node.heap)
        heap = node.heap
        while heap and heap[0][1] != heap[0][2].stamp:
            heapq.heappop(heap)
        own = self._first(node) if node.jobs else None
        if not heap:
            return own
        below = heap[0][2].head
        if own is None or below is None:
            return own or below
        return own if self._rank_own(node, own) < heap[0][0] else below

    def _rank(self, node: _Node[K], head: Entry[K]) -> tuple[float, float, Order]:
        standing = self._shares.standing(node.path, head.ask, node.extra, head.models, node.extra_of_models)
        return standing.tier, standing.band, head.order

    def _rank_own(self, node: _Node[K], own: Entry[K]) -> tuple[float, float, Order]:
        """A queue's own jobs among its children: what it uses itself, as one that deserves nothing and weighs one."""
        shares = self._shares
        if not shares.compared(node.path):
            return 0.0, 0.0, own.order
        used = plus(shares.use(node.path), node.extra)
        for child in node.children.values():
            theirs = plus(shares.use(child.path), child.extra)
            used = max(0, used[0] - theirs[0]), max(0, used[1] - theirs[1]), max(0, used[2] - theirs[2])
        of_models = self._own_models(node) if shares.named(node.path) else NO_MODELS
        standing = shares.standing_of(node.path, used, own.ask, own.models, of_models)
        return standing.tier, standing.band, own.order

    def _own_models(self, node: _Node[K]) -> Models:
        use, found = self._shares.use_of_models, _sum(self._shares.use_of_models(node.path), node.extra_of_models)
        for child in node.children.values():
            theirs = _sum(use(child.path), child.extra_of_models)
            found = {model: max(0, milli - theirs.get(model, 0)) for model, milli in found.items()}
        return found


def _sum(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    return {model: left.get(model, 0) + right.get(model, 0) for model in left.keys() | right.keys()}
