"""/healthz, /readyz and /metrics of one process.

/healthz answers 200 while only waiting can help and 503 when only a restart can; /readyz answers 200 while work is
being taken. Both say why, as JSON. The server stays up during shutdown, so that an operator sees `stopping`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from aiohttp import web

from libs.observe import metrics
from libs.runtime.lifecycle import Health

_encode = msgspec.json.encode


class HealthServer:
    def __init__(self, name: str, health: Callable[[], Health], host: str = "127.0.0.1", port: int = 0) -> None:
        self._name = name
        self._health = health
        self._host, self._wanted = host, port
        self._runner: web.AppRunner | None = None
        #: The port in use, known after `start`.
        self.port = port

    async def start(self) -> None:
        """Raises OSError when the address is taken."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        self._runner = runner
        site = web.TCPSite(runner, self._host, self._wanted)
        try:
            await site.start()
        except OSError:
            await self.stop()
            raise
        self.port = runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _answer(self, good: bool, health: Health) -> web.Response:
        body = {"service": self._name, "ready": health.ready, "alive": health.alive, "detail": health.detail}
        return web.Response(status=200 if good else 503, body=_encode(body), content_type="application/json")

    async def _healthz(self, _request: web.Request) -> web.Response:
        health = self._health()
        return self._answer(health.alive, health)

    async def _readyz(self, _request: web.Request) -> web.Response:
        health = self._health()
        return self._answer(health.ready and health.alive, health)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
