"""What only a real server shows: cost that does not grow with the cluster, run ids, eviction policy, many writers."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.ledger import measure
from libs.domain.nodes import Gpu, Node
from libs.domain.plans import Assignment, Plan
from libs.domain.resources import Charge, GpuGrant
from libs.store.port import LedgerMisconfigured, LedgerUnavailable
from libs.store.redis import RedisLedger
from tests.unit.libs.store.test_extreme_amounts import PODS, sums_come_back_exact

pytestmark = pytest.mark.real


class Server:
    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder = folder
        self.url = f"redis://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
             "--save", "", "--appendonly", "yes", "--appendfsync", "always"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    async def start(self) -> None:
        self.spawn()
        for _ in range(200):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            await asyncio.sleep(0.02)
        raise AssertionError("redis-server did not start")

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(10)
            self.process = None


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path)
    await made.start()
    yield made
    made.stop()


def plan(n: int, generation: int, epoch: int) -> Plan:
    a = Assignment(f"c{n}", f"t{n}", "x", "n1", "s", Charge(cpu=1, gpus=(GpuGrant(n % 2, 1000, 8000),)))
    return Plan(f"p{n}", f"j{n}", "", "d", "q", 0, epoch, generation, True, assignments=(a,))


async def whole(ledger: RedisLedger) -> tuple[int, int]:
    await ledger.open()
    generation = (await ledger.begin_rebuild(1)).generation
    await ledger.nodes_seen([Node("n1", "u", "1", "s", cpu=100, gpus=(Gpu(0, 8000), Gpu(1, 8000)))], 1)
    await ledger.whole(1)
    return generation, (await ledger.take(0)).epoch


async def test_calls_per_function_do_not_grow_with_the_cluster(server: Server) -> None:
    small = (await measure(server.url, 100, 2))["functions"]
    large = (await measure(server.url, 10_000, 2))["functions"]
    for function, cost in small.items():
        assert large[function]["redis_calls"] <= cost["redis_calls"] + 1, function
        assert cost["redis_calls"] <= 20, function
    assert large["commit x1"]["redis_calls"] <= 13


async def test_restarted_server_is_not_trusted_until_rebuilt(server: Server) -> None:
    ledger = RedisLedger(server.url)
    generation, epoch = await whole(ledger)
    server.stop()
    with pytest.raises(LedgerUnavailable):
        await ledger.state()
    await server.start()
    (answer,) = await ledger.commit([plan(1, generation, epoch)])
    assert [str(r) for r in answer.refused.values()] == ["rebuilding"]
    assert not (await ledger.state()).whole
    again = await ledger.open()
    assert again.generation == generation
    assert (await ledger.begin_rebuild(1)).generation > generation
    assert (await ledger.whole(1)).whole
    await ledger.close()


async def test_evicting_server_is_refused_in_one_sentence(server: Server) -> None:
    ledger = RedisLedger(server.url)
    await ledger.server.client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(LedgerMisconfigured, match="noeviction"):
        await ledger.open()
    await ledger.close()


async def test_twenty_writers_want_two_gpus(server: Server) -> None:
    first = RedisLedger(server.url)
    generation, epoch = await whole(first)
    others = [RedisLedger(server.url) for _ in range(4)]
    plans = [plan(n, generation, epoch) for n in range(20)]
    answers = await asyncio.gather(*(others[n % 4].commit([p]) for n, p in enumerate(plans)))
    assert sum(len(a.taken) for (a,) in answers) == 2
    for ledger in (first, *others):
        await ledger.close()


async def test_sums_past_what_fourteen_digits_say_come_back_to_the_last_digit(server: Server) -> None:
    """Redis' own cjson writes no more digits than that: a hundred thousand pods, each as large as is let in, ended in
    a number that nobody could read."""
    ledger = RedisLedger(server.url, timeout_s=20.0)
    try:
        await sums_come_back_exact(ledger, PODS)
    finally:
        await ledger.close()
