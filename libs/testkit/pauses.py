"""Pause points: every call that a service makes to its ledger, bus or API server may be held, lost or let come late.

A `Pauses` hands out wrapped parts, one set per actor (a replica of a service). Each call of an actor reaches two
points: before it takes effect, and after it took effect but before its caller hears of it. A test holds points
(`hold`), or lets a seeded schedule delay and lose them (`shuffle`). A dead actor's calls never return and have no
effect, so nothing that a process does on its way out helps it: the end is that of SIGKILL.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, cast

from libs.bus.memory import MemoryBus, MemoryGroupReader
from libs.bus.port import Bus, BusUnavailable, FullReader, GroupReader, Incoming, Outgoing, Publisher, Rebalanced
from libs.host.parts import Parts
from libs.kube.port import Answer, Kube, WatchBroken
from libs.runtime.clock import Clock
from libs.store.port import Ledger, LedgerUnavailable, StaleGeneration


@dataclass(frozen=True, slots=True)
class Point:
    """`act`: "ledger commit", "send drystone.plans", "read drystone.tasks", "done drystone.plans" (offsets), "POST
    binding", "GET pods", "watch pods". `about`: what it names (path, keys, claims), as text."""

    actor: str
    act: str
    about: str
    before: bool

    def __str__(self) -> str:
        return f"{self.actor}: {'' if self.before else 'did '}{self.act} {self.about[:90]}"


@dataclass(slots=True, eq=False)
class Held:
    """Points that match wait here until one of `go`, `lose`, `answer`. Afterwards they pass freely.

    `late`: callers waiting here are told nothing certain (as after a time-out) while what they asked for is still on
    its way; `go` then lets it arrive.
    """

    matches: Callable[[Point], bool]
    most: int
    points: list[Point] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _told: asyncio.Event = field(default_factory=asyncio.Event)
    _open: asyncio.Event = field(default_factory=asyncio.Event)
    _lost: bool = False
    _late: bool = False
    _answer: Answer | None = None

    async def reached(self, within_s: float = 60.0) -> Point:
        async with asyncio.timeout(within_s):
            await self._arrived.wait()
        return self.points[0]

    def go(self) -> None:
        self._open.set()
        self._told.set()

    def lose(self) -> None:
        self._lost = True
        self.go()

    def answer(self, answer: Answer) -> None:
        self._answer = answer
        self.go()

    def late(self) -> None:
        self._late = True
        self._told.set()

    @property
    def over(self) -> bool:
        return self._open.is_set() or len(self.points) >= self.most

    def take(self, point: Point) -> None:
        self.points.append(point)
        self._arrived.set()


@dataclass(slots=True)
class _Way:
    lost: bool = False
    answer: Answer | None = None
    arrives: asyncio.Event | None = None


_ON = _Way()
#: Left out of the journal.
_ROUTINE = frozenset({"ledger tail", "ledger expire", "ledger state", "GET leases", "PUT leases"})


@dataclass(slots=True)
class Shuffle:
    """A seeded schedule. What happens at a point is drawn from the seed, the point and how often its actor has come to
    it, so the order in which two of them come at one moment changes nothing. `delays` in seconds; `lost` is the share
    of lost calls. A jitter of less than a tenth of a millisecond decides between those that would go on together."""

    seed: int
    delays: Sequence[float]
    lost: float
    losable: Callable[[Point], bool]
    _came: Counter[tuple[str, str, bool]] = field(default_factory=Counter)

    def draw(self, point: Point) -> tuple[float, bool]:
        place = (point.actor, point.act, point.before)
        self._came[place] += 1
        rng = random.Random(f"{self.seed}/{place}/{self._came[place]}")
        delay = rng.choice(self.delays) + rng.random() * 1e-4
        return delay, self.losable(point) and rng.random() < self.lost


