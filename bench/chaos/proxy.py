"""A proxy before the API server that lies, dawdles and refuses when told to. Services talk to it, the harness does not.

Plain HTTP on loopback; the caller's token is passed on, so that every account keeps its own rights.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from libs.kube.identity import Identity
from tools.stack import StackInfo

_GONE = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
    b'"message":"too old resource version","reason":"Expired","code":410}}\n'
)
_PASSED = ("Authorization", "Content-Type", "Accept")


@dataclass(slots=True)
class Trouble:
    """What happens to requests now. Shares are of writes (bindings, creations, deletions, patches), 0 to 1."""

    refuse: int = 0  # status of the answer
    share: float = 0.0
    applied: float = 0.0  # of the refused: how many take effect nevertheless
    delay_s: float = 0.0  # a write waits so long at most before it is passed on
    late_s: float = 0.0  # its answer waits so long at most, the write being done
    reads: float = 0.0  # share of reads that are refused too (watches are left alone)
    cut: float = 0.0  # share of writes whose connection is lost after they were sent


class Proxy:
    def __init__(self, identity: Identity, rng: random.Random) -> None:
        self._identity = identity
        self._rng = rng
        self._watches: set[asyncio.Event] = set()
        self._session: aiohttp.ClientSession | None = None
        self._let_go = asyncio.Event()
        self._let_go.set()
        self._held_back: Callable[[str, str], bool] = lambda _method, _path: False
        self.trouble = Trouble()
        #: Lines of watches that never arrive, by the watch's path and the line.
        self.forget: Callable[[str, bytes], bool] | None = None
        self.url = ""
        self.caused = 0
        #: Requests that wait in here.
        self.held = 0

    def close_watches_as_too_old(self) -> None:
        for event in self._watches:
            event.set()

    def hold_back(self, which: Callable[[str, str], bool]) -> None:
        """Requests that fit (method, path) get no further than here until `let_go`, whoever sent them lives or not."""
        self._held_back = which
        self._let_go.clear()

    def let_go(self) -> None:
        self._held_back = lambda _method, _path: False
        self._let_go.set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address = runner.addresses[0]
        self.url = f"http://127.0.0.1:{address[1]}"
        connector = aiohttp.TCPConnector(limit=0, ssl=self._identity.tls or True)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        try:
            yield
        finally:
            self.let_go()
            self.close_watches_as_too_old()
            await self._session.close()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        trouble, body = self.trouble, await request.read()
        watching = request.query.get("watch") == "true"
        write = request.method != "GET" and "/leases/" not in request.path
        if write and trouble.delay_s:
            await asyncio.sleep(self._rng.uniform(0, trouble.delay_s))
        if self._held_back(request.method, request.path):
            self.held += 1
            await self._let_go.wait()
            self.held -= 1
        if write and trouble.refuse and self._rng.random() < trouble.share:
            self.caused += 1
            if self._rng.random() < trouble.applied:
                async with self._forward(request, body) as answer:
                    await answer.read()
            return _refused(trouble.refuse)
        if request.method == "GET" and not watching and trouble.reads and self._rng.random() < trouble.reads:
            self.caused += 1
            return _refused(trouble.refuse)
        try:
            async with self._forward(request, body) as answer:
                if watching and answer.status == 200:
                    return await self._stream(request, answer)
                content = await answer.read()
        except (aiohttp.ClientError, OSError):
            self._lose(request)
            return web.Response(status=503)
        if write and trouble.late_s:
            self.caused += 1
            await asyncio.sleep(self._rng.uniform(0, trouble.late_s))
        if write and trouble.cut and self._rng.random() < trouble.cut:
            self.caused += 1
            self._lose(request)
        kind = answer.headers.get("Content-Type", "application/json").partition(";")[0]
        return web.Response(status=answer.status, body=content, content_type=kind)

    def _lose(self, request: web.Request) -> None:
        """The connection ends without an answer."""
        if request.transport is not None:
            request.transport.abort()

    def _forward(self, request: web.Request, body: bytes) -> aiohttp.client._RequestContextManager:
        if self._session is None:
            raise RuntimeError("the proxy is not open")
        headers = {name: request.headers[name] for name in _PASSED if name in request.headers}
        headers["Accept-Encoding"] = "identity"
        return self._session.request(
            request.method,
            self._identity.server + request.path_qs,
            data=body or None,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        out = web.StreamResponse(status=200, headers={"Content-Type": "application/json"})
        await out.prepare(request)
        too_old = asyncio.Event()
        self._watches.add(too_old)
        ended = asyncio.create_task(too_old.wait(), name="watch to be closed")
        rest = b""
        try:
            while True:
                chunk = asyncio.create_task(answer.content.readany(), name="watch chunk")
                await asyncio.wait({chunk, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not chunk.done():
                    chunk.cancel()
                    await asyncio.gather(chunk, return_exceptions=True)
                    await out.write(_GONE)
                    return out
                content = chunk.result()
                if not content:
                    return out
                *lines, rest = (rest + content).split(b"\n")
                forget = self.forget
                kept = [line for line in lines if forget is None or not forget(request.path, line)]
                if kept:
                    await out.write(b"\n".join(kept) + b"\n")
        except (aiohttp.ClientError, OSError):
            return out
        finally:
            self._watches.discard(too_old)
            ended.cancel()


def _refused(status: int) -> web.Response:
    said = b'{"kind":"Status","status":"Failure","message":"chaos","code":%d}' % status
    return web.Response(status=status, body=said, content_type="application/json")


def leads_through(proxy: Proxy, info: StackInfo, directory: Path) -> Callable[[str], dict[str, str]]:
    """Settings that lead a service through the proxy, with its own account's token; files are made in `directory`."""

    def environment(service: str) -> dict[str, str]:
        target = directory / f"{service}.kubeconfig"
        if not target.exists():
            config = yaml.safe_load(info.kubeconfig_for(service).read_text())
            for cluster in config["clusters"]:
                cluster["cluster"] = {"server": proxy.url}
            target.write_text(yaml.safe_dump(config))
            target.chmod(0o600)
        return {"DRYSTONE_KUBECONFIG": str(target)}

    return environment
