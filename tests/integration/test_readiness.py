"""A service with nothing to do, on real servers that go away: it says so within its limit, and is ready again when they
are back. What is tested is the process that every service runs in."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from libs.host import process
from libs.host.parts import Parts
from libs.host.settings import CommonSettings
from libs.runtime.lifecycle import Health
from tests.integration.relay import Relay
from tools.stack import Stack, StackInfo
from tools.stack.ports import choose

pytestmark = pytest.mark.real

LIMIT_S = 2.0


class Idle:
    name = "idle"

    async def serve(self, stop: asyncio.Event) -> None:
        await stop.wait()

    def health(self) -> Health:
        return Health(ready=True)


class Server:
    """The service's /healthz and /readyz."""

    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._session = session

    async def says(self, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
        async with self._session.get(self._url + path) as answer:
            return answer.status, await answer.json()

    async def until(self, fits: Callable[[int, dict[str, Any]], bool], within_s: float) -> tuple[float, dict[str, Any]]:
        began = time.monotonic()
        said: tuple[int, dict[str, Any]] = 0, {}
        while time.monotonic() - began < within_s:
            try:
                said = await self.says()
            except aiohttp.ClientConnectionError:
                pass  # not there yet
            else:
                if fits(*said):
                    return time.monotonic() - began, said[1]["detail"]
            await asyncio.sleep(0.05)
        raise AssertionError(f"not within {within_s:g} s: {said}")


@asynccontextmanager
async def idle(redis_url: str, kubeconfig: Path) -> AsyncIterator[Server]:
    port = choose(["http"])["http"]
    settings = CommonSettings(
        redis_url=redis_url, kubeconfig=str(kubeconfig), http_port=port, unready_after_s=LIMIT_S, stop_s=10.0
    )

    def build(_settings: CommonSettings, _parts: Parts) -> Idle:
        return Idle()

    serving = asyncio.create_task(process._serve("idle", settings, build, ("ledger", "kube")), name="idle service")
    try:
        async with aiohttp.ClientSession() as session:
            server = Server(port, session)
            await server.until(lambda status, _: status == 200, within_s=20.0)
            yield server
    finally:
        signal.raise_signal(signal.SIGTERM)
        assert await serving == 0


@pytest.fixture
def redis(tmp_path: Path) -> Stack:
    """A Redis of the test's own: the others need theirs."""
    stack = Stack(tmp_path / "redis", parts=("redis",))
    stack.up()
    return stack


@pytest.fixture
async def api(info: StackInfo, tmp_path: Path) -> AsyncIterator[tuple[Relay, Path]]:
    """The stack's API server behind a relay, and a kubeconfig that goes there."""
    config = yaml.safe_load(info.kubeconfig.read_text())
    (cluster,) = config["clusters"]
    address = cluster["cluster"]["server"].removeprefix("https://")
    async with Relay(address).serving() as relay:
        cluster["cluster"]["server"] = f"https://127.0.0.1:{relay.port}"
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        yield relay, path


async def test_an_idle_service_is_unready_while_redis_or_the_api_server_is_away_and_says_for_how_long(
    redis: Stack, api: tuple[Relay, Path]
) -> None:
    relay, kubeconfig = api
    try:
        async with idle(redis.info.redis_url, kubeconfig) as server:
            await asyncio.to_thread(redis.stop_part, "redis")
            took_s, detail = await server.until(lambda status, _: status == 503, within_s=3 * LIMIT_S)
            assert took_s >= LIMIT_S / 4, "one that only starts anew is waited for"
            assert detail["ledger"].startswith("no answer for ")
            assert "API server" not in detail
            assert (await server.says("/healthz"))[0] == 200, "a restart would not help"
            await asyncio.to_thread(redis.start_part, "redis")
            _, detail = await server.until(lambda status, _: status == 200, within_s=3 * LIMIT_S)
            assert "ledger" not in detail

            relay.mute(newcomers=True)  # it keeps its connections and says nothing
            _, detail = await server.until(lambda status, _: status == 503, within_s=3 * LIMIT_S + 3.0)
            assert detail["API server"].startswith("no answer for ")
            assert "ledger" not in detail
            relay.speak()
            await server.until(lambda status, _: status == 200, within_s=3 * LIMIT_S)
    finally:
        await asyncio.to_thread(redis.down)