class Pauses:
    def __init__(self) -> None:
        self.journal: list[str] = []
        self.dead: set[str] = set()
        self._frozen: dict[str, asyncio.Event] = {}
        #: Called at every point after an effect, before anything else may happen.
        self.after: Callable[[Point, Any], None] = lambda _point, _answer: None
        self._held: list[Held] = []
        self._shuffle: Shuffle | None = None
        self._late: set[asyncio.Task[None]] = set()

    def hold(self, actor: str, act: str, about: str = "", *, after: bool = False, most: int = 1_000_000) -> Held:
        """Hold the next points of the actor (any replica, if its name begins so) for this act; `after`: once done."""

        def matches(point: Point) -> bool:
            same = point.before is not after and point.act == act and about in point.about
            return same and point.actor.startswith(actor)

        held = Held(matches, most)
        self._held.append(held)
        return held

    def shuffle(
        self,
        seed: int,
        delays: Sequence[float],
        *,
        lost: float = 0.0,
        losable: Callable[[Point], bool] = lambda _: True,
    ) -> None:
        self._shuffle = Shuffle(seed, delays, lost, losable)

    def calm(self) -> None:
        self._shuffle = None

    def parts(self, actor: str, bus: MemoryBus, ledger: Ledger, kube: Kube, clock: Clock) -> Parts:
        paused = PausedBus(self, actor, bus)
        return Parts(
            cast(Bus, paused),
            cast(Ledger, _PausedLedger(self, actor, ledger)),
            cast(Kube, _PausedKube(self, actor, kube)),
            clock,
        )

    async def at(self, point: Point) -> _Way:
        await self._unless_dead(point.actor)
        for held in self._held:
            if not held.over and held.matches(point):
                self._note(point)
                held.take(point)
                await held._told.wait()
                if held._late and not held._open.is_set():
                    return _Way(arrives=held._open)
                await self._unless_dead(point.actor)
                return _Way(held._lost, held._answer)
        if self._shuffle is not None:
            delay, lost = self._shuffle.draw(point)
            await asyncio.sleep(delay)
            await self._unless_dead(point.actor)
            self._note(point, " LOST" if lost else "")
            return _Way(lost=True) if lost else _ON
        self._note(point)
        return _ON

    def _note(self, point: Point, how: str = "") -> None:
        if point.act not in _ROUTINE:
            self.journal.append(f"{asyncio.get_running_loop().time():9.3f} {point}{how}")

    def freeze(self, actor: str) -> None:
        """As SIGSTOP: its calls reach no further than the next point until `thaw`."""
        self._frozen[actor] = asyncio.Event()

    def thaw(self, actor: str) -> None:
        self._frozen.pop(actor).set()

    async def _unless_dead(self, actor: str) -> None:
        frozen = self._frozen.get(actor)
        if frozen is not None:
            await frozen.wait()
        if actor in self.dead:
            await asyncio.Event().wait()  # until cancelled

    def later(self, arrives: asyncio.Event, effect: Callable[[], Any]) -> None:
        """What was sent by a caller that has stopped waiting."""

        async def arrive() -> None:
            await arrives.wait()
            with suppress(StaleGeneration):  # refused, and nobody is there to hear it
                await effect()

        # It is the network's by now: the end of the process that sent it does not call it back.
        task = asyncio.create_task(arrive(), name="a late request", context=Context())
        self._late.add(task)
        task.add_done_callback(self._late.discard)


class _PausedLedger:
    """Ledger methods by name; what is lost on its way, there or back, raises LedgerUnavailable."""

    def __init__(self, pauses: Pauses, actor: str, ledger: Ledger) -> None:
        self._pauses, self._actor, self._ledger = pauses, actor, ledger

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._ledger, name)

        async def call(*args: Any, **named: Any) -> Any:
            act, about = f"ledger {name}", repr(args)
            way = await self._pauses.at(Point(self._actor, act, about, True))
            if way.arrives is not None:
                self._pauses.later(way.arrives, lambda: method(*args, **named))
            if way.lost or way.arrives is not None:
                raise LedgerUnavailable("no answer in time")
            answer = await method(*args, **named)
            done = Point(self._actor, act, about, False)
            self._pauses.after(done, answer)
            if (await self._pauses.at(done)).lost:
                raise LedgerUnavailable("lost on its way back")
            return answer

        return call


