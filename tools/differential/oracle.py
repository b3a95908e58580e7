"""What the real kube-scheduler would do: an HTTP extender that is asked last, records the nodes and admits none.

The scheduler runs its own filters first and hands the nodes that passed to the extender, so what the extender receives
is the scheduler's feasible set; a pod for which no node passed never gets that far. Nothing is ever bound, so pods
that are asked about do not disturb each other, and nothing is evicted (postFilter plugins are off).
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import web

from tools.stack import Stack

PARTS = ("etcd", "apiserver", "scheduler")


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta


class _Asked(msgspec.Struct):
    pod: _Pod = msgspec.field(name="Pod")
    names: list[str] | None = msgspec.field(name="NodeNames", default=None)


_decode = msgspec.json.Decoder(_Asked).decode
_NONE = b'{"NodeNames":[],"FailedNodes":{}}'


class Extender:
    """`passed`: (namespace, name) of a pod -> the nodes that passed the scheduler's filters when it last asked."""

    def __init__(self) -> None:
        self.passed: dict[tuple[str, str], frozenset[str]] = {}
        self.calls = 0

    async def _filter(self, request: web.Request) -> web.Response:
        asked = _decode(await request.read())
        self.calls += 1
        self.passed[asked.pod.metadata.namespace, asked.pod.metadata.name] = frozenset(asked.names or ())
        return web.Response(body=_NONE, content_type="application/json")

    @asynccontextmanager
    async def serving(self, port: int) -> AsyncIterator[None]:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/filter", self._filter)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            yield
        finally:
            await runner.cleanup()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def stack(directory: Path, port: int) -> Stack:
    """API server, etcd and a scheduler that asks the extender on `port`. The scheduler's file is written at `up`."""
    config = directory / "differential-scheduler.yaml"
    directory.mkdir(parents=True, exist_ok=True)
    config.write_text(
        f"""\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: false
clientConnection:
  kubeconfig: {directory / "stack" / "kubeconfig" / "scheduler.yaml"}
  qps: 5000
  burst: 5000
percentageOfNodesToScore: 100
profiles:
- schedulerName: default-scheduler
  plugins:
    postFilter:
      disabled:
      - name: "*"
extenders:
- urlPrefix: http://127.0.0.1:{port}
  filterVerb: filter
  nodeCacheCapable: true
  weight: 1
  httpTimeout: 10s
""",
        encoding="utf-8",
    )
    return Stack(directory / "stack", parts=PARTS, extra_args={"scheduler": (f"--config={config}",)})
