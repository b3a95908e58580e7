"""Following state through gaps, and holding leadership no longer than one's time, against the embedded API server."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
import pytest

from libs.kube import writes
from libs.kube.embedded import EmbeddedCluster
from libs.kube.lease import LeaderLease
from libs.kube.pods import parse_pod
from libs.kube.port import Answer
from libs.kube.reflector import Reflector
from tests.unit.libs.kube.objects_for_tests import raw_pod

PODS = "/api/v1/namespaces/default/pods"


async def create(cluster: EmbeddedCluster, name: str) -> None:
    body = msgspec.json.decode(raw_pod(name))
    body["metadata"] = {"name": name}
    assert (await writes.create_pod(cluster, "default", msgspec.json.encode(body))).ok


class Follower:
    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.names: set[str] = set()
        self.batches: list[int] = []
        self.changed = asyncio.Event()
        self.reflector = Reflector(cluster, PODS, on_list=self.on_list, on_events=self.on_events, rng=random.Random(1))

    async def on_list(self, items: list[bytes], _version: str) -> None:
        self.names = {parse_pod(raw).name for raw in items}
        self.changed.set()

    async def on_events(self, events: list[tuple[str, bytes]]) -> None:
        self.batches.append(len(events))
        for kind, raw in events:
            (self.names.discard if kind == "DELETED" else self.names.add)(parse_pod(raw).name)
        self.changed.set()

    async def sees(self, names: set[str]) -> None:
        async with asyncio.timeout(30):
            while self.names != names:
                self.changed.clear()
                await self.changed.wait()


class EndsAtOnce(EmbeddedCluster):
    """Its watches end as soon as they have said something, without a pause in between."""

    async def watch(
        self, path: str, *, params: Mapping[str, str], silence_s: float = 60.0
    ) -> AsyncIterator[tuple[str, bytes]]:
        async for event in super().watch(path, params=params, silence_s=silence_s):
            yield event
            return


class SlowList(EmbeddedCluster):
    """From `slow` on, a list is answered as of the time when it was asked for, and not before `answers`."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.asked, self.answers = asyncio.Event(), asyncio.Event()
        self.mute = False

    async def call(self, method: str, path: str, *args: Any, **kwargs: Any) -> Answer:
        answer = await super().call(method, path, *args, **kwargs)
        if self.slow and method == "GET" and path == PODS:
            self.asked.set()
            await self.answers.wait()
        return answer

    async def watch(
        self, path: str, *, params: Mapping[str, str], silence_s: float = 60.0
    ) -> AsyncIterator[tuple[str, bytes]]:
        async for event in super().watch(path, params=params, silence_s=silence_s):
            if not self.mute:
                yield event


async def delete(cluster: EmbeddedCluster, name: str) -> None:
    pod = parse_pod((await writes.get_pod(cluster, "default", name)).body)
    assert (await writes.delete_pod(cluster, "default", name, pod.uid)).ok


async def until(done: Callable[[], bool]) -> None:
    for _ in range(2000):
        if done():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not happen")


