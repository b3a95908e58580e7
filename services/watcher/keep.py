"""Statuses of queues are written by the leader, and what a new leader begins from is read off them.

Best effort: a status that cannot be written now is written the next time, and a leader that dies takes with it what
queues used since the last one, of pods that ended meanwhile, and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import structlog

from libs.domain.queues import QueueHistory
from libs.kube import writes
from libs.kube.objects import bare_decoder
from libs.kube.outcomes import Outcome, classify, why
from libs.kube.port import Kube
from libs.runtime.clock import Clock
from services.watcher import metrics
from services.watcher.decide import Picture
from services.watcher.settings import WatcherSettings
from services.watcher.standing import Kept, kept, statuses, steady

log = structlog.get_logger()

#: Writes in flight.
_WIDTH = 8


class Keeper:
    def __init__(self, kube: Kube, picture: Picture, settings: WatcherSettings, clock: Clock) -> None:
        self._kube = kube
        self._picture = picture
        self._settings = settings
        self._clock = clock
        self._kept: dict[str, Kept] = {}
        #: What was last written, by name; and of which queues something was held at that time.
        self._written: dict[str, dict[str, Any]] = {}
        self._was_busy: set[str] = set()
        #: As of when the last status was that was sent, by name.
        self._sent_at: dict[str, float] = {}
        #: A queue is new, or its spec was changed: its owner looks at the status for what came of it.
        self._changed = False
        self._writing = asyncio.Lock()

    def seen(self, kind: str, raw: bytes) -> None:
        """A queue object came or changed. What its status says is taken up until the tally has begun."""
        try:
            name, found = kept(raw)
        except msgspec.MsgspecError:
            return
        old = self._kept.get(name)
        if kind == "DELETED":
            self._forget(name)
            return
        if old is not None and old.uid == found.uid:
            self._changed |= old.generation != found.generation
            old.generation = found.generation
            if found.history is not None and found.history.at < self._sent_at.get(name, 0.0):
                # A leader that was deposed had a write under way, and it came to lie over ours.
                self._written.pop(name, None)
                self._changed = True
            return
        self._changed = True
        self._forget(name)
        self._kept[name] = found

    def listed(self, raws: Sequence[bytes]) -> None:
        present = set()
        for raw in raws:
            try:
                present.add(bare_decoder.decode(raw).metadata.name)
            except msgspec.MsgspecError:
                continue  # the picture counts it
            self.seen("ADDED", raw)
        for name in self._kept.keys() - present:
            self._forget(name)

    def begin(self) -> None:
        """All was listed: what was kept goes to where the queues stand now."""
        placed = self._picture.catalog.placed
        histories: dict[str, QueueHistory] = {
            placed[name].queue.path: found.history
            for name, found in self._kept.items()
            if name in placed and found.history is not None
        }
        self._picture.tally.begin(histories)

    async def run(self) -> None:
        """For ever: soon after somebody was evicted or a queue was changed, else once in a while."""
        due = self._clock.monotonic() + self._settings.queue_status_s
        evicted = self._picture.tally.news
        while True:
            await self._clock.sleep(min(self._settings.history_tell_s, self._settings.queue_status_s))
            now = self._clock.monotonic()
            if now < due and self._picture.tally.news == evicted and not self._changed:
                continue
            self._changed = False
            evicted, due = self._picture.tally.news, now + self._settings.queue_status_s
            await self.keep()

    async def keep(self) -> None:
        """Write the statuses that are news."""
        async with self._writing:
            said = statuses(self._picture, self._kept, self._picture.tally.history, self._clock.wall())
            slots = asyncio.Semaphore(_WIDTH)
            async with asyncio.TaskGroup() as tasks:
                for name, status in said.items():
                    busy = self._picture.tally.busy(status["path"])
                    if busy or name in self._was_busy or self._written.get(name) != steady(status):
                        tasks.create_task(self._write(name, status, busy, slots), name=f"status of queue {name}")

    async def _write(self, name: str, status: Mapping[str, Any], busy: bool, slots: asyncio.Semaphore) -> None:
        found = self._kept.get(name)
        if found is None:
            return
        async with slots:
            self._sent_at[name] = status["history"]["at"]
            answer = await writes.patch_queue_status(
                self._kube, name, found.uid, status, timeout_s=self._settings.write_timeout_s
            )
        outcome = classify(answer)
        metrics.QUEUE_STATUS.labels(outcome.value).inc()
        if outcome is Outcome.DONE:
            self._written[name] = steady(status)
            (self._was_busy.add if busy else self._was_busy.discard)(name)
        elif outcome is not Outcome.GONE:
            log.warning("status of a queue was not written", queue=name, fault=why(answer))

    def _forget(self, name: str) -> None:
        self._kept.pop(name, None)
        self._written.pop(name, None)
        self._sent_at.pop(name, None)
        self._was_busy.discard(name)
