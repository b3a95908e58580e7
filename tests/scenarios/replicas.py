"""Two replicas of each service on the running stack, led through a proxy before the API server that loses what it is
told to lose; their sessions, leases and slow passes are short, so that what a user waits half a minute for takes
seconds here."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from bench.chaos.proxy import Proxy, leads_through
from libs.bus.kafka import KafkaBus
from libs.bus.port import Incoming, Outgoing
from libs.bus.settings import KafkaSettings
from libs.contracts.access import SERVICES
from libs.contracts.topics import Topic
from libs.kube.identity import from_kubeconfig
from tools.fleet import Fleet, Member
from tools.stack import StackInfo

SLOW_PASS_S = 3.0
SESSION_S = 3.0
TWICE = ("watcher", "placement", "binder")
ONCE = ("preemptor", "metrics-collector")
SHORT = {
    "DRYSTONE_KAFKA_SESSION_S": str(SESSION_S),
    "DRYSTONE_SLOW_PASS_S": str(SLOW_PASS_S),
    "DRYSTONE_PLACEMENT_SLOW_PASS_S": str(SLOW_PASS_S),
    "DRYSTONE_LEASE_S": "3",
    "DRYSTONE_RENEW_S": "0.8",
}


class Replicas:
    def __init__(self, info: StackInfo, fleet: Fleet, proxy: Proxy, directory: Path) -> None:
        self.info = info
        self.fleet = fleet
        self.proxy = proxy
        self._through = leads_through(proxy, info, directory)
        self._spawned = 0

    def members(self, service: str) -> list[Member]:
        return [m for m in self.fleet.members if m.service == service]

    def spawn(self, service: str) -> Member:
        self._spawned += 1
        return self.fleet.spawn(service, f"s{self._spawned}", **SHORT, **self._through(service))

    def kill(self, *members: Member) -> None:
        """At once and without a word."""
        for member in members:
            self.fleet.kill(member)

    def signal(self, number: signal.Signals, *members: Member) -> None:
        for member in members:
            member.process.send_signal(number)

    async def ready(self) -> None:
        await self.fleet.wait_ready(60.0)

    async def heal(self) -> None:
        """The API server as it is, and as many replicas as in the beginning, all of them ready."""
        self.proxy.let_go()
        self.proxy.forget = None
        self.fleet.resume()
        for service in (*TWICE, *ONCE):
            while len(self.members(service)) < (2 if service in TWICE else 1):
                self.spawn(service)
        await self.ready()

    # -- the API server as services see it ----------------------------------------------------------------------------

    @contextmanager
    def losing(self, *words: str) -> Iterator[list[bytes]]:
        """Lines of watches that have all of these words in them never arrive. Those lost so far."""
        lost: list[bytes] = []
        marks = [word.encode() for word in words]

        def forget(_path: str, line: bytes) -> bool:
            fits = all(mark in line for mark in marks)
            if fits:
                lost.append(line)
            return fits

        self.proxy.forget = forget
        try:
            yield lost
        finally:
            self.proxy.forget = None

    def hold_first(self, pods: Collection[str]) -> None:
        """The first Binding of each of these pods is held back, later ones of the same pod are not."""
        seen: set[str] = set()

        def first(_method: str, path: str) -> bool:
            if path in seen or not any(path.endswith(f"/{pod}/binding") for pod in pods):
                return False
            seen.add(path)
            return True

        self.proxy.hold_back(first)

    # -- topics -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[KafkaBus]:
        bus = KafkaBus(KafkaSettings(self.info.kafka_bootstrap, client_id="scenario", check_topics=False))
        await bus.open()
        try:
            yield bus
        finally:
            await bus.close()

    async def said(self, topic: Topic, fits: Callable[[Incoming], bool]) -> list[Incoming]:
        """What the topic holds now, as far as it fits."""
        found: list[Incoming] = []
        async with self.bus() as bus:
            reader = bus.follow([topic.name], from_start=True)
            async with asyncio.timeout(20):
                while not reader.caught_up:
                    found += [record for record in await reader.batch() if fits(record)]
        return found

    async def say_again(self, topic: Topic, records: list[Incoming]) -> None:
        """Each record once more on every partition of the topic, so that every replica of a group gets it."""
        async with self.bus() as bus:
            await bus.publisher().publish(
                [
                    Outgoing(topic.name, r.key, r.value, r.type, partition, id=r.id)
                    for partition in range(topic.partitions)
                    for r in records
                ]
            )

    async def divided(self, service: str) -> None:
        """The partitions that the replicas of a service share are divided among all of them: what ended or stood still
        before, and what came in its place, no longer moves them about."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.info.kafka_bootstrap)
        await admin.start()
        try:
            async with asyncio.timeout(30):
                while True:
                    (answer,) = await admin.describe_consumer_groups([SERVICES[service].group])
                    _, _, state, _, _, members, *_ = answer.groups[0]
                    if state == "Stable" and len(members) == len(self.members(service)):
                        return
                    await asyncio.sleep(0.1)
        finally:
            await admin.close()

    async def delete_messages(self, topic: Topic) -> int:
        """Everything that the topic holds now; how many records that was."""
        held = len(await self.said(topic, lambda _: True))
        admin = AIOKafkaAdminClient(bootstrap_servers=self.info.kafka_bootstrap)
        await admin.start()
        try:
            places = [TopicPartition(topic.name, n) for n in range(topic.partitions)]
            await admin.delete_records({place: RecordsToDelete(-1) for place in places})
        finally:
            await admin.close()
        return held


@contextmanager
def serving(info: StackInfo) -> Iterator[Proxy]:
    """The proxy, in a thread with a loop of its own: it outlives the loops of the tests."""
    proxy = OtherLoop(from_kubeconfig(info.kubeconfig), random.Random(1))
    up, over = threading.Event(), threading.Event()

    async def serve() -> None:
        proxy.loop = asyncio.get_running_loop()
        async with proxy.serving():
            up.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="proxy", daemon=True)
    thread.start()
    if not up.wait(10):
        raise RuntimeError("the proxy does not come up")
    try:
        yield proxy
    finally:
        over.set()
        thread.join(10)


class OtherLoop(Proxy):
    """Its events belong to the loop of its thread."""

    loop: asyncio.AbstractEventLoop

    def close_watches_as_too_old(self) -> None:
        self._there(super().close_watches_as_too_old)

    def hold_back(self, which: Callable[[str, str], bool]) -> None:
        self._there(super().hold_back, which)

    def let_go(self) -> None:
        self._there(super().let_go)

    def _there(self, act: Callable[..., None], *arguments: object) -> None:
        if asyncio._get_running_loop() is self.loop:
            act(*arguments)
            return
        done = threading.Event()

        def work() -> None:
            act(*arguments)
            done.set()

        self.loop.call_soon_threadsafe(work)
        done.wait(5)