class TestReflector:
    async def test_events_go_on_while_thousands_are_listed_and_the_list_takes_nothing_of_them_back(self) -> None:
        """The list was read before they happened and arrives after: what came is not gone, what went is not back."""
        cluster = SlowList()
        follower = Follower(cluster)
        for name in ("stays", "goes", "lost"):
            await create(cluster, name)
        task = asyncio.create_task(follower.reflector.run())
        await follower.sees({"stays", "goes", "lost"})
        await create(cluster, "before")
        await follower.sees({"stays", "goes", "lost", "before"})
        follower.names.add("a ghost that no event will ever end")
        cluster.slow = True
        follower.reflector.relist()
        async with asyncio.timeout(30):
            await cluster.asked.wait()
        await create(cluster, "comes")
        await delete(cluster, "goes")
        await create(cluster, "short")
        await delete(cluster, "short")
        await until(lambda: "comes" in follower.names and "goes" not in follower.names)
        assert follower.reflector.health().lists == 1, "the list is still being read"
        cluster.answers.set()
        await until(lambda: follower.reflector.health().lists == 2)
        await follower.sees({"stays", "lost", "before", "comes"})
        assert follower.reflector.health().watches == 1
        await create(cluster, "after")
        await follower.sees({"stays", "lost", "before", "comes", "after"})
        task.cancel()

    async def test_a_watch_that_breaks_while_a_list_is_read_beside_it_is_begun_anew_and_so_is_the_list(self) -> None:
        cluster = SlowList()
        follower = Follower(cluster)
        await create(cluster, "a")
        task = asyncio.create_task(follower.reflector.run())
        await follower.sees({"a"})
        cluster.slow = True
        follower.reflector.relist()
        async with asyncio.timeout(30):
            await cluster.asked.wait()
        cluster.break_watches()
        await create(cluster, "b")
        await follower.sees({"a", "b"})
        cluster.answers.set()
        await until(lambda: follower.reflector.health().lists == 2)
        assert follower.names == {"a", "b"}
        task.cancel()

    async def test_a_list_that_is_asked_for_while_one_is_read_is_begun_after_that(self) -> None:
        """What was bound before the mark must be in the list, or its room would be taken for free."""
        cluster = SlowList()
        follower = Follower(cluster)
        task = asyncio.create_task(follower.reflector.run())
        await until(lambda: follower.reflector.health().watching)
        cluster.slow = True
        follower.reflector.relist()
        async with asyncio.timeout(30):
            await cluster.asked.wait()
        cluster.mute = True
        await create(cluster, "unheard")
        cluster.asked.clear()
        follower.reflector.relist()
        async with asyncio.timeout(30):
            await cluster.asked.wait()
        cluster.answers.set()
        await until(lambda: follower.reflector.health().lists == 2)
        assert follower.names == {"unheard"}
        task.cancel()

    async def test_a_watch_that_is_mute_is_begun_anew_when_lists_show_what_it_did_not_tell(self) -> None:
        cluster = SlowList()
        follower = Follower(cluster)
        task = asyncio.create_task(follower.reflector.run())
        await until(lambda: follower.reflector.health().watching)
        cluster.mute = True
        await create(cluster, "a")
        follower.reflector.relist()
        await follower.sees({"a"})
        assert follower.reflector.health().watches == 1
        follower.reflector.relist()
        await until(lambda: follower.reflector.health().watches == 2)
        cluster.mute = False
        await create(cluster, "b")
        await follower.sees({"a", "b"})
        task.cancel()

    async def test_a_broken_watch_goes_on_where_it_was(self) -> None:
        cluster = EmbeddedCluster()
        follower = Follower(cluster)
        task = asyncio.create_task(follower.reflector.run())
        await create(cluster, "a")
        await follower.sees({"a"})
        cluster.break_watches()
        await create(cluster, "b")
        await follower.sees({"a", "b"})
        assert follower.reflector.health().lists == 1
        task.cancel()

    async def test_a_gap_is_closed_by_a_list(self) -> None:
        cluster = EmbeddedCluster()
        follower = Follower(cluster)
        await create(cluster, "a")
        task = asyncio.create_task(follower.reflector.run())
        await follower.sees({"a"})
        cluster.break_watches()
        pod = parse_pod((await writes.get_pod(cluster, "default", "a")).body)
        assert (await writes.delete_pod(cluster, "default", "a", pod.uid)).ok
        await create(cluster, "b")
        cluster.compact()
        await follower.sees({"b"})
        assert follower.reflector.health().lists == 2
        task.cancel()

    async def test_a_watch_that_ends_together_with_its_last_events_is_begun_anew(self) -> None:
        """A busy reader finds events and the end of the stream in one turn of its loop."""
        cluster = EndsAtOnce()
        follower = Follower(cluster)
        task = asyncio.create_task(follower.reflector.run())
        await follower.sees(set())
        for name in "abc":
            await create(cluster, name)
            await follower.sees({n for n in "abc" if n <= name})
        assert follower.reflector.health().lists == 1
        assert follower.reflector.health().watches >= 2
        task.cancel()

    async def test_what_arrives_together_is_handed_over_together(self) -> None:
        cluster = EmbeddedCluster()
        follower = Follower(cluster)
        task = asyncio.create_task(follower.reflector.run())
        await follower.sees(set())
        await asyncio.sleep(0.05)
        await asyncio.gather(*(create(cluster, f"p{n}") for n in range(200)))
        await follower.sees({f"p{n}" for n in range(200)})
        assert sum(follower.batches) == 200
        assert len(follower.batches) < 20
        task.cancel()

    async def test_a_handler_that_fails_ends_it(self) -> None:
        cluster = EmbeddedCluster()

        async def fails(_events: list[tuple[str, bytes]]) -> None:
            raise ZeroDivisionError

        async def ignores(_items: list[bytes], _version: str) -> None: ...

        task = asyncio.create_task(Reflector(cluster, PODS, on_list=ignores, on_events=fails).run())
        await asyncio.sleep(0.05)
        await create(cluster, "a")
        with pytest.raises(ZeroDivisionError):
            async with asyncio.timeout(30):
                await task