class _PausedKube:
    def __init__(self, pauses: Pauses, actor: str, kube: Kube) -> None:
        self._pauses, self._actor, self._kube = pauses, actor, kube

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float = 5.0,
    ) -> Answer:
        async def serve() -> Answer:
            answer = await self._kube.call(
                method, path, body, params=params, content_type=content_type, timeout_s=timeout_s
            )
            self._pauses.after(Point(self._actor, act, path, False), answer)
            return answer

        act = f"{method} {_kind(path)}"
        way = await self._pauses.at(Point(self._actor, act, path, True))
        if way.answer is not None:
            return way.answer
        if way.arrives is not None:
            self._pauses.later(way.arrives, serve)
        if way.lost or way.arrives is not None:
            return Answer(0, b"", unsure=True)
        answer = await serve()
        if (await self._pauses.at(Point(self._actor, act, path, False))).lost:
            return Answer(0, b"", unsure=True)
        return answer

    async def watch(
        self, path: str, *, params: Mapping[str, str], silence_s: float = 60.0
    ) -> AsyncIterator[tuple[str, bytes]]:
        async for kind, raw in self._kube.watch(path, params=params, silence_s=silence_s):
            if (await self._pauses.at(Point(self._actor, f"watch {_kind(path)}", kind, True))).lost:
                raise WatchBroken("connection lost")
            yield kind, raw

    async def close(self) -> None:
        return None


def _kind(path: str) -> str:
    """The subresource, else the resource: "binding", "status", "pods", "trainingjobs"."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    return parts[2] if len(parts) > 2 else parts[0]


class PausedBus:
    def __init__(self, pauses: Pauses, actor: str, bus: MemoryBus) -> None:
        self._pauses, self._actor, self._bus = pauses, actor, bus
        self.readers: list[MemoryGroupReader] = []

    def publisher(self) -> Publisher:
        return cast(Publisher, _PausedPublisher(self._pauses, self._actor, self._bus))

    def group(self, group: str, topics: Sequence[str], *, rebalanced: Rebalanced | None = None) -> GroupReader:
        reader = self._bus.group(group, topics, rebalanced=rebalanced)
        self.readers.append(reader)
        return cast(GroupReader, _PausedReader(self._pauses, self._actor, topics, reader))

    def follow(self, topics: Sequence[str], *, from_start: bool) -> FullReader:
        reader = self._bus.follow(topics, from_start=from_start)
        return cast(FullReader, _PausedReader(self._pauses, self._actor, topics, reader))

    def partitions(self, topic: str) -> int:
        return self._bus.partitions(topic)

    @property
    def healthy(self) -> bool:
        return self._bus.healthy

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        return None

    def left(self) -> None:
        """The members of this process have left their groups, by themselves or by the session's end."""
        for reader in self.readers:
            reader.leave()
        self.readers.clear()

    def expelled(self) -> list[MemoryGroupReader]:
        """The group has given up on this process, which stands still and learns of it when it goes on (`told`)."""
        expelled, self.readers = self.readers, []
        for reader in expelled:
            reader._group.members.remove(reader)
            reader._group._assign()
        return expelled

    @staticmethod
    def told(readers: Collection[MemoryGroupReader]) -> None:
        for reader in readers:
            reader.assigned(frozenset())


class _PausedPublisher:
    def __init__(self, pauses: Pauses, actor: str, bus: MemoryBus) -> None:
        self._pauses, self._actor, self._bus = pauses, actor, bus

    async def publish(self, records: Sequence[Outgoing]) -> None:
        topics = "+".join(sorted({r.topic for r in records}))
        about = " ".join(dict.fromkeys(r.key for r in records))
        if (await self._pauses.at(Point(self._actor, f"send {topics}", about, True))).lost:
            raise BusUnavailable("lost on its way there")
        await self._bus.publish(records)
        done = Point(self._actor, f"send {topics}", about, False)
        self._pauses.after(done, None)
        if (await self._pauses.at(done)).lost:
            raise BusUnavailable("acknowledgement lost")


class _PausedReader:
    """A reader of either kind. Records that were fetched and are held here are already counted as read."""

    def __init__(
        self, pauses: Pauses, actor: str, topics: Sequence[str], reader: FullReader | MemoryGroupReader
    ) -> None:
        self._pauses, self._actor, self._reader = pauses, actor, reader
        self._name = "+".join(topics)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def batch(self, limit: int = 500, wait_s: float = 0.5) -> Sequence[Incoming]:
        records = await self._reader.batch(limit, wait_s)
        if records:
            about = " ".join(dict.fromkeys(r.key for r in records))
            await self._pauses.at(Point(self._actor, f"read {self._name}", about, True))
        return records

    async def done(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """A commit that is lost costs reading again; Kafka's reader raises nothing for it."""
        assert isinstance(self._reader, MemoryGroupReader)
        point = Point(self._actor, f"done {self._name}", repr(dict(offsets)), True)
        if not (await self._pauses.at(point)).lost:
            await self._reader.done(offsets)
