"""List, then watch, then list again when the version is too old: the state of one resource as it changes.

Guarantees: `on_list` gets a consistent list before anything else and after every gap; `on_events` gets every later
event in the order of the server, in batches of all that has arrived, so that a handler can work per batch. A list that
was only asked for (`relist`) is read beside the watch, whose events go on: a list of thousands takes a good part of a
second, in which nothing would be heard. It is handed over with what events newer than it have said. Silence
longer than `silence_s` is a fault (the server sends bookmarks about once a minute), answered by watching anew. A
handler that raises ends the reflector: what it missed cannot be made up for here.

Reading and handling run side by side over a bounded buffer: a slow handler stops the reading, and TCP stops the server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from libs.domain.nodes import newer
from libs.kube.errors import ReadFailed
from libs.kube.objects import bare_decoder
from libs.kube.port import Kube, WatchBroken, WatchGone
from libs.kube.writes import Listed, list_all

log = structlog.get_logger()

OnList = Callable[[list[bytes], str], Awaitable[None]]
OnEvents = Callable[[list[tuple[str, bytes]]], Awaitable[None]]

_BASE_S: Final = 0.1
_CAP_S: Final = 10.0
#: Objects of a list that are looked through at a stretch.
_STRETCH: Final = 500


@dataclass(frozen=True, slots=True)
class ReflectorHealth:
    """`listed`: a list has been handed over since the last gap. `age_s`: since the last sign of life."""

    listed: bool
    watching: bool
    age_s: float
    version: str
    lists: int
    watches: int
    failures: int


class Reflector:
    """`run()` works until cancelled or until a handler raises. One instance serves one run at a time."""

    def __init__(
        self,
        kube: Kube,
        path: str,
        *,
        on_list: OnList,
        on_events: OnEvents,
        params: Mapping[str, str] | None = None,
        page: int = 500,
        silence_s: float = 90.0,
        watch_s: int = 300,
        buffer: int = 20_000,
        rng: random.Random | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        #: Newest resourceVersion handed to the handlers, or told by a bookmark.
        self.version = ""
        self._kube = kube
        self._params = dict(params or {})
        self._page = page
        self._silence_s = silence_s
        self._watch_s = watch_s
        self._on_list = on_list
        self._on_events = on_events
        self._rng = rng or random.Random()
        self._monotonic = monotonic
        self._alive_at = monotonic()
        self._limit = buffer
        self._pending: list[tuple[str, bytes]] = []
        self._arrived = asyncio.Event()
        self._drained = asyncio.Event()
        self._ended: BaseException | None = None
        self._listed = self._watching = self._finished = False
        self._lists = self._watches = self._failures = 0
        self._relist = False
        #: A list that is read beside the watch, and the events that were handed over since it was begun.
        self._listing: asyncio.Task[Listed] | None = None
        self._since: list[tuple[str, bytes]] = []
        #: Events that are no newer than this are part of the list that was handed over last.
        self._covered = ""
        #: The newest version that the watch has told, and the newest that a list has shown and the watch must tell.
        self._told = ""
        self._owed = ""

    def health(self) -> ReflectorHealth:
        age = self._monotonic() - self._alive_at
        return ReflectorHealth(
            self._listed, self._watching, age, self.version, self._lists, self._watches, self._failures
        )

    def relist(self) -> None:
        """List again (a slow pass, or a reader that lost track), beside the watch. `health().lists` grows when it has
        been handed over."""
        self._relist = True
        self._arrived.set()

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                if not self._listed:
                    await self._list_once()
                began = self._monotonic()
                await self._watch_once()
                if self._monotonic() - began > 1.0 or not self._listed:
                    failures = 0
                    continue
                # A server that ends every watch at once must not be asked in a tight loop.
            except WatchGone:
                log.info("watch too old, listing again", path=self.path, version=self.version)
                self._listed = False
                failures = min(failures, 1)
            except (WatchBroken, ReadFailed) as error:
                self._failures += 1
                level = log.warning if failures == 0 else log.debug
                level("watch or list failed", path=self.path, error=str(error)[:300], failures=failures + 1)
            failures += 1
            await asyncio.sleep(self._rng.uniform(0.5, 1.0) * min(_CAP_S, _BASE_S * 2 ** min(failures, 10)))

    async def _list(self, rest: Callable[[float], Awaitable[object]] | None = None) -> Listed:
        return await list_all(
            self._kube,
            self.path,
            field_selector=self._params.get("fieldSelector", ""),
            label_selector=self._params.get("labelSelector", ""),
            page=self._page,
            rest=rest,
        )

    async def _list_once(self) -> None:
        listed = await self._list()
        self._alive_at = self._monotonic()
        self._lists += 1
        self._relist, self._covered, self._owed = False, "", ""
        await self._on_list(list(listed.items), listed.version)
        self.version = listed.version
        self._listed = True

    async def _watch_once(self) -> None:
        """One watch, from the newest version. Returns when the server ended it; raises what broke it."""
        self._watches += 1
        self._pending, self._ended, self._finished = [], None, False
        self._told, self._owed = self.version, ""
        pump = asyncio.create_task(self._pump(), name=f"watch {self.path}")
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                batch, self._pending = self._pending, []
                self._drained.set()
                if batch:
                    await self._hand_over(batch)
                if self._relist:
                    await self._begin_list()
                if self._listing is not None and self._listing.done():
                    listed, self._listing = self._listing.result(), None
                    await self._hand_over_beside(listed)
                # Last events and the end of the watch may have come as one: nothing more will be heard of it.
                if self._finished and not self._pending:
                    break
            if self._ended is not None:
                raise self._ended
        except ReadFailed:
            self._listed = False  # from now on in place of the watch, until it can be
            raise
        finally:
            self._watching = False
            self._relist = self._relist or self._listing is not None
            await self._drop_list()
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    async def _begin_list(self) -> None:
        """Beside the watch. Whoever asks may rely on a list that was begun after that."""
        if self._owed:
            raise WatchBroken(f"mute since {self._told}, although a list shows {self._owed}")
        await self._drop_list()
        self._relist, self._since = False, []
        self._listing = asyncio.create_task(self._list(asyncio.sleep), name=f"list {self.path}")
        self._listing.add_done_callback(lambda _: self._arrived.set())

    async def _drop_list(self) -> None:
        listing, self._listing = self._listing, None
        if listing is not None:
            listing.cancel()
            await asyncio.gather(listing, return_exceptions=True)

    async def _hand_over_beside(self, listed: Listed) -> None:
        """A list, and what events have said that it cannot know."""
        later: dict[str, tuple[str, bytes]] = {}
        for event in self._since:
            meta = bare_decoder.decode(event[1]).metadata
            if newer(meta.resource_version, listed.version):
                later[meta.uid] = event
        items: list[bytes] = []
        newest = ""
        for number, raw in enumerate(listed.items, 1):
            if not number % _STRETCH:
                await asyncio.sleep(0)
            meta = bare_decoder.decode(raw).metadata
            newest = max(newest, meta.resource_version, key=lambda version: (len(version), version))
            if meta.uid not in later:
                items.append(raw)
        items += [raw for kind, raw in later.values() if kind != "DELETED"]
        self._since = []
        self._alive_at = self._monotonic()
        self._lists += 1
        await self._on_list(items, listed.version)
        self._covered = listed.version
        self._owed = newest if newer(newest, self._told) else ""
        if newer(listed.version, self.version):
            self.version = listed.version

    async def _hand_over(self, batch: list[tuple[str, bytes]]) -> None:
        events = [event for event in batch if event[0] != "BOOKMARK"]
        if self._covered:
            events = self._uncovered(events)
        if events:
            if self._listing is not None:
                self._since += events
            await self._on_events(events)
        # Order of the stream is order of versions: the last one is the newest.
        version = bare_decoder.decode(batch[-1][1]).metadata.resource_version
        if newer(version, self._told):
            self._told = version
            if self._owed and not newer(self._owed, version):
                self._owed = ""
        if newer(version, self.version):
            self.version = version

    def _uncovered(self, events: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """Without those that the list has overtaken."""
        for number, (_, raw) in enumerate(events):
            if newer(bare_decoder.decode(raw).metadata.resource_version, self._covered):
                self._covered = ""  # the stream is past the list
                return events[number:]
        return []

    async def _pump(self) -> None:
        params = {
            **self._params,
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version,
            "timeoutSeconds": str(int(self._watch_s * self._rng.uniform(0.8, 1.2))),
        }
        try:
            stream = self._kube.watch(self.path, params=params, silence_s=self._silence_s)
            self._watching = True
            async for event in stream:
                self._alive_at = self._monotonic()
                self._pending.append(event)
                self._arrived.set()
                if len(self._pending) >= self._limit:
                    self._drained.clear()
                    await self._drained.wait()
        except (WatchGone, WatchBroken) as error:
            self._ended = error
        except msgspec.MsgspecError as error:
            self._ended = WatchBroken(str(error))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._ended = error
        finally:
            self._finished = True
            self._arrived.set()