class TestLease:
    def lease(self, cluster: EmbeddedCluster, identity: str, clock: list[float]) -> LeaderLease:
        return LeaderLease(
            cluster, "default", "boss", identity, duration_s=0.6, renew_s=0.1, margin_s=0.1, monotonic=lambda: clock[0]
        )

    async def test_a_leader_that_was_paused_finds_itself_deposed(self) -> None:
        clock = [100.0]
        lease = self.lease(EmbeddedCluster(), "a", clock)
        task = asyncio.create_task(lease.run())
        async with asyncio.timeout(30):
            await lease.won.wait()
        assert lease.is_leader
        clock[0] += 0.55
        assert not lease.is_leader
        task.cancel()

    async def test_a_paused_leader_whom_nobody_followed_goes_on_in_its_term(self) -> None:
        clock = [100.0]
        lease = self.lease(EmbeddedCluster(), "a", clock)
        task = asyncio.create_task(lease.run())
        async with asyncio.timeout(30):
            await lease.won.wait()
            clock[0] += 30.0
            assert not lease.is_leader
            while not lease.is_leader:  # noqa: ASYNC110 -- time is handed in
                await asyncio.sleep(0.01)
        assert (lease.term, lease.lost.is_set()) == (1, False)
        task.cancel()

    async def test_a_paused_leader_whom_somebody_followed_stands_down(self) -> None:
        cluster, clock, awake = EmbeddedCluster(), [100.0], [100.0]
        first = self.lease(cluster, "a", clock)
        task = asyncio.create_task(first.run())
        second = self.lease(cluster, "b", awake)
        async with asyncio.timeout(30):
            await first.won.wait()

            async def paused(_method: str, _path: str, body: bytes | None) -> Answer | None:
                if body and b'"a"' in body:
                    await second.won.wait()  # it was on its way when the process stopped
                return None

            cluster.intercept = paused
            follows = asyncio.create_task(second.run())
            while not second.seen_holder:  # noqa: ASYNC110 -- time is handed in
                await asyncio.sleep(0.01)
            awake[0] += 1.01  # the record says whole seconds
            clock[0] += 1.01
            await second.won.wait()
            await first.lost.wait()
        assert (first.term, second.term, first.is_leader, second.is_leader) == (1, 2, False, True)
        task.cancel()
        follows.cancel()
        await asyncio.gather(task, follows, return_exceptions=True)

    async def test_a_leader_without_answers_stands_down_before_its_time_is_up(self) -> None:
        cluster = EmbeddedCluster()
        lease = LeaderLease(cluster, "default", "boss", "a", duration_s=0.6, renew_s=0.1, margin_s=0.2)
        task = asyncio.create_task(lease.run())
        async with asyncio.timeout(30):
            await lease.won.wait()

        async def cut_off(_method: str, _path: str, _body: bytes | None) -> Answer:
            return Answer(0, b"", unsure=True)

        cluster.intercept = cut_off
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(30):
            await lease.lost.wait()
        assert loop.time() - began < 0.6
        cluster.intercept = None
        async with asyncio.timeout(30):
            await lease.won.wait()
        assert lease.term == 2
        task.cancel()

    async def test_a_dead_leader_is_followed_after_its_duration_and_not_before(self) -> None:
        cluster, clock = EmbeddedCluster(), [100.0]
        first = self.lease(cluster, "a", clock)
        task = asyncio.create_task(first.run())
        async with asyncio.timeout(30):
            await first.won.wait()

        async def dead(_method: str, _path: str, body: bytes | None) -> Answer | None:
            return Answer(0, b"") if body and b'"a"' in body else None

        cluster.intercept = dead
        second = self.lease(cluster, "b", clock)
        follows = asyncio.create_task(second.run())
        await asyncio.sleep(0.3)
        assert not second.won.is_set()
        clock[0] += 1.01  # the record says whole seconds
        async with asyncio.timeout(30):
            await second.won.wait()
        assert second.term == first.term + 1
        assert not first.is_leader
        task.cancel()
        follows.cancel()
        await asyncio.gather(task, follows, return_exceptions=True)
