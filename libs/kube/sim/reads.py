"""How the embedded server answers reads: one object, lists in consistent pages, and watches through selectors."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import msgspec

from libs.kube.port import Answer, WatchBroken, WatchGone
from libs.kube.sim.answers import Refusal, bad_request, not_found
from libs.kube.sim.resources import Kind, Target
from libs.kube.sim.selectors import Match, matcher
from libs.kube.sim.store import Change, Store

_encode = msgspec.json.encode
_MOST_TOKENS: Final = 256


class Reads:
    """`bookmark_s`: how long a watch is silent before it tells its version, where it was asked to."""

    def __init__(self, store: Store, bookmark_s: float) -> None:
        self._store = store
        self._bookmark_s = bookmark_s
        self._pages: OrderedDict[str, tuple[list[bytes], str]] = OrderedDict()
        self._cut = 0

    def break_watches(self) -> None:
        """All that are open now fail as by a lost connection."""
        self._cut += 1
        self._store.wake_all()

    def get(self, target: Target) -> Answer:
        found = self._store.get(target.place)
        if found is None:
            raise not_found(target.kind.resource, target.name)
        return Answer(200, found.raw)

    def page(self, target: Target, params: Mapping[str, str]) -> Answer:
        """A list, or what follows a `continue` token of one: all pages are of one moment. A token serves once."""
        limit = int(params.get("limit") or 0)
        token = params.get("continue", "")
        if token:
            if token not in self._pages:
                why = "The provided continue parameter is too old to display a consistent list result."
                raise Refusal(410, "Expired", why)
            raws, version = self._pages.pop(token)
        else:
            match = _matcher(target, params)
            found = self._store.all(target.kind.resource, target.namespace)
            raws, version = [s.raw for _, s in found if match(s.object)], str(self._store.version)
        rest: list[bytes] = []
        if limit and len(raws) > limit:
            raws, rest = raws[:limit], raws[limit:]
        meta = {"resourceVersion": version}
        if rest:
            token = uuid.uuid4().hex
            self._pages[token] = (rest, version)
            if len(self._pages) > _MOST_TOKENS:
                self._pages.popitem(last=False)
            meta["continue"] = token
        kind = target.kind
        head = _encode({"kind": kind.kind + "List", "apiVersion": kind.api_version, "metadata": meta})
        return Answer(200, head[:-1] + b',"items":[' + b",".join(raws) + b"]}")

    async def stream(
        self, opening: Callable[[], Awaitable[Target]], params: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[tuple[str, bytes]]:
        """A watch, from the version that `params` names or from all that is there. `opening` tells what is watched, or
        raises what the watch fails with."""
        target = await opening()
        try:
            match = _matcher(target, params)
        except Refusal as refusal:
            raise WatchBroken(str(refusal)) from None
        cut = self._cut
        asked = params.get("resourceVersion", "")
        cursor = self._store.version
        if asked in ("", "0"):
            for _, stored in list(self._store.all(target.kind.resource, target.namespace)):
                if match(stored.object):
                    yield "ADDED", stored.raw
        else:
            cursor = int(asked)
        loop = asyncio.get_running_loop()
        bookmarks = params.get("allowWatchBookmarks") == "true"
        ends_at = loop.time() + float(params.get("timeoutSeconds") or 1800)
        changed = asyncio.Event()
        self._store.wake_on_change(changed)
        try:
            while True:
                changed.clear()
                if cursor < self._store.forgotten:
                    raise WatchGone(f"too old resource version: {cursor} ({self._store.forgotten})")
                for change in self._store.since(cursor):
                    event = _event(change, target, match)
                    if event is not None:
                        yield event
                    cursor = change.version
                if self._cut != cut:
                    raise WatchBroken("connection lost")
                left = ends_at - loop.time()
                if left <= 0:
                    if bookmarks:
                        yield "BOOKMARK", _bookmark(target.kind, cursor)
                    return
                try:
                    async with asyncio.timeout(min(left, self._bookmark_s, silence_s)):
                        await changed.wait()
                except TimeoutError:
                    if bookmarks and left > self._bookmark_s:
                        yield "BOOKMARK", _bookmark(target.kind, cursor)
                    elif left > silence_s:
                        raise WatchBroken(f"silent for {silence_s} s") from None
        finally:
            self._store.no_longer(changed)


def _matcher(target: Target, params: Mapping[str, str]) -> Match:
    try:
        return matcher(target.kind.plural, params.get("fieldSelector", ""), params.get("labelSelector", ""))
    except ValueError as error:
        raise bad_request(str(error)) from None


def _event(change: Change, target: Target, match: Match) -> tuple[str, bytes] | None:
    """How a change looks through a selector: what leaves the selection is gone, what enters it is new."""
    if change.place.resource != target.kind.resource:
        return None
    if target.namespace and change.place.namespace != target.namespace:
        return None
    was = change.old is not None and match(change.old)
    is_ = change.new is not None and match(change.new)
    if is_:
        return ("MODIFIED" if was else "ADDED"), change.raw
    return ("DELETED", change.raw) if was else None


def _bookmark(kind: Kind, version: int) -> bytes:
    return _encode({"kind": kind.kind, "apiVersion": kind.api_version, "metadata": {"resourceVersion": str(version)}})
